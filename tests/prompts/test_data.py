"""Prompt files: what is read, and what each mistake is answered with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quasar.core.errors import ConfigError
from quasar.prompts.questions import Question, load_questions

BENCHMARKS = Path(__file__).resolve().parents[2].parent / "shared" / "data"
GOOD = {"question_id": 1, "category": "chat", "turns": ["Good morning."]}


def write(folder: Path, *lines: object, name: str = "prompts.jsonl") -> Path:
    """Write one line each: objects as JSON, str and bytes as they are."""
    encoded = [
        line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
        for line in lines
    ]
    path = folder / name
    path.write_bytes(b"\n".join(encoded))
    return path


def problem(source: object, limit: int | None = None, base: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_questions(str(source), limit, base)
    message = str(caught.value)
    assert message.isprintable(), "an error is one line"
    return message


# What is read


def test_every_field_is_kept_and_other_keys_are_ignored(tmp_path):
    path = write(
        tmp_path,
        {"question_id": 7, "category": "writing", "turns": ["one", " two\n"], "reference": ["a"], "source": None},
        {"question_id": "b-8", "task": "code", "turns": ["three"], "reference": None},
    )
    assert load_questions(str(path)) == [
        Question(7, "writing", ("one", " two\n"), ("a",)),
        Question("b-8", "code", ("three",), ()),
    ]


def test_task_wins_over_category(tmp_path):
    path = write(tmp_path, {**GOOD, "task": "mt_bench"})
    assert [question.task for question in load_questions(str(path))] == ["mt_bench"]


def test_an_empty_task_becomes_the_name_of_the_file(tmp_path):
    rows = [{**GOOD, "question_id": i, "category": task} for i, task in enumerate(["", " \t", " code "])]
    path = write(tmp_path, *rows, name="alpaca.jsonl")
    assert [question.task for question in load_questions(str(path))] == ["alpaca", "alpaca", "code"]


def test_nested_references_are_flattened(tmp_path):
    path = write(tmp_path, {**GOOD, "reference": [["a", "b"], "c"]})
    assert load_questions(str(path))[0].reference == ("a", "b", "c")


def test_byte_order_mark_blank_lines_and_windows_line_ends(tmp_path):
    path = write(
        tmp_path, b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r", "  \r", {**GOOD, "question_id": 2}, "", ""
    )
    assert [question.question_id for question in load_questions(str(path))] == [1, 2]


def test_line_separators_inside_a_text_do_not_cut_the_line(tmp_path):
    text = "one\u2028two\x85three\u2029"
    path = write(tmp_path, json.dumps({**GOOD, "turns": [text]}, ensure_ascii=False))
    assert load_questions(str(path))[0].turns == (text,)


def test_limit_is_per_task_and_keeps_the_order_of_the_file(tmp_path):
    path = write(tmp_path, *({**GOOD, "question_id": i, "category": task} for i, task in enumerate("ababbac")))
    assert [question.question_id for question in load_questions(str(path), limit=2)] == [0, 1, 2, 3, 6]


@given(tasks=st.lists(st.sampled_from("abc"), min_size=1, max_size=12), limit=st.integers(1, 5))
def test_limit_keeps_the_first_of_each_task(tmp_path_factory, tasks, limit):
    folder = tmp_path_factory.mktemp("limit")
    path = write(folder, *({**GOOD, "question_id": i, "category": task} for i, task in enumerate(tasks)))
    expected = [i for i, task in enumerate(tasks) if tasks[:i].count(task) < limit]
    assert [question.question_id for question in load_questions(str(path), limit)] == expected


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@given(
    questions=st.lists(
        st.builds(
            Question,
            st.integers() | texts,
            texts.map(str.strip),
            st.lists(texts, min_size=1, max_size=3).map(tuple),
            st.lists(texts, max_size=2).map(tuple),
        ),
        min_size=1,
        max_size=4,
        unique_by=lambda question: str(question.question_id),
    ),
    ascii_only=st.booleans(),
)
def test_what_is_written_is_read(tmp_path_factory, questions, ascii_only):
    rows = [
        {"question_id": q.question_id, "category": q.task, "turns": q.turns, "reference": q.reference}
        for q in questions
    ]
    folder = tmp_path_factory.mktemp("round")
    path = write(folder, *(json.dumps(row, ensure_ascii=ascii_only) for row in rows))
    assert load_questions(str(path)) == questions


def test_relative_path_is_looked_up_in_base_then_in_the_working_directory(tmp_path, monkeypatch):
    base, here = tmp_path / "base", tmp_path / "here"
    base.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    write(here, {**GOOD, "question_id": "here"})
    assert load_questions("prompts.jsonl", base=base)[0].question_id == "here"
    write(base, {**GOOD, "question_id": "base"})
    assert load_questions("prompts.jsonl", base=base)[0].question_id == "base"
    assert load_questions("prompts.jsonl")[0].question_id == "here"


def test_a_folder_in_base_does_not_hide_a_file_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "base" / "prompts.jsonl").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    write(tmp_path, GOOD)
    assert len(load_questions("prompts.jsonl", base=tmp_path / "base")) == 1


# What is refused

LINES = [
    ('{"question_id": 1, "category": "a" "turns": []}', "broken JSON at column 36 (Expecting ',' delimiter)"),
    ('   {"question_id": }', "broken JSON at column 20 (Expecting value)"),
    ("[" * 200_000, "JSON that cannot be read"),
    ('{"question_id": ' + "1" * 5_000 + "}", "JSON that cannot be read"),
    ([GOOD], "expected a JSON object, got a list; write {"),
    ('"hello"', "expected a JSON object, got a text"),
    ({"category": "a", "turns": ["x"]}, "key question_id is missing; add it to the object. Available: category,"),
    ({"id": 1, "category": "a", "turns": ["x"]}, "but there is 'id'. Did you mean 'question_id'?"),
    ({"ID": 1, "category": "a", "turns": ["x"]}, "but there is 'ID'. Did you mean 'question_id'?"),
    ({"question_id": 1, "turns": ["x"]}, "key category or task is missing; add it"),
    ({"question_id": 1, "tasks": "a", "turns": ["x"]}, "but there is 'tasks'. Did you mean 'task'?"),
    ({"question_id": 1, "Category": "a", "turns": ["x"]}, "but there is 'Category'. Did you mean 'category'?"),
    ({"question_id": 1, "category": "a"}, "key turns is missing; add it"),
    ({"question_id": 1, "category": "a", "turn": ["x"]}, "but there is 'turn'. Did you mean 'turns'?"),
    ({"question_id": 1, "category": "a", "prompt": "x"}, "but there is 'prompt'. Did you mean 'turns'?"),
    ({"question_id": 1, "category": "a", "turns\n": ["x"]}, r"but there is 'turns\n'. Did you mean 'turns'?"),
    ({**GOOD, "question_id": 1.5}, "question_id must be a whole number or a text, got a number; number the prompts"),
    ({**GOOD, "question_id": True}, "question_id must be a whole number or a text, got true or false"),
    ({**GOOD, "question_id": None}, "question_id must be a whole number or a text, got null"),
    ({**GOOD, "question_id": ""}, "question_id must be a whole number or a text, got an empty text"),
    ({**GOOD, "question_id": "\ud800"}, "question_id holds half of a surrogate pair"),
    ({**GOOD, "category": 3}, "category must be a text, got a number; write text in double quotes"),
    ({**GOOD, "task": None}, "task must be a text, got null"),
    ({**GOOD, "turns": "Good morning."}, 'turns must be a list of texts, got a text; write "turns": ["..."]'),
    ({**GOOD, "turns": {"a": 1}}, "turns must be a list of texts, got an object"),
    ({**GOOD, "turns": []}, "turns is empty; give at least one turn"),
    ({**GOOD, "turns": ["x", " \n"]}, "turns[1] is empty; write the prompt or remove the turn"),
    ({**GOOD, "turns": ["x", 2]}, "turns[1] must be a text, got a number"),
    ({**GOOD, "turns": ["\udfff"]}, "turns[0] holds half of a surrogate pair"),
    ({**GOOD, "reference": "a"}, 'reference must be a list of texts, got a text; write ["..."]'),
    ({**GOOD, "reference": ["a", 2]}, "reference[1] must be a text, got a number"),
    (b'{"question_id": "\xff"}', "byte 18 of the line is not UTF-8; save the file as UTF-8"),
    (GOOD, "question_id '1' is already used in line 1; give each prompt its own"),
    ({**GOOD, "question_id": "1"}, "question_id '1' is already used in line 1; give each prompt its own"),
]


@pytest.mark.parametrize(("line", "expected"), LINES, ids=[expected[:40] for _, expected in LINES])
def test_a_wrong_line_is_named_with_its_number(tmp_path, line, expected):
    path = write(tmp_path, GOOD, "", line, {**GOOD, "question_id": 9})
    message = problem(path)
    assert message.startswith(f"{path}:3: ")
    assert expected in message


def test_the_whole_file_is_checked_whatever_the_limit(tmp_path):
    path = write(tmp_path, GOOD, {**GOOD, "question_id": 2}, {**GOOD, "question_id": 3, "turns": []})
    assert problem(path, limit=1).startswith(f"{path}:3: turns is empty")


@pytest.mark.parametrize("content", ["", "\n \n", "\ufeff"])
def test_a_file_without_prompts_is_refused(tmp_path, content):
    path = write(tmp_path, content)
    assert problem(path) == f"{path}: holds no prompts; write one JSON object a line, or use 'bundled'."


@pytest.mark.parametrize("limit", [0, -3])
def test_limit_below_one_is_refused(limit):
    assert problem("bundled", limit) == f"limit: must be at least 1, got {limit}; leave it out to use every prompt."


def test_a_missing_file_is_answered_with_the_nearest_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, GOOD, name="gsm8k.jsonl")
    write(tmp_path, GOOD, name="notes.txt")
    expected = f"tried {tmp_path}/gsm8.jsonl). Did you mean 'gsm8k.jsonl'? Available: bundled, gsm8k.jsonl."
    assert problem("gsm8.jsonl") == f"data source gsm8.jsonl: no such file ({expected}"
    assert "Did you mean 'bundled'?" in problem("bundle")
    assert "Did you mean 'gsm8k.jsonl'?" in problem(tmp_path / "gsm8.jsonl")


def test_a_missing_file_names_both_folders(tmp_path, monkeypatch):
    base, here = tmp_path / "base", tmp_path / "here"
    base.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    write(here, GOOD, name="a.jsonl")
    write(base, GOOD, name="b.jsonl")
    message = problem("c.jsonl", base=base)
    assert f"(tried {base}/c.jsonl and {here}/c.jsonl)" in message
    assert message.endswith("Available: a.jsonl, b.jsonl, bundled.")


def test_a_folder_is_refused_with_the_files_in_it(tmp_path):
    write(tmp_path, GOOD)
    assert problem(tmp_path) == f"{tmp_path}: is a folder; name one JSONL file in it (prompts.jsonl)."


@pytest.mark.parametrize("source", ["a\nb.jsonl", "a\0b", "x" * 5_000, ""])
def test_a_source_that_is_no_path_is_refused_in_one_line(tmp_path, source, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert problem(source)


def test_a_file_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path, GOOD)

    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert problem(path) == f"{path}: cannot be read (Permission denied); check its permissions."


# The bundled prompts


def test_bundled_prompts_are_five_tasks_of_eight():
    questions = load_questions("bundled")
    assert [question.question_id for question in questions] == list(range(1, 41))
    tasks = [question.task for question in questions]
    assert tasks == [
        task for task in ("chat", "code", "mathematics", "instructions", "summarisation") for _ in range(8)
    ]
    assert Counter(len(q.turns) for q in questions if q.task == "chat") == {1: 6, 2: 2}
    assert all(len(question.turns) == 1 for question in questions if question.task != "chat")


def test_bundled_passages_have_the_promised_length():
    passages = [q.turns[0].split("\n\n", 1)[1] for q in load_questions("bundled") if q.task == "summarisation"]
    assert all(120 <= len(passage.split()) <= 220 for passage in passages)


def test_bundled_set_holds_repetition_and_plain_prose():
    """Share of word pairs that occurred before: a set of one kind misjudges drafters that copy."""
    shares: dict[str, float] = Counter()
    for question in load_questions("bundled"):
        pairs = word_grams(question.turns[0], 2)
        shares[question.task] += (1 - len(set(pairs)) / len(pairs)) / 8
    assert shares["code"] > 0.15
    assert shares["summarisation"] > 0.05
    assert shares["chat"] < 0.03


def word_grams(text: str, size: int) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]


def eight_grams(text: str) -> set[tuple[str, ...]]:
    return set(word_grams(re.sub(r"[^\w\s]", " ", text), 8))


def test_no_bundled_prompt_is_taken_from_a_benchmark():
    if not BENCHMARKS.is_dir():
        pytest.skip("the benchmark prompts are not on this machine")
    ours = {gram for q in load_questions("bundled") for turn in q.turns for gram in eight_grams(turn)}
    files = sorted(BENCHMARKS.glob("*.jsonl"))
    assert files
    for file in files:
        theirs = {
            gram for q in load_questions(str(file)) for text in (*q.turns, *q.reference) for gram in eight_grams(text)
        }
        assert len(theirs) > 1_000
        assert not ours & theirs, file.name


def test_reading_prompts_and_counting_load_no_model_library():
    code = (
        "import sys, quasar.prompts.questions, quasar.compare.counting; "
        "sys.exit(bool({'torch', 'transformers', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
