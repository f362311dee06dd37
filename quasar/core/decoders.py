"""A decoder of the Llama family in numbers and tensors, for backends that run it without the library it came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn


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

    def replace_weight(self, weight: Tensor) -> None:
        """Put a layer with another weight ``[out_features, in_features]`` and the same bias in its place."""
        module = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        module.weight = nn.Parameter(weight, requires_grad=False)
        if self.bias is not None:
            module.bias = nn.Parameter(self.bias, requires_grad=False)
        self.replace(module)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One block: norm, attention, residual; norm, gated MLP, residual.

    Attributes:
        q: projection to the queries, ``[heads * head_dim, hidden]``; ``k`` and ``v`` likewise with ``kv_heads``.
        k: see ``q``.
        v: see ``q``.
        o: projection of the attended values back, ``[hidden, heads * head_dim]``.
        gate: ``[intermediate, hidden]``; its activation multiplies ``up``.
        up: the same shape.
        down: ``[hidden, intermediate]``.
        attention_norm: factors of the RMS norm before attention, float32 ``[hidden]``, any "+ 1" included.
        mlp_norm: the same before the MLP.
        attention_post_norm: the same on the output of attention, before the residual; ``None`` outside Gemma.
        mlp_post_norm: the same on the output of the MLP.
        q_norm: norm of each query head, ``[head_dim]``, or ``None``.
        k_norm: norm of each key head, or ``None``.
        rope: positions ``[n]`` int64 to cosines and sines, float32 ``[n, head_dim / 2]`` each, scalings included;
            dimension i is rotated with dimension i + head_dim / 2. Layers that rotate alike share the function.
        window: positions that a query sees, itself included; ``None`` for all.
    """

    q: LinearLayer
    k: LinearLayer
    v: LinearLayer
    o: LinearLayer
    gate: LinearLayer
    up: LinearLayer
    down: LinearLayer
    attention_norm: Tensor
    mlp_norm: Tensor
    attention_post_norm: Tensor | None
    mlp_post_norm: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    rope: Callable[[Tensor], tuple[Tensor, Tensor]]
    window: int | None


@dataclass(frozen=True, slots=True)
class Decoder:
    """Embedding, layers, final norm, head.

    Attributes:
        embedding: ``[vocab, hidden]``; the very tensor of the head where the two are tied.
        embedding_scale: what embeddings are multiplied by.
        layers: in order; layer i writes its keys and values to layer i of the cache.
        final_norm: float32 ``[hidden]``.
        head: projection to the vocabulary.
        heads: query heads.
        kv_heads: key and value heads; a divisor of ``heads``.
        head_dim: size of a head.
        norm_eps: added to the mean square in every norm.
        attention_scale: what scores are multiplied by before the softmax.
        activation: of the gate.
    """

    embedding: Tensor
    embedding_scale: float
    layers: tuple[DecoderLayer, ...]
    final_norm: Tensor
    head: LinearLayer
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    attention_scale: float
    activation: Literal["silu", "gelu_tanh"]
