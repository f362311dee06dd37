"""``quasar compare`` as a user runs it, on a tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from quasar.cli import main
from quasar.compare.report import busy
from quasar.compare.store import results_type

FIELDS = {
    "name", "task", "temperature", "num_prompts", "num_tokens", "num_steps", "tokens_per_second", "speedup",
    "speedup_ci95", "speedup_end_to_end", "acceptance_length", "acceptance_rate", "draft_rate", "step_cost",
    "exact_match", "exact_with_respect_to", "backend", "dtype", "peak_memory_bytes", "seconds_prefill",
    "seconds_to_first_token", "seconds_draft", "seconds_verify", "seconds_accept",
}  # fmt: skip


def compare(run_file: Path, output: Path, *more: str) -> int:
    return main(["compare", str(run_file), "--output", str(output), *more])


def samples(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "samples.jsonl").read_text(encoding="utf-8").splitlines()]


def entry(output: Path, name: str, task: str = "overall") -> dict:
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    return next(arm for arm in results["arms"] if (arm["name"], arm["task"]) == (name, task))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_model):
    """One whole run, shared by the tests that only read it."""
    folder = tmp_path_factory.mktemp("run")
    lines = [
        {"question_id": i, "category": "chat" if i < 3 else "code", "turns": ["go go go " * i]} for i in range(1, 5)
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "run.yaml").write_text(
        f"model: {tiny_model}\nsampling: {{max_new_tokens: 10}}\ndata: {{source: questions.jsonl}}\nignore_eos: true\n"
        "pipelines:\n  vanilla: {}\n  again: {drafter: none}\n  ngram: {drafter: ngram}\n"
        "  quasar: {drafter: ngram, verifier: {use: int8, backend: reference}}\n",
        encoding="utf-8",
    )
    assert compare(folder / "run.yaml", folder / "out", "--quiet") == 0
    return folder / "out"


def test_every_arm_and_task_has_every_field(finished):
    results = json.loads((finished / "results.json").read_text(encoding="utf-8"))
    assert results["schema_version"] == 1
    names = {"vanilla", "again", "ngram", "quasar", "vanilla-int8"}
    assert {(arm["name"], arm["task"]) for arm in results["arms"]} == {
        (name, task) for name in names for task in ("chat", "code", "overall")
    }
    for arm in results["arms"]:
        assert arm.keys() >= FIELDS
    assert results["environment"]["configuration"]["pipelines"]["ngram"]["drafter"]["prompt_lookup_max"] == 3


def test_plain_decoding_has_acceptance_length_one_and_the_baseline_is_one_times_itself(finished):
    for name in ("vanilla", "again", "vanilla-int8"):
        assert entry(finished, name)["acceptance_length"] == 1.0
        assert entry(finished, name)["acceptance_rate"] is None
        assert entry(finished, name)["draft_rate"] == 0.0
    assert entry(finished, "vanilla")["speedup"] == 1.0
    assert entry(finished, "vanilla")["step_cost"] == 1.0


def test_counts_agree_with_the_ids_that_were_written(finished):
    for sample in samples(finished):
        assert sample["num_tokens"] == len(sample["token_ids"]) == 10
        assert sum(sample["committed"]) == sample["decode_tokens"] == 9  # the first token is prefill's
        assert len(sample["committed"]) == sample["num_steps"]
        assert sum(sample["accepted_at"]) == sample["num_accepted"] <= sample["num_drafted"]
        assert sample["finish_reason"] == "length"


def test_exact_arms_give_the_text_of_their_own_precision(finished):
    assert entry(finished, "ngram")["exact_match"] == 1.0
    assert entry(finished, "quasar")["exact_match_own_precision"] == 1.0
    assert entry(finished, "quasar")["exact_with_respect_to"] == "the model in W8A8 int8 (reference backend)"
    assert entry(finished, "quasar")["backend"] == "reference"


def test_report_shows_the_table_and_defines_its_columns(finished):
    report = (finished / "report.md").read_text(encoding="utf-8")
    assert "| vanilla-int8 |" in report.replace("  ", " ") or "vanilla-int8" in report
    assert "acceptance length" in report
    assert "exact with respect to the model in W8A8 int8" in report


def test_missing_plain_arms_are_added(finished):
    assert json.loads((finished / "results.json").read_text())["added_arms"] == ["vanilla-int8"]


def test_several_turns_continue_the_arms_own_conversation(run_file, tmp_path):
    assert compare(run_file, tmp_path / "out", "--quiet") == 0
    turns = [(s["turn"], s["num_prompt_tokens"]) for s in samples(tmp_path / "out") if s["question_id"] == 1]
    assert {turn for turn, _ in turns} == {0, 1}
    assert min(length for turn, length in turns if turn) > max(length for turn, length in turns if not turn)


def test_the_same_run_twice_gives_the_same_ids(run_file, tmp_path):
    for folder in ("a", "b"):
        assert compare(run_file, tmp_path / folder, "--quiet", "--set", "sampling.temperature=1.0") == 0
    ids = [{(s["question_id"], s["turn"], s["arm"]): s["token_ids"] for s in samples(tmp_path / f)} for f in "ab"]
    assert ids[0] == ids[1]


def test_at_temperature_one_point_mass_arms_still_match_the_baseline(run_file, tmp_path):
    assert compare(run_file, tmp_path / "out", "--quiet", "--set", "sampling.temperature=1.0") == 0
    assert entry(tmp_path / "out", "ngram")["exact_match"] == 1.0


def test_repeats_are_samples_of_their_own(run_file, tmp_path):
    assert compare(run_file, tmp_path / "o", "--quiet", "--set", "repeats=2", "--set", "sampling.temperature=1.0") == 0
    ids = {
        (s["repeat"]): s["token_ids"] for s in samples(tmp_path / "o") if (s["arm"], s["question_id"]) == ("vanilla", 2)
    }
    assert ids[0] != ids[1]


def test_first_arm_changes_from_prompt_to_prompt(finished):
    first: dict = {}
    for sample in samples(finished):
        first.setdefault(sample["question_id"], sample["arm"])
    assert len(set(first.values())) == 4


def test_a_killed_run_resumes_to_the_same_ids(run_file, tmp_path):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert compare(run_file, unbroken, "--quiet") == 0
    command = [sys.executable, "-m", "quasar.cli", "compare", str(run_file), "--output", str(broken), "--quiet"]
    slow = [*command, "--set", "plugins=[" + str(_slow_plugin(tmp_path)) + "]"]
    process = subprocess.Popen(slow, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (broken / "samples.jsonl").exists() and len((broken / "samples.jsonl").read_bytes().splitlines()) >= 5:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    with (broken / "samples.jsonl").open("a") as file:
        file.write('{"question_id": 1, "tu')  # a line that was being written
    assert 5 <= len((broken / "samples.jsonl").read_bytes().splitlines()) - 1 < len(samples(unbroken))
    assert compare(run_file, broken, "--quiet", "--resume") == 0
    keys = [(s["question_id"], s["turn"], s["arm"], s["repeat"]) for s in samples(broken)]
    assert len(keys) == len(set(keys)) == len(samples(unbroken))
    ids = [
        {(s["question_id"], s["turn"], s["arm"], s["repeat"]): s["token_ids"] for s in samples(folder)}
        for folder in (unbroken, broken)
    ]
    assert ids[0] == ids[1]
    assert (broken / "results.json").exists()


def _slow_plugin(folder: Path) -> Path:
    """Makes every step slow enough to be killed in the middle of a run."""
    path = folder / "slow.py"
    path.write_text(
        "import time\nfrom quasar import hookimpl\n\n\n@hookimpl\ndef quasar_step_finished(arm, record):\n    time.sleep(0.01)\n",
        encoding="utf-8",
    )
    return path


def test_resuming_a_finished_run_changes_no_sample(run_file, tmp_path):
    assert compare(run_file, tmp_path / "out", "--quiet") == 0
    before = (tmp_path / "out" / "samples.jsonl").read_bytes()
    assert compare(run_file, tmp_path / "out", "--quiet", "--resume") == 0
    assert (tmp_path / "out" / "samples.jsonl").read_bytes() == before


def test_hooks_see_the_run_and_its_steps(run_file, tmp_path):
    plugin = tmp_path / "watch.py"
    log = tmp_path / "log.txt"
    plugin.write_text(
        "from quasar import hookimpl\n"
        f"LOG = {str(log)!r}\n\n\n"
        "def note(text):\n    with open(LOG, 'a') as file:\n        file.write(text + '\\n')\n\n\n"
        "@hookimpl\ndef quasar_run_started(resolved):\n    note('started ' + str(resolved['repeats']))\n\n\n"
        "@hookimpl\ndef quasar_step_finished(arm, record):\n    note(f'step {arm} {record.committed}')\n\n\n"
        "@hookimpl\ndef quasar_run_finished(results):\n    note('finished ' + results['baseline'])\n",
        encoding="utf-8",
    )
    assert compare(run_file, tmp_path / "out", "--quiet", "--set", f"plugins=[{plugin}]") == 0
    lines = log.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "started 1"
    assert lines[-1] == "finished vanilla"
    total = sum(int(line.split()[-1]) for line in lines if line.startswith("step ngram "))
    assert total == sum(s["num_tokens"] for s in samples(tmp_path / "out") if s["arm"] == "ngram")


def test_json_listing_is_json_alone(capsys):
    assert main(["ls", "drafters", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"ngram", "none"} <= {item["name"] for item in listed}
    assert all(
        item.keys() == {"name", "kind", "summary", "traits", "distribution", "version", "error"} for item in listed
    )


def test_generate_streams_the_text_and_prints_statistics(tiny_model, capsys):
    words = [
        "generate",
        "abc abc abc",
        "--model",
        str(tiny_model),
        "--set",
        "max_new_tokens=8",
        "--set",
        "ignore_eos=true",
    ]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "8 tokens in" in printed.err
    assert printed.out.endswith("\n")


def test_a_busy_machine_is_named_in_the_report(finished):
    results = results_type().validate_json((finished / "results.json").read_text(encoding="utf-8"))
    for others, warned in ((0.2, False), (None, False), (2.5, True)):
        where = replace(results.environment, busy_processors_at_start=others)
        assert ("machine was busy" in busy(replace(results, environment=where))) == warned
