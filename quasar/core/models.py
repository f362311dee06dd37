"""What a component can ask of the models: one interface, so that nothing above it knows transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from quasar.core.cache import KVCache

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Block:
    """What one forward sees; a chain, a tree and a set of parallel prefixes differ in ``visible`` only.

    The cache of a row holds ``lengths`` tokens before the block. Column ``c`` of the block is written to cache entry
    ``lengths + offsets[c]``, so every row's new entries are contiguous even where rows have different lengths.

    Attributes:
        token_ids: ``[batch, query]`` int64.
        positions: position of each token in its sequence, ``[batch, query]`` int64.
        offsets: where in the row's new cache entries a column is written, a permutation of 0..query-1,
            ``[batch, query]`` int64.
        visible: ``visible[b, i, j]`` says that query column ``i`` attends to new cache entry ``j``,
            ``[batch, query, query]`` bool. Every column attends to the ``lengths`` earlier entries as well.
        lengths: ``[batch]`` int64.
        num_logits: logits are wanted for the last ``num_logits`` columns.
    """

    token_ids: Tensor
    positions: Tensor
    offsets: Tensor
    visible: Tensor
    lengths: Tensor
    num_logits: int


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """One matrix product of a decoder, however the model spells it.

    Attributes:
        name: dotted path in the model.
        weight: ``[out_features, in_features]``; a view where the model stores it transposed (GPT-2's Conv1D).
        bias: ``[out_features]`` or ``None``.
        replace: puts another module in its place; other copies of the model are not touched.
        is_head: the projection to the vocabulary.
    """

    name: str
    weight: Tensor
    bias: Tensor | None
    replace: Callable[[nn.Module], None]
    is_head: bool


class LanguageModel(Protocol):
    """A decoder that runs blocks over a cache of ours."""

    vocab_size: int
    max_length: int | None
    dtype: torch.dtype
    device: torch.device
    name: str

    def forward(self, block: Block, cache: KVCache) -> Tensor:
        """Run one block; returns logits of its last ``num_logits`` columns, ``[batch, num_logits, vocab]``."""
        ...

    def sharing_copy(self) -> LanguageModel:
        """Return a model with modules of its own over the same tensors: replacing a layer in it changes no other."""
        ...

    def linear_layers(self) -> Iterator[LinearLayer]:
        """Iterate over the linear layers of the decoder and its head."""
        ...

    def storages(self) -> dict[int, int]:
        """Return the bytes of every weight and buffer by the identity of its storage, so that sharing is seen."""
        ...


class ModelProvider(Protocol):
    """Hands out models; the same model in the same precision is loaded once."""

    def target(self, dtype: str = "auto") -> LanguageModel:
        """Return the pipeline's target model in ``dtype`` (``auto`` is the checkpoint's)."""
        ...

    def derived(self, key: str, make: Callable[[], Made]) -> Made:
        """Return what ``make`` made under ``key``, made once: two arms with one precision share a model."""
        ...
