"""Scores of answers against gold answers: GSM8K's exact match and HumanEval's pass@1, each with its standard error.

The data says by its own fields how a question is judged: a ``reference`` that ends in ``#### NUMBER`` wants that
number; a turn that holds a prompt of HumanEval wants code that passes its tests, where running code is allowed. Other
questions have no score.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

from tqdm import tqdm

from quasar.compare.code_tests import PASSED, Problem, find_problem, load_problems, outcome, program
from quasar.compare.config import Run, ScoringConfig
from quasar.compare.results import Score, Scoring
from quasar.compare.store import SampleRecord
from quasar.core.errors import ConfigError
from quasar.prompts.questions import Question

EXACT_MATCH, PASS_AT_1 = "exact match", "pass@1"
_MARK = "####"
_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?|-?\$?\.\d+")


@dataclass(frozen=True, slots=True)
class Gold:
    """What a question's answer is judged by.

    Attributes:
        measure: ``exact match`` or ``pass@1``.
        correct: the result of a correct answer.
        result: the result of an answer, by which arms are compared: its number, or what came of its code.
    """

    measure: str
    correct: str
    result: Callable[[str], str]


Golds = Mapping[int | str, Gold]
"""By question id."""


def final_number(text: str) -> str | None:
    """Return the first number after the last ``####``, else the last number of a text, in one spelling; or ``None``."""
    _, marked, told = text.rpartition(_MARK)
    found = _NUMBER.findall(told) if marked else _NUMBER.findall(text)[-1:]
    if not found:
        return final_number(text.replace(_MARK, " ")) if marked else None
    return format(Decimal(found[0].replace(",", "").replace("$", "")).normalize() + 0, "f")


def find_golds(questions: Sequence[Question], options: ScoringConfig) -> Golds:
    """Return what each question is judged by; questions of tasks without gold answers are left out.

    Raises:
        ConfigError: a gold answer is no number, or some questions of a task have one and others not; or code may be
            run and HumanEval's package is missing. One line.
    """
    problems = load_problems() if options.run_code else []
    tasks: dict[str, list[tuple[Question, Gold | None]]] = {}
    for question in questions:
        gold = _number_gold(question) or _code_gold(question, problems, options.seconds)
        tasks.setdefault(question.task, []).append((question, gold))
    for task, pairs in tasks.items():
        missing = [question for question, gold in pairs if gold is None]
        if missing and len(missing) < len(pairs):
            raise ConfigError(
                f"data: question {missing[0].question_id!r} has no gold answer, and {len(pairs) - len(missing)} others "
                f"of task '{task}' have; end its reference in '{_MARK} NUMBER', or leave it out."
            )
    return {question.question_id: gold for pairs in tasks.values() for question, gold in pairs if gold is not None}


def _number_gold(question: Question) -> Gold | None:
    marked = [text for text in question.reference if _MARK in text]
    if len(question.turns) > 1 or not marked:
        return None
    told = marked[-1].rpartition(_MARK)[2].strip()
    number = final_number(told)
    if number is None or not _NUMBER.fullmatch(told):
        raise ConfigError(
            f"data: question {question.question_id!r}: its gold answer {told[:40]!r} is not a number; end the "
            f"reference in '{_MARK} NUMBER', or leave 'scoring' out."
        )
    return Gold(EXACT_MATCH, number, lambda answer: final_number(answer) or "none")


def _code_gold(question: Question, problems: Sequence[Problem], seconds: float) -> Gold | None:
    problem = find_problem(question.turns[0], problems) if len(question.turns) == 1 else None
    if problem is None:
        return None
    run = cache(lambda source: outcome(source, seconds))  # arms that answer alike are run once
    return Gold(PASS_AT_1, PASSED, lambda answer: run(program(problem, answer)))


def score(golds: Golds, run: Run, samples: Iterable[SampleRecord], quiet: bool = True) -> Scoring:
    """Score every answer of a finished run.

    Args:
        golds: what ``find_golds`` returned.
        run: the comparison.
        samples: every answer.
        quiet: no progress on standard error.
    """
    judged: dict[tuple[str, str, str], list[_Judged]] = {}
    answers = sorted((s for s in samples if s.question_id in golds), key=lambda s: s.arm != run.baseline)
    theirs: dict[tuple[int | str, int], tuple[str, tuple[int, ...]]] = {}
    for sample in tqdm(answers, desc="answers scored", disable=quiet, file=sys.stderr):
        gold = golds[sample.question_id]
        result = gold.result(sample.text)
        # The baseline's answers come first, so that every other arm finds what it is compared with.
        other, ids = theirs.setdefault((sample.question_id, sample.repeat), (result, sample.token_ids))
        judged.setdefault((sample.arm, sample.task, gold.measure), []).append(
            _Judged(
                question_id=sample.question_id,
                correct=result == gold.correct,
                same_result=result == other,
                same_text=sample.token_ids == ids,
                cut=sample.finish_reason == "length",
            )
        )
    order = [arm.name for arm in run.arms]
    return Scoring(
        without_gold=tuple(sorted({each.task for each in run.questions if each.question_id not in golds})),
        scores=tuple(_score(*names, judged[names]) for names in sorted(judged, key=lambda key: order.index(key[0]))),
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    question_id: int | str
    correct: bool
    same_result: bool
    same_text: bool
    cut: bool


def _score(arm: str, task: str, measure: str, answers: Sequence[_Judged]) -> Score:
    questions: dict[int | str, list[_Judged]] = {}
    for answer in answers:
        questions.setdefault(answer.question_id, []).append(answer)
    groups = list(questions.values())
    score, score_error = _share([[each.correct for each in group] for group in groups])
    result, result_error = _share([[each.same_result for each in group] for group in groups])
    text, text_error = _share([[each.same_text for each in group] for group in groups])
    return Score(
        arm=arm,
        task=task,
        measure=measure,
        questions=len(groups),
        score=score,
        score_standard_error=score_error,
        same_result=result,
        same_result_standard_error=result_error,
        same_text=text,
        same_text_standard_error=text_error,
        cut=statistics.fmean(answer.cut for answer in answers),
    )


def _share(questions: Sequence[Sequence[bool]]) -> tuple[float, float | None]:
    """Return a share and its standard error; repeats of a question are averaged first, they are not independent."""
    means = [statistics.fmean(answers) for answers in questions]
    error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
    return statistics.fmean(means), error
