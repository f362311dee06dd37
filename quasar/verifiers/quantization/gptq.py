"""GPTQ: round the weights of a layer one input after the other, and let the later ones make up for each error.

Rounding to the nearest makes every weight as right as it can be; what counts is the product with the inputs that really
come, whose channels depend on each other.

Source: Frantar et al., "GPTQ", arXiv 2210.17323, section 3, with its activation order. Ours: a weight at the end of its
grid stays there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DAMPING = 0.05
"""Share of the mean of the moments' diagonal that is added to it: trust in a text of a few thousand tokens."""

_BLOCK = 64
"""Inputs after which the errors of a block go into the columns behind it: one product instead of many sums."""


@dataclass(frozen=True, slots=True)
class InputOrder:
    """How the inputs of a layer depend on each other, made for ``gptq_steps``; layers that read the same share it.

    Attributes:
        order: the inputs, the most active first, ``[in]`` int64.
        factor: upper Cholesky factor of the inverse of their damped moments, in that order, ``[in, in]`` float32.
    """

    order: Tensor
    factor: Tensor


def input_order(second: Tensor, damping: float = DAMPING) -> InputOrder:
    """Return what ``gptq_steps`` has to know of a layer's inputs.

    Args:
        second: mean outer product of the inputs, ``[in, in]``, finite.
        damping: see ``DAMPING``.
    """
    second = second.double()
    diagonal = second.diagonal()
    order = diagonal.argsort(descending=True, stable=True)
    more = (damping * diagonal.mean()).clamp_min(torch.finfo(torch.float32).tiny)  # inputs may be all zero
    damped = second[order][:, order]
    damped.diagonal().add_(more)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return InputOrder(order, torch.linalg.cholesky(inverse, upper=True).float())


def gptq_steps(weight: Tensor, inputs: InputOrder, scale: Tensor, low: Tensor, levels: int) -> Tensor:
    """Return the steps of a grid that a weight is rounded to.

    A weight that lies at an end of its grid keeps that place whatever is moved into it. So a row still has its largest
    magnitude, and a backend that scales by it finds the same integers again.

    Args:
        weight: ``[out, in]`` float32.
        inputs: of the layer.
        scale: size of a step, ``[out, in]`` or what broadcasts to it.
        low: the smallest value, the same.
        levels: steps from the smallest value to the largest.

    Returns:
        Steps above ``low``, whole numbers in 0..levels, ``[out, in]`` float32.
    """
    order, factor = inputs.order, inputs.factor
    # Inputs first, so that what belongs to one input lies together.
    left, scale, low = (each.expand_as(weight)[:, order].T.contiguous() for each in (weight, scale, low))
    places = (left - low) / scale
    at_top, at_bottom = places > levels - 1e-3, places < 1e-3
    found = torch.empty_like(left)
    for start in range(0, len(left), _BLOCK):
        stop = min(start + _BLOCK, len(left))
        errors = torch.empty_like(left[start:stop])
        for place in range(start, stop):
            steps = ((left[place] - low[place]) / scale[place]).round_().clamp_(0, levels)
            found[place] = steps.masked_fill_(at_top[place], levels).masked_fill_(at_bottom[place], 0)
            value = found[place] * scale[place] + low[place]
            errors[place - start] = error = (left[place] - value) / factor[place, place]
            left[place:stop].addr_(factor[place, place:stop], error, alpha=-1)
        left[stop:].addmm_(factor[start:stop, stop:].T, errors, alpha=-1)
    back = torch.empty_like(found)
    back[order] = found
    return back.T.contiguous()
