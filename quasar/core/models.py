"""What a component can ask of the models: one interface, so that nothing above it knows transformers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from quasar.core.cache import KVCache
from quasar.core.decoders import Decoder, LinearLayer
from quasar.core.description import Description

Dtype = Literal["auto", "bfloat16", "float16", "float32", "float64"]
"""What an option ``dtype`` may say; ``auto`` is the checkpoint's own."""


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
class ChannelGroup:
    """Channels written in one place and read by linear layers only: scaled there and unscaled here, nothing changes.

    Attributes:
        readers: names of the linear layers that read them.
        sources: which written channel each input channel of the readers carries, ``[in_features]`` int64. Query heads
            that share a value head carry the same ones.
        scale: multiplies the written channels by factors ``[written]``, in this copy of the model only: tensors are
            replaced, not changed. Returns the factors that were applied, ``[written]``: those of a norm are what its
            dtype can hold.
    """

    readers: tuple[str, ...]
    sources: Tensor
    scale: Callable[[Tensor], Tensor]


class LanguageModel(Protocol):
    """A decoder that runs blocks over a cache of ours."""

    vocab_size: int
    max_length: int | None
    dtype: torch.dtype
    device: torch.device
    name: str
    num_layers: int

    def forward(self, block: Block, cache: KVCache) -> Tensor:
        """Run one block; returns logits of its last ``num_logits`` columns, ``[batch, num_logits, vocab]``."""
        ...

    def storages(self) -> dict[int, int]:
        """Return the bytes of every weight and buffer by the identity of its storage, so that sharing is seen."""
        ...


class EditableModel(LanguageModel, Protocol):
    """A ``LanguageModel`` whose parts can be looked at and replaced: what models are loaded as.

    Whoever only runs blocks asks for a ``LanguageModel``, so a backend need not answer for layers that it has taken
    apart.
    """

    def sharing_copy(self) -> EditableModel:
        """Return a model with modules of its own over the same tensors: replacing a layer in it changes no other."""
        ...

    def linear_layers(self) -> Iterator[LinearLayer]:
        """Iterate over the linear layers of the decoder and its head."""
        ...

    def channel_groups(self) -> Sequence[ChannelGroup]:
        """Return the inputs of the decoder's linear layers that can be scaled; call it on a ``sharing_copy``.

        Raises:
            UnsupportedModelError: the model is of a family whose inputs are not known.
        """
        ...

    def decoder(self) -> Decoder:
        """Describe a decoder of the Llama family to backends that run it themselves.

        Raises:
            UnsupportedModelError: the model is of another family; the text says what is not known.
        """
        ...

    def without_layers(self, dropped: Collection[int]) -> EditableModel:
        """Return a model over the same tensors that lacks these decoder layers, numbered from 0."""
        ...

    def layer_states(self, token_ids: Tensor, given: Sequence[Tensor] | None = None) -> Sequence[Tensor]:
        """Return the hidden states before every decoder layer and after the last, of whole texts ``[batch, tokens]``.

        With ``given``, one input for each layer, a layer reads that instead of what the layer before it wrote, and the
        states after the first are what the layers wrote. Each is ``[batch, tokens, hidden]``; there are
        ``num_layers + 1`` of them.
        """
        ...


class StagedModel(LanguageModel, Protocol):
    """A ``LanguageModel`` that can be run in stages: layers [0, e) and then [e, n) are a forward."""

    def forward_layers(
        self, block: Block, cache: KVCache, layers: range, states: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run some of the layers over one block.

        Args:
            block: as for ``forward``; ``num_logits`` may be 0, and then the head is not run.
            cache: holds these layers' earlier entries; theirs only are written.
            layers: consecutive ones.
            states: hidden states before the first of them, ``[batch, query, hidden]``; ``None`` for the embeddings, if
                that is layer 0.

        Returns:
            The hidden states after the last of them, ``[batch, query, hidden]``, and what the final norm and the head
            make of the last ``num_logits`` columns, ``[batch, num_logits, vocab]``.

        Raises:
            UnsupportedModelError: the layers are not a plain stack.
        """
        ...


def describe(model: LanguageModel) -> Description:
    """Return dtype, device and bytes of weights, for reports."""
    return Description(
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        weight_bytes=sum(model.storages().values()),
    )
