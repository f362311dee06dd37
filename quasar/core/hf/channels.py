"""Where the inputs of a decoder's linear layers come from, in models of the Llama family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from quasar.core.errors import UnsupportedModelError
from quasar.core.models import ChannelGroup

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")


def read_channel_groups(module: Any) -> list[ChannelGroup]:
    """Return four groups a layer: what q, k and v read, what o reads, what gate and up read, what down reads.

    Args:
        module: a causal language model of transformers, with modules of its own.

    Raises:
        UnsupportedModelError: another family.
    """
    config = module.config.get_text_config()
    if config.model_type not in _FAMILIES:
        families = ", ".join(_FAMILIES)
        raise UnsupportedModelError(f"model type '{config.model_type}' is not of the Llama family ({families}).")
    gemma = config.model_type == "gemma3_text"
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
            (("self_attn.o_proj",), _rows(attention.v_proj), written.expand(-1, shared, -1).reshape(-1)),
            (("mlp.gate_proj", "mlp.up_proj"), _norm(mlp_norm, gemma), hidden),
            (("mlp.down_proj",), _rows(mlp.up_proj), torch.arange(mlp.up_proj.weight.shape[0])),
        ):
            groups.append(ChannelGroup(tuple(f"{path}.{name}" for name in names), sources, scale))
    return groups


def _norm(norm: Any, gemma: bool) -> Callable[[Tensor], None]:
    def scale(factors: Tensor) -> None:
        weight = norm.weight.detach()
        if gemma:  # its forward adds 1 in float32, so a float32 weight is welcome there and loses nothing
            wide = torch.promote_types(weight.dtype, torch.float32)
            weight = (weight.to(wide) + 1) * factors.to(wide) - 1
        else:
            weight = weight * factors
        norm.weight = nn.Parameter(weight, requires_grad=False)

    return scale


def _rows(linear: Any) -> Callable[[Tensor], None]:
    def scale(factors: Tensor) -> None:
        linear.weight = nn.Parameter(linear.weight.detach() * factors[:, None], requires_grad=False)
        if linear.bias is not None:
            linear.bias = nn.Parameter(linear.bias.detach() * factors, requires_grad=False)

    return scale
