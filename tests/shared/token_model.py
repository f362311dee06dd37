"""A language model whose logits are a hash of the cache entries that it can see; no weights, no rounding.

The first layer stores tokens, the second what the first layer saw at each place, so that an entry which was computed
after other tokens than it now stands behind changes the logits as it would in a real model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from quasar.core.cache import KVCache
from quasar.core.decoders import LinearLayer
from quasar.core.models import Block, LanguageModel

VOCAB = 3
LONGEST = 200
_generator = torch.Generator().manual_seed(0)
_EMBEDDING = torch.randint(2**40, (VOCAB, LONGEST), generator=_generator)  # of a token at a position
_HEAD = torch.randint(1, 2**31, (VOCAB,), generator=_generator) | 1


def _scramble(x: Tensor) -> Tensor:
    """A number without pattern below 2**40."""
    x = (x ^ (x >> 17)) * 0x2545F4914F6CDD1D
    return ((x ^ (x >> 29)) * 0x1B873593CC9E2D51 >> 24) & (2**40 - 1)


def _logits(states: Tensor) -> Tensor:
    """Logits within 0..4 of states ``[...]``. ``[..., vocab]`` float64"""
    return _scramble(states[..., None] * _HEAD).double() * (4 / 2**40)


def logits_after(ids: Sequence[int]) -> Tensor:
    """What the model must say after ``ids``, without a cache. ``[vocab]``"""
    return _logits(states_after(ids).sum())


def exit_logits_after(ids: Sequence[int]) -> Tensor:
    """What its head says of the states after the first layer. ``[vocab]``"""
    return _logits(states_after(ids)[-1])


def states_after(ids: Sequence[int]) -> Tensor:
    """The states after the first layer, without a cache. ``[tokens]``"""
    return _scramble(_EMBEDDING[torch.tensor(ids, dtype=torch.int64), torch.arange(len(ids))].cumsum(dim=0))


class TokenModel(LanguageModel):
    """Implements ``LanguageModel`` over a real ``KVCache``.

    Attributes:
        blocks: every block that was forwarded.
    """

    vocab_size = VOCAB
    dtype = torch.float64
    device = torch.device("cpu")
    name = "tokens"
    num_layers = 2

    def __init__(self, max_length: int | None = None) -> None:
        self.max_length = max_length
        self.blocks: list[Block] = []

    def forward(self, block: Block, cache: KVCache) -> Tensor:
        return self.forward_layers(block, cache, range(2))[1]

    def forward_layers(
        self, block: Block, cache: KVCache, layers: range, states: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        self.blocks.append(block)
        assert ((block.token_ids >= 0) & (block.token_ids < VOCAB)).all(), "an embedding would be out of range"
        batch, query = block.token_ids.shape
        lengths = block.lengths[:, None]
        end = int(block.lengths.max()) + query
        new = torch.arange(end) - lengths  # [batch, end] place among the new entries
        inside = ((new >= 0) & (new < query))[:, None]
        visible = block.visible.gather(2, new.clamp(0, query - 1)[:, None].expand(batch, query, end))
        seen = (new < 0)[:, None] | (inside & visible)  # [batch, query, end]
        states = _EMBEDDING[block.token_ids, block.positions] if states is None else states[..., 0]
        for layer in layers:
            column = states[:, None, :, None]  # [batch, 1, query, 1]
            stored, _ = cache.write(layer, column, column, lengths + block.offsets, end)
            states = (seen * stored[:, 0, None, :, 0]).sum(dim=-1)
            states = _scramble(states) if layer == 0 else states
        return states[..., None], _logits(states)[:, query - block.num_logits :]

    def sharing_copy(self) -> LanguageModel:
        return self

    def linear_layers(self) -> Iterator[LinearLayer]:
        return iter(())

    def storages(self) -> dict[int, int]:
        return {}
