"""The prompts of a comparison, from one source or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quasar.core.errors import ConfigError
from quasar.prompts.questions import Question, first_of_each_task, load_questions


def load_sources(source: str | Sequence[str], limit: int | None = None, base: Path | None = None) -> list[Question]:
    """Read prompts as ``load_questions`` does; with several sources each is a task, and ids begin with its name.

    Args:
        source: one source, or several.
        limit: keep the first ``limit`` prompts of each task.
        base: the folder in which relative paths are looked up before the working directory.

    Raises:
        ConfigError: as ``load_questions``, or two sources have one name.
    """
    sources = [source] if isinstance(source, str) else list(source)
    if len(sources) == 1:
        return load_questions(sources[0], limit, base)
    found: dict[str, list[Question]] = {}
    for each in sources:
        name = Path(each).stem
        if name in found:
            raise ConfigError(f"data: two sources are called '{name}', and a task is named by its file; rename one.")
        found[name] = [
            replace(question, question_id=f"{name}/{question.question_id}", task=name)
            for question in load_questions(each, None, base)
        ]
    return first_of_each_task([question for questions in found.values() for question in questions], limit)
