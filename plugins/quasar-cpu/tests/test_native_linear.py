"""One linear layer: exact integers in int8, torch's product in full precision, and what it refuses."""

import random

import kernels_needed  # noqa: F401
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quasar_cpu.linear import NativeLinear

from quasar.core.decoders import LinearLayer
from quasar.core.errors import UnsupportedModelError
from quasar.verifiers.quantization.reference import ReferenceLinear

pytestmark = pytest.mark.usefixtures("isa")
EXTREMES = ["no", "outlier", "all", "signs", "zeros", "tiny"]
NAME = "model.layers.1.mlp.up_proj"

shapes = {"rows": st.integers(1, 70), "outputs": st.integers(1, 110), "inputs": st.integers(1, 150)}
options = {
    "dtype": st.sampled_from([torch.float32, torch.bfloat16]),
    "bias": st.booleans(),
    "transposed": st.booleans(),  # as GPT-2 stores its weights
    "seed": st.integers(0, 2**32),
}
often = settings(
    max_examples=120, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def layer(weight, bias=None):
    return LinearLayer(NAME, weight, bias, lambda _: None, False)


def random_layer(outputs, inputs, dtype, bias, transposed, generator):
    weight = torch.randn((inputs, outputs) if transposed else (outputs, inputs), generator=generator).to(dtype)
    weight = weight.t() if transposed else weight
    return layer(weight, torch.randn(outputs, generator=generator).to(dtype) if bias else None)


def exactly(of, x, bits):
    """The reference in float32, whose product of integers is exact."""
    bias = None if of.bias is None else of.bias.float()
    return ReferenceLinear(of.weight, bias, bits=bits)(x)


@often
@given(**shapes, **options, bits=st.integers(8, 12), extreme=st.sampled_from(EXTREMES))
def test_int8_is_exact_integer_arithmetic(rows, outputs, inputs, dtype, bias, transposed, seed, bits, extreme):
    generator = torch.Generator().manual_seed(seed)
    of = random_layer(outputs, inputs, dtype, bias, transposed, generator)
    x = torch.randn(rows, inputs, generator=generator)
    if extreme == "outlier":
        x[:, random.Random(seed).randrange(inputs)] = 3e4
    elif extreme == "all":
        x = torch.full_like(x, -1e30)
    elif extreme == "signs":  # with the weights' own signs every product is positive: the largest sum there is
        x = of.weight[seed % outputs].float().sign().expand(rows, -1) * 127
    elif extreme == "zeros":
        x = torch.zeros_like(x)
    elif extreme == "tiny":
        x = x * 1e-44
    assert torch.equal(NativeLinear(of, bits)(x), exactly(of, x, bits))


@pytest.mark.parametrize("bits", [8, 12])
@pytest.mark.parametrize("columns", [16, 48, 1536, 8192, 20000])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_sums_of_nothing_but_the_largest_products_saturate_nowhere(columns, sign, bits):
    weight, x = torch.full((5, columns), sign), torch.full((7, columns), 2.0)
    got = NativeLinear(layer(weight), bits)(x)
    assert torch.equal(got, exactly(layer(weight), x, bits))
    assert torch.allclose(got, torch.full_like(got, sign * 2.0 * columns), rtol=1e-6)


@often
@given(**shapes, **options)
def test_full_precision_agrees_with_torch(rows, outputs, inputs, dtype, bias, transposed, seed):
    generator = torch.Generator().manual_seed(seed)
    of = random_layer(outputs, inputs, dtype, bias, transposed, generator)
    x = torch.randn(rows, inputs, generator=generator)
    want = x.double() @ of.weight.double().T
    bound = x.double().abs() @ of.weight.double().abs().T  # what rounding of a sum is relative to
    if of.bias is not None:
        want, bound = want + of.bias.double(), bound + of.bias.double().abs()
    # A product, sums of `inputs` of them in any order, and the bias: each term is rounded `inputs + 1` times at most.
    found = NativeLinear(of)(x).double()
    assert bool(((found - want).abs() <= 1.001 * (inputs + 1) * 2**-24 * bound).all())


@often
@given(**shapes, **options, bits=st.sampled_from([None, 8, 12]))
def test_a_row_has_the_same_bits_alone(rows, outputs, inputs, dtype, bias, transposed, seed, bits):
    generator = torch.Generator().manual_seed(seed)
    native = NativeLinear(random_layer(outputs, inputs, dtype, bias, transposed, generator), bits)
    x = torch.randn(rows, inputs, generator=generator)
    together = native(x)
    for row in range(0, rows, 5):
        assert torch.equal(native(x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_output_has_the_dtype_and_the_leading_dimensions_of_the_input(dtype):
    of = random_layer(9, 20, torch.bfloat16, True, False, torch.Generator().manual_seed(1))
    native, x = NativeLinear(of), torch.randn(2, 3, 20).to(dtype)
    assert (native(x).dtype, native(x).shape) == (dtype, (2, 3, 9))
    assert torch.equal(native(x)[1, 2], native(x[1, 2].float()).to(dtype))
    assert native(x[:, :0]).shape == (2, 0, 9)


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["weight", "bias"])
def test_what_is_not_finite_is_refused_with_its_name(bits, bad, where):
    of = random_layer(9, 20, torch.float32, True, False, torch.Generator().manual_seed(1))
    getattr(of, where).view(-1)[7] = bad
    with pytest.raises(UnsupportedModelError) as caught:
        NativeLinear(of, bits)
    name = NAME if where == "weight" else f"{NAME} (bias)"
    assert str(caught.value) == f"backend 'native_cpu': {name} holds NaN or infinity; the checkpoint is damaged."


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_dtype_without_kernels_is_refused_with_its_name(dtype):
    with pytest.raises(UnsupportedModelError, match=rf"{NAME} is {dtype}; it takes bfloat16 and float32\."):
        NativeLinear(layer(torch.zeros(3, 16, dtype=dtype)))


def test_a_weight_in_full_precision_is_not_copied():
    of = random_layer(9, 20, torch.bfloat16, False, False, torch.Generator().manual_seed(1))
    assert NativeLinear(of).weights.data_ptr() == of.weight.data_ptr()
