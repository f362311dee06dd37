"""Counts of the pipelines inside a drafter, level by level; ``acceptance_length`` itself is the outermost level's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quasar.core.records import StepRecord


@dataclass(frozen=True, slots=True)
class LevelCounts:
    """What one level inside a drafter did; its prefill is part of the outer one, no step, and yields no token.

    Attributes:
        level: from 1, the outermost one inside.
        num_steps: forwards of its verifier.
        drafted: draft tokens.
        accepted: of these, accepted ones.
        emitted: tokens that it handed on.
        seconds_draft: seconds spent in drafting, the levels below included.
        seconds_verify: seconds spent in its verifier.
        seconds_accept: seconds spent in accepting.
    """

    level: int
    num_steps: int
    drafted: int
    accepted: int
    emitted: int
    seconds_draft: float
    seconds_verify: float
    seconds_accept: float


@dataclass(frozen=True, slots=True)
class LevelResult(LevelCounts):
    """Counts of one level over several answers, and the rates that follow from them.

    Attributes:
        acceptance_length: emitted ÷ forwards of the level's verifier.
        acceptance_rate: accepted ÷ drafted, ``None`` if nothing was.
    """

    acceptance_length: float | None
    acceptance_rate: float | None


def count_levels(steps: Sequence[StepRecord]) -> tuple[LevelCounts, ...]:
    """Return the counts of one answer for each inner level, outermost first."""
    levels = sorted({step.level for step in steps})
    return tuple(_count(level, [step for step in steps if step.level == level]) for level in levels)


def _count(level: int, steps: Sequence[StepRecord]) -> LevelCounts:
    return LevelCounts(
        level=level,
        num_steps=len(steps),
        drafted=sum(step.drafted for step in steps),
        accepted=sum(step.accepted for step in steps),
        emitted=sum(step.committed for step in steps),
        seconds_draft=sum(step.seconds_draft for step in steps),
        seconds_verify=sum(step.seconds_verify for step in steps),
        seconds_accept=sum(step.seconds_accept for step in steps),
    )


def summarise_levels(answers: Iterable[Sequence[LevelCounts]]) -> tuple[LevelResult, ...]:
    """Return sums over answers for each inner level, outermost first."""
    found: dict[int, list[LevelCounts]] = {}
    for levels in answers:
        for counts in levels:
            found.setdefault(counts.level, []).append(counts)
    return tuple(_sum(level, each) for level, each in sorted(found.items()))


def _sum(level: int, answers: Sequence[LevelCounts]) -> LevelResult:
    steps, drafted = sum(each.num_steps for each in answers), sum(each.drafted for each in answers)
    accepted, emitted = sum(each.accepted for each in answers), sum(each.emitted for each in answers)
    return LevelResult(
        level=level,
        num_steps=steps,
        drafted=drafted,
        accepted=accepted,
        emitted=emitted,
        seconds_draft=sum(each.seconds_draft for each in answers),
        seconds_verify=sum(each.seconds_verify for each in answers),
        seconds_accept=sum(each.seconds_accept for each in answers),
        acceptance_length=emitted / steps if steps else None,
        acceptance_rate=accepted / drafted if drafted else None,
    )
