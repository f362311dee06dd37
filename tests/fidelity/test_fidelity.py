"""``quasar fidelity``: the measures against their definitions, and the command on a tiny model."""

from __future__ import annotations

import json
import math

import pytest
import torch

from quasar import load_pipeline
from quasar.cli import main
from quasar.core.errors import ConfigError
from quasar.core.types import Draft
from quasar.fidelity import command
from quasar.fidelity.measure import Continuation, Differences, differences, layer_errors, summary, teacher_forced
from quasar.fidelity.report import bars
from quasar.models.session import Session
from tests.shared.tiny_folder import save_tiny_model

INT8 = "{use: int8, backend: reference}"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), max_length=64)


@pytest.fixture
def files(tmp_path):
    def write(name, *lines):
        path = tmp_path / f"{name}.jsonl"
        rows = [{"question_id": number, "category": task, "turns": [turn]} for number, (task, turn) in enumerate(lines)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


def logits(rows=5, vocab=11, seed=0):
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


# --- measures ---------------------------------------------------------------------------------------------------------


def test_measures_are_those_of_the_textbook():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.25, 0.5, 0.25])
    found = differences(p.log()[None] + 7, q.log()[None] - 3)  # logits are laws up to a constant
    assert found.kl.item() == pytest.approx(0.5 * math.log(2) + 0.3 * math.log(0.6) + 0.2 * math.log(0.8), abs=1e-6)
    assert found.tv.item() == pytest.approx(0.25, abs=1e-6)
    assert found.top1_agreement.item() == 0


def test_a_model_agrees_with_itself():
    found = differences(logits(), logits())
    assert found.top1_agreement.tolist() == [1] * 5
    assert found.kl.abs().max() == found.tv.max() == 0


def test_the_error_is_that_of_prompts_not_of_places():
    def prompt(kl, places):
        values = torch.full((places,), kl, dtype=torch.float64)
        return Differences(values, values, values)

    found = summary([prompt(0.1, 10), prompt(0.3, 10), prompt(0.2, 10)])
    assert found.kl == pytest.approx(0.2)
    # Three prompts of equal length: the standard error of the mean of 0.1, 0.3 and 0.2.
    assert found.kl_standard_error == pytest.approx(0.1 / math.sqrt(3))
    assert (found.positions, found.prompts) == (30, 3)
    assert summary([prompt(0.1, 10), prompt(0.3, 30)]).kl == pytest.approx(0.25)  # every place counts the same
    assert summary([prompt(0.1, 10)]).kl_standard_error is None


def test_teacher_forcing_is_one_forward_for_each_prefix(tiny):
    model = load_pipeline(str(tiny), drafter="none", device="cpu").composition.verifier.model
    text = Continuation("task", (5, 6, 7), (8, 9, 10, 11))
    forced = teacher_forced(model, text)
    for place in range(4):
        prefix = [*text.prompt, *text.token_ids[:place]]
        alone = Session(model, 1).forward([prefix], Draft.empty(1))[0, 0]
        assert torch.allclose(forced[place], alone, rtol=0, atol=1e-4)
    assert len(forced) == 4


def test_layers_are_judged_on_the_references_input(tiny):
    models = [
        load_pipeline(str(tiny), drafter="none", verifier={"use": "full", "backend": "torch"}, device="cpu")
        .composition.verifier.model.sharing_copy()
        for _ in range(2)
    ]  # fmt: skip
    text = Continuation("task", (5, 6, 7), (8, 9))
    assert layer_errors(models[0], models[1], text) == [0, 0]
    projection = models[1].module.model.layers[0].mlp.down_proj
    projection.weight = torch.nn.Parameter(projection.weight.detach() * 3)
    errors = layer_errors(models[0], models[1], text)
    assert errors[0] > 0.01
    assert errors[1] == 0  # although what the first layer hands on has changed


def test_bars_are_as_long_as_their_values():
    lines = bars([0.1, 0.2, 0.0])
    assert [line.count("█") for line in lines] == [25, 50, 0]
    assert bars([0.0])[0].count("█") == 0


# --- the command ------------------------------------------------------------------------------------------------------


