"""A running batch: its requests, and what every step did to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quasar.core import trees
from quasar.core.components import Drafter, Verifier
from quasar.core.context import Context
from quasar.core.errors import ContractError
from quasar.core.records import Generation, StepRecord
from quasar.core.requests import Request, RunningRequest
from quasar.core.rows import Row, TokenView
from quasar.core.stopping import NewTokens, StopRule
from quasar.core.streams import Streams
from quasar.core.types import Acceptance, Verification


class Batch:
    """The mutable side of a running batch; components see it through ``context``.

    Attributes:
        context: what components get.
        running: the requests; those that have ended stay.

    Args:
        requests: the texts to continue.
        verifier: says how long a text may get, and what it holds for these requests.
        eos_ids: ids that end a text.
        decode: ids to text, for stop strings.
        level: 0 for the outermost pipeline.
        coupled: drafts are drawn with the target's noise.
        drafter: says what it holds for these requests.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        verifier: Verifier,
        eos_ids: Sequence[int],
        decode: Callable[[Sequence[int]], str] | None,
        level: int,
        coupled: bool = False,
        drafter: Drafter | None = None,
    ) -> None:
        self._verifier, self._drafter = verifier, drafter
        max_length = verifier.max_length()
        self.running = [
            RunningRequest(r, StopRule(r.sampling, eos_ids, len(r.prompt_token_ids), max_length, decode))
            for r in requests
        ]
        self._columns, self._layers = 0, 0
        rows = tuple(
            Row(TokenView(own.token_ids), own.prompt_length, r.prompt_id, r.sample_index, r.sampling, r.processors)
            for own, r in zip(self.running, requests, strict=True)
        )
        streams = Streams([(r.sampling.seed, r.prompt_id, r.sample_index) for r in requests])
        self.context = Context(rows, streams, level, coupled, tuple(eos_ids))

    def go_on_from(self, previous: Context) -> None:
        """Take over what the verifier holds of an earlier batch, so that a common beginning is not forwarded again."""
        self.context.adopt(previous, self._verifier)
        self._columns, self._layers = self._forwarded()

    def begin_with(self, verification: Verification) -> None:
        """Note what the verifier says of the prompts, in a step that commits nothing and is not recorded."""
        self.context.verification = verification
        self._columns, self._layers = self._forwarded()

    @property
    def finished(self) -> bool:
        """Whether every request has ended."""
        return all(request.finish_reason for request in self.running)

    def budget(self) -> tuple[int, ...]:
        """Longest useful draft per row."""
        return tuple(request.budget for request in self.running)

    def commit(self, verification: Verification, acceptance: Acceptance, acceptor: str) -> list[NewTokens]:
        """Append what was accepted, as far as the stop rules let it.

        Args:
            verification: of this step; components see it in the next one.
            acceptance: of this step.
            acceptor: name of the component that returned it.

        Returns:
            What was appended to every request that was still running.

        Raises:
            ContractError: the acceptance is not a path of the draft.
        """
        self.context.verification = verification
        drafted = verification.draft.rows
        paths, counts, last = acceptance.path.tolist(), acceptance.num_accepted.tolist(), acceptance.next_token.tolist()
        commits = []
        for row, request in enumerate(self.running):
            if request.finish_reason is not None:
                continue
            if not 0 <= counts[row] <= len(paths[row]):
                raise ContractError(
                    f"acceptor '{acceptor}' accepted {counts[row]} tokens on a path of {len(paths[row])}."
                )
            path = paths[row][: counts[row]]
            new = [drafted[row][0][slot - 1] for slot in path] + [last[row]]
            commits.append(request.commit(NewTokens(row, new, [0, *path], verification)))
        return commits

    def record(
        self,
        acceptance: Acceptance,
        commits: Sequence[NewTokens],
        is_prefill: bool,
        seconds: tuple[float, float, float],
    ) -> list[StepRecord]:
        """Write the step down: counts of what was committed, not of what might have been.

        Args:
            acceptance: of this step.
            commits: what ``commit`` returned.
            is_prefill: whether the step read the prompt.
            seconds: of drafting, verifying, and accepting with committing.

        Returns:
            The records of pipelines inside the drafter, then the step's own, one for each request; nothing on an inner
            level, which leaves its records with the outermost pipeline.
        """
        verification = self.context.verification
        assert verification is not None
        draft, level = verification.draft, self.context.level
        depths, accepted = trees.longest_paths(draft), acceptance.num_accepted.tolist()
        columns, layers = self._forwarded()
        written = []
        for new in commits:
            row, committed = new.row, len(new.token_ids)
            nodes = len(draft.rows[row][0])
            counts = (nodes, depths[row], min(accepted[row], committed), committed)
            step = StepRecord(is_prefill, *counts, columns - self._columns, *seconds, level, layers - self._layers)
            written.append((row, step))
        self._columns, self._layers = columns, layers
        inner = self.context.inner_steps
        if level:
            inner += written
            return []
        for row, step in inner:
            self.running[row].inner_steps.append(step)
        for row, step in written:
            self.running[row].steps.append(step)
        records = [step for _, step in (*inner, *written)]
        inner.clear()
        return records

    def generations(self) -> list[Generation]:
        """Return what became of every request."""
        held = self._verifier.peak_bytes(self.context)
        held += 0 if self._drafter is None else self._drafter.peak_bytes(self.context)
        return [request.generation(held) for request in self.running]

    def _forwarded(self) -> tuple[int, int]:
        """Return the columns and layers that the verifier has run so far."""
        return self._verifier.positions_forwarded(self.context), self._verifier.layers_forwarded(self.context)
