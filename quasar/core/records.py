"""What is written down of a running batch: one record a step and request, and what became of each request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Host numbers of one step of one request, the raw material of every statistic.

    The requests of a batch take their steps together. Counts of tokens are each request's own; seconds, positions and
    layers are the whole step's and stand in the record of every request that took part. Add those up over the records
    of one request, not over the requests of a batch.

    Attributes:
        is_prefill: the step that read the prompt; neither it nor the token that it yields is counted in decode.
        drafted: draft nodes.
        depth: longest path of the draft, in nodes.
        accepted: accepted draft tokens that were committed, i.e. after the stop rule cut the block.
        committed: tokens committed, correction or bonus included.
        positions_forwarded: verifier columns that were computed, padding included, summed over the batch.
        seconds_draft: time in ``propose``, seconds.
        seconds_verify: time in ``verify``, seconds.
        seconds_accept: time in ``accept`` and in committing, seconds.
        level: 0 for the outermost pipeline; a pipeline used as a drafter counts from 1.
        layers_forwarded: decoder layers of the verifier's model that were run, summed over columns and the batch; those
            that drafting ran are included, and run once.
    """

    is_prefill: bool
    drafted: int
    depth: int
    accepted: int
    committed: int
    positions_forwarded: int
    seconds_draft: float
    seconds_verify: float
    seconds_accept: float
    level: int = 0
    layers_forwarded: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished request, and the counts that every report is made of.

    Attributes:
        token_ids: the new tokens, EOS included where the text ended with it.
        finish_reason: ``eos``, ``stop`` (a stop string), ``length`` (``max_new_tokens``) or ``capacity`` (the model's
            maximum length).
        steps: records of the steps in which this request took part, in order.
        peak_bytes: bytes that verifier and drafter held for the batch beside their weights.
        logprobs: natural log-probability of each new token under the verifier's model at temperature 1, before every
            processor; ``None`` unless the request asked for it.
        inner_steps: records of pipelines inside the drafter, in order; their ``level`` is 1 or more.
    """

    token_ids: tuple[int, ...]
    finish_reason: str
    steps: tuple[StepRecord, ...] = ()
    peak_bytes: int = 0
    logprobs: tuple[float, ...] | None = None
    inner_steps: tuple[StepRecord, ...] = ()

    @property
    def decode_steps(self) -> tuple[StepRecord, ...]:
        """The steps that count: all but prefill."""
        return tuple(step for step in self.steps if not step.is_prefill)

    @property
    def num_steps(self) -> int:
        """Verifier forwards in decode."""
        return len(self.decode_steps)

    @property
    def num_drafted(self) -> int:
        """Draft tokens in decode."""
        return sum(step.drafted for step in self.decode_steps)

    @property
    def num_accepted(self) -> int:
        """Draft tokens that were accepted and committed."""
        return sum(step.accepted for step in self.decode_steps)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens committed ÷ verifier forwards in decode, correction and bonus included; 1.0 for plain decoding."""
        committed = sum(step.committed for step in self.decode_steps)
        return committed / self.num_steps if self.num_steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted ÷ drafted; ``None`` if nothing was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None
