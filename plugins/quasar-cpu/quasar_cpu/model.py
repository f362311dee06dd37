"""A whole decoder on the native kernels: one call a forward."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from quasar.core.cache import KVCache
from quasar.core.decoders import Decoder, DecoderLayer
from quasar.core.models import Block, LanguageModel
from quasar_cpu.library import ACTIVATIONS, KINDS, PARTS, Call, Layer, Matrix, Model, library
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

    def __init__(self, base: LanguageModel, decoder: Decoder, layers: dict[str, NativeLinear]) -> None:
        self._base, self._decoder, self._linears = base, decoder, layers
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
        self._seconds = (ctypes.c_double * len(PARTS))()
        self.timed = False

    def __getattr__(self, name: str) -> Any:
        """Leave to the model behind torch what it can answer as well: layers, copies, descriptions."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._base, name)

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
        batch, query = block.token_ids.shape
        smallest, largest = map(int, block.token_ids.aminmax())
        if smallest < 0 or largest >= len(self._embedding):
            raise IndexError(f"token ids of {smallest}..{largest} in a vocabulary of {len(self._embedding)}.")
        self._grow_ropes(int(block.positions.max()) + 1)
        decoder, count = self._decoder, self.num_layers
        shape = (decoder.kv_heads, (decoder.head_dim, decoder.head_dim), self.dtype, self.device)
        stores = [cache.stores(layer, *shape) for layer in range(count)]
        pointers = ctypes.c_void_p * count
        logits = torch.empty((batch, block.num_logits, self.vocab_size))
        blocks = (block.token_ids, block.positions, block.offsets, block.visible, block.lengths)
        tensors = [tensor.contiguous() for tensor in blocks]
        call = Call(
            *map(address, tensors),
            keys=pointers(*(keys.data_ptr() for keys, _ in stores)),
            values=pointers(*(values.data_ptr() for _, values in stores)),
            logits=logits.data_ptr(),
            seconds=self._seconds if self.timed else None,
            batch=batch,
            query=query,
            num_logits=block.num_logits,
            capacity=cache.capacity,
            threads=torch.get_num_threads(),
        )
        library().quasar_forward(ctypes.byref(self._model), ctypes.byref(call))
        return logits

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
