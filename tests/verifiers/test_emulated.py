"""fp8 and int4: the emulated formats, refusals without a GPU, and what torchao is asked for where there is one."""

import json
from types import SimpleNamespace

import pytest
import torch

from quasar.cli import main
from quasar.core.errors import ConfigError
from quasar.core.types import Draft
from quasar.models.session import Session
from quasar.testing.random_llama import RandomLlamas
from quasar.verifiers.fp8 import Fp8
from quasar.verifiers.int4 import Int4
from quasar.verifiers.int8 import LAYER_BACKENDS, Int8
from quasar.verifiers.quantization import torchao as torchao_file
from quasar.verifiers.quantization.emulated import EmulatedFp8Linear, EmulatedInt4Linear, fp8_rows
from quasar.verifiers.quantization.scheme import NotQuantizedError
from quasar.verifiers.quantization.torchao import (
    TorchaoFp8,
    TorchaoFp8Linear,
    TorchaoInt4,
    TorchaoInt4Linear,
    gpu_obstacle,
)
from tests.shared.tiny_folder import save_tiny_model

needs_torchao = pytest.mark.skipif(LAYER_BACKENDS["torchao"].unusable() is not None, reason="torchao does not load")
both = pytest.mark.parametrize("kind", [Fp8, Int4])


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def emulated(kind, **options):
    verifier = kind(kind.Config(emulated=True, **options))
    verifier.load(RandomLlamas())
    return verifier


def logits(model):
    return Session(model, 1).forward([[5, 6, 7]], Draft.chains([[8, 9]]))


# --- formats ----------------------------------------------------------------------------------------------------------


def test_float8_rows_have_three_bits_of_fraction_and_scales_of_their_own():
    x = gaussian(6, 50)
    x[2] *= 1e6
    numbers, scale = fp8_rows(x)
    assert numbers.dtype == torch.float8_e4m3fn
    assert torch.equal(numbers.float().abs().amax(dim=1), torch.full((6,), 448.0))
    back = numbers.float() * scale
    big = x.abs() > x.abs().amax(dim=1, keepdim=True) / 1000  # smaller ones are subnormal
    assert ((back - x).abs()[big] <= x.abs()[big] / 16 * (1 + 1e-5)).all()
    assert fp8_rows(torch.zeros(1, 4))[0].float().tolist() == [[0] * 4]


def test_a_float8_row_does_not_depend_on_the_rows_beside_it():
    layer, x = EmulatedFp8Linear(gaussian(16, 48), gaussian(16)), gaussian(5, 48, seed=1)
    x[3] *= 1e4
    assert torch.allclose(layer(x)[:2], layer(x[:2]), rtol=1e-6, atol=1e-6)
    exact = x @ gaussian(16, 48).T + gaussian(16)
    assert 0.005 < (layer(x) - exact).norm() / exact.norm() < 0.06


def test_int4_weights_are_within_half_a_step_and_zero_stays_zero():
    weight = gaussian(8, 64)
    weight[0, :32] = 0
    weight[1] += 10  # one sign only: zero is kept among the values all the same
    layer = EmulatedInt4Linear(weight, None, 32)
    step = layer.scale.float().repeat_interleave(32, dim=1)
    # The offset is kept in bfloat16, whose rounding is 2^-9 of it.
    slack = layer.offset.float().abs().repeat_interleave(32, dim=1) / 256 + 15 * step / 256
    assert ((layer.dequantized(torch.float32) - weight).abs() <= step / 2 + slack).all()
    assert torch.equal(layer.dequantized(torch.float32)[0, :32], torch.zeros(32))
    assert layer.weight_bytes == 8 * 32 + 2 * 8 * 2 * 2
    x = gaussian(3, 64, seed=2)
    assert torch.allclose(layer(x), x @ layer.dequantized(torch.float32).T)


def test_the_last_group_may_be_smaller():
    weight = gaussian(8, 45)
    layer = EmulatedInt4Linear(weight, None, 32)
    assert torch.equal(
        layer.dequantized(torch.float32)[:, :32], EmulatedInt4Linear(weight[:, :32], None, 32)(torch.eye(32)).T
    )
    assert layer(gaussian(2, 45)).shape == (2, 8)
    assert (layer.dequantized(torch.float32) - weight).abs().max() < 0.3


# --- verifiers --------------------------------------------------------------------------------------------------------


