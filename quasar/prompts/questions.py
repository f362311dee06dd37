"""Prompts: the bundled set and JSONL files in the form that Spec-Bench uses.

The bundled set is five tasks of eight prompts, written for this project. It holds plain prose (``chat``), where little
can be copied from the prompt, beside tasks that repeat much of it (``code``, ``instructions``, ``summarisation``),
because a set of one kind flatters or belittles drafters that copy.

A file is checked as a whole before anything is returned: a mistake in its last line must not surface after an hour of
decoding.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quasar.core.errors import ConfigError, did_you_mean

BUNDLED = "bundled"
"""The ``source`` that names the project's own prompts."""

_BUNDLED_FILE = Path(__file__).parent / "bundled.jsonl"
_KEYS = ("question_id", "category", "task", "turns", "reference")
# What other data sets call our keys, where the spelling alone does not lead there.
_SYNONYMS = {
    "id": "question_id",
    "prompt_id": "question_id",
    "type": "category",
    "prompt": "turns",
    "prompts": "turns",
    "question": "turns",
    "instruction": "turns",
    "text": "turns",
    "messages": "turns",
    "conversation": "turns",
}


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, of one or more turns.

    Attributes:
        question_id: as written in the file, unique in it.
        task: what the prompt asks for; results are grouped by it.
        turns: what the user says, in order; every turn follows the answer to the one before.
        reference: known good answers, empty where the file has none.
    """

    question_id: int | str
    task: str
    turns: tuple[str, ...]
    reference: tuple[str, ...] = ()


def load_questions(source: str, limit: int | None = None, base: Path | None = None) -> list[Question]:
    """Read the prompts of a comparison.

    Args:
        source: ``bundled``, or the path of a JSONL file with ``question_id``, ``category`` or ``task`` (``task`` wins
            where a line has both), ``turns`` and optionally ``reference``; other keys are ignored. Where the task is
            an empty text, as in the Alpaca file that EAGLE ships, the name of the file stands in for it.
        limit: keep the first ``limit`` prompts of each task; ``None`` keeps all.
        base: the folder in which a relative path is looked up before the working directory.

    Returns:
        The prompts, in the order of the file.

    Raises:
        ConfigError: the file is not there, a line in it is wrong, or ``limit`` is below 1; one line that names the
            file, the line and the remedy.
    """
    path = _BUNDLED_FILE if source == BUNDLED else _find(source, base)
    return first_of_each_task(_parse(path), limit)


def first_of_each_task(questions: list[Question], limit: int | None) -> list[Question]:
    """Return the first ``limit`` prompts of each task, all for ``None``; below 1 it is a ``ConfigError``."""
    if limit is None:
        return questions
    if limit < 1:
        raise ConfigError(f"limit: must be at least 1, got {limit}; leave it out to use every prompt.")
    seen: Counter[str] = Counter()
    kept = []
    for question in questions:
        seen[question.task] += 1
        if seen[question.task] <= limit:
            kept.append(question)
    return kept


def _shown(value: object) -> str:
    """Return a text for an error message that is one line whatever the user wrote."""
    text = str(value)
    return text if text.isprintable() else repr(text)


def _find(source: str, base: Path | None) -> Path:
    """Return the first readable candidate for ``source``."""
    folders = dict.fromkeys([base or Path.cwd(), Path.cwd()])
    candidates = list(dict.fromkeys(folder / source for folder in folders))
    try:
        present = [path for path in candidates if path.exists()]
        for path in present:
            if not path.is_dir():
                return path
        siblings = {file.name for path in candidates for file in path.parent.glob("*.jsonl")}
    except (OSError, ValueError) as error:  # a name too long, a folder that may not be entered, a NUL character
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"data source {_shown(source)}: cannot be looked up ({reason}); give the path of a JSONL file or 'bundled'."
        ) from error
    if present:
        folder = present[0]
        inside = ", ".join(sorted(file.name for file in folder.glob("*.jsonl"))) or "none"
        raise ConfigError(f"{_shown(folder)}: is a folder; name one JSONL file in it ({_shown(inside)}).")
    hint = did_you_mean(Path(source).name, {BUNDLED, *(name for name in siblings if name.isprintable())})
    where = " and ".join(_shown(path) for path in candidates)
    raise ConfigError(f"data source {_shown(source)}: no such file (tried {where}).{hint}")


def _parse(path: Path) -> list[Question]:
    """Return every prompt of the file, or raise for the first line that is wrong."""
    questions: list[Question] = []
    # Prompts are named by their id as text (random streams, result files), so 7 and "7" are one id.
    lines_of_ids: dict[str, int] = {}
    for number, line in _lines(path):
        where = f"{_shown(path)}:{number}"
        question = _question(_json_object(line, where), where, path.stem)
        name = str(question.question_id)
        if name in lines_of_ids:
            raise ConfigError(
                f"{where}: question_id {name!r} is already used in line {lines_of_ids[name]}; give each prompt its own."
            )
        lines_of_ids[name] = number
        questions.append(question)
    if not questions:
        raise ConfigError(f"{_shown(path)}: holds no prompts; write one JSON object a line, or use 'bundled'.")
    return questions


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line number (from 1) and text of every line that is not blank."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{_shown(path)}: cannot be read ({error.strerror}); check its permissions.") from error
    # Split bytes at \n only: str.splitlines would cut JSON texts at U+2028 and the like.
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{_shown(path)}:{number}: byte {error.start + 1} of the line is not UTF-8; save the file as UTF-8."
            ) from error
        if text.strip():
            yield number, text


def _json_object(line: str, where: str) -> dict[str, Any]:
    """Return the JSON object that a line holds."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{where}: broken JSON at column {error.colno} ({error.msg}); each line must be one whole JSON object."
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or nesting as deep
        raise ConfigError(f"{where}: JSON that cannot be read ({_shown(error)}); shorten it.") from error
    if not isinstance(row, dict):
        raise ConfigError(
            f"{where}: expected a JSON object, got {_kind(row)}; "
            'write {"question_id": ..., "category": ..., "turns": [...]}.'
        )
    return row


