"""The race: what is counted, what survives a failing arm, what is published. Nothing is timed."""

from __future__ import annotations

import argparse
import json

import peers
import pytest
from peers_arms import LLAMA, QUASAR, TRANSFORMERS, Arm
from peers_report import counted, summary, table
from peers_store import RESULTS, Store, lines, published

from quasar.core.errors import ConfigError


def record(arm, question, ids, steps, task="chat"):
    return {"question": question, "task": task, "arm": arm, "prompt_tokens": 3, "token_ids": ids, "steps": steps}


ARMS = {
    "vanilla": {"family": QUASAR, "reference": "vanilla"},
    "ngram": {"family": QUASAR, "reference": "vanilla"},
    "transformers": {"family": TRANSFORMERS, "reference": None},
    "transformers-lookup": {"family": TRANSFORMERS, "reference": None},
    "llama-f16": {"family": LLAMA, "reference": None},
}


@pytest.fixture
def answers():
    """Two prompts: vanilla at 1 token a second, ngram at 2, transformers at 0.5, its lookup at 0.25."""
    found = []
    for question in ("a", "b"):
        ids = [5, 6, 7, 8, 9]
        found += [
            record("vanilla", question, ids, [(1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1), (5.0, 1)]),
            record("ngram", question, ids, [(1.0, 1), (2.0, 2), (3.0, 2)]),
            record("transformers", question, ids[:3], [(2.0, 1), (4.0, 1), (6.0, 1)]),
            record("transformers-lookup", question, [5, 6, 0], [(4.0, 2), (8.0, 1)]),
            record("llama-f16", question, ids, [(0.5, 1), (2.5, 4)]),
        ]
    return found


def test_the_first_step_is_prefill_however_many_tokens_it_yields(answers):
    sample = counted(answers[3])
    assert (sample.num_tokens, sample.decode_tokens, sample.num_steps) == (3, 1, 1)
    assert (sample.seconds_prefill, sample.seconds_decode) == (4.0, 4.0)


def test_rates_ratios_and_best_modes(answers):
    found = summary(ARMS, answers)
    assert found["arms"]["ngram"]["decode"]["pooled"] == 2.0
    assert found["arms"]["ngram"]["end_to_end"]["pooled"] == pytest.approx(5 / 3)
    assert found["arms"]["ngram"]["acceptance_length"] == 2.0
    assert found["best"] == {TRANSFORMERS: "transformers", LLAMA: "llama-f16"}
    assert found["ratios"]["ngram"]["vanilla"]["decode"] == {"ratio": 2.0, "ci95": (2.0, 2.0)}
    assert found["ratios"]["vanilla"]["llama-f16"]["prefill"]["ratio"] == 2.0


def test_texts_are_compared_with_the_own_reference_and_with_vanilla(answers):
    found = summary(ARMS, answers)["arms"]
    assert found["ngram"]["same_as_reference"] == [2, 2]
    assert found["transformers"]["same_as_reference"] is None
    assert found["llama-f16"]["share_before_leaving_vanilla"] == 1.0
    assert found["transformers-lookup"]["share_before_leaving_vanilla"] == pytest.approx(2 / 5)


def test_pairs_use_the_prompts_that_both_answered(answers):
    failed = {"question": "b", "task": "chat", "arm": "ngram", "prompt_tokens": 3, "error": "out of luck"}
    slow = [record("vanilla", "b", [5, 6], [(1.0, 1), (101.0, 1)])]
    kept = [a for a in answers if (a["arm"], a["question"]) not in (("ngram", "b"), ("vanilla", "b"))]
    found = summary(ARMS, [*kept, *slow, failed])
    assert found["ratios"]["ngram"]["vanilla"]["decode"]["ratio"] == 2.0
    text = table({"summary": found, "arms": ARMS, "answers": [*kept, *slow, failed]})
    assert "ngram, prompt b: out of luck" in text


