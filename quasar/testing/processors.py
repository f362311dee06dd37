"""Logits processors that the conformance kit tries components with, and what they allow in a distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from quasar.core.context import Context, LogitsProcessor


class KeepLikely:
    """Processor: divide by a temperature and keep the ``count`` largest logits, exactly that many."""

    needs_prefix = False

    def __init__(self, temperature: float, count: int) -> None:
        self.temperature, self.count = temperature, count

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        """Return processed logits ``[n, vocab]``."""
        kept = logits.topk(self.count, dim=-1).indices
        return torch.full_like(logits, -torch.inf).scatter(-1, kept, logits.gather(-1, kept) / self.temperature)


class NoRepeat:
    """Processor: the next token differs from the one before it."""

    needs_prefix = True

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        """Return processed logits ``[n, vocab]``."""
        return logits.scatter(-1, prefix[:, -1:], -torch.inf)


SETTINGS: tuple[tuple[float, tuple[LogitsProcessor, ...]], ...] = (
    (1.0, ()),
    (0.0, ()),
    (0.6, (KeepLikely(temperature=0.6, count=2),)),
    (1.0, (NoRepeat(),)),
)
"""Temperature and processors that every component is tried with; the first is without any."""


def forbidden(context: Context, distributions: Tensor, before: Tensor) -> str | None:
    """Say what the processors of these requests do not allow in a distribution, if there is anything.

    Args:
        context: its rows have the same processors and the same temperature.
        distributions: ``[n, vocab]``, target's or draft's.
        before: the token before the place of each, ``[n]`` int64.
    """
    possible = distributions > 0
    if context.rows[0].sampling.temperature == 0 and bool((distributions.amax(dim=-1) < 1 - 1e-6).any()):
        return "at temperature 0 a distribution is not one-hot"
    for processor in context.rows[0].processors:
        if isinstance(processor, KeepLikely) and bool((possible.sum(dim=-1) > processor.count).any()):
            return f"under top-k {processor.count} a distribution gives probability to more tokens"
        if isinstance(processor, NoRepeat) and bool(possible.gather(1, before[:, None]).any()):
            return (
                "where no token may come twice in a row, a distribution gives probability to the token before its place"
            )
    return None


def are_distributions(values: Tensor) -> bool:
    """Whether ``[..., vocab]`` holds no negative entries and sums of 1."""
    return bool((values >= 0).all()) and bool(((values.sum(dim=-1) - 1).abs() < 1e-3).all())
