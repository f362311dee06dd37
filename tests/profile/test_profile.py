"""``quasar profile`` on a tiny model: what is forwarded, what is counted, what is printed. No time is asserted."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from quasar import load_pipeline
from quasar.cli import main
from quasar.core.models import LanguageModel
from quasar.profile import command
from quasar.profile.forwards import MIN_ROUNDS, Place, Timing, measure
from quasar.profile.memory import bytes_read, read_bandwidth
from quasar.profile.parts import kind, operator_parts, shares
from tests.shared.tiny_folder import save_tiny_model

HIDDEN, VOCAB = 32, 257
STOCK = "{use: full, backend: torch}"  # whatever other backends are installed


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), max_length=64)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(command, "read_bandwidth", lambda *_: 1e9)
    monkeypatch.setattr(command, "busy_processors", lambda: 0.0)


def loaded(tiny, verifier=None) -> LanguageModel:
    verifier = verifier or {"use": "full", "backend": "torch"}
    return load_pipeline(str(tiny), drafter="none", verifier=verifier, device="cpu").composition.verifier.model


def profile(tiny, capsys, verifier: str = STOCK) -> dict:
    words = ["profile", "--model", str(tiny), "--rounds", "2", "--rows", "1", "3", "--contexts", "8", "600", "--json"]
    assert main([*words, "--verifier", verifier]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_is_alone_on_standard_output_and_has_every_forward(tiny, capsys):
    found = profile(tiny, capsys)
    assert list(found) == [
        "schema_version", "model", "verifier", "bytes_read_per_forward", "read_bandwidth_bytes_per_second", "floor_ms",
        "cache_bytes", "parts_from", "forwards", "environment",
    ]  # fmt: skip
    assert list(found["verifier"]) == ["use", "dtype", "backend", "device", "weight_bytes"]
    assert list(found["environment"]) == [
        "quasar", "python", "packages", "git_revision", "command", "platform", "device", "device_name", "threads",
        "busy_processors_at_start",
    ]  # fmt: skip
    forward = ["context", "rows", "ms", "ms_quartiles", "num_forwards", "times_one_row", "times_floor", "shares"]
    assert [list(line) for line in found["forwards"]] == [forward] * 4
    # 600 tokens do not fit the 64 that the model holds: the longest context leaves room for the widest block.
    assert [(line["context"], line["rows"]) for line in found["forwards"]] == [(8, 1), (8, 3), (62, 1), (62, 3)]
    for line in found["forwards"]:
        low, high = line["ms_quartiles"]
        assert 0 < low <= line["ms"] <= high
        assert line["num_forwards"] == 2
        assert {"gemm", "attention", "rest"} == line["shares"].keys()
        assert sum(line["shares"].values()) == pytest.approx(1)
        assert line["shares"]["gemm"] > 0
        assert line["shares"]["attention"] > 0
        assert line["times_floor"] == pytest.approx(line["ms"] / found["floor_ms"])
    assert found["forwards"][0]["times_one_row"] == 1
    assert found["floor_ms"] == pytest.approx(1e3 * found["bytes_read_per_forward"] / 1e9)
    assert found["verifier"]["weight_bytes"] > found["bytes_read_per_forward"]


def test_verifier_is_taken_as_yaml(tiny, capsys):
    found = profile(tiny, capsys, "{use: int8, backend: reference}")
    assert found["verifier"]["backend"] == "reference"
    assert found["verifier"]["use"] == "int8"


def test_table_has_a_block_for_each_context_and_a_busy_machine_is_said_on_standard_error(tiny, capsys, monkeypatch):
    monkeypatch.setattr(command, "busy_processors", lambda: 3.0)
    words = ["--rounds", "1", "--rows", "1", "6", "--contexts", "8", "--quiet", "--verifier", STOCK]
    assert main(["profile", "--model", str(tiny), *words]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [line.split()[0] for line in lines[lines.index("") + 3 :][:2]] == ["1", "6"]
    assert "Context 8 " in printed.out
    assert "Floor " in printed.out
    assert (
        printed.err
        == "warning: the machine was busy when this began (others used 3.0 processors); the times mean little.\n"
    )


@pytest.mark.parametrize("rows", [1, 2, 6])
def test_a_forward_has_the_rows_asked_for_over_a_cached_prefix(tiny, rows):
    class Recorder:
        max_length = 64

        def __init__(self):
            self.model, self.blocks = loaded(tiny), []

        def forward(self, block, cache):
            self.blocks.append(block)
            return self.model.forward(block, cache)

    model = Recorder()
    place = Place(model, list(range(1, 31)), 20, 8)
    place.forward(3)
    for _ in range(3):
        place.forward(rows)
    for block in model.blocks[1:]:
        assert block.token_ids.tolist() == [list(range(20, 20 + rows))]
        assert block.lengths.tolist() == [19]
        assert block.num_logits == rows


def test_rounds_visit_every_cell_once_in_another_order(tiny):
    visited = []

    class Visited(Place):
        def forward(self, rows):
            visited.append((self.context, rows))

    model = loaded(tiny)
    places = [Visited(model, list(range(40)), context, 8) for context in (4, 12)]
    rounds = []
    timings = measure(
        model, places, [1, 2, 4, 8], itertools.count().__next__, 3, 0.0, lambda: rounds.append(len(visited))
    )
    assert rounds == [8, 16, 24, 32]
    parts = [visited[end - 8 : end] for end in rounds]
    assert all(sorted(part) == sorted(parts[0]) for part in parts)
    assert len({tuple(part) for part in parts}) == 4
    assert timings[12, 8].seconds == [1, 1, 1]  # the clock's two readings: the uncounted pass is not among them


def test_without_rounds_and_time_a_spread_is_measured_all_the_same(tiny):
    model = loaded(tiny)
    timings = measure(model, [Place(model, list(range(20)), 4, 2)], [1], itertools.count().__next__, None, 0.0)
    assert len(timings[4, 1].seconds) == MIN_ROUNDS


def test_a_model_that_times_itself_is_believed_and_its_warm_up_forgotten(tiny):
    class Timed:
        """A model whose every forward spends 2 in gemm and 1 in norms."""

        max_length, device = 64, torch.device("cpu")

        def __init__(self):
            self.model, self.forwards = loaded(tiny), 0

        def forward(self, block, cache):
            self.forwards += 1
            return self.model.forward(block, cache)

        def timings(self):
            spent, self.forwards = self.forwards, 0
            return {"gemm": 2.0 * spent, "norms": 1.0 * spent}

    model = Timed()
    place = Place(model, list(range(20)), 4, 2)
    clock = itertools.count(0, 6).__next__
    timing = measure(model, [place], [2], clock, 5, 0.0)[4, 2]
    assert timing.parts == {"gemm": 10.0, "norms": 5.0}
    assert command._shares(place, 2, timing, model) == {"gemm": 10 / 30, "norms": 5 / 30, "rest": 15 / 30}


@pytest.mark.parametrize("tied", [False, True])
def test_floor_counts_the_embedding_only_if_the_head_multiplies_by_it(tiny, tied):
    model = loaded(tiny)
    embedding = model.module.get_input_embeddings().weight
    if tied:
        model.module.get_output_embeddings().weight = embedding
    unread = 0 if tied else VOCAB * HIDDEN * 4
    assert embedding.nbytes == VOCAB * HIDDEN * 4
    assert sum(model.storages().values()) - bytes_read(model) == unread


def test_int8_layers_are_counted_as_what_they_hold(tiny):
    full, int8 = loaded(tiny), loaded(tiny, {"use": "int8", "backend": "reference"})
    weights = sum(layer.weight.numel() for layer in full.linear_layers() if not layer.is_head)
    saved = bytes_read(full) - bytes_read(int8)
    assert 2.5 * weights < saved < 3 * weights  # four bytes to one, less the scales


def test_bandwidth_is_that_of_the_fastest_pass():
    ticks = iter([0, 8, 10, 12, 20, 24, 30, 36])  # passes of 8, 2, 4 and 6 seconds
    assert read_bandwidth("cpu", lambda: next(ticks), nbytes=2**14, passes=2) == 2**14 / 2


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("aten::addmm", "gemm"),
        ("quantized::linear_dynamic_fp16", "gemm"),
        ("aten::_weight_int8pack_mm", "gemm"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::bmm", "attention"),
        ("aten::silu", None),
    ],
)
def test_operators_are_sorted(name, part):
    assert kind(name) == part


def test_attention_by_products_of_four_dimensions_is_no_gemm():
    states = torch.ones(1, 2, 3, 4)
    assert operator_parts(lambda: (states @ states.transpose(2, 3)).softmax(-1))["gemm"] == 0
    assert operator_parts(lambda: torch.ones(3, 4) @ torch.ones(4, 4))["attention"] == 0


def test_a_linear_layer_whose_product_torch_does_not_see_counts_as_a_whole():
    class Foreign(torch.nn.Module):
        """Computes outside torch, as a layer over a C library does."""

        out_features = 2

        def forward(self, x):
            return torch.from_numpy(x.numpy() * 2)

    module = torch.nn.Sequential(Foreign(), torch.nn.ReLU())
    with torch.inference_mode():
        seen = operator_parts(lambda: module(torch.ones(1, 2)), module)
        unseen = operator_parts(lambda: module(torch.ones(1, 2)))
    assert seen["gemm"] > 0
    assert unseen["gemm"] == 0
    assert not module[0]._forward_hooks


def test_a_head_that_keeps_the_embedding_as_a_plain_attribute_reads_it(tiny):
    class Head(torch.nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weights = weight.data

    model = loaded(tiny)
    embedding = model.module.get_input_embeddings().weight
    before = bytes_read(model)
    model.module.lm_head = Head(embedding)
    assert bytes_read(model) == before  # its own weight has gone, the embedding is read instead


def test_shares_are_of_the_whole_and_never_negative():
    assert shares({"gemm": 1.0, "attention": 1.0}, 4.0) == {"gemm": 0.25, "attention": 0.25, "rest": 0.5}
    assert shares({"gemm": 3.0, "attention": 1.0}, 2.0) == {"gemm": 0.75, "attention": 0.25, "rest": 0.0}


def test_quartiles_of_one_forward_are_itself():
    assert Timing([2.0]).quartiles == (2.0, 2.0)
    assert Timing([1.0, 2.0, 3.0, 4.0, 5.0]).quartiles == (2.0, 4.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rows", "0"], "--rows: must be at least 1, got 0"),
        (["--rounds", "0"], "--rounds: must be at least 1"),
        (["--contexts", "-3"], "--contexts: must be at least 1"),
        (["--rows", "65"], "holds 64 tokens"),
        (["--verifier", "int9"], "unknown verifier 'int9'"),
        (["--verifier", "{use: int8, backend: magic}"], "'magic'"),
        (["--verifier", "{use: int8"], "--verifier"),
        (["--model", "./nowhere"], "does not exist"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(tiny, refused, words, said):
    assert said in refused("profile", "--model", tiny, "--quiet", "--verifier", STOCK, *words)


def test_a_verifier_without_a_model_is_refused(tiny):
    pipeline = load_pipeline(str(tiny), drafter="none", verifier={"use": "full", "backend": "torch"}, device="cpu")
    del pipeline.composition.verifier.model
    with pytest.raises(command.ConfigError, match="no language model"):
        command.profile(pipeline)
