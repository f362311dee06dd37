"""Prompt lookup: what followed the last tokens when they occurred before, by every published rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from quasar.core.components import Drafter
from quasar.core.context import Context, Row
from quasar.core.types import Draft

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "vllm_v0": {"match": "first", "short": "pad"},
    "vllm_v1": {"match": "first", "prompt_lookup_min": 5, "prompt_lookup_max": 5},
    "transformers": {
        "match": "first", "prompt_lookup_max": 2, "num_speculative_tokens": 10,
        "cut_at_eos": True, "drop_forbidden": True,
    },
    "spec_bench": {"match": "first", "num_speculative_tokens": 10, "short": "require", "on_miss": "dummy"},
}  # fmt: skip
"""Published implementations as options; each differs from the defaults in these."""


_COMPARED = 3
"""Tokens at the end of what was indexed that are compared, to notice a text that was replaced."""


class NgramIndex:
    """How each n-gram of a growing text was continued, apart from its very end.

    Every token is indexed once, and of the occurrences that the same token follows only one is kept, so a lookup costs
    the same at 100 tokens and at 100,000, also where one candidate after another is turned down.

    Args:
        low: shortest n-gram.
        high: longest n-gram.
        match: ``first`` or ``last``, which of the occurrences with the same continuation is kept and who comes first.
        following: tokens that must follow an occurrence.
    """

    def __init__(self, low: int, high: int, match: str, following: int = 1) -> None:
        self._low, self._high, self._first, self._following = low, high, match == "first", following
        self._starts: dict[tuple[int, ...], dict[int, int]] = {}  # n-gram: {token after it: where that token stands}
        self._indexed = 0  # n-grams that end at or before this many tokens are in
        self._read, self._tail = 0, list[int]()

    def extend(self, ids: Sequence[int]) -> None:
        """Index the n-grams that have enough behind them by now; begin again if the text was replaced."""
        if ids[max(0, self._read - _COMPARED) : self._read] != self._tail:
            self._starts, self._indexed = {}, 0
        self._read, self._tail = len(ids), list(ids[-_COMPARED:])
        oldest = max(0, self._indexed + 1 - self._high)
        recent = ids[oldest:]
        for end in range(self._indexed + 1, len(ids) - self._following + 1):
            token = recent[end - oldest]
            for size in range(self._low, min(self._high, end) + 1):
                starts = self._starts.setdefault(tuple(recent[end - size - oldest : end - oldest]), {})
                if self._first:
                    starts.setdefault(token, end)
                else:
                    starts.pop(token, None)  # a dict keeps the order of insertion: the latest one goes to the end
                    starts[token] = end
            self._indexed = end

    def find(self, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield where earlier occurrences of the text's end are continued, and their length; the longest ones first."""
        tail = tuple(ids[-self._high :])
        for size in range(min(self._high, len(ids)), self._low - 1, -1):
            starts = self._starts.get(tail[len(tail) - size :], {}).values()
            for start in starts if self._first else reversed(starts):
                yield start, size


