"""Each int8 backend against the contract of a row-wise W8A8 layer, and against exact integer arithmetic."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quasar.verifiers.int8 import LAYER_BACKENDS
from quasar.verifiers.quantization.reference import ReferenceLinear
from quasar.verifiers.quantization.scheme import QuantizedLinear

CLASSES = {name: backend.layer for name, backend in LAYER_BACKENDS.items()}
USABLE = [name for name, backend in LAYER_BACKENDS.items() if backend.unusable() is None]
every_backend = pytest.mark.parametrize("backend", USABLE)


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# --- every backend ----------------------------------------------------------------------------------------------------


@cache
def layer(backend: str) -> QuantizedLinear:
    return CLASSES[backend](gaussian(37, 70, seed=5), gaussian(37, seed=6))


@every_backend
@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**16),
    kept=st.integers(1, 6),
    later=st.integers(0, 11),
    magnitude=st.sampled_from([0.0, 1e-3, 1.0, 1e4]),
)
def test_a_row_never_depends_on_the_rows_after_it(backend, seed, kept, later, magnitude):
    draft = gaussian(12, 70, seed=seed)
    draft[:, seed % 70] *= 40  # an outlier channel, so that a shared scale would be felt
    changed = torch.cat([draft[:kept], gaussian(later, 70, seed=seed + 1) * magnitude])
    together, with_others = layer(backend)(draft), layer(backend)(changed)
    assert torch.equal(together[:kept], with_others[:kept])


@every_backend
def test_a_row_is_the_same_in_any_batch_shape(backend):
    x = gaussian(2, 3, 70)
    assert torch.equal(layer(backend)(x).flatten(0, 1), layer(backend)(x.flatten(0, 1)))
    assert torch.equal(layer(backend)(x)[0, 1], layer(backend)(x[0, 1:2])[0])


@every_backend
def test_close_to_full_precision(backend):
    weight, x = gaussian(64, 256, seed=7), gaussian(20, 256, seed=8)
    exact = x.double() @ weight.double().T
    error = CLASSES[backend](weight, None)(x).double() - exact
    assert error.norm() / exact.norm() < 0.02  # 8 bits on both sides of Gaussian data give 0.008 to 0.011


@every_backend
def test_a_row_of_zeros_gives_the_bias(backend):
    y = layer(backend)(torch.cat([torch.zeros(1, 70), gaussian(1, 70)]))
    assert torch.equal(y[0], layer(backend).bias)
    assert y.isfinite().all()


@every_backend
def test_a_channel_of_zeros_gives_zeros(backend):
    weight = gaussian(5, 70)
    weight[2] = 0
    y = CLASSES[backend](weight, None)(gaussian(3, 70))
    assert (y[:, 2] == 0).all()
    assert (y[:, 3] != 0).all()


@every_backend
def test_the_bias_is_added_once_and_not_copied(backend):
    weight, bias, x = gaussian(5, 70), gaussian(5, seed=9), gaussian(3, 70)
    with_bias = CLASSES[backend](weight, nn.Parameter(bias))
    assert torch.allclose(with_bias(x) - CLASSES[backend](weight, None)(x), bias.expand(3, 5), atol=1e-5)
    assert with_bias.bias.data_ptr() == bias.data_ptr()
    assert not with_bias.bias.requires_grad


@every_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_activations_stay_so_and_do_not_overflow(backend, dtype):
    weight, x = torch.ones(4, 300, dtype=dtype), torch.full((2, 300), -1.0, dtype=dtype)
    y = CLASSES[backend](weight, None)(x)
    assert y.dtype == dtype
    assert torch.allclose(y.float(), torch.tensor(-300.0), rtol=0.01)  # 127 · 127 · 300 is far beyond float16


@every_backend
def test_what_is_not_finite_does_not_become_finite(backend):
    x = gaussian(3, 70)
    x[0, 3], x[1, 4] = float("nan"), float("inf")
    y = layer(backend)(x)
    assert not y[:2].isfinite().any()
    assert y[2].isfinite().all()


@every_backend
def test_transposed_weights_are_read_in_place(backend):
    stored = gaussian(70, 37, seed=10)
    x = gaussian(4, 70)
    assert torch.equal(CLASSES[backend](stored.T, None)(x), CLASSES[backend](stored.T.contiguous(), None)(x))


@every_backend
def test_bytes_are_those_that_are_held(backend):
    module = layer(backend)
    plain = 37 * 70 + 37 * 4
    packed = 40 * 512 + 37 * 4  # FBGEMM packs whole blocks
    assert module.weight_bytes == {"reference": plain, "torchao": plain + 37, "fbgemm": packed}[backend]
    assert module.storage_bytes() == module.weight_bytes + 37 * 4
    assert "in_features=70, out_features=37, bias=True" in repr(module)


# --- reference --------------------------------------------------------------------------------------------------------


def test_reference_product_is_exact_where_float32_is_not():
    weight = torch.full((2, 3001), 127.0)
    weight[1, ::2] = 126
    x = torch.full((1, 3001), 127.0, dtype=torch.float64)
    x[0, 1::3] = 125
    exact = (x[0].long() * weight.long()).sum(dim=1)
    assert exact.max() > 2**24
    assert torch.equal(ReferenceLinear(weight, None)(x)[0], exact.double())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_reference_rows_are_bit_equal_together_and_alone(dtype):
    # All near 1: the integer sums exceed 2^24, where float32 would round them in an order that depends on the rows.
    module = ReferenceLinear(1 + gaussian(96, 1536, seed=11, dtype=dtype) / 50, gaussian(96, seed=12, dtype=dtype))
    x = 1 + gaussian(17, 1536, seed=13, dtype=dtype) / 50
    together = module(x)
    assert together.dtype == dtype
    for rows in (1, 2, 5, 6):
        apart = torch.cat([module(part) for part in x.split(rows)])
        assert torch.equal(apart, together)


def test_reference_float64_is_the_formula():
    weight, bias, x = (gaussian(*shape, seed=i, dtype=torch.float64) for i, shape in enumerate([(5, 9), (5,), (3, 9)]))
    weight_scale, x_scale = weight.abs().amax(1) / 127, x.abs().amax(1) / 127
    product = (x / x_scale[:, None]).round() @ (weight / weight_scale[:, None]).round().T
    expected = product * x_scale[:, None] * weight_scale + bias
    assert torch.allclose(ReferenceLinear(weight, bias)(x), expected, rtol=1e-13)


def test_reference_rounds_bfloat16_once():
    weight, x = gaussian(8, 70), gaussian(4, 70, dtype=torch.bfloat16)
    module = ReferenceLinear(weight, gaussian(8, seed=1))
    assert torch.equal(module(x), module(x.float()).bfloat16())
