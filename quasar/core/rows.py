"""One request of a running batch, as components see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, overload

from torch import Tensor

from quasar.core.sampling import SamplingParams


class LogitsProcessor(Protocol):
    """A pure function of a prefix and the logits after it.

    ``needs_prefix`` is False for a processor that looks at the logits alone; those run once for all slots.
    """

    needs_prefix: bool

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        """Return processed logits ``[n, vocab]`` for prefixes ``[n, length]``."""
        ...


class TokenView(Sequence[int]):
    """A growing list of token ids that cannot be changed through this view; slices are new lists."""

    __slots__ = ("_ids",)

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._ids[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __repr__(self) -> str:
        return f"TokenView({self._ids})"


@dataclass(frozen=True, slots=True)
class Row:
    """One request of the batch.

    Attributes:
        token_ids: committed ids, prompt and output; the last one is slot 0 of the next draft.
        prompt_length: how many of them are the prompt.
        prompt_id: names the prompt; with the seed and ``sample_index`` it selects the random streams.
        sample_index: which of several samples of this prompt.
        sampling: the request's own parameters.
        processors: the logits processors that those parameters ask for, in order.
    """

    token_ids: TokenView
    prompt_length: int
    prompt_id: str
    sample_index: int
    sampling: SamplingParams
    processors: tuple[LogitsProcessor, ...] = ()