class Ngram(Drafter):
    """Prompt lookup decoding: copy what followed an earlier occurrence of the last n tokens.

    The longest n-gram that occurs earlier wins. ``preset`` selects a published implementation: ``vllm_v0`` is the path
    of the paper Quasar, ``vllm_v1``, ``transformers`` and ``spec_bench`` are what those projects do today; options
    given beside a preset beat it.

    Source: prompt lookup decoding (Saxena, 2023), and the projects that the presets are named for.
    """

    name = "ngram"
    drafts_by = "point_mass"
    matched = True

    class Config(Drafter.Config):
        """Options."""

        preset: Literal["vllm_v0", "vllm_v1", "transformers", "spec_bench"] | None = Field(
            None, description="Take the options of a published implementation."
        )
        num_speculative_tokens: int = Field(5, ge=1, le=256, description="Draft tokens a step.")
        prompt_lookup_min: int = Field(1, ge=1, le=64, description="Shortest n-gram to look for.")
        prompt_lookup_max: int = Field(3, ge=1, le=64, description="Longest n-gram to look for; tried first.")
        match: Literal["first", "last"] = Field("last", description="Which earlier occurrence is continued.")
        short: Literal["truncate", "pad", "require"] = Field(
            "truncate",
            description="Fewer tokens follow than wanted: draft those, pad with the last token, or look elsewhere.",
        )
        on_miss: Literal["skip", "dummy"] = Field("skip", description="Nothing found: no draft, or one dummy token.")
        dummy_token_id: int = Field(100, ge=0, description="The dummy.")
        cut_at_eos: bool = Field(False, description="Draft nothing from an EOS on.")
        drop_forbidden: bool = Field(False, description="Draft nothing from a token on that a processor forbids.")

        @model_validator(mode="before")
        @classmethod
        def _from_preset(cls, value: Any) -> Any:
            preset = value.get("preset") if isinstance(value, Mapping) else None
            return {**PRESETS[str(preset)], **value} if preset in PRESETS else value

        @model_validator(mode="after")
        def _ordered(self) -> Any:
            if self.prompt_lookup_min > self.prompt_lookup_max:
                raise ValueError(
                    f"prompt_lookup_min ({self.prompt_lookup_min}) must not exceed "
                    f"prompt_lookup_max ({self.prompt_lookup_max})"
                )
            return self

    config: Config

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return a chain per row, empty where nothing matches."""
        config = self.config
        indices = context.scratch(self, lambda: [self._index() for _ in context.rows])
        drafts: list[list[int]] = []
        matched: list[list[int]] = []
        for row, index, limit in zip(context.rows, indices, budget, strict=True):
            size = min(config.num_speculative_tokens, limit)
            found, seen = self._continue(row, index, size, context) if size > 0 else ([], [])
            drafts.append(found)
            matched.append(seen)
        return Draft.chains(drafts, matched=matched)

    def _index(self) -> NgramIndex:
        config = self.config
        following = config.num_speculative_tokens if config.short == "require" else 1
        return NgramIndex(config.prompt_lookup_min, config.prompt_lookup_max, config.match, following)

    def _continue(self, row: Row, index: NgramIndex, size: int, context: Context) -> tuple[list[int], list[int]]:
        """Return the draft, and how much was matched before each token: nothing before one that only fills up."""
        ids, config = row.token_ids, self.config
        index.extend(ids)
        allowed = _allowed(row, context) if config.drop_forbidden else list
        for start, length in index.find(ids):
            found = allowed(ids[start : start + size])
            if not found:
                continue
            matched = list(range(length, length + len(found)))
            if config.short == "pad":
                missing = size - len(found)
                found, matched = found + [ids[-1]] * missing, matched + [0] * missing
            if config.cut_at_eos:
                found = _before_eos(found, context.eos_ids)
            return found, matched[: len(found)]
        return ([config.dummy_token_id], [0]) if config.on_miss == "dummy" else ([], [])


def _before_eos(tokens: list[int], eos_ids: Sequence[int]) -> list[int]:
    """Cut at the first EOS."""
    return next((tokens[:place] for place, token in enumerate(tokens) if token in eos_ids), tokens)


def _allowed(row: Row, context: Context) -> Callable[[list[int]], list[int]]:
    """Return a function that cuts a draft at the first token that a processor forbids where it stands.

    Processors are asked with logits that are all equal, and once about a prefix: all candidates of a step begin at the
    same one.
    """
    processors = [processor for processor in row.processors if processor.needs_prefix]
    if not processors or context.verification is None:
        return list
    # On the target's device, because a processor may have put tables of its own there.
    flat = torch.ones_like(context.verification.probs[:1, 0])  # [1, vocab]

    @cache
    def forbidden(ahead: tuple[int, ...]) -> Tensor:
        logits = flat
        for processor in processors:
            logits = processor(torch.tensor([[*row.token_ids, *ahead]], device=flat.device), logits)
        return logits[0] <= torch.finfo(logits.dtype).min  # some processors write that instead of -inf

    def cut(tokens: list[int]) -> list[int]:
        banned = (place for place, token in enumerate(tokens) if forbidden(tuple(tokens[:place]))[token])
        return tokens[: next(banned, len(tokens))]

    return cut
