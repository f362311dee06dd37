"""SmoothQuant: folding factors changes nothing but the rounding of int8, and the calibration is the model's own affair."""

import builtins
import io
import os
from pathlib import Path

import pytest
import torch

from quasar.core.errors import ConfigError, UnsupportedModelError
from quasar.core.types import Draft
from quasar.models.self_sampled import self_sampled_texts
from quasar.models.session import Session
from quasar.testing.random_llama import RandomLlamas
from quasar.verifiers.int8 import Int8
from quasar.verifiers.quantization import calibration
from quasar.verifiers.quantization.smoothquant import STEPS_PER_OCTAVE, choose_factors, fold, rounding_error
from tests.identity.tiny_models import CONFIGS, tiny_model

FAMILIES = [family for family in CONFIGS if family != "gpt2"]
every_family = pytest.mark.parametrize("family", FAMILIES)
TEXT = [list(range(3, 40)), list(range(50, 60))]


def logits(model):
    return Session(model, 2).forward(TEXT, Draft.chains([[5, 6, 7], [8]]))


def inputs(model, texts=TEXT):
    return calibration.input_rows(model, [group.readers[0] for group in model.channel_groups()], texts)


def random_factors(model, seed=0, octaves=6):
    generator = torch.Generator().manual_seed(seed)
    return {
        group.readers[0]: torch.randint(
            -octaves * STEPS_PER_OCTAVE,
            octaves * STEPS_PER_OCTAVE,
            (int(group.sources.max()) + 1,),
            generator=generator,
        ).tolist()
        for group in model.channel_groups()
    }


def weights(model):
    return {name: tensor.detach().clone() for name, tensor in model.module.state_dict().items()}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "quasar_home", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def gemma_in_float64(monkeypatch):
    """Gemma's norm computes in float32 whatever the model does, which would hide what folding changes."""
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)

    monkeypatch.setattr(Gemma3RMSNorm, "forward", forward)


# --- folding ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_biases():
    """Biases and norms as training leaves them; transformers begins with zeros and ones."""
    models = {}
    for family in FAMILIES:
        model = tiny_model(family).sharing_copy()
        generator = torch.Generator().manual_seed(7)
        for name, parameter in list(model.module.named_parameters()):
            if name.endswith("bias") or "norm" in name:
                parent, _, last = name.rpartition(".")
                noise = 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                setattr(model.module.get_submodule(parent), last, torch.nn.Parameter(parameter.detach() + noise))
        models[family] = model
    return models


@pytest.mark.usefixtures("gemma_in_float64")
@every_family
@pytest.mark.parametrize("factors", ["chosen", "random"])
def test_folding_leaves_the_logits_and_the_shared_tensors_as_they_were(with_biases, family, factors):
    model = with_biases[family]
    before, tensors = logits(model), weights(model)
    copy = model.sharing_copy()
    logs = choose_factors(copy, inputs(model), None) if factors == "chosen" else random_factors(copy)
    fold(copy, logs)
    tolerance = 1e-5 if family.endswith("eager") else 1e-9  # eager attention has a float32 softmax
    assert torch.allclose(logits(copy), before, rtol=0, atol=tolerance)
    assert torch.equal(logits(model), before)
    for name, tensor in weights(model).items():
        assert torch.equal(tensor, tensors[name])


@every_family
def test_every_linear_layer_of_the_decoder_is_scaled_and_the_head_is_not(with_biases, family):
    model = with_biases[family]
    copy = model.sharing_copy()
    fold(copy, random_factors(copy))
    old = {layer.name: layer for layer in model.linear_layers()}
    for layer in copy.linear_layers():
        assert (layer.weight.data_ptr() == old[layer.name].weight.data_ptr()) == layer.is_head
    embedding = copy.module.get_input_embeddings().weight
    assert embedding.data_ptr() == model.module.get_input_embeddings().weight.data_ptr()


def test_query_heads_that_share_a_value_head_share_its_factors():
    [_, outputs, *_] = tiny_model("llama-gqa").channel_groups()
    heads, kv_heads, head_dim = 4, 2, 8
    sources = outputs.sources.view(heads, head_dim)
    assert torch.equal(sources[0], sources[1])
    assert torch.equal(sources[2], sources[3])
    assert sorted(set(sources.flatten().tolist())) == list(range(kv_heads * head_dim))


def test_bfloat16_rounds_a_norm_and_the_readers_make_up_for_it():
    model = RandomLlamas().target("bfloat16")
    copy = model.sharing_copy()
    group = copy.channel_groups()[0]
    norm = copy.module.model.layers[0].input_layernorm
    before = norm.weight.detach().double()
    applied = group.scale(torch.full_like(before, 1.01))
    assert torch.equal(norm.weight.double(), before * applied)
    assert not torch.allclose(applied, torch.tensor(1.01, dtype=torch.float64), rtol=1e-4)
    assert norm.weight.dtype == torch.bfloat16


