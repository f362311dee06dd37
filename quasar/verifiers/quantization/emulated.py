"""fp8 and int4 on any device: the numbers that the formats can hold, multiplied in float32. Slow; for numerics only."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from quasar.core.models import EditableModel
from quasar.verifiers.quantization.replace_layers import LayerBackend
from quasar.verifiers.quantization.scheme import QuantizedLinear

_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_LEVELS = 15


def fp8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round every row to float8 (e4m3) under a scale that puts its largest magnitude on the largest number.

    Args:
        x: ``[..., features]``, floating.

    Returns:
        The rounded numbers, ``[..., features]`` float8_e4m3fn, and the scale of each row, ``[..., 1]`` float32.

    Source: Micikevicius et al., "FP8 formats for deep learning", arXiv 2209.05433.
    """
    x = x.float()
    scale = (x.abs().amax(dim=-1, keepdim=True) / _LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
    # Clamped, because a quotient may round to just above the largest number, which the conversion would make NaN.
    return (x / scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn), scale


class EmulatedFp8Linear(QuantizedLinear):
    """A linear layer with float8 weights, scaled per output channel, and float8 activations, scaled per row.

    Args:
        weight: ``[out, in]``, floating.
        bias: ``[out]`` or ``None``.
    """

    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        numbers, scale = fp8_rows(weight.detach())
        self.register_buffer("weight", numbers)  # [out, in] float8_e4m3fn
        self.register_buffer("scale", scale[:, 0])

    @property
    def weight_bytes(self) -> int:
        """Bytes of the numbers and their scales."""
        return self.weight.nbytes + self.scale.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[..., out]`` in the dtype of ``x`` ``[..., in]``."""
        numbers, scale = fp8_rows(x)
        y = functional.linear(numbers.float(), self.weight.float()) * scale * self.scale
        return (y if self.bias is None else y + self.bias).to(x.dtype)


class EmulatedInt4Linear(QuantizedLinear):
    """A linear layer whose weights are 4-bit integers with a scale and an offset for each group of inputs.

    Args:
        weight: ``[out, in]``, floating.
        bias: ``[out]`` or ``None``.
        group_size: inputs that share a scale, an even number; the last group may be smaller.
    """

    packed: Tensor
    scale: Tensor
    offset: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None, group_size: int) -> None:
        super().__init__(weight, bias)
        self.group_size = group_size
        whole = functional.pad(weight.detach().float(), (0, -self.in_features % group_size))
        groups = whole.reshape(self.out_features, -1, group_size)  # [out, groups, group_size]
        low = groups.amin(dim=-1, keepdim=True).clamp_max(0)  # zero is always among the values
        high = groups.amax(dim=-1, keepdim=True).clamp_min(0)
        scale = ((high - low) / _LEVELS).clamp_min(torch.finfo(torch.float32).tiny)
        integers = ((groups - low) / scale).round().clamp(0, _LEVELS).to(torch.uint8).flatten(1)
        self.register_buffer("packed", integers[:, ::2] | integers[:, 1::2] << 4)  # [out, groups * group_size / 2]
        self.register_buffer("scale", scale[..., 0].to(torch.bfloat16))
        self.register_buffer("offset", low[..., 0].to(torch.bfloat16))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed integers, scales and offsets."""
        return self.packed.nbytes + self.scale.nbytes + self.offset.nbytes

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """Return the weights that the integers stand for, ``[out, in]``."""
        integers = torch.stack([self.packed & 15, self.packed >> 4], dim=-1).flatten(1)
        groups = integers.to(dtype).view(self.out_features, -1, self.group_size)
        return (groups * self.scale[..., None].to(dtype) + self.offset[..., None].to(dtype)).flatten(1)[
            :, : self.in_features
        ]

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[..., out]`` in the dtype of ``x`` ``[..., in]``; the product is float32 at least."""
        wide = torch.promote_types(x.dtype, torch.float32)
        y = functional.linear(x.to(wide), self.dequantized(wide))
        return (y if self.bias is None else y + self.bias).to(x.dtype)


class _Emulated(LayerBackend):
    """The numbers of a format without its kernels, on any device."""

    name = "emulated"
    by_name_only = True

    @classmethod
    def unusable(cls) -> str | None:
        """Return ``None``: nothing but torch is needed."""
        return None

    @classmethod
    def refuses(cls, model: EditableModel) -> str | None:
        """Return ``None``: weights are widened to whatever the model computes in."""
        return None


class EmulatedInt4(_Emulated):
    """Layers with 4-bit weights, emulated."""

    precisions, layer = ("int4",), EmulatedInt4Linear


class EmulatedFp8(_Emulated):
    """Float8 layers, emulated."""

    precisions, layer = ("fp8",), EmulatedFp8Linear

    @classmethod
    def refuses(cls, model: EditableModel) -> str | None:
        """Return a reason for float64: products are float32."""
        return "it multiplies in float32" if model.dtype == torch.float64 else None
