"""The loop: propose, verify, accept, commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quasar.core import trees
from quasar.core.components import Acceptor, Drafter, Verifier
from quasar.core.context import Context, LogitsProcessor, Row, TokenView
from quasar.core.errors import CapacityError, ConfigError, ContractError
from quasar.core.sampling import SamplingParams
from quasar.core.stopping import StopRule
from quasar.core.streams import Streams
from quasar.core.types import Acceptance, Draft, Generation, StepRecord, Verification

Listener = Callable[[int, list[int]], None]
"""Called with (row, committed ids) as soon as they are final."""


@dataclass(frozen=True, slots=True)
class Request:
    """One text to continue.

    Attributes:
        prompt_ids: at least one id.
        sampling: the request's parameters.
        prompt_id: names the prompt in the random streams.
        sample_index: which of several samples of it.
        processors: logits processors, already built from ``sampling``.
    """

    prompt_ids: Sequence[int]
    sampling: SamplingParams
    prompt_id: str = ""
    sample_index: int = 0
    processors: tuple[LogitsProcessor, ...] = ()


class Engine:
    """Composes one drafter, one verifier and one acceptor; knows none of them by name.

    Args:
        drafter: proposes.
        verifier: scores.
        acceptor: decides.
        eos_ids: ids that end a text.
        decode: ids to text, for stop strings.
        on_step: called with the record of every step.
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
        batch = _Batch(self, requests)
        while not batch.finished:
            started = self._clock()
            draft = self._propose(batch)
            proposed = self._clock()
            verification = self.verifier.verify(batch.context, draft)
            verified = self._clock()
            acceptance = self.acceptor.accept(verification, batch.context)
            seconds = (proposed - started, verified - proposed, verified)
            batch.commit(verification, acceptance, seconds, listener)
        return batch.generations()

    def _propose(self, batch: _Batch) -> Draft:
        if batch.context.verification is None:
            return Draft.empty(batch.context.batch)  # the prompt is read first; the token it yields is not drafted
        budget = batch.budget()
        draft = self.drafter.propose(batch.context, budget)
        trees.check_draft(draft, budget, self.verifier.vocab_size(), self.drafter.law, self.drafter.name)
        return draft


class _Batch:
    """The mutable side of a running batch; components see it through ``context``."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self._engine = engine
        max_length = engine.verifier.max_length()
        for request in requests:
            _check_prompt(request, max_length)
        self._ids = [list(request.prompt_ids) for request in requests]
        self._prompts = [len(ids) for ids in self._ids]
        self._rules = [
            StopRule(request.sampling, engine._eos_ids, length, max_length, engine._decode)
            for request, length in zip(requests, self._prompts, strict=True)
        ]
        self._reasons: list[str | None] = [None] * len(requests)
        self._records: list[list[StepRecord]] = [[] for _ in requests]
        self._columns = 0
        rows = tuple(
            Row(TokenView(ids), len(ids), r.prompt_id, r.sample_index, r.sampling, r.processors)
            for ids, r in zip(self._ids, requests, strict=True)
        )
        streams = Streams([(r.sampling.seed, r.prompt_id, r.sample_index) for r in requests])
        self.context = Context(rows, streams, engine._level)

    @property
    def finished(self) -> bool:
        return all(self._reasons)

    def budget(self) -> tuple[int, ...]:
        """Longest useful draft per row: one place of what is left belongs to the correction or bonus token."""
        return tuple(
            0 if reason else rule.limit - (len(ids) - prompt) - 1
            for reason, rule, ids, prompt in zip(self._reasons, self._rules, self._ids, self._prompts, strict=True)
        )

    def commit(
        self,
        verification: Verification,
        acceptance: Acceptance,
        seconds: tuple[float, float, float],
        listener: Listener | None,
    ) -> None:
        """Append what was accepted, as far as the stop rules let it, and write the step down."""
        engine, draft = self._engine, verification.draft
        is_prefill = self.context.verification is None
        paths, counts, last = acceptance.path.tolist(), acceptance.num_accepted.tolist(), acceptance.next_token.tolist()
        tokens, depths = draft.token_ids.tolist(), trees.longest_paths(draft)
        drafted, accepted, committed = [0] * len(counts), [0] * len(counts), [0] * len(counts)
        active = [row for row, reason in enumerate(self._reasons) if reason is None]
        for row in active:
            if not 0 <= counts[row] <= len(paths[row]):
                raise ContractError(
                    f"acceptor '{engine.acceptor.name}' accepted {counts[row]} tokens on a path of {len(paths[row])}."
                )
            new = [tokens[row][slot - 1] for slot in paths[row][: counts[row]]] + [last[row]]
            keep, reason = self._rules[row].cut(self._ids[row][self._prompts[row] :], new)
            self._ids[row].extend(new[:keep])
            self._reasons[row] = reason
            drafted[row], committed[row] = int(draft.num_nodes[row]), keep
            accepted[row] = min(counts[row], keep)
            if listener is not None:
                listener(row, new[:keep])
        self.context.verification = verification
        columns = engine.verifier.rows_forwarded(self.context)
        draft_seconds, verify_seconds, verified = seconds
        record = StepRecord(
            is_prefill, tuple(drafted), tuple(depths), tuple(accepted), tuple(committed), columns - self._columns,
            draft_seconds, verify_seconds, engine._clock() - verified, engine._level,
        )  # fmt: skip
        self._columns = columns
        for row in active:
            self._records[row].append(_of_row(record, row))
        if engine._on_step is not None:
            engine._on_step(record)

    def generations(self) -> list[Generation]:
        held = self._engine.verifier.peak_bytes(self.context)
        return [
            Generation(tuple(ids[prompt:]), str(reason), tuple(records), held)
            for ids, prompt, reason, records in zip(
                self._ids, self._prompts, self._reasons, self._records, strict=True
            )
        ]


def _check_prompt(request: Request, max_length: int | None) -> None:
    if not request.prompt_ids:
        raise ConfigError(f"prompt '{request.prompt_id}' has no tokens; give it at least one.")
    if max_length is not None and len(request.prompt_ids) >= max_length:
        raise CapacityError(
            f"prompt '{request.prompt_id}' has {len(request.prompt_ids)} tokens, and the model holds {max_length} "
            "with at least one new one; shorten the prompt or take another model."
        )


def _of_row(record: StepRecord, row: int) -> StepRecord:
    """The part of a record that concerns one request."""
    if len(record.committed) == 1:
        return record
    return StepRecord(
        record.is_prefill, (record.drafted[row],), (record.depths[row],), (record.accepted[row],),
        (record.committed[row],), record.rows_forwarded, record.seconds_draft, record.seconds_verify, record.seconds_accept, record.level,
    )  # fmt: skip