@both
def test_emulated_arms_say_so_convert_all_but_the_head_and_leave_full_precision_alone(kind):
    models = RandomLlamas()
    before = logits(models.target())
    verifier = kind(kind.Config(emulated=True, keep=["*.0.*.down_proj"]))
    verifier.load(models)
    said = verifier.describe()
    assert "emulated" in verifier.reference()
    assert said["backend"] == "emulated"
    assert said["converted_layers"] == 13
    assert said["skipped_layers"] == ["model.layers.0.mlp.down_proj: kept", "lm_head: head"]
    assert torch.equal(logits(models.target()), before)
    quantised = logits(verifier.model)
    assert not torch.allclose(quantised, before, rtol=0, atol=1e-4)
    assert torch.allclose(quantised, before, rtol=0, atol=0.5)


def test_smaller_groups_are_closer_and_larger():
    near, far = emulated(Int4, group_size=32), emulated(Int4, group_size=64)
    full = logits(RandomLlamas().target())
    assert (logits(near.model) - full).norm() < (logits(far.model) - full).norm()
    assert near.describe()["weight_bytes"] > far.describe()["weight_bytes"]
    assert "groups of 64" in far.reference()


@both
def test_without_a_gpu_they_are_refused_before_weights_load_with_the_reason(kind, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"compute capability 8\.\d.*no CUDA device.*'emulated: true'") as caught:
        kind(kind.Config()).reference()
    assert "\n" not in str(caught.value)


def test_an_old_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 6))
    assert gpu_obstacle((8, 9), "fp8") == (
        "fp8 needs an NVIDIA GPU of compute capability 8.9 or later, and this one has 8.6"
    )
    assert gpu_obstacle((8, 0), "int4") == torchao_file._import_error()


@pytest.mark.parametrize("backend", [TorchaoFp8, TorchaoInt4])
def test_the_kernels_serve_bfloat16_on_cuda(backend):
    def refuses(device, dtype):
        return backend.refuses(SimpleNamespace(device=torch.device(device), dtype=dtype))

    assert "run on CUDA and the model is on cpu" in refuses("cpu", torch.bfloat16)
    assert "bfloat16" in refuses("cuda:0", torch.float32)
    assert refuses("cuda:0", torch.bfloat16) is None


@needs_torchao
def test_torchao_is_asked_for_rows_and_groups_and_a_layer_that_it_left_alone_is_noticed(monkeypatch):
    asked = []
    monkeypatch.setattr(torchao_file._torchao(), "quantize_", lambda linear, config: asked.append(config))
    weight = gaussian(32, 64).bfloat16()
    with pytest.raises(NotQuantizedError, match="torchao left the weight a"):
        TorchaoFp8Linear(weight, None)
    with pytest.raises(NotQuantizedError, match="torchao left the weight a"):
        TorchaoInt4Linear(weight, None, 64)
    per_row = torchao_file._torchao().PerRow
    assert all(isinstance(each, per_row) for each in asked[0].granularity)
    assert asked[1].group_size == 64
    assert not any(config.set_inductor_config for config in asked)


def test_the_command_line_refuses_fp8_in_one_line_and_names_an_emulated_arm(tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["fidelity", "--model", "nowhere", "--verifier", "fp8", "--quiet"]) == 2
    assert "compute capability" in capsys.readouterr().err
    data = tmp_path / "data.jsonl"
    data.write_text('{"question_id": 1, "category": "a", "turns": ["hi"]}\n')
    words = ["fidelity", "--model", str(save_tiny_model(tmp_path / "tiny")), "--data", str(data), "--json", "--quiet"]
    assert main([*words, "--max-new-tokens", "4", "--verifier", "{use: fp8, emulated: true}"]) == 0
    assert json.loads(capsys.readouterr().out)["verifier"]["judges_by"] == "the model in W8A8 fp8 (emulated)"


# --- int8 by torchao, compiled ----------------------------------------------------------------------------------------


@needs_torchao
def test_compiled_torchao_layers_are_handed_to_the_compiler_one_by_one(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda layer, **options: asked.append((type(layer), options)))
    verifier = Int8(Int8.Config(backend="torchao", compiled=True, smooth_alpha=0))
    verifier.load(RandomLlamas())
    assert asked == [(torchao_file.TorchaoLinear, {"dynamic": True})] * 14
    assert verifier.describe()["compiled"] is True
    Int8(Int8.Config(backend="torchao", smooth_alpha=0)).load(RandomLlamas())
    assert len(asked) == 14


def test_other_backends_are_not_compiled():
    with pytest.raises(ConfigError, match="'compiled' is for backend 'torchao', not for 'reference'"):
        Int8(Int8.Config(backend="reference", compiled=True)).reference()