def fidelity(tiny, capsys, *more):
    assert main(["fidelity", "--model", str(tiny), "--max-new-tokens", "6", "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_is_alone_and_has_every_number_at_the_top_and_for_each_task(tiny, capsys, files):
    data = files("some", ("chat", "hello"), ("chat", "bye"), ("code", "x = 1"))
    found = fidelity(tiny, capsys, "--data", data, "--verifier", INT8, "--layers")
    keys = [
        "top1_agreement", "top1_agreement_standard_error", "kl", "kl_standard_error", "tv", "tv_standard_error",
        "positions", "prompts",
    ]  # fmt: skip
    around = ["schema_version", "verifier", "reference", *keys, "tasks", "layers", "model", "data", "environment"]
    assert list(found) == around
    assert list(found["environment"]) == [
        "quasar", "python", "packages", "git_revision", "command", "platform", "device", "device_name", "threads",
    ]  # fmt: skip
    assert [list(found[side])[-1] for side in ("verifier", "reference")] == ["judges_by"] * 2
    assert list(found["tasks"]) == ["chat", "code"]
    assert all(list(each) == keys for each in found["tasks"].values())
    assert found["positions"] == sum(each["positions"] for each in found["tasks"].values())
    total = sum(each["kl"] * each["positions"] for each in found["tasks"].values())
    assert found["kl"] == pytest.approx(total / found["positions"])
    assert found["kl"] > 0
    assert len(found["layers"]) == 2
    assert found["verifier"]["use"] == "int8"
    assert found["verifier"]["smoothing"].startswith("SmoothQuant")
    assert found["reference"]["dtype"] == "float32"


def test_the_reference_agrees_with_itself(tiny, capsys, files):
    found = fidelity(tiny, capsys, "--data", files("one", ("a", "x")), "--verifier", "{use: full, dtype: float32}")
    assert "layers" not in found  # nobody asked
    assert (found["top1_agreement"], found["kl"], found["tv"]) == (1, 0, 0)


def test_the_table_names_both_sides_and_plots_layers(tiny, capsys, files):
    words = ["fidelity", "--model", str(tiny), "--max-new-tokens", "4", "--data", files("one", ("a", "x"), ("a", "y"))]
    assert main([*words, "--verifier", INT8, "--layers", "--quiet"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "the model in W8A8 int8 (reference backend)" in printed.out
    assert "the model in full precision (float32)" in printed.out
    assert "█" in printed.out
    assert [line.split()[0] for line in printed.out.splitlines()[4:6]] == ["a", "all"]


def test_several_files_are_tasks_and_a_limit_is_spread_over_each(files):
    one = files("one", *[("a", f"a{number}") for number in range(4)], *[("b", f"b{number}") for number in range(4)])
    two = files("two", ("a", "c0"))
    assert [(task, each.turns[0]) for task, each in command.choose_questions([one, two], 2)] == [
        ("one", "a0"), ("one", "b0"), ("two", "c0")
    ]  # fmt: skip
    assert [(task, each.turns[0]) for task, each in command.choose_questions([one], 2)] == [
        ("a", "a0"), ("a", "a2"), ("b", "b0"), ("b", "b2")
    ]  # fmt: skip
    assert len(command.choose_questions([one, two], None)) == 9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--limit", "0"], "--limit: must be at least 1"),
        (["--max-new-tokens", "0"], "--max-new-tokens: must be at least 1"),
        (["--data", "nowhere.jsonl"], "no such file"),
        (["--verifier", "int9"], "unknown verifier 'int9'"),
        (["--reference", "{use: full"], "--reference"),
        (["--limit", "1"], "holds; ask for fewer"),
        (["--model", "./nowhere"], "does not exist"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(tiny, refused, words, said):
    assert said in refused("fidelity", "--model", tiny, "--quiet", *words)


def test_a_verifier_without_a_model_is_refused(tiny):
    pipeline = load_pipeline(str(tiny), drafter="none", device="cpu")
    del pipeline.composition.verifier.model
    with pytest.raises(ConfigError, match="no language model"):
        command.fidelity(pipeline, pipeline, [("a", [1])])
