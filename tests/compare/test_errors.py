"""Every mistake of a user is answered with one line that names the culprit and the remedy, and exit 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quasar.cli import main
from tests.shared.tiny_folder import save_tiny_model


@pytest.fixture
def fails(capsys):
    """Run a command that must fail; return its one line."""

    def run(*words: object) -> str:
        assert main([str(word) for word in words]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        lines = printed.err.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("quasar: error: ")
        return lines[0]

    return run


def edited(run_file: Path, old: str, new: str) -> Path:
    text = run_file.read_text(encoding="utf-8")
    assert old in text
    path = run_file.with_name("edited.yaml")
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("temperature: 0.0", "temprature: 0.0", ["sampling.temprature: unknown key", "Did you mean 'temperature'?"]),
        ("temperature: 0.0", "temperature: warm", ["sampling.temperature", "number", "'warm'"]),
        ("temperature: 0.0", "temperature: -1", ["sampling.temperature", "greater than or equal to 0"]),
        ("max_new_tokens: 12", "max_tokens: 12", ["unknown key", "Did you mean 'max_new_tokens'?"]),
        ("max_new_tokens: 12", "max_new_tokens: 0", ["sampling.max_new_tokens", "greater than or equal to 1"]),
        (
            "num_speculative_tokens: 4",
            "num_speculative_token: 4",
            ["pipelines.ngram.drafter", "num_speculative_tokens"],
        ),
        ("num_speculative_tokens: 4", "num_speculative_tokens: many", ["num_speculative_tokens", "integer", "'many'"]),
        ("num_speculative_tokens: 4", "prompt_lookup_min: 9", ["prompt_lookup_min (9) must not exceed"]),
        ("use: ngram,", "use: ngrm,", ["unknown drafter 'ngrm'", "Did you mean 'ngram'?"]),
        ("use: ngram,", "drafter: ngram,", ["pipelines.ngram.drafter", "use: NAME"]),
        ("use: int8, backend: reference", "use: int9", ["unknown verifier 'int9'", "int8"]),
        (
            "backend: reference",
            "backend: magic",
            ["pipelines.quasar.verifier.backend", "'magic' is not installed", "fbgemm"],
        ),
        ("backend: reference", "backend: fbgemm, dtype: float64", ["fbgemm", "float64", "reference"]),
        ("verifier: full, exact: true", "verifer: full", ["pipelines.ngram.verifer: unknown key", "'verifier'"]),
        ("data: {", "dat: {", ["dat: unknown key", "Did you mean 'data'?"]),
        ("pipelines:", "baseline: vanila\npipelines:", ["baseline: no arm 'vanila'", "Did you mean 'vanilla'?"]),
        ("pipelines:", "repeats: 0\npipelines:", ["repeats", "greater than or equal to 1"]),
        ("pipelines:", "plugins: [nothing.py]\npipelines:", ["nothing.py"]),
        ("pipelines:", "device: cuda\npipelines:", ["device: 'cuda'", "'cpu'"]),
        ("  again: {", "  vanilla: {", ["line 6", "'vanilla' is given twice"]),
        ("pipelines:", "pipelines: [", ["line"]),
    ],
)
def test_a_wrong_file(run_file, fails, old, new, said, tmp_path):
    line = fails("compare", edited(run_file, old, new), "--output", tmp_path / "out")
    for part in said:
        assert part in line
    assert not (tmp_path / "out").exists()


def test_the_correct_file_beside_a_wrong_one_still_runs(run_file, fails, tmp_path):
    fails("compare", edited(run_file, "data:", "dta:"), "--output", tmp_path / "out")
    assert main(["compare", str(run_file), "--output", str(tmp_path / "out"), "--quiet", "--limit", "1"]) == 0


def test_exact_true_refuses_a_relaxed_acceptor(run_file, fails, tmp_path):
    plugin = tmp_path / "lax.py"
    plugin.write_text(
        '"""Accepts too much."""\n'
        "from quasar import Acceptor, hookimpl\n\n\n"
        'class Lax(Acceptor):\n    """Accepts everything."""\n\n'
        '    name = "lax"\n    takes = frozenset({"none", "point_mass"})\n    exact = False\n\n'
        "    def accept(self, verification, context):\n        raise NotImplementedError\n\n\n"
        "@hookimpl\ndef quasar_acceptors():\n    return [Lax]\n",
        encoding="utf-8",
    )
    wrong = edited(run_file, "exact: true", "acceptor: lax, exact: true")
    line = fails("check", wrong, "--set", f"plugins=[{plugin}]")
    assert "pipelines.ngram" in line
    assert "acceptor 'lax' is relaxed" in line


def test_greedy_above_temperature_zero(run_file, fails):
    wrong = edited(run_file, "exact: true", "acceptor: greedy")
    line = fails("check", wrong, "--set", "sampling.temperature=0.5")
    assert "acceptor 'greedy' works at temperature 0 only" in line


def test_a_missing_file_suggests_its_neighbour(run_file, fails):
    assert "Did you mean 'run.yaml'?" in fails("compare", run_file.with_name("rum.yaml"))


@pytest.mark.parametrize("content", ["", "- a\n- b\n", "just words\n"])
def test_a_file_that_is_no_mapping(tmp_path, fails, content):
    (tmp_path / "odd.yaml").write_text(content, encoding="utf-8")
    assert "should hold a mapping" in fails("check", tmp_path / "odd.yaml")


def test_an_unknown_preset(fails):
    assert "Did you mean 'quickstart'?" in fails("compare", "--preset", "quickstrt")


def test_neither_file_nor_preset(fails):
    assert "--preset" in fails("compare")


def test_an_override_without_a_value(run_file, fails):
    assert "KEY=VALUE" in fails("compare", run_file, "--set", "sampling.temperature")


def test_an_override_of_an_unknown_key(run_file, fails):
    assert "sampling.temprature: unknown key" in fails("compare", run_file, "--set", "sampling.temprature=1")


def test_missing_data_file(run_file, fails):
    assert "questions.jsonl" in fails("check", edited(run_file, "questions.jsonl", "question.jsonl"))


def test_empty_data_file(run_file, fails, questions_file):
    questions_file.write_text("", encoding="utf-8")
    assert "questions.jsonl" in fails("check", run_file)


def test_a_broken_line_in_the_data(run_file, fails, questions_file):
    with questions_file.open("a", encoding="utf-8") as file:
        file.write("{oops\n")
    line = fails("compare", run_file)
    assert "questions.jsonl" in line
    assert "4" in line


def test_a_prompt_longer_than_the_model(run_file, fails, questions_file, tmp_path, tiny_model):
    with questions_file.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"question_id": "long", "category": "chat", "turns": ["a" * 600]}) + "\n")
    line = fails("compare", run_file, "--output", tmp_path / "out")
    assert "question 'long'" in line
    assert "512" in line
    assert not (tmp_path / "out").exists()


def test_a_conversation_that_may_outgrow_the_model(run_file, fails, tmp_path):
    small = save_tiny_model(tmp_path / "small", max_length=64)
    line = fails("compare", run_file, "--set", f"model={small}", "--output", tmp_path / "out")
    assert "question 1" in line
    assert "answers of up to 12" in line


def test_a_folder_that_is_no_model(run_file, fails, tmp_path):
    (tmp_path / "nothing").mkdir()
    line = fails("compare", run_file, "--set", f"model={tmp_path / 'nothing'}")
    assert "no config.json" in line


def test_a_folder_that_does_not_exist(run_file, fails, tmp_path):
    assert "does not exist" in fails("compare", run_file, "--set", f"model={tmp_path / 'nowhere'}")


def test_a_name_that_nobody_knows(run_file, fails):
    line = fails("compare", run_file, "--set", "model=smolm2-135m")
    assert "'smolm2-135m'" in line
    assert "quasar ls models" in line


def test_an_output_folder_in_use(run_file, fails, tmp_path):
    assert main(["compare", str(run_file), "--output", str(tmp_path / "out"), "--quiet", "--limit", "1"]) == 0
    line = fails("compare", run_file, "--output", tmp_path / "out", "--limit", "1")
    assert "--resume" in line
    line = fails(
        "compare", run_file, "--output", tmp_path / "out", "--resume", "--set", "sampling.seed=4", "--limit", "1"
    )
    assert "sampling.seed = 3" in line


def test_an_output_folder_with_other_files(run_file, fails, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x", encoding="utf-8")
    assert "holds no run" in fails("compare", run_file, "--output", tmp_path / "mine")


def test_resume_without_a_folder(run_file, fails):
    assert "--output" in fails("compare", run_file, "--resume")


def test_an_unknown_model_to_pull(fails):
    assert "Did you mean 'smollm2-135m'?" in fails("models", "pull", "smollm-135m")


def test_a_wrong_sampling_parameter_of_generate(fails, tiny_model):
    assert "temperature" in fails("generate", "hi", "--model", tiny_model, "--set", "temperatur=1")
