"""Ways to choose quantised weights beyond the nearest integer, by what a layer's inputs look like.

A grid is a scale and a lowest value for every group of inputs of every output channel. ``nearest`` rounds to it,
``clipped`` chooses narrower grids, ``compensated`` is GPTQ on it, and ``awq_factors`` scales inputs before any of it. A
``Recipe`` says which of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from quasar.core.models import EditableModel
from quasar.models.int8_format import MAX_STEPS, quantize_rows
from quasar.verifiers.quantization import gptq
from quasar.verifiers.quantization.scheme import QuantizedLinear
from quasar.verifiers.quantization.smoothquant import STEPS_PER_OCTAVE

CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)
AWQ_ALPHAS = tuple(place / 10 for place in range(11))
_TINY = torch.finfo(torch.float32).tiny


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


@dataclass(frozen=True, slots=True)
class Grid:
    """What the weights of a layer may be.

    Attributes:
        scale: of each group, ``[out, groups]``.
        low: smallest value of each group, ``[out, groups]``.
        levels: steps from the smallest value to the largest.
        size: inputs in a group.
    """

    scale: Tensor
    low: Tensor
    levels: int
    size: int

    def columns(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Return scale and lowest value of these inputs, ``[out, last - first]``."""
        groups = torch.arange(first, last) // self.size
        return self.scale[:, groups], self.low[:, groups]

    def nearest(self, weight: Tensor, first: int = 0) -> Tensor:
        """Return the nearest values of the grid to the columns ``weight`` from ``first`` on."""
        scale, low = self.columns(first, first + weight.shape[1])
        return ((weight - low) / scale).round().clamp(0, self.levels) * scale + low


def grid(weight: Tensor, group: int | None, clip: Tensor | float = 1.0) -> Grid:
    """Return the grid of int8 (no group: symmetric, one scale for each output channel) or of grouped int4.

    Args:
        weight: ``[out, in]`` float32; ``in`` must be whole groups.
        group: inputs that share a scale and an offset, kept in bfloat16; ``None`` for int8.
        clip: share of the largest magnitudes that the grid reaches, a number or ``[out, groups]``.
    """
    if group is None:
        scale = (clip * weight.abs().amax(dim=1, keepdim=True) / MAX_STEPS).clamp_min(_TINY)
        return Grid(scale, -MAX_STEPS * scale, 2 * MAX_STEPS, weight.shape[1])
    groups = weight.unflatten(1, (-1, group))
    low, high = clip * groups.amin(dim=-1).clamp_max(0), clip * groups.amax(dim=-1).clamp_min(0)
    scale = ((high - low) / 15).clamp_min(_TINY).bfloat16().float()
    return Grid(scale, low.bfloat16().float(), 15, group)


def moments(rows: Tensor) -> Tensor:
    """Return the mean outer product of inputs ``[rows, in]``, ``[in, in]`` float32."""
    return (rows.T @ rows) / len(rows)


def clipped(weight: Tensor, second: Tensor, group: int | None) -> Grid:
    """Return the grid whose limits leave the least squared error of products, the best of ``CLIPS`` for each group.

    Args:
        weight: ``[out, in]`` float32.
        second: ``moments`` of the inputs.
        group: as in ``grid``.
    """
    size = group or weight.shape[1]
    blocks = torch.stack([second[i : i + size, i : i + size] for i in range(0, len(second), size)])
    best = torch.full((len(weight), len(blocks)), torch.inf)
    chosen = torch.ones_like(best)
    for clip in CLIPS:
        wrong = (grid(weight, group, clip).nearest(weight) - weight).unflatten(1, (-1, size))
        error = (torch.einsum("ogi,gij->ogj", wrong, blocks) * wrong).sum(dim=-1)
        chosen = torch.where(error < best, clip, chosen)
        best = torch.minimum(best, error)
    return grid(weight, group, chosen)


def compensated(weight: Tensor, second: Tensor, on: Grid) -> Tensor:
    """Return values of the grid that GPTQ chooses, ``[out, in]``, from ``moments`` of the inputs."""
    scale, low = on.columns(0, weight.shape[1])
    return gptq.gptq_steps(weight, gptq.input_order(second), scale, low, on.levels) * scale + low


def awq_factors(model: EditableModel, rows: Mapping[str, Tensor], group: int | None) -> dict[str, list[int]]:
    """Return factors for ``fold``: each input's mean magnitude to the power that leaves the least error of products.

    Args:
        model: a ``sharing_copy``; it is only read.
        rows: input rows of every group's first reader, by its name.
        group: as in ``grid``.

    Source: Lin et al., "AWQ", arXiv 2306.00978, section 3.2.
    """
    linears = {layer.name: layer for layer in model.linear_layers()}
    found = {}
    for channels in model.channel_groups():
        first, sources = channels.readers[0], channels.sources
        weight = torch.cat([linears[name].weight for name in channels.readers]).float()
        inputs = rows[first].float()
        second, size = moments(inputs), inputs.abs().mean(dim=0).clamp_min(1e-5).log2()
        least = torch.inf
        for alpha in AWQ_ALPHAS:
            tied = torch.full((int(sources.max()) + 1,), -torch.inf)
            tied.scatter_reduce_(0, sources, alpha * (size - size.mean()), "amax")
            logs = (tied * STEPS_PER_OCTAVE).round()
            factors = torch.exp2(logs / STEPS_PER_OCTAVE)[sources]
            scaled = weight * factors
            wrong = grid(scaled, group).nearest(scaled) / factors - weight
            error = float(((wrong @ second) * wrong).sum())
            if error < least:
                least, found[first] = error, [int(log) for log in logs]
    return found


class Emulated(QuantizedLinear):
    """A linear layer with the weights that a grid holds, multiplied in float32.

    Args:
        weight: values of a grid, ``[out, in]`` float32.
        bias: ``[out]`` or ``None``.
        nbytes: what integers, scales and offsets would take.
        steps: integers on either side of zero that each input row is rounded to; 0 leaves inputs as they are.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, nbytes: int, steps: int) -> None:
        super().__init__(weight, bias)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.nbytes, self.input_steps = nbytes, steps

    @property
    def weight_bytes(self) -> int:
        return self.nbytes

    def forward(self, x: Tensor) -> Tensor:
        if self.input_steps:
            integers, scale = quantize_rows(x, self.input_steps)
            x = integers * scale
        return functional.linear(x, self.weight, self.bias)
