"""The loop: propose, verify, accept, commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from quasar.core.batch import Batch
from quasar.core.components import Acceptor, Drafter, Verifier
from quasar.core.draft_contract import check_draft
from quasar.core.records import Generation, StepRecord
from quasar.core.requests import Request, check_prompt
from quasar.core.step_contract import check_acceptance, check_verification
from quasar.core.stopping import NewTokens
from quasar.core.types import Draft, Verification

__all__ = ["Engine", "Listener", "Request"]

Listener = Callable[[int, list[int]], None]
"""Called with (row, committed ids) as soon as they are final."""


class Engine:
    """Composes one drafter, one verifier and one acceptor; knows none of them by name.

    Args:
        drafter: proposes.
        verifier: scores.
        acceptor: decides.
        eos_ids: ids that end a text.
        decode: ids to text, for stop strings.
        on_step: called with the record of every step and request; those of pipelines inside the drafter come first.
        clock: seconds; on a device that runs ahead of the host, one that waits for it.
        level: 0 for the outermost pipeline.
    """

    def __init__(
        self,
        drafter: Drafter,
        verifier: Verifier,
        acceptor: Acceptor,
        *,
        eos_ids: Sequence[int] = (),
        decode: Callable[[Sequence[int]], str] | None = None,
        on_step: Callable[[StepRecord], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        level: int = 0,
    ) -> None:
        self.drafter, self.verifier, self.acceptor = drafter, verifier, acceptor
        self._eos_ids, self._decode, self._on_step, self._clock = eos_ids, decode, on_step, clock
        self._level = level

    def generate(self, requests: Sequence[Request], listener: Listener | None = None) -> list[Generation]:
        """Continue every request to its end.

        Args:
            requests: the batch; parameters may differ.
            listener: told about committed ids as they come.

        Raises:
            CapacityError: a prompt leaves no room in the model.
            ConfigError: a prompt is empty.
            ContractError: a component returned what its contract forbids.
        """
        batch = self.start(requests)
        while not batch.finished:
            for new in self.step(batch):
                if listener is not None:
                    listener(new.row, new.token_ids)
        return batch.generations()

    def start(self, requests: Sequence[Request]) -> Batch:
        """Return a batch to be stepped until it is ``finished``.

        Raises:
            CapacityError: a prompt leaves no room in the model.
            ConfigError: a prompt is empty.
        """
        for request in requests:
            check_prompt(request, self.verifier.max_length())
        couples = self.acceptor.couples
        return Batch(requests, self.verifier, self._eos_ids, self._decode, self._level, couples, self.drafter)

    def step(self, batch: Batch) -> list[NewTokens]:
        """Propose, verify, accept, commit; returns what was committed to every request that was still running."""
        is_prefill = batch.context.verification is None
        started = self._clock()
        draft = self._read(batch) if is_prefill else self._propose(batch)
        proposed = self._clock()
        verification = self._verify(batch, draft)
        verified = self._clock()
        acceptance = self.acceptor.accept(verification, batch.context)
        check_acceptance(acceptance, verification, self.acceptor.name)
        commits = batch.commit(verification, acceptance, self.acceptor.name)
        seconds = (proposed - started, verified - proposed, self._clock() - verified)
        for record in batch.record(acceptance, commits, is_prefill, seconds):
            if self._on_step is not None:
                self._on_step(record)
        return commits

    def prefill(self, batch: Batch) -> None:
        """Let drafter and verifier read the prompts without a token being drawn; the next step drafts at once."""
        batch.begin_with(self._verify(batch, self._read(batch)))

    def _read(self, batch: Batch) -> Draft:
        if any(batch.budget()):
            self.drafter.prefill(batch.context)
        return Draft.empty(batch.context.batch)

    def _propose(self, batch: Batch) -> Draft:
        budget = batch.budget()
        draft = self.drafter.propose(batch.context, budget)
        check_draft(draft, budget, self.verifier.vocab_size(), self.drafter.drafts_by, self.drafter.name)
        return draft

    def _verify(self, batch: Batch, draft: Draft) -> Verification:
        verification = self.verifier.verify(batch.context, draft)
        check_verification(verification, draft, self.verifier.vocab_size(), self.verifier.name)
        return verification
