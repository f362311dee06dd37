"""From samples to results: per arm and task, every quantity by the one counting rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quasar.compare import counting
from quasar.compare.config import Arm, Run, plain_full
from quasar.compare.levels import summarise_levels
from quasar.compare.results import OVERALL, ArmResult
from quasar.compare.store import Key, SampleRecord
from quasar.core.description import Description, description_of
from quasar.pipelines.composition import Composition


@dataclass(frozen=True, slots=True)
class ArmDescription:
    """What the loaded components of an arm say of themselves.

    Attributes:
        verifier: what the verifier says.
        drafter: what the drafter says.
        weight_bytes: bytes of the weights of both, each storage once.
    """

    verifier: Description
    drafter: Description
    weight_bytes: int


def describe_arm(parts: Composition) -> ArmDescription:
    """Ask the components of an arm what reports should say of them, once the run is over."""
    weights = parts.verifier.storages() | parts.drafter.storages()
    return ArmDescription(description_of(parts.verifier), description_of(parts.drafter), sum(weights.values()))


def summarise(
    run: Run, samples: Mapping[Key, SampleRecord], descriptions: Mapping[str, ArmDescription]
) -> tuple[ArmResult, ...]:
    """Return what every arm did in every task and overall.

    Args:
        run: the comparison.
        samples: every answer.
        descriptions: by arm.
    """
    tasks = [*dict.fromkeys(question.task for question in run.questions), OVERALL]
    by_arm = {arm.name: [s for s in samples.values() if s.arm == arm.name] for arm in run.arms}
    return tuple(_summarise(run, arm, task, by_arm, descriptions[arm.name]) for arm in run.arms for task in tasks)


def _of_task(samples: Sequence[SampleRecord], task: str) -> list[SampleRecord]:
    return [sample for sample in samples if task in (OVERALL, sample.task)]


def _summarise(
    run: Run, arm: Arm, task: str, by_arm: Mapping[str, Sequence[SampleRecord]], said: ArmDescription
) -> ArmResult:
    own = _of_task(by_arm[arm.name], task)
    baseline = _of_task(by_arm[run.baseline], task)
    reference = _of_task(by_arm[arm.reference], task)
    plain = _of_task(by_arm[plain_full(run.arms).name], task)
    parts = arm.composition
    return ArmResult(
        name=arm.name,
        task=task,
        drafter=parts.drafter.name,
        verifier=parts.verifier.name,
        acceptor=parts.acceptor.name,
        temperature=run.sampling.temperature,
        num_prompts=len({(s.question_id, s.turn) for s in own}),
        num_tokens=sum(s.num_tokens for s in own),
        num_steps=sum(s.num_steps for s in own),
        tokens_per_second=counting.tokens_per_second(own),
        speedup=counting.speedup(own, baseline),
        speedup_ci95=counting.ratio_ci95(own, baseline, counting.tokens_per_second),
        speedup_end_to_end=counting.speedup_end_to_end(own, baseline),
        speedup_mean_of_prompts=counting.speedup_mean_of_prompts(own, baseline),
        speedup_own_precision=counting.speedup(own, reference),
        acceptance_length=counting.acceptance_length(own),
        acceptance_length_mean_of_prompts=counting.acceptance_length_mean_of_prompts(own),
        acceptance_rate=counting.acceptance_rate(own),
        acceptance_rate_at=counting.acceptance_rate_at(own),
        draft_rate=counting.draft_rate(own),
        step_cost=counting.step_cost(own, plain),
        exact_match=_match(run, arm, run.arm(run.baseline), own, baseline),
        exact_match_own_precision=_match(run, arm, run.arm(arm.reference), own, reference),
        exact_with_respect_to=parts.exact_with_respect_to,
        relaxed=parts.relaxed,
        reason=parts.reason,
        policy=said.verifier.policy or said.drafter.policy,
        drafter_description=said.drafter,
        backend=said.verifier.backend,
        dtype=said.verifier.dtype,
        weight_bytes=said.verifier.weight_bytes,
        peak_memory_bytes=said.weight_bytes + max((s.cache_bytes for s in own), default=0),
        levels=summarise_levels(s.levels for s in own),
        rows_forwarded=sum(s.rows_forwarded for s in own),
        layers_forwarded=sum(s.layers_forwarded for s in own),
        seconds_prefill=sum(s.seconds_prefill for s in own),
        seconds_to_first_token=sum(s.seconds_to_first_token for s in own) / len(own) if own else None,
        seconds_decode=sum(s.seconds_decode for s in own),
        seconds_draft=sum(s.seconds_draft for s in own),
        seconds_verify=sum(s.seconds_verify for s in own),
        seconds_accept=sum(s.seconds_accept for s in own),
        finish_reasons={
            reason: sum(s.finish_reason == reason for s in own) for reason in sorted({s.finish_reason for s in own})
        },
    )


def _match(run: Run, arm: Arm, other: Arm, own: Sequence[SampleRecord], theirs: Sequence[SampleRecord]) -> float | None:
    """Share of answers with equal ids; at T > 0 only where both texts come from the target stream by construction."""
    if run.sampling.temperature > 0 and not (arm.composition.same_text and other.composition.same_text):
        return None
    ids = [{(s.question_id, s.turn, s.repeat): s.token_ids for s in samples} for samples in (own, theirs)]
    return counting.exact_match(*ids)