def test_gpt2_is_left_as_it_is_and_reports_say_so(home):
    class Models(RandomLlamas):
        def target(self, dtype="auto"):
            return tiny_model("gpt2")

    with pytest.raises(UnsupportedModelError, match="gpt2"):
        tiny_model("gpt2").channel_groups()
    verifier = Int8(Int8.Config(backend="reference", dtype="float64"))
    verifier.load(Models())
    assert verifier.describe()["smoothing"].startswith("none (model type 'gpt2'")
    assert not list(home.iterdir())


# --- the choice -------------------------------------------------------------------------------------------------------


def outliers(rows=64, channels=24):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, channels, generator=generator, dtype=torch.float64)
    x[:, 3] *= 50
    return x, torch.randn(16, channels, generator=generator, dtype=torch.float64)


def test_the_expected_error_is_that_of_real_roundings():
    from quasar.models.int8_format import quantize_rows

    x, w = outliers(2000)
    exact = x @ w.T
    for factors, row_steps in ((torch.ones(24), 127), (x.abs().amax(0).sqrt(), 127), (torch.ones(24), 2047)):
        (steps, scale), (columns, column_scale) = quantize_rows(x / factors, row_steps), quantize_rows(w * factors)
        error = (steps * scale) @ (columns * column_scale).T - exact
        real = (error.square().sum(dim=1) / exact.square().sum(dim=1)).mean()
        expected = rounding_error(x, w, factors, exact.square().sum(dim=1), row_steps)
        # Not closer: a row's largest value is rounded without an error, and is a large part of a row of outliers.
        assert 0.5 < real / expected < 1.1


def test_the_search_beats_no_smoothing_and_every_single_alpha(with_biases):
    model = with_biases["llama-gqa"].sharing_copy()
    layer = model.module.model.layers[0]
    outlier = torch.ones(32, dtype=torch.float64)
    outlier[5] = 60
    layer.input_layernorm.weight = torch.nn.Parameter(layer.input_layernorm.weight.detach() * outlier)
    group, rows = model.channel_groups()[0], inputs(model)
    name = group.readers[0]
    linears = {each.name: each.weight for each in model.linear_layers()}
    weight = torch.cat([linears[reader] for reader in group.readers]).float()
    x = rows[name].float()

    def error(logs):
        return rounding_error(
            x, weight, torch.exp2(torch.tensor(logs) / STEPS_PER_OCTAVE), (x @ weight.T).square().sum(dim=1)
        )

    chosen = error(choose_factors(model, rows, None)[name])
    assert chosen < 0.3 * error([0] * 32)
    assert chosen < 1.05 * min(error(choose_factors(model, rows, alpha)[name]) for alpha in (0.3, 0.5, 0.8))
    assert choose_factors(model, rows, None)[name][5] > max(choose_factors(model, rows, None)[name][:5])


def test_finer_activations_leave_more_of_an_outlier_where_it_is():
    model = tiny_model("llama-gqa").sharing_copy()
    groups = model.channel_groups()
    rows, first = inputs(model), groups[0].readers[0]
    rows[first][:, 5] *= 60
    factors = {bits: choose_factors(model, rows, None, activation_bits=bits)[first] for bits in (8, 12)}
    spread = {bits: max(found) - min(found) for bits, found in factors.items()}
    assert 0 < spread[12] < spread[8]


def test_alpha_is_the_papers_formula():
    model = tiny_model("llama-gqa")
    rows = inputs(model)
    group = model.channel_groups()[3]
    [weight] = [each.weight.float() for each in model.linear_layers() if each.name == group.readers[0]]
    largest = rows[group.readers[0]].float().abs().amax(dim=0)
    expected = (largest**0.7 / weight.abs().amax(dim=0) ** 0.3).log2()
    expected = ((expected - expected.mean()) * STEPS_PER_OCTAVE).round()
    assert choose_factors(model, rows, 0.7)[group.readers[0]] == [int(each) for each in expected]


# --- calibration ------------------------------------------------------------------------------------------------------


def loaded(models=None, **options):
    verifier = Int8(Int8.Config(**{"backend": "reference"} | options))
    verifier.load(models or RandomLlamas())
    return verifier


def test_the_default_reads_no_file_but_its_own(home, monkeypatch):
    opened = []
    models = RandomLlamas()
    models.target()
    real = {"builtins": builtins.open, "io": io.open, "os": os.open}
    watched = {
        name: lambda file, *more, _open=function, **named: (opened.append(str(file)), _open(file, *more, **named))[1]
        for name, function in real.items()
    }
    monkeypatch.setattr(builtins, "open", watched["builtins"])
    monkeypatch.setattr(io, "open", watched["io"])
    monkeypatch.setattr(os, "open", watched["os"])
    verifier = loaded(models)
    monkeypatch.undo()
    assert verifier.describe()["smoothing"] == "SmoothQuant, alpha by search, own text"
    data = [file for file in opened if Path(file).suffix not in (".py", ".pyc", ".so")]
    assert data
    assert all(Path(file).is_relative_to(home / "calibration") for file in data)


