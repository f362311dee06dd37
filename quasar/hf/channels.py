"""Where the inputs of a decoder's linear layers come from, in models of the Llama family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from quasar.core.models import ChannelGroup
from quasar.hf.read_decoder import GEMMA, refuse_other_families


def read_channel_groups(module: Any) -> list[ChannelGroup]:
    """Return four groups a layer: what q, k and v read, what o reads, what gate and up read, what down reads.

    Args:
        module: a causal language model of transformers, with modules of its own.

    Raises:
        UnsupportedModelError: another family.
    """
    config = module.config.get_text_config()
    refuse_other_families(config.model_type)
    gemma = config.model_type == GEMMA
    hidden = torch.arange(config.hidden_size)
    groups: list[ChannelGroup] = []
    for number, layer in enumerate(module.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        path = f"model.layers.{number}"
        mlp_norm = layer.pre_feedforward_layernorm if gemma else layer.post_attention_layernorm
        head_dim, shared = attention.head_dim, config.num_attention_heads // config.num_key_value_heads
        written = torch.arange(attention.v_proj.weight.shape[0]).view(-1, 1, head_dim)  # [kv_heads, 1, head_dim]
        for names, scale, sources in (
            (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), _norm(layer.input_layernorm, gemma), hidden),
            (("self_attn.o_proj",), _rows(attention, "v_proj"), written.expand(-1, shared, -1).reshape(-1)),
            (("mlp.gate_proj", "mlp.up_proj"), _norm(mlp_norm, gemma), hidden),
            (("mlp.down_proj",), _rows(mlp, "up_proj"), torch.arange(mlp.up_proj.weight.shape[0])),
        ):
            groups.append(ChannelGroup(tuple(f"{path}.{name}" for name in names), sources, scale))
    return groups


def _norm(norm: Any, gemma: bool) -> Callable[[Tensor], Tensor]:
    def scale(factors: Tensor) -> Tensor:
        weight, added = norm.weight.detach(), float(gemma)
        before = (
            weight.double() + added
        )  # Gemma multiplies by 1 + weight, in float32: such a weight loses nothing there
        kept = torch.promote_types(weight.dtype, torch.float32) if gemma else weight.dtype
        new = (before * factors.double() - added).to(kept)
        norm.weight = nn.Parameter(new, requires_grad=False)
        return torch.where(before == 0, 1.0, (new.double() + added) / before)

    return scale


def _rows(parent: Any, name: str) -> Callable[[Tensor], Tensor]:
    def scale(factors: Tensor) -> Tensor:
        linear = getattr(parent, name)  # looked up now: as a reader of another group it may have been replaced
        for part in ("weight", "bias"):
            tensor = getattr(linear, part)
            if tensor is not None:
                scaled = tensor.detach().double() * factors.double().view(-1, *[1] * (tensor.ndim - 1))
                setattr(linear, part, nn.Parameter(scaled.to(tensor.dtype), requires_grad=False))
        return factors.double()

    return scale
