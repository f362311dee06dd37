"""One text to continue: what was asked, and what has become of it so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quasar.core.errors import CapacityError, ConfigError
from quasar.core.records import Generation, StepRecord
from quasar.core.rows import LogitsProcessor
from quasar.core.sampling import SamplingParams
from quasar.core.stopping import NewTokens, StopRule


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


class RunningRequest:
    """A request while it runs.

    Attributes:
        token_ids: what is committed, prompt and output; always the same list, which components see through a view.
        prompt_length: how many of them were there at the beginning.
        rule: says how many tokens of a step are kept.
        finish_reason: why it has ended; ``None`` while it runs.
        steps: records of the steps in which it took part.
        inner_steps: records of pipelines inside the drafter.
        logprobs: of the new tokens; ``None`` unless the request asked for them.

    Args:
        request: what was asked.
        rule: as above.
    """

    def __init__(self, request: Request, rule: StopRule) -> None:
        self.token_ids: list[int] = []
        self.steps: list[StepRecord] = []
        self.inner_steps: list[StepRecord] = []
        self.logprobs: list[float] | None = [] if request.sampling.logprobs else None
        self.begin(request.prompt_token_ids, rule)

    def begin(self, prompt_token_ids: Sequence[int], rule: StopRule) -> None:
        """Start from a text; a pipeline inside a drafter does so at every step of the pipeline around it."""
        self.token_ids[:] = prompt_token_ids
        self.prompt_length, self.rule = len(prompt_token_ids), rule
        self.finish_reason: str | None = None if rule.limit > 0 else "length"

    @property
    def output(self) -> list[int]:
        """The new tokens."""
        return self.token_ids[self.prompt_length :]

    @property
    def budget(self) -> int:
        """Longest useful draft: one place of what is left belongs to the correction or bonus token."""
        return 0 if self.finish_reason else self.rule.limit - (len(self.token_ids) - self.prompt_length) - 1

    def commit(self, new: NewTokens) -> NewTokens:
        """Append what the rule keeps of the new tokens, and return that."""
        keep, self.finish_reason = self.rule.cut(self.output, new)
        kept = new.first(keep)
        self.token_ids += kept.token_ids
        if self.logprobs is not None:
            distributions = kept.logits().log_softmax(dim=-1)
            self.logprobs += distributions[range(keep), kept.token_ids].tolist()
        return kept

    def generation(self, peak_bytes: int) -> Generation:
        """Return what became of it.

        Args:
            peak_bytes: that the whole batch held beside weights.
        """
        return Generation(
            tuple(self.output),
            str(self.finish_reason),
            tuple(self.steps),
            peak_bytes,
            None if self.logprobs is None else tuple(self.logprobs),
            tuple(self.inner_steps),
        )