def _question(row: Mapping[str, Any], where: str, stem: str) -> Question:
    """Check one line's object and return its prompt."""
    task_key = "task" if "task" in row else "category"
    for key in ("question_id", task_key, "turns"):
        if key not in row:
            raise ConfigError(_missing(key, row, where))
    question_id = row["question_id"]
    if isinstance(question_id, bool) or not isinstance(question_id, int | str) or question_id == "":
        raise ConfigError(
            f"{where}: question_id must be a whole number or a text, got {_kind(question_id)}; number the prompts."
        )
    if isinstance(question_id, str):
        _check_text(question_id, f"{where}: question_id")
    task = row[task_key]
    _check_text(task, f"{where}: {task_key}")
    turns = row["turns"]
    if not isinstance(turns, list):
        raise ConfigError(f'{where}: turns must be a list of texts, got {_kind(turns)}; write "turns": ["..."].')
    if not turns:
        raise ConfigError(f"{where}: turns is empty; give at least one turn.")
    for index, turn in enumerate(turns):
        _check_text(turn, f"{where}: turns[{index}]")
        if not turn.strip():
            raise ConfigError(f"{where}: turns[{index}] is empty; write the prompt or remove the turn.")
    return Question(question_id, task.strip() or stem, tuple(turns), _reference(row.get("reference"), where))


def _reference(value: object, where: str) -> tuple[str, ...]:
    """Return the reference answers, flat: Spec-Bench's RAG prompts list alternatives one level deeper."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ConfigError(f'{where}: reference must be a list of texts, got {_kind(value)}; write ["..."].')
    flat = [text for entry in value for text in (entry if isinstance(entry, list) else [entry])]
    for index, text in enumerate(flat):
        _check_text(text, f"{where}: reference[{index}]")
    return tuple(flat)


def _check_text(value: object, where: str) -> None:
    """Refuse what is not text, or what no tokenizer can encode."""
    if not isinstance(value, str):
        raise ConfigError(f"{where} must be a text, got {_kind(value)}; write text in double quotes.")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ConfigError(f"{where} holds half of a surrogate pair (\\ud800 to \\udfff); write the whole character.")


def _missing(key: str, row: Mapping[str, Any], where: str) -> str:
    """Return the message for a missing key, with the key of the line that was probably meant for it."""
    names = ("category", "task") if key in ("category", "task") else (key,)
    label = " or ".join(names)
    for found in row:
        hint = did_you_mean(_SYNONYMS.get(found.lower(), found.lower()), _KEYS)
        if found not in _KEYS and hint.startswith(tuple(f" Did you mean '{name}'?" for name in names)):
            return f"{where}: key {label} is missing, but there is {found!r}.{hint}"
    return f"{where}: key {label} is missing; add it to the object.{did_you_mean('', _KEYS)}"


def _kind(value: object) -> str:
    """Return a JSON value's kind, in words."""
    if value is None:
        return "null"
    if value == "":
        return "an empty text"
    if isinstance(value, bool):
        return "true or false"
    return {int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}[type(value)]
