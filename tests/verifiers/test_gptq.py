"""GPTQ: against the method written out, what it promises about integers, and the option of int8 that uses it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quasar.core.errors import ConfigError
from quasar.core.types import Draft
from quasar.models import self_sampled as own_texts_module
from quasar.models.int8_format import MAX_STEPS, quantize_rows, quantize_weight
from quasar.models.session import Session
from quasar.testing.random_llama import RandomLlamas
from quasar.verifiers.int8 import Int8
from quasar.verifiers.quantization import calibration, gptq_weights
from quasar.verifiers.quantization.gptq import DAMPING, gptq_steps, input_order
from tests.identity.tiny_models import tiny_model

TEXT = [list(range(3, 40)), list(range(50, 60))]


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def dependent_moments(size, seed):
    rows = gaussian(4 * size, size, seed=seed) @ gaussian(size, size, seed=seed + 1) / size**0.5
    return rows.T @ rows / len(rows)


def int8_steps(weight, second, damping=DAMPING):
    scale = (weight.abs().amax(dim=1, keepdim=True) / MAX_STEPS).clamp_min(torch.finfo(torch.float32).tiny)
    return gptq_steps(weight, input_order(second, damping), scale, -MAX_STEPS * scale, 2 * MAX_STEPS) - MAX_STEPS, scale


def written_out(weight, second):
    """The method as the paper states it: after every column the best change of all columns that are left."""
    weight, second = weight.double(), second.double()
    scale = weight.abs().amax(dim=1, keepdim=True) / MAX_STEPS
    ends = (weight / scale / (MAX_STEPS - 1e-3)).trunc() * MAX_STEPS  # the largest weight of a row stays where it is
    order = second.diagonal().argsort(descending=True, stable=True).tolist()
    hessian = second + DAMPING * second.diagonal().mean() * torch.eye(len(second))
    found = torch.zeros_like(weight)
    for place, column in enumerate(order):
        left = order[place:]
        inverse = torch.linalg.inv(hessian[left][:, left])
        steps = (weight[:, column] / scale[:, 0]).round().clamp(-MAX_STEPS, MAX_STEPS)
        found[:, column] = torch.where(ends[:, column] == 0, steps, ends[:, column])
        error = (weight[:, column] - found[:, column] * scale[:, 0]) / inverse[0, 0]
        weight[:, left] -= error[:, None] * inverse[0]
    return found


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(2, 100), st.integers(0, 1000))
def test_it_is_the_method_written_out(outputs, inputs, seed):
    weight, second = gaussian(outputs, inputs, seed=seed), dependent_moments(inputs, seed + 1)
    steps, _ = int8_steps(weight, second)
    different = (steps - written_out(weight, second)).abs()
    # float32 errors of 1e-4 steps decide where a weight lies halfway, and what comes after follows.
    assert (different > 0).float().mean() <= 0.02
    assert different.max() <= 2


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 90), st.integers(0, 1000), st.floats(1e-6, 1e6))
def test_the_integers_can_be_read_off_the_weights_again(outputs, inputs, seed, size):
    weight = size * gaussian(outputs, inputs, seed=seed)
    weight[0] = 0
    steps, scale = int8_steps(weight, dependent_moments(inputs, seed + 1))
    assert steps.abs().max() <= MAX_STEPS
    assert torch.equal(steps, steps.round())
    integers, found = quantize_weight(steps * scale)
    assert torch.equal(integers.float(), steps)
    assert torch.allclose(found[1:], scale[1:, 0], rtol=1e-6)


def test_products_lose_less_and_weights_more():
    weight, second = gaussian(40, 150), dependent_moments(150, 5)
    steps, scale = int8_steps(weight, second)
    wrong, nearest = steps * scale - weight, quantize_rows(weight)[0] * scale - weight
    loss, plain = (float(((each @ second) * each).sum()) for each in (wrong, nearest))
    assert loss < 0.7 * plain
    assert wrong.square().sum() > nearest.square().sum()


def test_inputs_that_do_not_depend_on_each_other_give_the_nearest():
    weight = gaussian(7, 70)
    assert torch.equal(int8_steps(weight, torch.eye(70))[0], quantize_rows(weight)[0])
    assert torch.equal(int8_steps(weight, torch.zeros(70, 70))[0], quantize_rows(weight)[0])


# --- the moments ------------------------------------------------------------------------------------------------------


def test_moments_are_those_of_the_inputs():
    model = tiny_model("llama-gqa")
    name = "model.layers.1.mlp.down_proj"
    rows = calibration.input_rows(model, [name], TEXT)[name].float()
    assert torch.allclose(calibration.input_moments(model, [name], TEXT)[name], rows.T @ rows / len(rows), atol=1e-6)


# --- the option -------------------------------------------------------------------------------------------------------


def logits(model):
    return Session(model, 2).forward(TEXT, Draft.chains([[5, 6, 7], [8]]))


@pytest.fixture
def home(tmp_path, monkeypatch):
    for module in (calibration, own_texts_module, gptq_weights):
        monkeypatch.setattr(module, "quasar_home", lambda: tmp_path)
    monkeypatch.setattr(own_texts_module, "TOKENS", 40)
    return tmp_path


def loaded(models=None, **options):
    verifier = Int8(Int8.Config(**{"backend": "reference", "weight_rounding": "gptq"} | options))
    verifier.load(models or RandomLlamas())
    return verifier


def integers(model):
    return {name: each.weight for name, each in model.module.named_modules() if hasattr(each, "input_steps")}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_other_integers_on_the_same_scales(home, dtype):
    ours, plain = loaded(dtype=dtype).model, loaded(dtype=dtype, weight_rounding="nearest").model
    assert ours.dtype == plain.dtype
    [(name, layer), *_] = [(n, m) for n, m in ours.module.named_modules() if hasattr(m, "input_steps")]
    other = plain.module.get_submodule(name)
    assert torch.allclose(layer.scale.double(), other.scale.double(), rtol=1e-6)
    for name, theirs in integers(plain).items():
        moved = (integers(ours)[name].int() - theirs.int()).abs()
        assert 0 < moved.float().mean() < 0.9, name
        assert moved.max() < 12
    assert logits(ours).dtype == logits(plain).dtype


def test_the_products_of_the_models_own_text_lose_less(home):
    exact = RandomLlamas().target("float32")
    texts = own_texts_module.remembered_self_sampled_texts(RandomLlamas()).texts
    [(_, head)] = [(layer.name, layer) for layer in exact.linear_layers() if layer.name.endswith("0.mlp.gate_proj")]
    second = calibration.input_moments(exact, [head.name], texts)[head.name]
    loss = {}
    for rounding in ("gptq", "nearest"):
        layer = loaded(dtype="float32", smooth_alpha=0, weight_rounding=rounding).model.module.get_submodule(head.name)
        wrong = layer.weight * layer.scale[:, None] - head.weight
        loss[rounding] = float(((wrong @ second) * wrong).sum())
    assert loss["gptq"] < 0.9 * loss["nearest"]


def test_full_precision_is_bit_equal_before_and_after(home):
    models = RandomLlamas()
    before = logits(models.target())
    assert not torch.equal(logits(loaded(models, quantize_lm_head=True).model), before)
    assert torch.equal(logits(models.target()), before)


def test_the_integers_are_kept_by_model_and_options(home, monkeypatch):
    calls = []
    moments = calibration.input_moments
    monkeypatch.setattr(calibration, "input_moments", lambda *a: calls.append(1) or moments(*a))
    first = logits(loaded().model)
    assert torch.equal(logits(loaded().model), first)
    assert len(calls) == 1
    loaded(keep=["*.down_proj"])
    loaded(quantize_lm_head=True)
    loaded(smooth_alpha=0)
    assert len(calls) == 4
    for file in (home / "gptq").iterdir():
        file.write_bytes(file.read_bytes()[:-9])
    assert torch.equal(logits(loaded().model), first)  # damaged files are made again
    assert len(calls) == 5


def test_moments_that_do_not_fit_together_are_taken_in_turns(home, monkeypatch):
    calls = []
    moments = calibration.input_moments
    monkeypatch.setattr(calibration, "input_moments", lambda *a: calls.append(a[1]) or moments(*a))
    first = logits(loaded().model)
    monkeypatch.setattr(gptq_weights, "_BYTES_AT_ONCE", 4 * 32 * 32 * 2)
    for file in (home / "gptq").iterdir():
        file.unlink()
    assert torch.equal(logits(loaded().model), first)
    assert len(calls) > 3
    assert sorted(name for call in calls[1:] for name in call) == sorted(calls[0])


def test_layers_that_are_left_alone_are_not_touched(home):
    model = loaded(keep=["*.q_proj"], smooth_alpha=0).model
    whole = {layer.name: layer.weight for layer in RandomLlamas().target().linear_layers()}
    left = [layer for layer in model.linear_layers() if layer.name.endswith("q_proj") or layer.is_head]
    assert len(left) == 3
    for layer in left:
        assert torch.equal(layer.weight, whole[layer.name])


def test_a_family_whose_inputs_are_not_known_is_served(home):
    class Models(RandomLlamas):
        def target(self, dtype="auto"):
            return tiny_model("gpt2")

    ours, plain = (loaded(Models(), dtype="float64", weight_rounding=each).model for each in ("gptq", "nearest"))
    assert not torch.equal(logits(ours), logits(plain))


def test_fbgemm_has_integers_of_its_own_range(home):
    from quasar.verifiers.quantization.fbgemm import Fbgemm

    if reason := Fbgemm.unusable():
        pytest.skip(reason)
    ours, like = loaded(backend="fbgemm", dtype="float32"), loaded(dtype="float32")
    assert len(list((home / "gptq").iterdir())) == 2
    close = (logits(ours.model) - logits(like.model)).abs().max()
    assert 0 < close < 0.05 * logits(like.model).abs().max()


def test_outputs_name_it_and_a_text_of_the_user_serves_it_alone(home, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("abcabcabd" * 40)
    verifier = loaded(smooth_alpha=0, calibration=str(file))
    assert "GPTQ" in verifier.reference()
    assert str(file) in verifier.reference()
    assert verifier.describe()["weight_rounding"] == "gptq"
    assert not (home / "own_texts").exists()
    with pytest.raises(ConfigError, match=r"verifier\.calibration.*No such file"):
        loaded(calibration=str(tmp_path / "none.txt"))


def test_activations_that_overflow_leave_the_nearest(home, monkeypatch):
    monkeypatch.setattr(
        calibration,
        "input_moments",
        lambda model, names, texts: {name: torch.full((1, 1), torch.nan) for name in names},
    )
    ours, plain = (integers(loaded(weight_rounding=each).model) for each in ("gptq", "nearest"))
    assert all(torch.equal(ours[name], plain[name]) for name in plain)
