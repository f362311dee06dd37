"""Routing: which arm serves a request, decided once a request by a policy that can be replaced."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quasar.core.context import Context
from quasar.core.description import Policy as PolicyReport
from quasar.core.errors import ConfigError
from quasar.core.providers import ModelProvider


class Policy(ABC):
    """Says which arm serves a request.

    Attributes:
        needs: names of the arms that it routes to; empty for any.
    """

    needs: Sequence[str] = ()

    @abstractmethod
    def choose(self, prompts: Sequence[str], arms: Sequence[str]) -> list[str]:
        """Return an arm for every prompt of a batch."""

    def learn(self, prompts: Sequence[str], chosen: Sequence[str], tokens: int, seconds: float) -> None:  # noqa: B027
        """Note that a step of these requests committed so many tokens in so many seconds."""

    def describe(self) -> PolicyReport | None:
        """Return what reports should say."""
        return None


@dataclass(slots=True)
class _Choice:
    prompts: list[str]
    arms: list[str]
    lengths: list[int] = field(default_factory=list)
    started: float | None = None


class Router:
    """Chooses an arm for each request at its first step, and tells the policy how fast the steps were.

    Args:
        policy: decides.
        arms: names of the arms.

    Raises:
        ConfigError: the policy routes to arms that are not there.
    """

    def __init__(self, policy: Policy, arms: Sequence[str]) -> None:
        self.policy, self._arms = policy, list(arms)
        missing = sorted(set(policy.needs) - set(arms))
        if missing:
            raise ConfigError(
                f"the policy routes to {', '.join(policy.needs)}, and there is no arm called {', '.join(missing)}; "
                f"there are {', '.join(arms)}."
            )

    def load(self, models: ModelProvider) -> None:
        """Look at the tokenizer: prompts are judged as text."""
        self._reader = PromptReader(models.tokenizer())

    def route(self, context: Context) -> list[str]:
        """Return the arm of every row; call it once a step."""

        def choose() -> _Choice:
            prompts = [self._reader.text(row.token_ids[: row.prompt_length]) for row in context.rows]
            return _Choice(prompts, self.policy.choose(prompts, self._arms))

        choice, now = context.scratch(self, choose), time.perf_counter()
        lengths = [len(row.token_ids) for row in context.rows]
        if choice.started is not None:
            tokens = sum(lengths) - sum(choice.lengths)
            self.policy.learn(choice.prompts, choice.arms, tokens, now - choice.started)
        # The prompt's own step takes as long as the prompt is, whatever the arm.
        choice.started, choice.lengths = (None if context.verification is None else now), lengths
        return choice.arms


class PromptReader:
    """Turns the ids of a prompt into the text that its author wrote: without special tokens and the chat template.

    Args:
        codec: the model's tokenizer.
    """

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self._before: list[int] = []
        self._after: list[int] = []
        if getattr(codec, "has_chat_template", False):
            one, other = (codec.render([{"role": "user", "content": text}]) for text in ("x", "7"))
            same = [a == b for a, b in zip(one, other, strict=False)]
            self._before = one[: same.index(False)]
            self._after = one[len(self._before) + 1 :]

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of a prompt; of a conversation, all that was said."""
        ids, start, end = list(ids), len(self._before), len(self._after)
        if end and ids[:start] == self._before and ids[-end:] == self._after:
            ids = ids[start : len(ids) - end]
        return str(self._codec.decode(ids, skip_special_tokens=True))
