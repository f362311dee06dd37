"""Backends as users meet them: what the arms of a comparison run on, what is refused and how, what is listed."""

import pytest

from quasar import builtins, load_pipeline
from quasar.cli import main
from quasar.core.backends import Backend
from quasar.core.errors import ConfigError, QuasarError
from quasar.testing.random_llama import RandomLlamas
from quasar.verifiers.full import Full
from quasar.verifiers.int8 import LAYER_BACKENDS, Int8
from tests.shared.backend_fakes import Stopwatch, fake
from tests.shared.plugin_fakes import plugin, registry_of

BEST_OF_TORCH = "reference" if LAYER_BACKENDS["fbgemm"].unusable() else "fbgemm"


@pytest.fixture(autouse=True)
def stopwatch(tmp_path, monkeypatch):
    return Stopwatch(tmp_path, monkeypatch)


# --- arms that are compared -------------------------------------------------------------------------------------------


def loaded(kind, models, **options):
    unsmoothed = {"smooth_alpha": 0.0} if kind is Int8 else {}  # smoothing has tests of its own
    verifier = kind(kind.Config(**options, **unsmoothed))
    verifier.load(models)
    return verifier.describe()


def test_full_and_int8_stand_on_the_same_backend(stopwatch):
    stopwatch.update(torch=0.3, quick=0.1)
    quick = fake("quick")
    models = RandomLlamas([quick])
    assert loaded(Full, models)["backend"] == loaded(Int8, models)["backend"] == "quick"
    assert loaded(Int8, models, quantize_lm_head=True)["converted_layers"] == 1
    assert quick.built == [("full", False), ("full", False), ("int8", False), ("int8", True)]
    assert len(stopwatch.measured) == 1  # with full precision, for both


def test_where_torch_is_fastest_int8_takes_the_best_of_its_layers(stopwatch):
    stopwatch.update(torch=0.1, quick=0.3)
    models = RandomLlamas([fake("quick")])
    assert loaded(Full, models)["backend"] == "torch"
    assert loaded(Int8, models)["backend"] == BEST_OF_TORCH


@pytest.mark.parametrize("name", ["torch", "reference"])
def test_layers_of_torch_can_be_asked_for_beside_a_faster_backend(name, stopwatch):
    models = RandomLlamas([fake("quick")])
    found = loaded(Int8, models, backend=name)
    assert found["backend"] == ("reference" if name == "reference" else BEST_OF_TORCH)
    assert stopwatch.measured == []


def test_more_activation_bits_need_a_backend_that_has_them(stopwatch):
    stopwatch.update(torch=0.3, quick=0.1)
    quick = fake("quick")
    models = RandomLlamas([quick])
    assert loaded(Int8, models, activation_bits=12)["backend"] == "reference"  # neither quick nor fbgemm has 12
    with pytest.raises(ConfigError, match=r"^backend 'quick' cannot be used: its activations have 8 bits, not 12\.$"):
        loaded(Int8, models, backend="quick", activation_bits=12)
    quick.activation_bits = 12
    assert loaded(Int8, models, activation_bits=12, quantize_lm_head=True)["backend"] == "quick"


def test_the_reference_names_the_bits_and_a_layer_backend_that_lacks_them_is_refused():
    def verifier(**options):
        return Int8(Int8.Config(**options))

    assert verifier().reference() == "the model in W8A8 int8"
    assert verifier(activation_bits=12, smooth_alpha=0.0).reference() == "the model in W8A12 int8 (not smoothed)"
    with pytest.raises(ConfigError, match=r"^backend 'fbgemm' cannot be used: its activations have 8 bits, not 12"):
        verifier(activation_bits=12, backend="fbgemm").reference()


# --- what users meet --------------------------------------------------------------------------------------------------

PLUGIN = '''
from quasar import hookimpl
from quasar.core.backends import Backend


class Moody(Backend):
    """Multiplies when it feels like it."""

    name = "moody"

    @classmethod
    def unusable(cls):
        return "it does not feel like it"

    @classmethod
    def refuses(cls, model):
        return None

    @classmethod
    def build(cls, model, precision, *, quantize_lm_head=False, keep=(), activation_bits=8):
        raise AssertionError("an unusable backend was built")


@hookimpl
def quasar_backends():
    return [Moody]
'''


@pytest.fixture
def moody(tmp_path):
    path = tmp_path / "moody.py"
    path.write_text(PLUGIN, encoding="utf-8")
    return path


@pytest.mark.parametrize("verifier", ["full", "int8"])
@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("moody", "backend 'moody' cannot be used: it does not feel like it."),
        ("moodi", "load_pipeline.verifier.backend: backend 'moodi' is not installed. Did you mean 'moody'? "),
    ],
)
def test_load_pipeline_refuses_in_one_line(verifier, backend, said, moody, tiny_model):
    with pytest.raises(QuasarError) as caught:
        load_pipeline(str(tiny_model), verifier={"use": verifier, "backend": backend}, plugins=[moody], quiet=True)
    assert str(caught.value).startswith(said)
    assert len(str(caught.value).splitlines()) == 1


def test_check_refuses_on_standard_error(moody, tiny_model, tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(
        f"model: {tiny_model}\nplugins: [moody.py]\ndata: {{source: bundled}}\n"
        "pipelines:\n  vanilla: {}\n  odd: {verifier: {use: int8, backend: moody}}\n",
        encoding="utf-8",
    )
    code = main(["check", str(tmp_path / "run.yaml"), "--run"])
    printed = capsys.readouterr()
    assert code != 0
    assert "backend 'moody' cannot be used: it does not feel like it." in printed.err + printed.out
    assert "Traceback" not in printed.err


def test_a_listing_has_backends_and_says_which_are_usable_or_broken():
    class Half(Backend):
        """Lacks the rest."""

        name = "half"

        @classmethod
        def unusable(cls):
            return None

    registry = registry_of(plugin(backends=[fake("quick"), fake("away", unusable="no kernels"), Half, int]))
    lines = {line.name: line for line in registry.listing("backend")}
    assert (lines["quick"].summary, lines["quick"].traits) == ("Does nothing well.", {"usable": True})
    assert lines["away"].traits == {"usable": "no kernels"}
    assert lines["half"].error.endswith("class Half lacks build, refuses")
    assert lines["int"].error.endswith("class int is not a subclass of Backend")
    assert [backend.name for backend in registry.backends()] == ["quick", "away"]


def test_ls_shows_backends(monkeypatch, capsys):
    registry = registry_of(builtins, plugin(backends=[fake("quick")]))
    monkeypatch.setattr("quasar.plugins.registry.load_registry", lambda *_, **__: registry)
    assert main(["ls"]) == 0
    assert "backend   quick            Does nothing well.  [" in capsys.readouterr().out
