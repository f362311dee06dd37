"""Sampling parameters as transformers' own logits processors, wrapped so that each says whether it reads the prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from quasar.core.context import LogitsProcessor
from quasar.core.sampling import SamplingParams


class Wrapped:
    """A processor of transformers.

    Args:
        processor: called with ``(input_ids, scores)``.
        needs_prefix: whether it looks at ``input_ids``.
    """

    def __init__(self, processor: Any, needs_prefix: bool) -> None:
        self._processor, self.needs_prefix = processor, needs_prefix

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        """Return processed logits ``[n, vocab]``."""
        return self._processor(prefix, logits)  # type: ignore[no-any-return]


class MinNewTokens:
    """Forbids EOS while the output is shorter than ``minimum``; the length is that of the prefix it is shown.

    Own code because transformers' class counts from ``input_ids`` of one fixed call, not of each place in a block.
    """

    needs_prefix = True

    def __init__(self, prompt_length: int, minimum: int, eos_ids: Sequence[int]) -> None:
        self._until, self._eos_ids = prompt_length + minimum, list(eos_ids)

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        """Return logits with EOS at −inf where the output is too short."""
        if prefix.shape[1] >= self._until:
            return logits
        return logits.index_fill(1, torch.tensor(self._eos_ids, device=logits.device), -torch.inf)


def build_processors(params: SamplingParams, prompt_length: int, eos_ids: Sequence[int]) -> tuple[LogitsProcessor, ...]:
    """Return the processors of a request, in the order that transformers applies them.

    Args:
        params: the request's parameters; only those that differ from "off" make a processor.
        prompt_length: tokens of the prompt.
        eos_ids: ids that end a text.
    """
    found: list[LogitsProcessor] = []
    if params.repetition_penalty != 1.0:
        found.append(Wrapped(RepetitionPenaltyLogitsProcessor(params.repetition_penalty), needs_prefix=True))
    if params.min_new_tokens and eos_ids and not params.ignore_eos:
        found.append(MinNewTokens(prompt_length, params.min_new_tokens, eos_ids))
    if params.temperature > 0:
        if params.temperature != 1.0:
            found.append(Wrapped(TemperatureLogitsWarper(params.temperature), needs_prefix=False))
        if params.top_k:
            found.append(Wrapped(TopKLogitsWarper(params.top_k), needs_prefix=False))
        if params.top_p < 1.0:
            found.append(Wrapped(TopPLogitsWarper(params.top_p), needs_prefix=False))
        if params.min_p > 0:
            found.append(Wrapped(MinPLogitsWarper(params.min_p), needs_prefix=False))
    return tuple(found)
