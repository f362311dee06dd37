"""int8 layers: the number format, and what a conversion touches, refuses and reports."""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from quasar.core.backends import Backend
from quasar.core.decoders import LinearLayer
from quasar.core.errors import ConfigError
from quasar.models.backend_choice import choose_backend
from quasar.models.int8_format import quantize_rows, quantize_weight
from quasar.verifiers.int8 import LAYER_BACKENDS
from quasar.verifiers.quantization import torchao as torchao_file
from quasar.verifiers.quantization.fbgemm import Fbgemm
from quasar.verifiers.quantization.reference import Reference
from quasar.verifiers.quantization.torchao import Torchao

USABLE = [name for name, backend in LAYER_BACKENDS.items() if backend.unusable() is None]
every_backend = pytest.mark.parametrize("backend", USABLE)
needs_fbgemm = pytest.mark.skipif("fbgemm" not in USABLE, reason="torch without FBGEMM")
needs_torchao = pytest.mark.skipif("torchao" not in USABLE, reason="torchao does not load")


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class FakeModel(nn.Module):
    """Two layers, one GPT-2-like layer that stores its weight transposed, and a head tied to the embedding."""

    name = "fake"
    max_length = None
    device = torch.device("cpu")

    def __init__(self, dtype: torch.dtype = torch.float32, weights: int = 3) -> None:
        super().__init__()
        self.dtype = dtype
        self.embedding = nn.Parameter(gaussian(40, 24, seed=1, dtype=dtype))
        self.up = nn.Parameter(gaussian(33, 24, seed=2, dtype=dtype))
        self.bias = nn.Parameter(gaussian(33, seed=3, dtype=dtype))
        self.transposed = nn.Parameter(gaussian(33, 24, seed=4, dtype=dtype))
        self.weights = weights
        self.layers = nn.ModuleDict()

    def linear_layers(self) -> Iterator[LinearLayer]:
        found = [("up", self.up, self.bias), ("down", self.transposed.T, None), ("again", self.up, None)]
        for name, weight, bias in found[: self.weights]:
            yield LinearLayer(name, weight, bias, partial(self.layers.__setitem__, name), False)
        yield LinearLayer("lm_head", self.embedding, None, partial(self.layers.__setitem__, "lm_head"), True)


# --- the number format ------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    magnitude=st.sampled_from([1e-320, 1e-44, 1e-38, 1e-20, 1.0, 1e20, 3e37]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    steps=st.sampled_from([127, 90, 1]),
)
def test_rounding_error_is_at_most_half_a_step(seed, magnitude, dtype, steps):
    x = (gaussian(4, 7, seed=seed).double() * magnitude).to(dtype)
    integers, scale = quantize_rows(x, steps)
    assert torch.equal(integers, integers.round())
    assert integers.abs().max() <= steps
    error = (x.double() - integers.double() * scale.double()).abs()
    assert (error <= scale.double() * (0.5 + 1e-5)).all()


def test_largest_magnitude_is_the_last_step_and_halves_round_to_even():
    integers, scale = quantize_rows(torch.tensor([[-127.0, 0.5, 1.5, 2.5, -0.5, -1.5]]))
    assert integers.tolist() == [[-127, 0, 2, 2, 0, -2]]
    assert scale.item() == 1


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**16), power=st.integers(-60, 60))
def test_scaling_a_row_scales_its_scale_only(seed, power):
    x = gaussian(3, 9, seed=seed)
    integers, scale = quantize_rows(x)
    scaled_integers, scaled_scale = quantize_rows(x * 2.0**power)
    assert torch.equal(integers, scaled_integers)
    assert torch.equal(scale * 2.0**power, scaled_scale)


def test_sixteen_bit_rows_are_quantised_in_float32():
    assert quantize_rows(gaussian(2, 3, dtype=torch.bfloat16))[1].dtype == torch.float32
    assert quantize_rows(gaussian(2, 3, dtype=torch.float64))[1].dtype == torch.float64


def test_weight_integers_are_those_of_its_rows_and_contiguous_whatever_the_strides():
    weight = gaussian(24, 150, seed=30).T
    integers, scale = quantize_weight(weight, 90)
    expected_integers, expected_scale = quantize_rows(weight, 90)
    assert integers.is_contiguous()
    assert integers.dtype == torch.int8
    assert torch.equal(integers.float(), expected_integers)
    assert torch.equal(scale, expected_scale[:, 0])


# --- conversion -------------------------------------------------------------------------------------------------------


@every_backend
@pytest.mark.parametrize("quantize_lm_head", [False, True])
def test_building_replaces_layers_and_leaves_every_tensor_alone(backend, quantize_lm_head):
    model = FakeModel()
    before = {name: (tensor.data_ptr(), tensor.detach().clone()) for name, tensor in model.named_parameters()}
    built = LAYER_BACKENDS[backend].build(model, "int8", quantize_lm_head=quantize_lm_head)
    for name, (address, value) in before.items():
        assert model.get_parameter(name).data_ptr() == address
        assert torch.equal(model.get_parameter(name), value)
    expected = ("up", "down", "again", "lm_head") if quantize_lm_head else ("up", "down", "again")
    assert built.converted == expected == tuple(model.layers)
    assert built.skipped == (() if quantize_lm_head else ("lm_head: head",))
    assert (built.model, built.backend) == (model, backend)
    assert all(isinstance(module, LAYER_BACKENDS[backend].layer) for module in model.layers.values())
    hidden = gaussian(3, 24, seed=20)
    down = model.layers["down"](model.layers["up"](hidden))
    full = (hidden @ model.up.T + model.bias) @ model.transposed
    assert (down - full).norm() / full.norm() < 0.03


