"""Key-value cache: allocated once, one length per row, and the next write overwrites what was rejected."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_GROWTH = 64
_STATES = -1  # the key under which hidden states lie among the layers: they grow and move with them


class KVCache:
    """Keys and values of every layer, ``[batch, kv_heads, capacity, head_dim]`` each, made at a layer's first write.

    The cache knows no lengths: whoever owns it (a ``Session``) knows which entries are meant. Where a model is run in
    stages, it keeps the hidden states that a stage wrote as well, one for each entry.

    Args:
        batch: rows.
        capacity: entries per row to begin with; more are added when asked for.
    """

    def __init__(self, batch: int, capacity: int) -> None:
        self.batch, self.capacity = batch, capacity
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def reserve(self, capacity: int) -> None:
        """Make room for ``capacity`` entries per row, keeping what is there."""
        if capacity <= self.capacity:
            return
        self.capacity = -(-capacity * 5 // 4 // _GROWTH) * _GROWTH
        for layer, pair in self._layers.items():
            grown = tuple(old.new_zeros((*old.shape[:2], self.capacity, old.shape[3])) for old in pair)
            for new, old in zip(grown, pair, strict=True):
                new[:, :, : old.shape[2]] = old
            self._layers[layer] = (grown[0], grown[1])

    def write(self, layer: int, keys: Tensor, values: Tensor, entries: Tensor | int, end: int) -> tuple[Tensor, Tensor]:
        """Write new entries of a layer and return views of everything up to ``end``.

        Args:
            layer: layer number.
            keys: ``[batch, kv_heads, query, head_dim]``.
            values: the same shape, or with a head_dim of its own.
            entries: where each column goes, ``[batch, query]`` int64; an int says "contiguous from here" (one row).
            end: entries to return per row.

        Returns:
            Keys and values ``[batch, kv_heads, end, head_dim]``, views into the cache.
        """
        stored = self.stores(layer, keys.shape[1], (keys.shape[3], values.shape[3]), keys.dtype, keys.device)
        for store, new in zip(stored, (keys, values), strict=True):
            if isinstance(entries, int):
                store[:, :, entries : entries + new.shape[2]] = new
            else:
                rows = torch.arange(self.batch, device=new.device)[:, None]
                store[rows, :, entries] = new.transpose(1, 2)
        return stored[0][:, :, :end], stored[1][:, :, :end]

    def write_states(self, states: Tensor, entries: Tensor) -> None:
        """Keep hidden states ``[batch, query, hidden]`` of new entries, ``[batch, query]`` int64."""
        kept = states[:, None]  # [batch, 1, query, hidden], as the keys of one head
        self.write(_STATES, kept, kept[..., :0], entries, 0)

    def states(self) -> Tensor:
        """Return the hidden states of all entries, ``[batch, capacity, hidden]``; hidden is 0 if none were written."""
        if _STATES not in self._layers:
            return torch.empty((self.batch, self.capacity, 0))
        return self._layers[_STATES][0][:, 0]

    def stores(
        self, layer: int, kv_heads: int, head_dims: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return the whole keys and values of a layer, for whoever writes entries by itself; made at the first call.

        Args:
            layer: layer number.
            kv_heads: heads.
            head_dims: of keys and of values.
            dtype: of both.
            device: of both.

        Returns:
            Keys and values ``[batch, kv_heads, capacity, head_dim]``; ``reserve`` may replace them.
        """
        if layer not in self._layers:
            # Zeros, not empty: a masked entry still enters the arithmetic, and NaN times 0 is NaN.
            keys, values = (
                torch.zeros((self.batch, kv_heads, self.capacity, dim), dtype=dtype, device=device) for dim in head_dims
            )
            self._layers[layer] = (keys, values)
        return self._layers[layer]

    @torch.inference_mode()  # as the forward that wrote the entries: torch refuses in-place changes outside it
    def move(self, row: int, sources: Sequence[int], start: int) -> None:
        """Copy the entries ``sources`` of a row to ``start, start + 1, …``; free for entries that lie there already."""
        if list(sources) == list(range(start, start + len(sources))):
            return
        for pair in self._layers.values():
            for store in pair:
                index = torch.tensor(sources, device=store.device)
                store[row, :, start : start + len(sources)] = store[row].index_select(1, index)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(store.nbytes for pair in self._layers.values() for store in pair)