def test_published_results_hold_no_ids(answers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = {"settings": {"n": 1}, "arms": ARMS, "answers": answers}
    store = Store("./race.json")
    store.write(results)
    shown = json.loads((tmp_path / "race.json").read_text(encoding="utf-8"))
    assert not [key for answer in shown["answers"] for key in answer if key in ("token_ids", "steps")]
    assert shown["answers"][3]["tokens_of_first_step"] == 2
    assert shown["answers"][0]["ids_hash"] == shown["answers"][1]["ids_hash"] != shown["answers"][2]["ids_hash"]
    assert store.earlier({"n": 1}) == json.loads(json.dumps(answers))
    with pytest.raises(ConfigError, match="other settings"):
        store.earlier({"n": 2})


def test_published_results_have_a_line_for_each_answer(answers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = {"settings": {"empty": [], "none": None}, "arms": ARMS, "answers": [*answers, *answers]}
    Store("./race.json").write(results)
    text = (tmp_path / "race.json").read_text(encoding="utf-8")
    assert json.loads(text) == json.loads(json.dumps(published(results)))
    assert sum('"question"' in line for line in text.splitlines()) == 20 == text.count('"question"')
    assert max(map(len, text.splitlines())) < 320


def test_the_race_that_is_kept_is_written_as_a_race_would_write_it():
    text = (RESULTS / "peers_smollm2.json").read_text(encoding="utf-8")
    assert lines(json.loads(text)) + "\n" == text


def test_a_failing_arm_loses_nobody_else_s_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = []

    def arm(name, answer):
        return Arm(name, QUASAR, lambda: (answer, {}), "vanilla")

    def good(ids, count):
        asked.append(len(ids))
        return [1] * count, [(0.1 * (i + 1), 1) for i in range(count)]

    def breaks(ids, count):
        if count > 8:  # not while warming up
            raise RuntimeError("lost")
        return good(ids, count)

    def unloadable():
        raise ImportError("no such module")

    def lying(ids, count):
        return [1] * count, [(0.1, 1)]

    arms = [arm("vanilla", good), arm("breaks", breaks), Arm("absent", LLAMA, unloadable), arm("lying", lying)]
    prompts = [peers.Prompt(str(i), "chat", [1] * (10 + i), i, 5) for i in range(5)]
    results = {"settings": {}, "environment": {"busy_processors_at_start": 0.0}, "arms": {}, "answers": []}
    assert peers._run(arms, prompts, {"vanilla": 5}, 9, results, Store("./race.json")) == 0
    by_arm = {name: [a for a in results["answers"] if a["arm"] == name] for name in results["arms"]}
    assert len(by_arm["vanilla"]) == 5
    assert not any("error" in answer for answer in by_arm["vanilla"])
    assert [answer["error"] for answer in by_arm["breaks"]] == ["RuntimeError: lost"] * 3
    assert "given up" in results["arms"]["breaks"]["error"]
    assert results["arms"]["absent"]["error"] == "ImportError: no such module"
    assert all("9 tokens came in steps of 1" in answer["error"] for answer in by_arm["lying"])
    assert results["summary"]["arms"].keys() == {"vanilla"}
    assert "absent: ImportError" in capsys.readouterr().out


def test_resumed_answers_are_not_asked_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = []

    def answer(ids, count):
        calls.append((len(ids), count))
        return [1] * count, [(0.1 * (i + 1), 1) for i in range(count)]

    prompts = [peers.Prompt(str(i), "chat", [1] * (10 + i), i, 2) for i in range(2)]
    results = {"settings": {}, "environment": {"busy_processors_at_start": None}, "arms": {},
               "answers": [record("vanilla", "0", [1, 1], [(0.1, 1), (0.2, 1)])]}  # fmt: skip
    peers._run([Arm("vanilla", QUASAR, lambda: (answer, {}), "vanilla")], prompts, {}, 4, results, Store("./r.json"))
    assert calls == [(10, 8), (11, 4)]


def test_errors_are_published_as_they_are():
    answer = {"question": "a", "task": "chat", "arm": "x", "prompt_tokens": 3, "error": "lost"}
    assert published({"answers": [answer]}) == {"answers": [answer]}


def test_a_slow_arm_may_answer_some_prompts_of_each_task():
    prompts = [peers.Prompt(f"{task}/{i}", task, [1], i, 16) for task in ("chat", "code") for i in range(16)]
    assert [prompt.question for prompt in prompts if prompt.among(4)] == [
        f"{task}/{i}" for task in ("chat", "code") for i in (0, 4, 8, 12)
    ]
    for limit in (1, 3, 5, 16, 99):
        assert sum(prompt.among(limit) for prompt in prompts) == 2 * min(limit, 16)
    assert all(prompt.among(None) for prompt in prompts)


@pytest.mark.parametrize("text", ["transformers", "=3", "transformers=0", "transformers=x"])
def test_a_limit_that_is_none_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="should be NAME=N"):
        peers._arm_limit(text)
