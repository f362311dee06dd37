"""What is peculiar to the kernels of FBGEMM and torchao: saturation, deprecation, and silence about failures."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch import Tensor

from quasar.core.errors import ConfigError
from quasar.models.backend_choice import choose_backend
from quasar.models.int8_format import quantize_weight
from quasar.testing.random_llama import RandomLlamas
from quasar.verifiers.int8 import LAYER_BACKENDS
from quasar.verifiers.quantization import fbgemm as fbgemm_file
from quasar.verifiers.quantization import torchao as torchao_file
from quasar.verifiers.quantization.fbgemm import FbgemmLinear
from quasar.verifiers.quantization.reference import ReferenceLinear
from quasar.verifiers.quantization.torchao import TorchaoLinear

USABLE = [name for name, backend in LAYER_BACKENDS.items() if backend.unusable() is None]
needs_fbgemm = pytest.mark.skipif("fbgemm" not in USABLE, reason="torch without FBGEMM")
needs_torchao = pytest.mark.skipif("torchao" not in USABLE, reason="torchao does not load")


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def chosen(requested: str) -> str:
    built_in = tuple(LAYER_BACKENDS.values())
    return choose_backend(RandomLlamas(), "auto", requested, "int8", built_in=built_in).name


# --- fbgemm -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="torch without FBGEMM")
def test_fbgemm_is_usable_where_torch_has_it():
    assert LAYER_BACKENDS["fbgemm"].unusable() is None  # or every other test of it would be skipped unseen


@needs_fbgemm
def test_fbgemm_equals_the_reference_where_no_pair_can_saturate():
    weight, x = gaussian(48, 301, seed=14), gaussian(9, 301, seed=15)
    x[:, 0] = -6  # the largest magnitude is negative: the others stay below 54 of 127 positive steps
    x = x.clamp(max=2.4)
    expected = ReferenceLinear(weight, None, steps=90)(x)
    assert torch.allclose(FbgemmLinear(weight, None)(x), expected, rtol=1e-5, atol=1e-4)


@needs_fbgemm
def test_fbgemm_loses_little_to_saturation_on_outliers():
    weight, x = gaussian(48, 576, seed=16), gaussian(32, 576, seed=17)
    x[:, ::97] *= 20
    expected = ReferenceLinear(weight, None, steps=90)(x)
    assert (FbgemmLinear(weight, None)(x) - expected).norm() / expected.norm() < 0.01


@needs_fbgemm
def test_fbgemm_packs_the_integers_of_the_scheme():
    weight = gaussian(6, 11, dtype=torch.bfloat16)
    packed, _ = torch.ops.quantized.linear_unpack(FbgemmLinear(weight, None)._packed)
    integers, scale = quantize_weight(weight, 90)
    assert torch.equal(packed.int_repr(), integers)
    assert torch.equal(packed.q_per_channel_scales().float(), scale)
    assert packed.int_repr().abs().max() == 90


@needs_fbgemm
def test_fbgemm_silences_only_its_own_warning_and_leaves_the_engine(monkeypatch):
    before = next(engine for engine in torch.backends.quantized.supported_engines if engine not in ("none", "fbgemm"))
    monkeypatch.setattr(torch.backends.quantized, "engine", before)
    monkeypatch.setattr(
        fbgemm_file, "quantize_weight", lambda *a: (warnings.warn("other", stacklevel=1), quantize_weight(*a))[1]
    )
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch says it once a process otherwise
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            FbgemmLinear(gaussian(3, 4), None)
            with fbgemm_file._packing():
                warnings.warn("inside", stacklevel=1)
    finally:
        torch.set_warn_always(always)
    assert [str(one.message) for one in seen] == ["other", "inside"]
    assert torch.backends.quantized.engine == before


@needs_fbgemm
def test_fbgemm_refuses_float64_activations():
    with pytest.raises(ConfigError, match="'reference' backend"):
        FbgemmLinear(gaussian(3, 4), None)(gaussian(2, 4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("error", "reason"),
    [(RuntimeError("no engine\nmore"), "no engine"), (AttributeError("no such operator"), "no such")],
)
def test_fbgemm_that_torch_has_lost_is_reported_and_passed_over(monkeypatch, error, reason):
    def fail(*_):
        raise error

    monkeypatch.setattr(torch, "_make_per_channel_quantized_tensor", fail)
    fbgemm_file._trial.cache_clear()
    try:
        assert reason in LAYER_BACKENDS["fbgemm"].unusable()
        assert "\n" not in LAYER_BACKENDS["fbgemm"].unusable()
        assert chosen("torch") == "reference"
        with pytest.raises(ConfigError, match=reason):
            chosen("fbgemm")
    finally:
        fbgemm_file._trial.cache_clear()


@needs_fbgemm
def test_fbgemm_that_multiplies_wrongly_is_unusable(monkeypatch):
    monkeypatch.setattr(FbgemmLinear, "forward", lambda self, x: x)
    fbgemm_file._trial.cache_clear()
    try:
        assert LAYER_BACKENDS["fbgemm"].unusable() == "its kernel multiplies wrongly here"
    finally:
        fbgemm_file._trial.cache_clear()


# --- torchao ----------------------------------------------------------------------------------------------------------


def test_torchao_is_usable():
    assert LAYER_BACKENDS["torchao"].unusable() is None  # a dependency of the project


@needs_torchao
@pytest.mark.parametrize("shape", [(97, 33), (64, 64)])
def test_torchao_weights_are_int8_with_activation_scales_per_row(shape):
    weight = TorchaoLinear(gaussian(*shape), None).weight
    assert weight.qdata.dtype == torch.int8
    assert weight.scale.shape == (shape[0], 1)
    assert isinstance(weight.act_quant_kwargs.granularity, torchao_file._torchao().PerRow)


@needs_torchao
def test_torchao_is_imported_late_and_silently():
    program = (
        "import sys, logging\n"
        "from quasar.verifiers.int8 import LAYER_BACKENDS\n"
        "assert 'torchao' not in sys.modules\n"
        "assert LAYER_BACKENDS['torchao'].unusable() is None\n"
        "assert 'torchao' in sys.modules\n"
        "assert logging.root.manager.disable == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
