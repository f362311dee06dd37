"""Prompt lookup: what followed the last tokens when they occurred before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.types import Draft


class NgramIndex:
    """Where each n-gram of a growing text was seen first and last, apart from its end.

    Every token is indexed once, so a lookup costs the same at 100 tokens and at 100,000.

    Args:
        low: shortest n-gram.
        high: longest n-gram.
    """

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high
        self._first: dict[tuple[int, ...], int] = {}
        self._last: dict[tuple[int, ...], int] = {}
        self._indexed = 0  # n-grams that end at or before this many tokens are in

    def extend(self, ids: Sequence[int]) -> None:
        """Index the n-grams that have a token behind them by now; ``ids`` has only grown since the last call."""
        start = max(0, self._indexed + 1 - self._high)
        recent = ids[start:]
        for end in range(self._indexed + 1, len(ids)):  # the n-gram at the very end is the one that is looked up
            for size in range(self._low, min(self._high, end) + 1):
                key = tuple(recent[end - size - start : end - start])
                self._first.setdefault(key, end)
                self._last[key] = end
        self._indexed = max(self._indexed, len(ids) - 1)

    def find(self, ids: Sequence[int], match: str) -> int | None:
        """Return where the text continues after the longest earlier occurrence of its end, or ``None``."""
        seen = self._first if match == "first" else self._last
        tail = tuple(ids[-self._high :])
        for size in range(min(self._high, len(ids)), self._low - 1, -1):
            position = seen.get(tail[len(tail) - size :])
            if position is not None:
                return position
        return None


class Ngram(Drafter):
    """Prompt lookup decoding: copy what followed an earlier occurrence of the last n tokens.

    Source: prompt lookup decoding (Saxena, 2023) and vLLM's ``prompt_lookup_min`` / ``prompt_lookup_max``; the longest
    n-gram that occurs earlier wins. ``match: first, short: pad`` is the setting of the paper Quasar (vLLM's V0 worker).
    """

    name = "ngram"
    law = "point_mass"

    class Config(Drafter.Config):
        """Options."""

        num_speculative_tokens: int = Field(5, ge=1, le=256, description="Draft tokens a step.")
        prompt_lookup_min: int = Field(1, ge=1, le=64, description="Shortest n-gram to look for.")
        prompt_lookup_max: int = Field(3, ge=1, le=64, description="Longest n-gram to look for; tried first.")
        match: Literal["first", "last"] = Field("last", description="Which earlier occurrence is continued.")
        short: Literal["truncate", "pad"] = Field(
            "truncate", description="Fewer tokens follow than wanted: draft those, or pad by repeating the last token."
        )

        @model_validator(mode="after")
        def _ordered(self) -> Any:
            if self.prompt_lookup_min > self.prompt_lookup_max:
                raise ValueError(
                    f"prompt_lookup_min ({self.prompt_lookup_min}) must not exceed "
                    f"prompt_lookup_max ({self.prompt_lookup_max})"
                )
            return self

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return a chain per row, empty where nothing matches."""
        config = self.config
        indices = context.scratch(
            self, lambda: [NgramIndex(config.prompt_lookup_min, config.prompt_lookup_max) for _ in context.rows]
        )
        drafts = []
        for row, index, limit in zip(context.rows, indices, budget, strict=True):
            size = min(config.num_speculative_tokens, limit)
            drafts.append(self._continue(row.token_ids, index, size) if size > 0 else [])
        return Draft.chains(drafts)

    def _continue(self, ids: Sequence[int], index: NgramIndex, size: int) -> list[int]:
        index.extend(ids)
        start = index.find(ids, self.config.match)
        if start is None:
            return []
        found = list(ids[start : start + size])
        if self.config.short == "pad":
            found += [ids[-1]] * (size - len(found))
        return found
