"""What ``quantization_search.py`` compares: verifiers as users compose them, and recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Recipe:
    """A way to quantise.

    Attributes:
        factors: ``none``, ``smooth`` (what ``int8`` does) or ``awq``.
        clip: search for each grid's limits.
        compensate: GPTQ.
        group: inputs that share a scale in int4; ``None`` is int8.
        bits: of the activations; ``None`` leaves them as they are.
        wide: bits by pattern of layers that differ.
        searched: factors are searched for activations of this many bits.
        timed: the verifier with the same kernels.
    """

    factors: str = "smooth"
    clip: bool = False
    compensate: bool = False
    group: int | None = None
    bits: int | None = 8
    wide: Mapping[str, int | None] = field(default_factory=dict)
    searched: int = 8
    timed: Any = None


W8A8 = Recipe(timed="int8")
W8A12 = Recipe(bits=12, searched=12, timed={"use": "int8", "activation_bits": 12})
W4 = Recipe("none", group=128, bits=None)
DOWN = "*.down_proj"

VARIANTS: dict[str, Any] = {
    "full precision in bfloat16": "full",
    "int8, smooth_alpha 0": {"use": "int8", "smooth_alpha": 0},
    "int8, smooth_alpha 0.65": {"use": "int8", "smooth_alpha": 0.65},
    "int8": "int8",
    "int8, last ten down_proj kept": {"use": "int8", "keep": ["*.2[0-9].mlp.down_proj"]},
    "int8, all down_proj kept": {"use": "int8", "keep": [DOWN]},
    "int8, quantize_lm_head": {"use": "int8", "quantize_lm_head": True},
    "int8, activation_bits 12": {"use": "int8", "activation_bits": 12},
    "int8, activation_bits 12, quantize_lm_head": {"use": "int8", "activation_bits": 12, "quantize_lm_head": True},
    "int8, GPTQ": {"use": "int8", "weight_rounding": "gptq"},
    "int8, activation_bits 12, GPTQ": {"use": "int8", "activation_bits": 12, "weight_rounding": "gptq"},
    "int8, activation_bits 12, quantize_lm_head, GPTQ": {
        "use": "int8", "activation_bits": 12, "quantize_lm_head": True, "weight_rounding": "gptq"
    },
    "fp8, emulated": {"use": "fp8", "emulated": True, "dtype": "float32"},
    "int4, emulated, groups of 32": {"use": "int4", "emulated": True, "dtype": "float32"},
    "W8A8": W8A8,
    "W8A8, clipped": replace(W8A8, clip=True),
    "W8A8, GPTQ": replace(W8A8, compensate=True),
    "W8A8, AWQ factors": replace(W8A8, factors="awq"),
    "W8A8 but A12 in down_proj": replace(W8A8, wide={DOWN: 12}, timed=W8A12.timed),
    "W8A12, factors for 8": replace(W8A12, searched=8),
    "W8A12": W8A12,
    "W8A12, AWQ factors": replace(W8A12, factors="awq"),
    "W8A12, no factors": replace(W8A12, factors="none"),
    "W8A12, GPTQ": replace(W8A12, compensate=True),
    "W8A12, no factors, GPTQ": replace(W8A12, factors="none", compensate=True),
    "W4, groups of 64": replace(W4, group=64),
    "W4, groups of 64, clipped": replace(W4, group=64, clip=True),
    "W4, groups of 64, GPTQ": replace(W4, group=64, compensate=True),
    "W4, groups of 64, clipped, GPTQ": replace(W4, group=64, clip=True, compensate=True),
    "W4, groups of 64, AWQ": replace(W4, group=64, factors="awq"),
    "W4, groups of 64, AWQ, GPTQ": replace(W4, group=64, factors="awq", compensate=True),
    "W4, groups of 32, AWQ": replace(W4, group=32, factors="awq"),
    "W4, groups of 32, GPTQ": replace(W4, group=32, compensate=True),
}  # fmt: skip
