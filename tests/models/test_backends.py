"""Which backend runs a model: what is named, what is measured, and what is remembered."""

import json

import pytest
import torch

from quasar.core.errors import ConfigError
from quasar.models import backend_choice
from quasar.models.backend_choice import Stock, choose_backend, full_precision
from quasar.testing.random_llama import RandomLlamas
from tests.shared.backend_fakes import Stopwatch, fake


@pytest.fixture(autouse=True)
def stopwatch(tmp_path, monkeypatch):
    return Stopwatch(tmp_path, monkeypatch)


@pytest.fixture
def file(stopwatch):
    return stopwatch.file


def refusal(models, requested):
    with pytest.raises(ConfigError) as caught:
        choose_backend(models, "auto", requested)
    return str(caught.value)


# --- named ------------------------------------------------------------------------------------------------------------


def test_torch_needs_no_measurement(stopwatch):
    assert choose_backend(RandomLlamas([fake("quick")]), "auto", "torch") is Stock
    assert stopwatch.measured == []


def test_a_backend_is_taken_by_its_name_without_measuring(stopwatch):
    slow, quick = fake("slow"), fake("quick")
    assert choose_backend(RandomLlamas([quick, slow]), "auto", "slow") is slow
    assert stopwatch.measured == []


def test_an_unknown_name_is_refused_with_what_there_is():
    assert refusal(RandomLlamas([fake("quick")]), "quikc") == (
        "backend 'quikc' is not installed. Did you mean 'quick'? Available: auto, quick, torch. "
        "More come with plugins, for example plugins/quasar-cpu."
    )


@pytest.mark.parametrize("reason", ["unusable", "refuses"])
def test_a_backend_that_cannot_serve_is_refused_with_its_reason(reason):
    backend = fake("picky", **{reason: "the moon is full"})
    assert refusal(RandomLlamas([backend]), "picky") == "backend 'picky' cannot be used: the moon is full."


# --- auto -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "backends",
    [[], [fake("a", unusable="no")], [fake("b", refuses="no")], [fake("a", unusable="no"), fake("b", refuses="no")]],
)
def test_auto_without_a_backend_that_serves_is_torch_unmeasured(backends, stopwatch, file):
    assert choose_backend(RandomLlamas(backends), "auto", "auto") is Stock
    assert stopwatch.measured == []
    assert not file.exists()


@pytest.mark.parametrize(
    ("seconds", "winner"),
    [
        ({"torch": 0.3, "one": 0.2, "two": 0.1}, "two"),
        ({"torch": 0.3, "one": 0.1, "two": 0.2}, "one"),
        ({"torch": 0.1, "one": 0.2, "two": 0.3}, "torch"),
    ],
)
def test_auto_takes_the_fastest_of_all_that_can_serve(seconds, winner, stopwatch):
    stopwatch.update(seconds, never=0.0)
    one, two = fake("one"), fake("two")
    models = RandomLlamas([one, fake("never", unusable="no"), two])
    assert choose_backend(models, "auto", "auto").name == winner
    assert stopwatch.measured == [["one", "torch", "two"]]
    assert one.built == two.built == [("full", False)]


@pytest.mark.parametrize("traits", [{"precisions": ("int8",)}, {"by_name_only": True}])
def test_auto_measures_no_backend_without_full_precision_or_to_be_named(traits, stopwatch):
    stopwatch.update(torch=0.3, quick=0.2, odd=0.1)
    odd, quick = fake("odd", **traits), fake("quick")
    models = RandomLlamas([odd, quick])
    for precision in ("full", "int8"):
        assert choose_backend(models, "auto", "auto", precision) is quick
    assert choose_backend(models, "auto", "odd", "int8") is odd
    assert stopwatch.measured == [["quick", "torch"]]
    assert odd.built == []


