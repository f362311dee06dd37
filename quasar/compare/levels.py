"""Counts of the pipelines inside a drafter, level by level; ``acceptance_length`` itself is the outermost level's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quasar.core.records import StepRecord

_SUMS = ("num_steps", "drafted", "accepted", "emitted", "seconds_draft", "seconds_verify", "seconds_accept")


def count_levels(steps: Sequence[StepRecord]) -> tuple[dict[str, Any], ...]:
    """Return the counts of one answer for each inner level, outermost first.

    The inner prefill is part of the outer one: it is no step and yields no token.
    """
    levels = sorted({step.level for step in steps})
    return tuple(_count(level, [step for step in steps if step.level == level]) for level in levels)


def _count(level: int, steps: Sequence[StepRecord]) -> dict[str, Any]:
    return {
        "level": level,
        "num_steps": len(steps),
        "drafted": sum(step.drafted for step in steps),
        "accepted": sum(step.accepted for step in steps),
        "emitted": sum(step.committed for step in steps),
        "seconds_draft": sum(step.seconds_draft for step in steps),
        "seconds_verify": sum(step.seconds_verify for step in steps),
        "seconds_accept": sum(step.seconds_accept for step in steps),
    }


def summarise_levels(answers: Iterable[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return sums over answers for each inner level, with the rates that follow from them.

    ``acceptance_length`` of a level is what it emitted ÷ its verifier's forwards; ``acceptance_rate`` is accepted ÷
    drafted, ``None`` if nothing was.
    """
    found: dict[int, dict[str, Any]] = {}
    for levels in answers:
        for counts in levels:
            sums = found.setdefault(counts["level"], dict.fromkeys(_SUMS, 0))
            for name in _SUMS:
                sums[name] += counts[name]
    return [
        {
            "level": level,
            **sums,
            "acceptance_length": sums["emitted"] / sums["num_steps"] if sums["num_steps"] else None,
            "acceptance_rate": sums["accepted"] / sums["drafted"] if sums["drafted"] else None,
        }
        for level, sums in sorted(found.items())
    ]
