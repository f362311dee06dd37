"""From samples to ``results.json``: per arm and task, every quantity by the one counting rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quasar.compare import counting as statistics
from quasar.compare.config import Arm, Run, plain_full
from quasar.compare.levels import summarise_levels
from quasar.compare.store import SCHEMA_VERSION, Key, SampleRecord

OVERALL = "overall"
"""The task that holds all others."""


def results(
    run: Run,
    samples: Mapping[Key, SampleRecord],
    descriptions: Mapping[str, Mapping[str, Any]],
    differences: Sequence[Mapping[str, Any]],
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what ``results.json`` holds.

    Args:
        run: the comparison.
        samples: every answer.
        descriptions: what each arm's verifier says of itself, and under ``drafter`` what its drafter says.
        differences: answers that left their plain arm's text.
        environment: versions and machine.
    """
    tasks = [*dict.fromkeys(question.task for question in run.questions), OVERALL]
    by_arm = {arm.name: [s for s in samples.values() if s.arm == arm.name] for arm in run.arms}
    return {
        "schema_version": SCHEMA_VERSION,
        "environment": {**environment, "configuration": run.as_yaml()},
        "model": run.config.model,
        "baseline": run.baseline,
        "added_arms": list(run.added),
        "published": {name: figures.model_dump() for name, figures in run.config.published.items()},
        "arms": [_entry(run, arm, task, by_arm, descriptions[arm.name]) for arm in run.arms for task in tasks],
        "differences": [dict(difference) for difference in differences],
    }


def _of_task(samples: Sequence[SampleRecord], task: str) -> list[SampleRecord]:
    return [sample for sample in samples if task in (OVERALL, sample.task)]


def _entry(
    run: Run, arm: Arm, task: str, by_arm: Mapping[str, Sequence[SampleRecord]], description: Mapping[str, Any]
) -> dict[str, Any]:
    """One arm and task."""
    own = _of_task(by_arm[arm.name], task)
    baseline = _of_task(by_arm[run.baseline], task)
    plain = _of_task(by_arm[plain_full(run.arms).name], task)
    interval = statistics.ratio_ci95(own, baseline, statistics.tokens_per_second)
    parts = arm.composition
    return {
        "name": arm.name,
        "task": task,
        "drafter": parts.drafter.name,
        "verifier": parts.verifier.name,
        "acceptor": parts.acceptor.name,
        "temperature": run.sampling.temperature,
        "num_prompts": len({(s.question_id, s.turn) for s in own}),
        "num_tokens": sum(s.num_tokens for s in own),
        "num_steps": sum(s.num_steps for s in own),
        "tokens_per_second": statistics.tokens_per_second(own),
        "speedup": statistics.speedup(own, baseline),
        "speedup_ci95": None if interval is None else list(interval),
        "speedup_end_to_end": statistics.speedup_end_to_end(own, baseline),
        "speedup_mean_of_prompts": statistics.speedup_mean_of_prompts(own, baseline),
        "speedup_own_precision": statistics.speedup(own, _of_task(by_arm[arm.reference], task)),
        "acceptance_length": statistics.acceptance_length(own),
        "acceptance_length_mean_of_prompts": statistics.acceptance_length_mean_of_prompts(own),
        "acceptance_rate": statistics.acceptance_rate(own),
        "acceptance_rate_at": list(statistics.acceptance_rate_at(own)),
        "draft_rate": statistics.draft_rate(own),
        "step_cost": statistics.step_cost(own, plain),
        "exact_match": _match(run, arm, run.arm(run.baseline), own, baseline),
        "exact_match_own_precision": _match(
            run, arm, run.arm(arm.reference), own, _of_task(by_arm[arm.reference], task)
        ),
        "exact_with_respect_to": parts.exact_with_respect_to,
        "relaxed": parts.relaxed,
        "reason": parts.reason,
        "policy": description.get("policy") or description.get("drafter", {}).get("policy"),
        "drafter_description": description.get("drafter", {}),
        "backend": description.get("backend"),
        "dtype": description.get("dtype"),
        "weight_bytes": description.get("weight_bytes"),
        "peak_memory_bytes": int(description.get("arm_weight_bytes", 0)) + max((s.cache_bytes for s in own), default=0),
        "levels": summarise_levels([s.levels for s in own]),
        "rows_forwarded": sum(s.rows_forwarded for s in own),
        "layers_forwarded": sum(s.layers_forwarded for s in own),
        "seconds_prefill": sum(s.seconds_prefill for s in own),
        "seconds_to_first_token": sum(s.seconds_to_first_token for s in own) / len(own) if own else None,
        "seconds_decode": sum(s.seconds_decode for s in own),
        "seconds_draft": sum(s.seconds_draft for s in own),
        "seconds_verify": sum(s.seconds_verify for s in own),
        "seconds_accept": sum(s.seconds_accept for s in own),
        "finish_reasons": {reason: sum(s.finish_reason == reason for s in own)
                           for reason in sorted({s.finish_reason for s in own})},
    }  # fmt: skip


def _match(run: Run, arm: Arm, other: Arm, own: Sequence[SampleRecord], theirs: Sequence[SampleRecord]) -> float | None:
    """Share of answers with equal ids; at T > 0 only where both texts come from the target stream by construction."""
    if run.sampling.temperature > 0 and not (arm.composition.same_text and other.composition.same_text):
        return None
    ids = [{(s.question_id, s.turn, s.repeat): s.token_ids for s in samples} for samples in (own, theirs)]
    return statistics.exact_match(*ids)
