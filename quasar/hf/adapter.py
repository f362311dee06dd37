"""Drive an unmodified transformers decoder over our own cache, with any visibility between the tokens of a block."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from quasar.core.cache import KVCache
from quasar.core.decoders import Decoder, LinearLayer
from quasar.core.models import Block, ChannelGroup
from quasar.hf import layer_surgery as pruning
from quasar.hf.channels import read_channel_groups
from quasar.hf.layers import LayerRange
from quasar.hf.read_decoder import read_decoder


class _BlockCache(Cache):  # type: ignore[misc]
    """What the model sees of our cache during one block: an ``update`` that stores and returns what is visible."""

    def __init__(self, cache: KVCache, entries: Tensor | int, start: int, end: int) -> None:
        super().__init__(layers=[])
        self._cache, self._entries, self._start, self._end = cache, entries, start, end

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        return self._cache.write(layer_idx, key_states, value_states, self._entries, self._end)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._start


class HFModel:
    """A causal language model of transformers behind the ``EditableModel`` protocol.

    Sliding-window layers get a full cache and a window in their mask: their cache can then be rewound like any other.

    Attributes:
        name: what the user calls the model.
        vocab_size: size of the output layer, padding entries included.
        max_length: positions the model has, or ``None``.
        num_layers: decoder layers.

    Args:
        module: the loaded model, in evaluation mode.
        name: what errors and reports call it.
    """

    def __init__(self, module: PreTrainedModel, name: str) -> None:
        self.module, self.name = module.eval(), name
        self.config = module.config.get_text_config()
        head = module.get_output_embeddings()
        self.vocab_size: int = self.config.vocab_size if head is None else head.weight.shape[0]
        self.max_length: int | None = getattr(self.config, "max_position_embeddings", None)
        self.num_layers: int = self.config.num_hidden_layers
        self.dtype: torch.dtype = module.dtype
        self.device: torch.device = module.device
        self._cache_argument = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
        self._additive_mask = self.config._attn_implementation == "eager"
        self._windows = _windows(self.config)
        self._ranges: dict[range, LayerRange] = {}

    @torch.inference_mode()
    def forward(self, block: Block, cache: KVCache) -> Tensor:
        """Run one block; see ``LanguageModel.forward``."""
        outputs = self.module(**self._arguments(block, cache), logits_to_keep=block.num_logits)
        return outputs.logits  # type: ignore[no-any-return]  # [batch, num_logits, vocab]

    @torch.inference_mode()
    def forward_layers(
        self, block: Block, cache: KVCache, layers: range, states: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run some of the layers over one block; see ``StagedModel.forward_layers``."""
        if layers not in self._ranges:
            self._ranges[layers] = LayerRange(self.module, layers)
        return self._ranges[layers].run(states, block.num_logits, **self._arguments(block, cache))

    def _arguments(self, block: Block, cache: KVCache) -> dict[str, Any]:
        """Return what the model's forward is called with."""
        query = block.token_ids.shape[1]
        start = int(block.lengths.max())
        end = start + query
        alone = block.token_ids.shape[0] == 1
        entries = start if alone else (block.lengths[:, None] + block.offsets).to(self.device)
        return {
            "input_ids": block.token_ids.to(self.device),
            "position_ids": block.positions.to(self.device),
            "attention_mask": self._masks(block, end),
            "use_cache": True,
            self._cache_argument: _BlockCache(cache, entries, start, end),
        }

    def _masks(self, block: Block, end: int) -> Tensor | dict[str, Tensor]:
        """Expand a block's visibility to what the model's attention wants: one mask, or one per kind of layer."""
        batch, query = block.token_ids.shape
        lengths = block.lengths[:, None]
        new = lengths + torch.arange(query)  # [batch, query] cache entries that this block writes
        mask = (torch.arange(end) < lengths)[:, None, :].repeat(1, query, 1)  # [batch, query, end]
        mask.scatter_(2, new[:, None, :].expand(batch, query, query), block.visible)
        masks: dict[str, Tensor] = {}
        for kind, window in self._windows.items():
            seen = mask
            if window is not None:
                keys = torch.arange(end).repeat(batch, 1)
                keys.scatter_(1, lengths + block.offsets, block.positions)  # [batch, end] position of every entry
                seen = mask & (block.positions[:, :, None] - keys[:, None, :] < window)
            masks[kind] = self._finish(seen[:, None])
        return next(iter(masks.values())) if len(masks) == 1 else masks

    def _finish(self, mask: Tensor) -> Tensor:
        mask = mask.to(self.device)
        if not self._additive_mask:
            return mask
        return torch.zeros(mask.shape, dtype=self.dtype, device=self.device).masked_fill_(
            ~mask, torch.finfo(self.dtype).min
        )

    def sharing_copy(self) -> HFModel:
        """Return a model with modules of its own over the same tensors."""
        shared = {id(tensor): tensor for tensor in chain(self.module.parameters(), self.module.buffers())}
        return HFModel(copy.deepcopy(self.module, memo=dict(shared)), self.name)

    def without_layers(self, dropped: Collection[int]) -> HFModel:
        """Return a model over the same tensors that lacks these decoder layers."""
        module = self.sharing_copy().module
        pruning.drop_layers(module, dropped)
        return HFModel(module, self.name)

    def layer_states(self, token_ids: Tensor, given: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Return the hidden states round every decoder layer; see ``EditableModel.layer_states``."""
        return pruning.layer_states(self.module, token_ids, given)

    def linear_layers(self) -> Iterator[LinearLayer]:
        """Iterate over the matrix products of the decoder and its head."""
        head = self.module.get_output_embeddings()
        for name, layer in list(self.module.named_modules()):
            if isinstance(layer, nn.Linear):
                weight = layer.weight.detach()
            elif isinstance(layer, Conv1D):
                weight = layer.weight.detach().t()
            else:
                continue
            bias = None if layer.bias is None else layer.bias.detach()
            yield LinearLayer(name, weight, bias, self._replacer(name), layer is head)

    def channel_groups(self) -> list[ChannelGroup]:
        """Return the inputs that can be scaled; see ``EditableModel.channel_groups``."""
        return read_channel_groups(self.module)

    def decoder(self) -> Decoder:
        """Describe the model to backends that run it themselves; see ``EditableModel.decoder``."""
        return read_decoder(self.module, self._windows, {layer.name: layer for layer in self.linear_layers()})

    def _replacer(self, name: str) -> Any:
        parent_name, _, child = name.rpartition(".")
        parent = self.module.get_submodule(parent_name)
        return lambda new: setattr(parent, child, new)

    def storages(self) -> dict[int, int]:
        """Return bytes by storage; packed layers count what they say they hold."""
        found: dict[int, int] = {}
        for module in self.module.modules():
            held = getattr(module, "storage_bytes", None)
            if held is not None:
                found[id(module)] = held()
                continue
            for tensor in chain(module.parameters(recurse=False), module.buffers(recurse=False)):
                storage = tensor.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
        return found


def _windows(config: Any) -> dict[str, int | None]:
    """Return the window of every kind of attention layer; ``None`` is full attention."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds == {"full_attention", "sliding_attention"}:
        return {"full_attention": None, "sliding_attention": window}
    if kinds == {"full_attention"}:
        return {"full_attention": None}
    return {"all": window if getattr(config, "use_sliding_window", True) else None}
