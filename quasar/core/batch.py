"""A running batch: what is committed, when each request ends, and what every step did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from quasar.core import trees
from quasar.core.components import Drafter, Verifier
from quasar.core.context import Context
from quasar.core.errors import CapacityError, ConfigError, ContractError
from quasar.core.records import Generation, StepRecord
from quasar.core.rows import LogitsProcessor, Row, TokenView
from quasar.core.sampling import SamplingParams
from quasar.core.stopping import StopRule
from quasar.core.streams import Streams
from quasar.core.types import Acceptance, Verification

Commit = tuple[int, list[int]]
"""A row, and the ids that are final by now."""


@dataclass(frozen=True, slots=True)
class Request:
    """One text to continue.

    Attributes:
        prompt_token_ids: at least one id.
        sampling: the request's parameters.
        prompt_id: names the prompt in the random streams.
        sample_index: which of several samples of it.
        processors: logits processors, already built from ``sampling``.
    """

    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    prompt_id: str = ""
    sample_index: int = 0
    processors: tuple[LogitsProcessor, ...] = ()


class Batch:
    """The mutable side of a running batch; components see it through ``context``.

    Attributes:
        context: what components get.

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
        self._ids = [list(request.prompt_token_ids) for request in requests]
        self._prompts = [len(ids) for ids in self._ids]
        self._rules = [
            StopRule(request.sampling, eos_ids, length, max_length, decode)
            for request, length in zip(requests, self._prompts, strict=True)
        ]
        self._reasons: list[str | None] = [None] * len(requests)
        self._records: list[list[StepRecord]] = [[] for _ in requests]
        self._inner: list[list[StepRecord]] = [[] for _ in requests]
        self._logprobs: list[list[float] | None] = [[] if r.sampling.logprobs else None for r in requests]
        self._columns, self._layers = 0, 0
        rows = tuple(
            Row(TokenView(ids), len(ids), r.prompt_id, r.sample_index, r.sampling, r.processors)
            for ids, r in zip(self._ids, requests, strict=True)
        )
        streams = Streams([(r.sampling.seed, r.prompt_id, r.sample_index) for r in requests])
        self.context = Context(rows, streams, level, coupled, tuple(eos_ids))

    def go_on_from(self, previous: Context) -> None:
        """Take over what the verifier holds of an earlier batch, so that a common beginning is not forwarded again."""
        self.context.adopt(previous, self._verifier)
        self._columns = self._verifier.positions_forwarded(self.context)
        self._layers = self._verifier.layers_forwarded(self.context)

    def begin_with(self, verification: Verification) -> None:
        """Note what the verifier says of the prompts, in a step that commits nothing and is not recorded."""
        self.context.verification = verification
        self._columns = self._verifier.positions_forwarded(self.context)
        self._layers = self._verifier.layers_forwarded(self.context)

    @property
    def finished(self) -> bool:
        """Whether every request has ended."""
        return all(self._reasons)

    def budget(self) -> tuple[int, ...]:
        """Longest useful draft per row: one place of what is left belongs to the correction or bonus token."""
        return tuple(
            0 if reason else rule.limit - (len(ids) - prompt) - 1
            for reason, rule, ids, prompt in zip(self._reasons, self._rules, self._ids, self._prompts, strict=True)
        )

    def commit(self, verification: Verification, acceptance: Acceptance, acceptor: str) -> list[Commit]:
        """Append what was accepted, as far as the stop rules let it.

        Args:
            verification: of this step; components see it in the next one.
            acceptance: of this step.
            acceptor: name of the component that returned it.

        Raises:
            ContractError: the acceptance is not a path of the draft.
        """
        self.context.verification = verification
        drafted = verification.draft.rows
        paths, counts, last = acceptance.path.tolist(), acceptance.num_accepted.tolist(), acceptance.next_token.tolist()
        commits = []
        for row in [row for row, reason in enumerate(self._reasons) if reason is None]:
            if not 0 <= counts[row] <= len(paths[row]):
                raise ContractError(
                    f"acceptor '{acceptor}' accepted {counts[row]} tokens on a path of {len(paths[row])}."
                )
            path = paths[row][: counts[row]]
            new = [drafted[row][0][slot - 1] for slot in path] + [last[row]]
            keep, self._reasons[row] = self._rules[row].cut(self._ids[row][self._prompts[row] :], new)
            self._ids[row].extend(new[:keep])
            found = self._logprobs[row]
            if found is not None:
                found += _log_probabilities(verification, row, [0, *path][:keep], new[:keep])
            commits.append((row, new[:keep]))
        return commits

    def record(
        self,
        acceptance: Acceptance,
        commits: Sequence[Commit],
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
            The records of pipelines inside the drafter, then the step's own; nothing on an inner level, which leaves
            its records with the outermost pipeline.
        """
        verification = self.context.verification
        assert verification is not None
        batch, draft = self.context.batch, verification.draft
        depths, nodes = trees.longest_paths(draft), [len(tokens) for tokens, _ in draft.rows]
        counts = acceptance.num_accepted.tolist()
        kept = {row: len(ids) for row, ids in commits}
        columns, layers = (
            self._verifier.positions_forwarded(self.context),
            self._verifier.layers_forwarded(self.context),
        )
        record = StepRecord(
            is_prefill,
            tuple(nodes[row] if row in kept else 0 for row in range(batch)),
            tuple(depths[row] if row in kept else 0 for row in range(batch)),
            tuple(min(counts[row], kept.get(row, 0)) for row in range(batch)),
            tuple(kept.get(row, 0) for row in range(batch)),
            columns - self._columns,
            *seconds,
            self.context.level,
            layers - self._layers,
        )
        self._columns, self._layers = columns, layers
        inner = self.context.inner_steps
        if self.context.level:
            inner.append((record, tuple(kept)))
            return []
        for row in kept:
            self._records[row].append(record.of_row(row))
        for step, rows in inner:
            for row in rows:
                self._inner[row].append(step.of_row(row))
        records = [*(step for step, _ in inner), record]
        inner.clear()
        return records

    def generations(self) -> list[Generation]:
        """Return what became of every request."""
        held = self._verifier.peak_bytes(self.context)
        held += 0 if self._drafter is None else self._drafter.peak_bytes(self.context)
        return [
            Generation(
                tuple(ids[prompt:]),
                str(reason),
                tuple(records),
                held,
                None if found is None else tuple(found),
                tuple(inner),
            )
            for ids, prompt, reason, records, found, inner in zip(
                self._ids, self._prompts, self._reasons, self._records, self._logprobs, self._inner, strict=True
            )
        ]


def _log_probabilities(
    verification: Verification, row: int, slots: Sequence[int], tokens: Sequence[int]
) -> list[float]:
    """Log-probability of each token, given the slot that it follows; the model's own, before every processor."""
    logits = verification.logits[row] if verification.logits is not None else verification.probs[row].log()
    wanted = logits[list(slots)]  # [tokens, vocab]
    distributions = (wanted if wanted.dtype == torch.float64 else wanted.float()).log_softmax(dim=-1)
    found: list[float] = distributions[range(len(tokens)), list(tokens)].tolist()
    return found


def check_prompt(request: Request, max_length: int | None) -> None:
    """Refuse a prompt that cannot be continued.

    Raises:
        CapacityError: it leaves no room in the model.
        ConfigError: it is empty.
    """
    if not request.prompt_token_ids:
        raise ConfigError(f"prompt '{request.prompt_id}' has no tokens; give it at least one.")
    if max_length is not None and len(request.prompt_token_ids) >= max_length:
        raise CapacityError(
            f"prompt '{request.prompt_id}' has {len(request.prompt_token_ids)} tokens, and the model holds "
            f"{max_length} with at least one new one; shorten the prompt or take another model."
        )
