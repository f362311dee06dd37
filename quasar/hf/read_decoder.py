"""Reads a transformers model of the Llama family into a ``Decoder``; refuses whatever it does not know for sure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from quasar.core.decoders import Decoder, DecoderLayer, LinearLayer
from quasar.core.errors import UnsupportedModelError

GEMMA = "gemma3_text"
_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", GEMMA)
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose frequencies do not depend on the length of the text."""
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def read_decoder(module: Any, windows: dict[str, int | None], linears: dict[str, LinearLayer]) -> Decoder:
    """Describe ``module``.

    Args:
        module: a causal language model of transformers.
        windows: window by kind of attention layer.
        linears: the model's linear layers by name.

    Raises:
        UnsupportedModelError: another family, or something in it that ``Decoder`` cannot say.
    """
    config = module.config.get_text_config()
    _refuse_unknown(config)
    body = module.model
    gemma = config.model_type == GEMMA
    kinds = list(getattr(config, "layer_types", None) or ["all"] * len(body.layers))
    ropes: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {}
    layers = []
    for index, layer in enumerate(body.layers):
        kind = getattr(layer, "layer_type", None) or getattr(layer.self_attn, "layer_type", None) or kinds[index]
        rope = ropes.setdefault(kind if gemma else "all", _rope(body.rotary_emb, kind if gemma else None))
        window = windows.get(kind, next(iter(windows.values())) if len(windows) == 1 else None)
        layers.append(_layer(f"model.layers.{index}", layer, gemma, linears, rope, window))
    embedding, attention = body.embed_tokens, body.layers[0].self_attn
    head = next((each for each in linears.values() if each.is_head), None)
    if head is None:
        raise UnsupportedModelError(f"model type '{config.model_type}': no linear head was found.")
    return Decoder(
        embedding=embedding.weight.detach(),
        embedding_scale=float(embedding.embed_scale.to(embedding.weight.dtype)) if gemma else 1.0,
        layers=tuple(layers),
        final_norm=_norm(body.norm, gemma),
        head=head,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        norm_eps=config.rms_norm_eps,
        attention_scale=attention.scaling,
        activation=_ACTIVATIONS[_activation(config)],  # type: ignore[arg-type]
    )


def refuse_other_families(model_type: str) -> None:
    """Refuse a model that is not laid out like Llama.

    Raises:
        UnsupportedModelError: naming the families that are.
    """
    if model_type not in _FAMILIES:
        raise UnsupportedModelError(f"model type '{model_type}' is not of the Llama family ({', '.join(_FAMILIES)}).")


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None))


def _refuse_unknown(config: Any) -> None:
    kind = config.model_type
    refuse_other_families(kind)
    parameters = config.rope_parameters
    nested = any(isinstance(value, dict) for value in parameters.values())
    for rope in parameters.values() if nested else [parameters]:
        if rope and (rope["rope_type"] not in _STATIC_ROPE or rope.get("partial_rotary_factor", 1.0) != 1.0):
            raise UnsupportedModelError(f"rotary embedding '{rope['rope_type']}' of model type '{kind}' is not known.")
    for option in ("final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention"):
        if getattr(config, option, None):
            raise UnsupportedModelError(f"option '{option}' of model type '{kind}' is not known.")
    if _activation(config) not in _ACTIVATIONS:
        raise UnsupportedModelError(f"activation '{_activation(config)}' of model type '{kind}' is not known.")


def _rope(rotary: Any, kind: str | None) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return a function of positions that asks the model's own module, in float32 whatever the model computes in."""

    @torch.inference_mode()
    def table(positions: Tensor) -> tuple[Tensor, Tensor]:
        like = torch.empty(0, dtype=torch.float32, device=positions.device)
        cos, sin = rotary(like, positions[None], *([] if kind is None else [kind]))
        half = cos.shape[-1] // 2  # transformers repeats the angles for both halves
        return cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()

    return table


def _norm(module: Any, gemma: bool) -> Tensor:
    weight: Tensor = module.weight.detach().float()
    return weight + 1.0 if gemma else weight


def _layer(
    path: str,
    layer: Any,
    gemma: bool,
    linears: dict[str, LinearLayer],
    rope: Callable[[Tensor], tuple[Tensor, Tensor]],
    window: int | None,
) -> DecoderLayer:
    attention = layer.self_attn
    own = {name: linears[f"{path}.self_attn.{name}_proj"] for name in "qkvo"}
    own |= {name: linears[f"{path}.mlp.{name}_proj"] for name in ("gate", "up", "down")}
    return DecoderLayer(
        **own,
        attention_norm=_norm(layer.input_layernorm, gemma),
        mlp_norm=_norm(layer.pre_feedforward_layernorm if gemma else layer.post_attention_layernorm, gemma),
        attention_post_norm=_norm(layer.post_attention_layernorm, gemma) if gemma else None,
        mlp_post_norm=_norm(layer.post_feedforward_layernorm, gemma) if gemma else None,
        q_norm=_norm(attention.q_norm, gemma) if hasattr(attention, "q_norm") else None,
        k_norm=_norm(attention.k_norm, gemma) if hasattr(attention, "k_norm") else None,
        rope=rope,
        window=window,
    )
