"""How models get onto the backend: what it shares, what it refuses and how, what it leaves to torch."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import kernels_needed  # noqa: F401
import pytest
import quasar_cpu.library as loading
import torch
import transformers
from native_models import CONFIGS, DTYPES, FAMILIES, VOCAB, model, module, native, text_of
from quasar_cpu.backend import NativeCpu
from quasar_cpu.library import ISAS, STRUCTS, library
from quasar_cpu.model import NativeModel

from quasar.core.errors import ConfigError, UnsupportedModelError
from quasar.core.types import Draft
from quasar.hf.adapter import HFModel
from quasar.models.session import Session
from quasar.testing.random_llama import RandomLlamas
from quasar.verifiers.full import Full
from quasar.verifiers.int8 import Int8

NOTHING = Draft.empty(1)


class Models(RandomLlamas):
    """A provider whose target is the model that it is given, whatever dtype is asked for."""

    def __init__(self, target, backends=(NativeCpu,)):
        super().__init__(backends)
        self._target = target

    def target(self, dtype="auto"):
        return self._target


@pytest.fixture(autouse=True)
def _home_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("QUASAR_HOME", str(tmp_path / "home"))


def loaded(kind, target, **options):
    if kind is Int8:
        options = {"smooth_alpha": 0.0, **options}  # otherwise the weights are other ones before they are quantised
    verifier = kind(kind.Config(backend="native_cpu", **options))
    verifier.load(target if isinstance(target, Models) else Models(target))
    return verifier


def damaged(family, name, value):
    """Return a model of which one number of the tensor ``name`` is ``value``."""
    torch.manual_seed(1)
    broken = transformers.AutoModelForCausalLM.from_config(CONFIGS[family](), dtype=torch.float32)
    with torch.no_grad():
        broken.get_parameter(name).view(-1)[3] = value
    return HFModel(broken, family)


def gpt2(dtype=torch.float32):
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=36, n_layer=2, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=None
    )
    torch.manual_seed(1)
    return HFModel(transformers.AutoModelForCausalLM.from_config(config, dtype=dtype), "a tiny GPT-2")


# --- what is shared ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_full_precision_holds_no_second_copy_of_a_weight(family, dtype):
    base, on = model(family, dtype), native(family, dtype, "full")
    Session(on, 1).forward([text_of(1, 9)], NOTHING)
    addresses = {layer.name: layer.weight.data_ptr() for layer in base.linear_layers()}
    assert {name: layer.weights.data_ptr() for name, layer in on._linears.items()} == addresses
    assert on._embedding.data_ptr() == base.module.get_input_embeddings().weight.data_ptr()
    # Beside the model's own tensors there are norms and biases in float32 and the tables of angles: vectors, no matrix.
    own = on.storages().keys() - base.storages().keys()
    kept = {each.untyped_storage().data_ptr() for each in on._norms}
    kept |= {each.untyped_storage().data_ptr() for pair in on._ropes.values() for each in pair}
    kept |= {each.bias.untyped_storage().data_ptr() for each in on._linears.values() if each.bias is not None}
    assert own <= kept
    assert base.storages().items() & on.storages().items()


def test_int8_holds_its_integers_and_shares_the_rest():
    base, on = model("llama-mqa-tied"), native("llama-mqa-tied", torch.float32, "int8")
    head = next(layer for layer in base.linear_layers() if layer.is_head)
    assert on._linears[head.name].weights.data_ptr() == on._embedding.data_ptr() == head.weight.data_ptr()
    large = [layer for layer in base.linear_layers() if not layer.is_head]
    assert not {layer.weight.untyped_storage().data_ptr() for layer in large} & on.storages().keys()


@pytest.mark.parametrize("smooth", [0.0, 0.5])
@pytest.mark.parametrize("family", ["llama-gqa", "llama-mqa-tied", "gemma3-mixed"])
def test_building_an_int8_arm_changes_no_bit_of_the_full_arm(family, smooth):
    models, text = Models(model(family, torch.bfloat16)), [text_of(1, 33)]
    full = loaded(Full, models)
    native_before = Session(full.model, 1).forward(text, NOTHING)
    torch_before = Session(models.target(), 1).forward(text, NOTHING)
    int8 = loaded(Int8, models, quantize_lm_head=True, smooth_alpha=smooth)
    quantised = Session(int8.model, 1).forward(text, NOTHING)
    assert torch.equal(Session(full.model, 1).forward(text, NOTHING), native_before)
    assert torch.equal(Session(models.target(), 1).forward(text, NOTHING), torch_before)
    assert torch.equal(Session(loaded(Full, models).model, 1).forward(text, NOTHING), native_before)
    assert not torch.allclose(quantised, native_before, atol=1e-3)


def test_arms_with_the_same_options_are_one_model():
    models = Models(model("qwen2"))
    assert loaded(Full, models).model is loaded(Full, models).model
    assert loaded(Int8, models).model is loaded(Int8, models).model
    assert loaded(Int8, models).model is not loaded(Int8, models, quantize_lm_head=True).model


# --- what is said -----------------------------------------------------------------------------------------------------


def test_the_report_counts_the_layers_that_multiply_in_int8():
    models = Models(model("llama-gqa"))
    full, int8, head = loaded(Full, models), loaded(Int8, models), loaded(Int8, models, quantize_lm_head=True)
    assert full.describe()["backend"] == int8.describe()["backend"] == "native_cpu"
    assert (int8.describe()["converted_layers"], int8.describe()["skipped_layers"]) == (14, ["lm_head: head"])
    assert (head.describe()["converted_layers"], head.describe()["skipped_layers"]) == (15, [])
    assert isinstance(full.model, NativeModel)
    kept = loaded(Int8, models, keep=("*.1.mlp.down_proj",)).describe()
    assert kept["skipped_layers"] == ["model.layers.1.mlp.down_proj: kept", "lm_head: head"]
    assert kept["converted_layers"] == 13


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_another_family_it_takes_the_linear_layers_and_says_so(dtype):
    base, text = gpt2(dtype), [text_of(2, 12)]
    full, int8 = loaded(Full, base), loaded(Int8, base)
    said = full.describe()["backend"]
    assert said.startswith("native_cpu (linear layers only: model type 'gpt2' is not of the Llama family (")
    assert int8.describe()["backend"] == said
    assert (int8.describe()["converted_layers"], int8.describe()["skipped_layers"]) == (8, ["lm_head: head"])
    want = Session(base, 1).forward(text, NOTHING)
    # Eight bits of float, or of steps, per activation.
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    assert torch.allclose(Session(full.model, 1).forward(text, NOTHING), want, atol=tolerance)
    assert torch.allclose(Session(int8.model, 1).forward(text, NOTHING), want, atol=0.1)
    assert full.model.module is not base.module
    assert torch.equal(Session(base, 1).forward(text, NOTHING), want)


def group_of(size):
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=2 * size, intermediate_size=32, num_hidden_layers=1, num_attention_heads=size,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    return HFModel(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32), "groups")


def test_heads_for_which_there_is_no_kernel_leave_attention_to_torch():
    assert NativeCpu.build(group_of(24), "full").backend == "native_cpu"
    said = NativeCpu.build(group_of(25), "full").backend
    assert said == "native_cpu (linear layers only: heads of 8 in groups of 25 have no kernel)"


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Full, Int8])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj"),
        ("lm_head.weight", "lm_head"),
        ("model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_proj (bias)"),
        ("model.embed_tokens.weight", "the embedding"),
        ("model.norm.weight", "final_norm"),
        ("model.layers.1.post_attention_layernorm.weight", "mlp_norm of layer 1"),
    ],
)
def test_a_damaged_checkpoint_is_refused_with_the_name_of_the_tensor(kind, name, said, value):
    with pytest.raises(UnsupportedModelError) as caught:
        loaded(kind, damaged("qwen2", name, value))
    assert str(caught.value) == f"backend 'native_cpu': {said} holds NaN or infinity; the checkpoint is damaged."


@pytest.mark.parametrize("kind", [Full, Int8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_dtype_without_kernels_is_refused(kind, dtype):
    with pytest.raises(ConfigError) as caught:
        loaded(kind, HFModel(module("llama-gqa", dtype), "half"))
    name = str(dtype).removeprefix("torch.")
    assert str(caught.value) == (
        f"backend 'native_cpu' cannot be used: it has kernels for bfloat16 and float32, not for {name}."
    )


def test_another_device_is_refused():
    elsewhere = HFModel(module("llama-gqa"), "meta")
    elsewhere.device = torch.device("meta")
    assert NativeCpu.refuses(elsewhere) == "its kernels run on the CPU and the model is on meta"


@pytest.mark.parametrize(("token", "said"), [(-1, "-1..4"), (VOCAB, f"2..{VOCAB}")])
def test_a_token_outside_the_vocabulary_is_refused_before_memory_is_read(token, said):
    with pytest.raises(IndexError, match=rf"token ids of {said} in a vocabulary of {VOCAB}"):
        Session(native("llama-gqa", torch.float32, "full"), 1).forward([[4, token, 2]], NOTHING)


# --- the choice of kernels --------------------------------------------------------------------------------------------


def best(use_isa):
    use_isa("best")
    return library().isa


def test_the_portable_kernels_run_everywhere_and_another_name_is_refused(use_isa):
    known = ISAS[: ISAS.index(best(use_isa)) + 1]
    for name in known:
        use_isa(name)
        assert library().isa == name
        assert NativeCpu.unusable() is None
    use_isa("sse9")
    listed = ", ".join(known)
    assert NativeCpu.unusable() == f"its kernels cannot be loaded (QUASAR_CPU_ISA=sse9: this processor runs {listed})"


def test_kernels_that_this_processor_lacks_are_refused_in_one_line(use_isa):
    if best(use_isa) == "avx512":
        pytest.skip("this processor has AVX-512 with VNNI")
    use_isa("avx512")
    with pytest.raises(ConfigError) as caught:
        loaded(Full, model("llama-gqa"))
    assert str(caught.value).startswith(
        "backend 'native_cpu' cannot be used: "
        "its kernels cannot be loaded (QUASAR_CPU_ISA=avx512: this processor runs portable"
    )
    assert len(str(caught.value).splitlines()) == 1


def test_kernels_that_were_not_built_are_named(use_isa, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "__file__", os.fspath(tmp_path / "library.py"))
    use_isa("best")
    assert "kernels_portable.so" in NativeCpu.unusable()
    assert len(NativeCpu.unusable().splitlines()) == 1


@pytest.mark.parametrize("place", range(len(STRUCTS)), ids=lambda place: STRUCTS[place].__name__)
def test_kernels_with_another_struct_are_refused_by_its_name(use_isa, monkeypatch, place):
    class Longer(STRUCTS[place]):
        _fields_ = (("more", ctypes.c_int64),)

    name, size = STRUCTS[place].__name__, ctypes.sizeof(STRUCTS[place])
    Longer.__name__ = name
    monkeypatch.setattr(loading, "STRUCTS", (*STRUCTS[:place], Longer, *STRUCTS[place + 1 :]))
    use_isa("best")
    said = re.fullmatch(
        rf"its kernels cannot be loaded \(struct {name} has {size} bytes in kernels_\w+\.so and {size + 8} in "
        r"library\.py; build plugins/quasar-cpu again\)",
        NativeCpu.unusable(),
    )
    assert said


def test_kernels_that_do_not_tell_their_structs_are_refused(use_isa, monkeypatch):
    opened = library()
    older = SimpleNamespace(quasar_best_isa=opened.quasar_best_isa, quasar_forward_layers=None, quasar_linear=None)
    monkeypatch.setattr(loading, "_open", lambda isa: older)
    use_isa("best")
    assert "comes from older sources" in NativeCpu.unusable()


def test_every_struct_of_the_interface_is_compared():
    header = (Path(__file__).parents[1] / "csrc" / "model.h").read_text(encoding="utf-8")
    assert re.findall(r"^struct (\w+)", header, re.MULTILINE) == [struct.__name__ for struct in STRUCTS]


def test_fewer_threads_than_torch_has_are_enough():
    # OpenMP may hand out fewer than were asked for; a barrier for all that were asked for would wait for ever.
    script = """
import torch
from native_models import native
from quasar.models.session import Session
from quasar.core.types import Draft
torch.set_num_threads(2)
print(Session(native("llama-gqa", torch.float32, "full"), 1).forward([[1, 2, 3]], Draft.empty(1)).sum().item())
"""
    here = os.path.dirname(__file__)
    answers = {
        subprocess.run(
            [sys.executable, "-c", script], env=os.environ | limit | {"PYTHONPATH": here},
            capture_output=True, text=True, check=True, timeout=120,
        ).stdout
        for limit in ({}, {"OMP_THREAD_LIMIT": "1"})
    }  # fmt: skip
    assert len(answers) == 1