def test_it_reports_what_it_left_and_why():
    model = FakeModel()
    model.up.data[0, 0] = float("nan")
    report = Reference.build(model, "int8")
    assert report.converted == ("down",)
    assert report.skipped == ("up: weight is not finite", "again: weight is not finite", "lm_head: head")


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (torch.zeros(3, 3, dtype=torch.int8), "int8 with 2 dimensions"),
        (torch.zeros(3, 3).to(torch.float8_e4m3fn), "float8_e4m3fn with 2 dimensions"),
        (torch.zeros(3), "float32 with 1 dimensions"),
        (nn.Buffer(torch.zeros(3, 3)).as_subclass(type("Packed", (Tensor,), {})), "a Packed already"),
    ],
)
def test_it_refuses_to_do_nothing_and_says_what_it_saw(weight, reason):
    model = FakeModel(weights=1)
    model.linear_layers = lambda: iter([LinearLayer("up", weight, None, model.layers.update, False)])
    with pytest.raises(
        ConfigError, match=rf"0 of 1 layers quantised in fake.*1 × weight is {reason}.*nothing to verify"
    ):
        Reference.build(model, "int8")


def test_it_refuses_models_without_layers_or_with_a_head_only():
    with pytest.raises(ConfigError, match=r"0 of 1 layers.*1 × head"):
        Reference.build(FakeModel(weights=0), "int8")
    model = FakeModel()
    model.linear_layers = lambda: iter([])
    with pytest.raises(ConfigError, match=r"0 of 0 layers.*no linear layer"):
        Reference.build(model, "int8")


def chosen(requested: str, model: FakeModel | None = None) -> type[Backend]:
    models = SimpleNamespace(backends=tuple, target=lambda dtype: model or FakeModel())
    return choose_backend(models, "auto", requested, "int8", built_in=tuple(LAYER_BACKENDS.values()))


def test_they_are_chosen_by_name():
    with pytest.raises(ConfigError, match=r"'fbgem'.*Did you mean 'fbgemm'"):
        chosen("fbgem")
    assert [chosen(name).name for name in USABLE] == USABLE


@needs_fbgemm
@pytest.mark.parametrize("requested", ["auto", "torch"])
def test_torch_is_fbgemm_where_the_model_allows_it(requested):
    assert chosen(requested) is Fbgemm
    double, on_gpu = FakeModel(torch.float64), FakeModel()
    on_gpu.device = torch.device("cuda:0")
    for model in (double, on_gpu):
        assert chosen(requested, model) is Reference
    with pytest.raises(ConfigError, match="float32; use the 'reference' backend"):
        chosen("fbgemm", double)
    with pytest.raises(ConfigError, match="run on the CPU and the model is on cuda:0"):
        chosen("fbgemm", on_gpu)


def test_backends_name_what_they_do_not_serve():
    apple = FakeModel()
    apple.device = torch.device("mps")
    for requested in ("auto", "torch", "reference"):  # torchao is not taken unasked
        with pytest.raises(ConfigError, match=r"^backend 'reference' cannot be used: .* Apple"):
            chosen(requested, apple)
    if "torchao" in USABLE:
        with pytest.raises(ConfigError, match="torchao cannot quantise float64"):
            chosen("torchao", FakeModel(torch.float64))


def test_backends_for_int8_are_refused_where_full_precision_is_asked_for():
    with pytest.raises(ConfigError, match=r"^backend 'reference' cannot be used: it serves int8, not full\.$"):
        choose_backend(SimpleNamespace(backends=lambda: (Reference,)), "auto", "reference")


@needs_torchao
def test_torchao_that_does_nothing_is_noticed(monkeypatch):
    monkeypatch.setattr(torchao_file._torchao(), "quantize_", lambda *_: None)
    with pytest.raises(ConfigError, match=r"0 of 4 layers.*3 × torchao left the weight a Tensor"):
        Torchao.build(FakeModel(), "int8")


@needs_torchao
@pytest.mark.parametrize("other", ["one scale per tensor", "weights only"])
def test_torchao_that_quantises_otherwise_is_refused(monkeypatch, other):
    library = torchao_file._torchao()
    quantize = library.quantize_
    config = (
        library.Int8WeightOnlyConfig(set_inductor_config=False)
        if other == "weights only"
        else library.Int8DynamicActivationInt8WeightConfig(granularity=library.PerTensor(), set_inductor_config=False)
    )
    monkeypatch.setattr(library, "quantize_", lambda linear, _: quantize(linear, config))
    with pytest.raises(ConfigError, match="does not quantise activations per row"):
        Torchao.build(FakeModel(), "int8")
