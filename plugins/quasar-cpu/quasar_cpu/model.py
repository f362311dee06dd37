"""A whole decoder on the native kernels: one call a forward."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from quasar.core.cache import KVCache
from quasar.core.decoders import Decoder, DecoderLayer
from quasar.core.models import Block, EditableModel
from quasar_cpu.library import ACTIVATIONS, KINDS, PARTS, Call, Layer, Matrix, Model, Range, library
from quasar_cpu.linear import NativeLinear, address, refuse_unfit

_FIRST_POSITIONS = 1024
_PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
_NORMS = ("attention_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm", "q_norm", "k_norm")


class NativeModel:
    """Runs the blocks of a decoder of the Llama family; see ``LanguageModel``.

    The logits of a position are bit-identical in every block that holds it: alone, in a chain or tree of drafts, in a
    batch. Activations and logits are float32 whatever the weights are; keys and values are kept in the weights' dtype.

    Args:
        base: the same model behind torch, its linear layers replaced by ``layers``.
        decoder: its description.
        layers: every linear layer by name.

    Raises:
        UnsupportedModelError: NaN or infinity in the embedding or a norm.
    """

    def __init__(self, base: EditableModel, decoder: Decoder, layers: dict[str, NativeLinear]) -> None:
        self._base, self._decoder, self._linears = base, decoder, layers
        self.module = getattr(base, "module", None)  # tells what is multiplied from what is only looked up
        self.vocab_size, self.max_length, self.name = base.vocab_size, base.max_length, base.name
        self.dtype, self.device, self.num_layers = base.dtype, base.device, len(decoder.layers)
        self._norms: list[Tensor] = []
        self._ropes: dict[Callable[..., Any], tuple[Tensor, Tensor]] = {}
        self._layers = (Layer * self.num_layers)(*map(self._layer, range(self.num_layers), decoder.layers))
        embedding = decoder.embedding.contiguous()
        refuse_unfit("the embedding", embedding)
        self._embedding = embedding
        self._model = Model(
            layers=self._layers,
            embedding=Matrix(
                embedding.data_ptr(), None, None, *embedding.shape, embedding.shape[1], KINDS[embedding.dtype]
            ),
            head=layers[decoder.head.name].matrix,
            final_norm=self._keep("final_norm", decoder.final_norm),
            num_layers=self.num_layers,
            hidden=embedding.shape[1],
            heads=decoder.heads,
            kv_heads=decoder.kv_heads,
            head_dim=decoder.head_dim,
            intermediate=decoder.layers[0].gate.weight.shape[0],
            activation=ACTIVATIONS[decoder.activation],
            cache_kind=KINDS[self.dtype],
            norm_eps=decoder.norm_eps,
            attention_scale=decoder.attention_scale,
            embedding_scale=decoder.embedding_scale,
        )
        self._positions = 0
        self._addresses: WeakKeyDictionary[KVCache, tuple[tuple[int, range], tuple[Any, Any]]] = WeakKeyDictionary()
        self._seconds = (ctypes.c_double * len(PARTS))()
        self.timed = False

    def _keep(self, name: str, tensor: Tensor | None) -> int | None:
        if tensor is not None:
            refuse_unfit(name, tensor)
            tensor = tensor.float().contiguous()
            self._norms.append(tensor)
        return address(tensor)

    def _layer(self, index: int, layer: DecoderLayer) -> Any:
        matrices = {name: self._linears[getattr(layer, name).name].matrix for name in _PROJECTIONS}
        norms = {name: self._keep(f"{name} of layer {index}", getattr(layer, name)) for name in _NORMS}
        return Layer(**matrices, **norms, window=layer.window or 0)

    def _grow_ropes(self, positions: int) -> None:
        """Make the tables of angles long enough; layers that rotate alike share one."""
        if positions <= self._positions:
            return
        self._positions = max(_FIRST_POSITIONS, 2 * positions)
        if self.max_length is not None:
            self._positions = min(self._positions, max(self.max_length, positions))
        every = torch.arange(self._positions)
        self._ropes = {rope: rope(every) for rope in {layer.rope for layer in self._decoder.layers}}
        for struct, layer in zip(self._layers, self._decoder.layers, strict=True):
            struct.rope_cos, struct.rope_sin = map(address, self._ropes[layer.rope])

    @torch.inference_mode()
    def forward(self, block: Block, cache: KVCache) -> Tensor:
        """Run one block; returns float32 logits, see ``LanguageModel.forward``.

        Raises:
            IndexError: a token id outside the vocabulary, as torch's embedding says it.
        """
        logits = torch.empty((len(block.token_ids), block.num_logits, self.vocab_size))
        self._run(block, cache, range(self.num_layers), None, None, logits)
        return logits

    @torch.inference_mode()
    def forward_layers(
        self, block: Block, cache: KVCache, layers: range, states: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run some of the layers; the bits are those of a whole forward, see ``StagedModel.forward_layers``.

        Raises:
            IndexError: a token id outside the vocabulary, as torch's embedding says it.
        """
        logits = torch.empty((len(block.token_ids), block.num_logits, self.vocab_size))
        after = torch.empty((*block.token_ids.shape, self._embedding.shape[1]))
        self._run(block, cache, layers, None if states is None else states.contiguous(), after, logits)
        return after, logits

    def _run(
        self, block: Block, cache: KVCache, layers: range, before: Tensor | None, after: Tensor | None, logits: Tensor
    ) -> None:
        """Write the states after ``layers`` to ``after``, and what the head says of them to ``logits``."""
        batch, query = block.token_ids.shape
        self._grow_ropes(cache.capacity)
        keys, values = self._pointers(cache, layers)
        blocks = (block.token_ids, block.positions, block.offsets, block.visible, block.lengths)
        tensors = [tensor.contiguous() for tensor in blocks]
        call = Call(
            *map(address, tensors),
            keys=keys,
            values=values,
            logits=logits.data_ptr(),
            seconds=self._seconds if self.timed else None,
            batch=batch,
            query=query,
            num_logits=block.num_logits,
            capacity=cache.capacity,
            threads=torch.get_num_threads(),
            positions_held=self._positions,
        )
        some = Range(address(before), address(after), layers.start, layers.stop)
        if library().quasar_forward_layers(ctypes.byref(self._model), ctypes.byref(call), ctypes.byref(some)):
            ids, places = block.token_ids, block.positions
            raise IndexError(
                f"token ids of {int(ids.min())}..{int(ids.max())} in a vocabulary of {len(self._embedding)}, positions "
                f"of {int(places.min())}..{int(places.max())} in a cache of {cache.capacity}."
            )

    def _pointers(self, cache: KVCache, layers: range) -> tuple[Any, Any]:
        """Return where the keys and values of every layer lie; asked for again when the cache has grown."""
        known = self._addresses.get(cache)
        if known is None or known[0] != (cache.capacity, layers):
            decoder, pointers = self._decoder, ctypes.c_void_p * self.num_layers
            keys, values = pointers(), pointers()  # null for layers that are not run
            for layer in layers:
                pair = cache.stores(
                    layer, decoder.kv_heads, (decoder.head_dim, decoder.head_dim), self.dtype, self.device
                )
                keys[layer], values[layer] = map(address, pair)
            known = self._addresses[cache] = ((cache.capacity, layers), (keys, values))
        return known[1]

    def layer_states(self, token_ids: Tensor, given: Sequence[Tensor] | None = None) -> Sequence[Tensor]:
        """Return the hidden states round every decoder layer as torch computes them on the same linear layers."""
        return self._base.layer_states(token_ids, given)

    def timings(self) -> dict[str, float]:
        """Return seconds per part since the last call, and start over; measuring begins with the first call."""
        self.timed = True
        found = dict(zip(PARTS, self._seconds, strict=True))
        self._seconds = (ctypes.c_double * len(PARTS))()
        return found

    def storages(self) -> dict[int, int]:
        """Return the bytes of every tensor held, by the identity of its storage."""
        ropes = chain.from_iterable(self._ropes.values())
        own = [each.untyped_storage() for each in chain(self._norms, [self._embedding], ropes)]
        found = {storage.data_ptr(): storage.nbytes() for storage in own}
        for layer in self._linears.values():
            found |= layer.storages()
        return found
