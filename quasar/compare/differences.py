"""Where an arm's text leaves that of the plain arm with the same verifier, and by how little it was decided.

An exact pipeline differs from plain decoding only by rounding: several rows in one forward round otherwise than one
row alone. So every difference is listed with the gap between the two largest logits at that place: a gap within the
drift between row counts is a near-tie, a large one is a fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quasar.compare.config import Run
from quasar.compare.counting import first_difference
from quasar.compare.replay import drift, replay, uniform_steps
from quasar.compare.results import Difference, JudgedDifference
from quasar.compare.store import Key, SampleRecord
from quasar.core.components import Verifier
from quasar.core.requests import Request
from quasar.pipelines.pipeline import Pipeline
from quasar.prompts.conversations import Conversations


def find_differences(run: Run, samples: Mapping[Key, SampleRecord]) -> list[Difference]:
    """Return every answer of an arm that differs, though by construction it should not, from its plain arm's.

    Turns whose prompts differ already, because an earlier answer did, are left out.
    """
    found = []
    for sample in samples.values():
        arm = run.arm(sample.arm)
        if arm.reference == arm.name or not arm.composition.same_text:
            continue
        plain = samples.get((sample.question_id, sample.turn, arm.reference, sample.repeat))
        if plain is None or plain.prompt_hash != sample.prompt_hash:
            continue
        place = first_difference(sample.token_ids, plain.token_ids)
        if place is not None:
            here, there = (ids[place] if place < len(ids) else None for ids in (sample.token_ids, plain.token_ids))
            found.append(
                Difference(
                    arm.name, arm.reference, sample.question_id, sample.turn, sample.repeat, place, (here, there)
                )
            )
    return found


def classify(
    found: Sequence[Difference],
    run: Run,
    samples: Mapping[Key, SampleRecord],
    pipelines: Mapping[str, Pipeline],
    conversations: Conversations,
) -> tuple[JudgedDifference, ...]:
    """Tell near-ties from faults.

    Args:
        found: what ``find_differences`` returned.
        run: the comparison.
        samples: every answer.
        pipelines: by arm, loaded.
        conversations: makes prompts.
    """
    questions = {question.question_id: question for question in run.questions}
    judged = []
    for each in found:
        keys = [(each.question_id, turn, each.reference, each.repeat) for turn in range(each.turn + 1)]
        prompt = conversations.ids(questions[each.question_id], [samples[key].text for key in keys[:-1]])
        upto: tuple[int, ...] = samples[keys[-1]].token_ids[: each.position + 1]
        here, there = each.token_ids
        if there is None and here is not None:  # plain decoding had ended there
            upto = (*upto, here)
        name = f"{each.question_id}/{each.turn}"
        [request] = pipelines[each.reference].requests([prompt], run.sampling, [name], each.repeat)
        own = samples[each.question_id, each.turn, each.arm, each.repeat]
        judged.append(_judge(each, pipelines[each.reference].composition.verifier, request, upto, own))
    return tuple(judged)


def _judge(
    found: Difference, verifier: Verifier, request: Request, upto: Sequence[int], own: SampleRecord
) -> JudgedDifference:
    """Compare the gap at the end of ``upto`` with what the arm's own steps move there."""
    alone = replay(verifier, request, upto, uniform_steps(len(upto), 1))
    top = alone[-1].topk(2).values
    gap = float(top[0] - top[1])
    steps = [(committed, 1 + drafted) for committed, drafted in zip(own.committed, own.drafted, strict=True)]
    moved = float(drift(alone, [replay(verifier, request, upto, steps)])[-1])
    return JudgedDifference(
        arm=found.arm,
        reference=found.reference,
        question_id=found.question_id,
        turn=found.turn,
        repeat=found.repeat,
        position=found.position,
        token_ids=found.token_ids,
        top_two_gap=gap,
        drift=moved,
        # Two scores that move towards each other by the drift each close a gap of twice the drift.
        kind="near-tie" if gap <= 2 * moved else "fault",
    )
