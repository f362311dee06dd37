"""SmoothQuant: move outliers of activations into weights, where per-channel scales can hold them.

An input channel j of linear layers is divided by a factor s_j in the norm or projection that writes it, and the layers'
columns are multiplied by s_j. In exact arithmetic the model is the same. The paper takes
s_j = max|x_j|^alpha ÷ max|w_j|^(1 - alpha), over calibration rows x and the columns w of the layers that read them.

Source: Xiao et al., "SmoothQuant", arXiv 2211.10438, equation 4. Ours: by default every input gets an alpha of its own,
that of the least expected rounding error, and a channel's size is its root mean square over rows of length 1 instead of
its maximum, because scales are per row. Inputs of o- and down-projections, which the paper leaves alone, are smoothed
too: their factors go into the rows of the v- and up-projections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from quasar.core.models import ChannelGroup, EditableModel
from quasar.models.int8_format import MAX_STEPS, activation_steps

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""What the search tries for every input."""

_SMALLEST = 1e-5
"""Stands for channels of zeros, as in the paper's code."""

STEPS_PER_OCTAVE = 16
"""Factors are whole powers of 2^(1/16): as whole numbers they are kept on disk, and nothing finer matters."""


def choose_factors(
    model: EditableModel,
    rows: Mapping[str, Tensor],
    alpha: float | None,
    on_group: Callable[[], object] = lambda: None,
    activation_bits: int = 8,
) -> dict[str, list[int]]:
    """Return the factors of every group, as logarithms in sixteenths of an octave, by the name of its first reader.

    Args:
        model: a ``sharing_copy``; it is only read.
        rows: input rows of every group's first reader, by its name.
        alpha: the paper's alpha for all groups; ``None`` searches ``ALPHAS`` for each.
        on_group: called after every group, for progress.
        activation_bits: of the inputs; the more, the less of their outliers is worth moving into the weights.

    Raises:
        UnsupportedModelError: the model's inputs are not known.
    """
    linears = {layer.name: layer for layer in model.linear_layers()}
    found = {}
    for group in model.channel_groups():
        first = group.readers[0]
        weight = torch.cat([linears[name].weight for name in group.readers]).float()  # [outputs, in]
        found[first] = _search(rows[first].float(), weight, group, alpha, activation_bits)
        on_group()
    return found


def fold(model: EditableModel, logs: Mapping[str, Sequence[int]]) -> None:
    """Scale the inputs of a model's linear layers; what it computes stays the same.

    Args:
        model: a ``sharing_copy``: its norms and linear layers get new tensors, the shared ones stay as they are.
        logs: what ``choose_factors`` returned.
    """
    for group in model.channel_groups():
        wanted = torch.tensor(logs[group.readers[0]], dtype=torch.float64, device=model.device)
        factors = (1 / group.scale(torch.exp2(-wanted / STEPS_PER_OCTAVE)))[group.sources.to(model.device)]
        # Read again for every group: a projection that reads one group writes another, and was scaled there.
        linears = {layer.name: layer for layer in model.linear_layers()}
        for name in group.readers:
            layer = linears[name]
            layer.replace_weight((layer.weight.double() * factors).to(layer.weight.dtype))


def rounding_error(rows: Tensor, weight: Tensor, factors: Tensor, size: Tensor, row_steps: int = MAX_STEPS) -> float:
    """Return the expected squared error of W8A8 products relative to their size, the mean over rows.

    Every rounding is taken for an independent error of a step² ÷ 12, with the steps of ``quasar.models.int8_format``.

    Args:
        rows: inputs ``[rows, in]``.
        weight: ``[out, in]``.
        factors: of the inputs, ``[in]``.
        size: squared norm of every product, ``[rows]``.
        row_steps: integers on either side of zero that the rows have; weights have ``MAX_STEPS``.
    """
    inputs, scaled = rows / factors, weight * factors
    of_rows = inputs.abs().amax(dim=1).square() * scaled.square().sum()
    of_weights = scaled.abs().amax(dim=1).square().sum() * inputs.square().sum(dim=1)
    errors = of_rows / row_steps**2 + of_weights / MAX_STEPS**2
    return float((errors / size).mean()) / 12


def _search(rows: Tensor, weight: Tensor, group: ChannelGroup, alpha: float | None, bits: int) -> list[int]:
    """Return the logarithms ``[written]`` that ``alpha`` gives, or the best of those that ``ALPHAS`` give."""
    sources, steps = group.sources.to(rows.device), activation_steps(bits, rows.shape[1])
    size = (rows @ weight.T).square().sum(dim=1).clamp_min(torch.finfo(rows.dtype).tiny)
    columns = weight.abs().amax(dim=0).clamp_min(_SMALLEST)
    if alpha is None:
        channels = nn.functional.normalize(rows, dim=1).square().mean(dim=0).sqrt()
    else:
        channels = rows.abs().amax(dim=0)
    best: list[int] = []
    least = float("inf")
    for each in ALPHAS if alpha is None else (alpha,):
        wanted = each * channels.clamp_min(_SMALLEST).log2() - (1 - each) * columns.log2()
        tied = torch.full((int(sources.max()) + 1,), -torch.inf, device=rows.device)
        tied.scatter_reduce_(0, sources, wanted - wanted.mean(), "amax")  # one for heads that share a value head
        logs = (tied * STEPS_PER_OCTAVE).round()
        error = rounding_error(rows, weight, torch.exp2(logs / STEPS_PER_OCTAVE)[sources], size, steps)
        if not best or error < least:
            best, least = [int(log) for log in logs], error
    return best
