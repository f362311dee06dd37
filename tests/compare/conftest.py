"""Questions and a run file for comparisons of the tiny model."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def questions_file(tmp_path: Path) -> Path:
    lines = [
        {"question_id": 1, "category": "chat", "turns": ["hello hello hello", "and again hello"]},
        {"question_id": 2, "category": "code", "turns": ["abc abc abc abc"]},
        {"question_id": "three", "category": "code", "turns": ["x = 1\nx = 1\nx ="]},
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def run_file(tmp_path: Path, tiny_model: Path, questions_file: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(
        f"""\
model: {tiny_model}
sampling: {{temperature: 0.0, max_new_tokens: 12, seed: 3}}
data: {{source: {questions_file.name}}}
pipelines:
  vanilla: {{drafter: none, verifier: full}}
  again: {{drafter: none, verifier: full}}
  ngram: {{drafter: {{use: ngram, num_speculative_tokens: 4}}, verifier: full, exact: true}}
  quasar: {{drafter: ngram, verifier: {{use: int8, backend: reference}}}}
""",
        encoding="utf-8",
    )
    return path