def test_what_was_found_is_kept_by_model_and_options(home, monkeypatch):
    calls = []
    sample = calibration.sample_texts
    monkeypatch.setattr(calibration, "sample_texts", lambda *a: calls.append(1) or sample(*a))
    first = logits(loaded().model)
    assert torch.equal(logits(loaded().model), first)
    assert len(calls) == len(list((home / "calibration").iterdir())) == 1
    loaded(smooth_alpha=0.5)
    assert len(calls) == 2

    class Other(RandomLlamas):
        def target(self, dtype="auto"):
            return self.other("another", dtype)

    loaded(Other())
    assert len(calls) == 3
    for file in (home / "calibration").iterdir():
        file.write_text("{")
    assert torch.equal(logits(loaded().model), first)  # damaged files are made again
    assert len(calls) == 4


def test_backends_that_leave_full_precision_to_torch_share_what_was_found(home):
    for backend in ("reference", "torch", "torchao"):
        loaded(backend=backend)
    assert len(list((home / "calibration").iterdir())) == 1


def test_a_home_that_cannot_be_written_costs_a_calibration_only(home):
    (home / "calibration").write_text("in the way")
    assert loaded().describe()["smoothing"].startswith("SmoothQuant")


def test_alpha_zero_is_plain_w8a8(home):
    plain = loaded(smooth_alpha=0)
    assert plain.describe()["smoothing"] == "none"
    assert not list(home.iterdir())
    assert not torch.equal(logits(plain.model), logits(loaded().model))


def test_a_users_text_is_taken_instead(home, tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "sample_texts", None)
    file = tmp_path / "text.txt"
    file.write_text("abcabcabd" * 40)
    verifier = loaded(calibration=str(file))
    assert str(file) in verifier.describe()["smoothing"]
    assert str(file) in verifier.reference()


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b"", "holds no text"), (b"\xff\xfe", "UTF-8")])
def test_a_text_that_cannot_be_used_is_one_line(home, tmp_path, content, said):
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"verifier\.calibration.*{said}") as caught:
        loaded(calibration=str(file))
    assert "\n" not in str(caught.value)


def test_calibration_without_smoothing_is_refused_before_weights_load():
    with pytest.raises(ConfigError, match="leaves nothing to calibrate"):
        Int8(Int8.Config(smooth_alpha=0, calibration="text.txt")).reference()


def test_own_texts_continue_the_prefix_and_stay_within_the_model():
    model = tiny_model("llama-gqa")
    texts = self_sampled_texts(model, 3, 12, [7, 8])
    assert [text[:2] for text in texts] == [[7, 8]] * 3
    assert {len(text) for text in texts} == {12}
    assert len({tuple(text) for text in texts}) == 3
    assert self_sampled_texts(model, 3, 12, [7, 8]) == texts
    assert {len(text) for text in self_sampled_texts(model, 2, 500, list(range(60)) * 4)} == {192}


def test_input_rows_are_what_the_layers_read():
    model = tiny_model("llama-gqa")
    name = "model.layers.0.self_attn.q_proj"
    [rows] = calibration.input_rows(model, [name], [TEXT[0]]).values()
    layer = model.module.model.layers[0]
    states = model.layer_states(torch.tensor([TEXT[0]]))
    assert torch.allclose(rows, layer.input_layernorm(states[0])[0], rtol=0, atol=1e-9)
    assert isinstance(layer.self_attn.q_proj, torch.nn.Linear)
    assert len(calibration.input_rows(model, [name], [list(range(90))] * 20)[name]) == 512


# --- int8 arms --------------------------------------------------------------------------------------------------------


def test_kept_layers_are_listed_and_multiply_in_full_precision(home):
    verifier = loaded(keep=["*.down_proj"])
    described = verifier.describe()
    kept = [name for name in described["skipped_layers"] if name.endswith(": kept")]
    assert len(kept) == 2
    assert described["converted_layers"] == 12
    assert isinstance(verifier.model.module.model.layers[1].mlp.down_proj, torch.nn.Linear)
    assert verifier.reference().endswith("(reference backend; *.down_proj in full precision)")
    with pytest.raises(ConfigError, match=r"verifier\.keep: no linear layer.*'downproj'"):
        loaded(keep=["downproj"])


def test_full_precision_is_bit_equal_before_and_after_an_int8_arm(home):
    models = RandomLlamas()
    before, tensors = logits(models.target()), weights(models.target())
    assert not torch.equal(logits(loaded(models).model), before)
    assert torch.equal(logits(models.target()), before)
    for name, tensor in weights(models.target()).items():
        assert torch.equal(tensor, tensors[name])
