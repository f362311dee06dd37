"""Ways to choose quantised weights: what they promise, on random layers, and the table of the search on a tiny model."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import quantization_search
import torch
from quantization_methods import Emulated, Recipe, awq_factors, clipped, compensated, grid, moments
from quantization_search import W8A8

from quasar.models.int8_format import quantize_weight
from quasar.verifiers.quantization.emulated import EmulatedInt4Linear
from quasar.verifiers.quantization.reference import ReferenceLinear
from quasar.verifiers.quantization.smoothquant import fold
from tests.identity.tiny_models import tiny_model
from tests.shared.tiny_folder import save_tiny_model

OUT, IN, GROUP = 24, 96, 32
both = pytest.mark.parametrize("group", [None, GROUP])


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def weight():
    return gaussian(OUT, IN)


@pytest.fixture
def rows():
    return gaussian(400, IN, seed=1) @ gaussian(IN, IN, seed=2) / IN**0.5  # inputs that depend on each other


def error(wrong, second):
    return ((wrong @ second) * wrong).sum(dim=1)


def test_the_nearest_values_are_those_of_the_formats(weight):
    integers, scale = quantize_weight(weight)
    assert torch.allclose(grid(weight, None).nearest(weight), integers * scale[:, None], atol=1e-6)
    int4 = EmulatedInt4Linear(weight, None, GROUP).dequantized(torch.float32)
    # The format rounds with a scale that is not yet bfloat16, which moves a few weights by one step.
    same = (grid(weight, GROUP).nearest(weight) - int4).abs() < 1e-3
    assert same.float().mean() > 0.97


@both
def test_compensation_stays_on_the_grid_and_loses_less_of_the_products(weight, rows, group):
    second, on = moments(rows), grid(weight, group)
    values = compensated(weight, second, on)
    assert torch.allclose(on.nearest(values), values, atol=1e-5)
    plain, better = error(on.nearest(weight) - weight, second).sum(), error(values - weight, second).sum()
    assert better < 0.7 * plain


def test_compensation_needs_inputs_that_depend_on_each_other(weight):
    second, on = torch.eye(IN), grid(weight, None)
    assert torch.allclose(compensated(weight, second, on), on.nearest(weight), atol=1e-6)


def test_a_backend_that_scales_by_the_largest_magnitude_finds_the_same_integers(weight, rows):
    weight[0, 5] = 1.5 * weight[0].abs().max()
    on = grid(weight, None)
    values = compensated(weight, moments(rows), on)
    integers, scale = quantize_weight(values)
    assert torch.allclose(scale, on.scale[:, 0])
    assert torch.equal(integers, (values / on.scale).round().to(torch.int8))


@both
def test_limits_are_searched_for_every_group(weight, rows, group):
    weight[3, 40] *= 12
    second = moments(rows)
    second[:, 40] = second[40] = 0  # nothing ever comes in there
    places = torch.arange(IN) // (group or IN)
    second *= places == places[:, None]  # errors of two groups are taken for independent
    plain, chosen = (
        error(each.nearest(weight) - weight, second) for each in (grid(weight, group), clipped(weight, second, group))
    )
    assert (chosen <= plain * (1 + 1e-4)).all()
    assert chosen[3] < 0.9 * plain[3]


def test_awq_gives_a_large_input_more_steps():
    model = tiny_model("llama-gqa").sharing_copy()
    groups = model.channel_groups()
    rows = {group.readers[0]: gaussian(200, len(group.sources), seed=3) for group in groups}
    first = groups[0].readers[0]
    rows[first][:, 2] *= 40
    factors = awq_factors(model, rows, 16)
    assert factors[first][2] == max(factors[first]) > 0
    names = {layer.name: layer.weight.float() for layer in model.linear_layers()}
    copy = model.sharing_copy()
    copy_groups = copy.channel_groups()
    assert len(copy_groups) == len(groups)
    fold(copy, factors)
    after = {layer.name: layer.weight.float() for layer in copy.linear_layers()}[first]
    scale = after / names[first]
    second = moments(rows[first])
    plain = grid(names[first], 16).nearest(names[first]) - names[first]
    scaled = (grid(after, 16).nearest(after) - after) / scale
    assert error(scaled, second).sum() < 0.8 * error(plain, second).sum()


def test_an_emulated_layer_multiplies_like_the_reference(weight, rows):
    on = grid(weight, None)
    layer = Emulated(on.nearest(weight), gaussian(OUT), 7, 127)
    assert torch.allclose(layer(rows), ReferenceLinear(weight, gaussian(OUT))(rows), rtol=1e-4, atol=1e-4)
    assert layer.weight_bytes == 7
    exact = Emulated(weight, None, 7, 0)
    assert torch.allclose(exact(rows), rows @ weight.T, rtol=1e-4, atol=1e-4)


def test_the_search_prints_a_row_for_each_variant(tmp_path, capsys, monkeypatch):
    model, data = save_tiny_model(tmp_path / "tiny"), tmp_path / "data.jsonl"
    data.write_text("".join(f'{{"question_id": {n}, "category": "a", "turns": ["hi {n}"]}}\n' for n in range(3)))
    words = ["search", "--model", model, "--data", data, "--tokens", 5, "--texts", 2, "--time", "--rounds", 1]
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    chosen = {
        "plain": W8A8,
        "all": replace(W8A8, clip=True, compensate=True, wide={"*.down_proj": 12}),
        "awq": Recipe("awq", group=32, bits=None, compensate=True),
        "int8": {"use": "int8", "backend": "reference"},
    }  # fmt: skip
    monkeypatch.setattr(quantization_search, "VARIANTS", chosen)
    quantization_search.main()
    printed = capsys.readouterr().out
    assert "15 positions of 3 prompts" in printed
    lines = [line for line in printed.splitlines() if line.startswith("| ") and "---" not in line]
    head, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    assert head == ["variant", "KL", "top-1", "MB", "ms of 1", "ms of 6"]
    assert [row[0] for row in rows] == list(chosen)
    kl = {row[0]: float(row[1].split()[0]) for row in rows}
    # The recipe is what the verifier does, multiplied in float32 and not in integers.
    assert kl["plain"] == pytest.approx(kl["int8"], rel=0.3, abs=2e-4)
    assert all(value >= 0 for value in kl.values())
    assert [row[4] == "-" for row in rows] == [False, False, True, False]
