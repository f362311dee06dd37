"""What a component can ask of the models: one interface, so that nothing above it knows transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from quasar.core.cache import KVCache
from quasar.core.types import Block

Made = TypeVar("Made")


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
