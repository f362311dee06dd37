"""The number format of W8A8: whole steps of one scale per row, symmetric round zero.

A row of numbers becomes whole steps of one scale, its largest magnitude being the last step.
For weights a row is an output channel and is quantised once; for activations it is a token, quantised on every call
from nothing but itself. With one scale for a whole tensor instead, a token's logits would depend on the draft tokens
beside it, and a verifier would judge a different model at every step.

Source: vector-wise quantisation of LLM.int8 (Dettmers et al., arXiv 2208.07339, section 2) without its outlier columns;
dynamic scales per token as in ZeroQuant (Yao et al., arXiv 2206.01861, section 3.2).
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_STEPS = 127
"""Steps on either side of zero; -128 stays unused, so that negating a row negates its integers."""

_ROWS_AT_ONCE = 64


def activation_steps(bits: int, columns: int) -> int:
    """Return the steps on either side of zero that activations of ``bits`` bits have, against weights of 8.

    Fewer than the bits allow where a row of ``columns`` products could otherwise exceed int32: 12 bits are whole up to
    8,260 columns.
    """
    return min(int(2 ** (bits - 1)) - 1, (2**31 - 1) // (MAX_STEPS * columns))


def quantize_rows(x: Tensor, steps: int = MAX_STEPS) -> tuple[Tensor, Tensor]:
    """Quantise every row by its own largest magnitude, rounding half to even.

    Args:
        x: ``[..., features]``, any floating dtype.
        steps: integers on either side of zero.

    Returns:
        The integers, in -steps..steps and held as floating point, ``[..., features]``, and the scale of each row,
        ``[..., 1]``. Both are float64 for a float64 ``x`` and float32 otherwise: in 16 bits neither the integers of a
        product nor a scale would survive. A row of zeros becomes zeros; one with NaN or infinity yields NaN somewhere.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    # The smallest normal number as a floor keeps a row of zeros from dividing by zero. No clamp follows: a magnitude
    # divided by (largest ÷ steps) exceeds ``steps`` by two roundings at most, and rounds back to it.
    scale = (x.abs().amax(dim=-1, keepdim=True) / steps).clamp_min(torch.finfo(x.dtype).tiny)
    return (x / scale).round_(), scale


def quantize_weight(weight: Tensor, steps: int = MAX_STEPS) -> tuple[Tensor, Tensor]:
    """Quantise a weight per output channel; the weight itself is only read.

    Args:
        weight: ``[out, in]``, any floating dtype and any strides.
        steps: integers on either side of zero.

    Returns:
        Contiguous int8 integers ``[out, in]`` and scales ``[out]``, float32 (float64 for a float64 weight).
    """
    integers = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = []
    # A few rows at a time: floating-point copies of whole weights, allocated between the integers that stay, left the
    # heap of a converted model with holes of several times its size.
    for start in range(0, len(weight), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        integers[rows], scale = quantize_rows(weight.detach()[rows], steps)
        scales.append(scale.squeeze(-1))
    return integers, torch.cat(scales)