def test_a_backend_for_quantised_models_leaves_full_precision_to_torch():
    models, odd = RandomLlamas(), fake("odd", precisions=("int8",))
    assert full_precision(models, "auto", odd).model is models.target()
    with pytest.raises(ConfigError, match=r"^backend 'odd' cannot be used: it serves int8, not full\.$"):
        choose_backend(RandomLlamas([odd]), "auto", "odd")


def test_a_measurement_is_made_once_and_kept(stopwatch, file):
    stopwatch.update(torch=0.0302, quick=0.01)
    for _ in range(2):
        models, quick = RandomLlamas([fake("quick")]), fake("quick")
        assert choose_backend(models, "auto", "auto").name == "quick"
        assert choose_backend(models, "auto", "auto").name == "quick"
    assert len(stopwatch.measured) == 1
    [(key, milliseconds)] = json.loads(file.read_text()).items()
    assert milliseconds == {"torch": 30.2, "quick": 10.0}
    assert key.startswith("milliseconds of forwards of (1, 6) rows; 2 layers of ")
    assert quick.built == []
    file.unlink()
    choose_backend(RandomLlamas([fake("quick")]), "auto", "auto")
    assert len(stopwatch.measured) == 2


def test_what_was_kept_decides(stopwatch, file):
    stopwatch.update(torch=0.3, quick=0.1)
    choose_backend(RandomLlamas([fake("quick")]), "auto", "auto")
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({key: {"torch": 1, "quick": 2.5} for key in kept}))
    assert choose_backend(RandomLlamas([fake("quick")]), "auto", "auto") is Stock


def test_another_dtype_thread_count_or_set_of_backends_is_measured_anew(stopwatch, file):
    choose_backend(RandomLlamas([fake("quick")]), "auto", "auto")
    choose_backend(RandomLlamas([fake("quick")]), "bfloat16", "auto")
    choose_backend(RandomLlamas([fake("quick"), fake("other")]), "auto", "auto")
    torch.set_num_threads(2)
    try:
        choose_backend(RandomLlamas([fake("quick")]), "auto", "auto")
    finally:
        torch.set_num_threads(1)
    assert len(stopwatch.measured) == len(json.loads(file.read_text())) == 4


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"KEY": {}}', b'{"KEY": "fast"}', b'{"KEY": {"torch": "1"}}']
)
def test_a_damaged_file_is_measured_again_and_mended(content, stopwatch, file):
    stopwatch.update(torch=0.3, quick=0.1)
    choose_backend(RandomLlamas([fake("quick")]), "auto", "auto")
    kept = file.read_text()
    [key] = json.loads(kept)
    file.write_bytes(content.replace(b"KEY", key.encode()))
    assert choose_backend(RandomLlamas([fake("quick")]), "auto", "auto").name == "quick"
    assert len(stopwatch.measured) == 2
    assert file.read_text() == kept


def test_a_home_that_cannot_be_written_costs_a_measurement_and_nothing_else(stopwatch, file):
    file.parent.write_text("a file, where a folder should be")
    stopwatch.update(torch=0.3, quick=0.1)
    for _ in range(2):
        assert choose_backend(RandomLlamas([fake("quick")]), "auto", "auto").name == "quick"
    assert len(stopwatch.measured) == 2


def test_the_measuring_runs_every_candidate_by_turns(monkeypatch):
    monkeypatch.undo()  # the real function
    calls = []

    class Counted:
        def __init__(self, name):
            self.inner, self.name = RandomLlamas().target(), name

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def forward(self, block, cache):
            calls.append((self.name, block.num_logits))
            return self.inner.forward(block, cache)

    found = backend_choice._measure({name: Counted(name) for name in ("a", "b")})
    assert all(seconds > 0 for seconds in found.values())
    assert list(found) == ["a", "b"]
    timed = calls[2:]  # after the prompt of each
    assert timed == [("a", 1), ("b", 1), ("a", 6), ("b", 6)] * (len(timed) // 4)
    assert len(timed) >= 12
