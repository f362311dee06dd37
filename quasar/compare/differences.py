"""Where an arm's text leaves that of the plain arm with the same verifier, and by how little it was decided.

An exact pipeline differs from plain decoding only by rounding: several rows in one forward round otherwise than one
row alone. So every difference is listed with the gap between the two largest logits at that place: a gap within the
drift between row counts is a near-tie, a large one is a fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quasar.compare.config import Run
from quasar.compare.counting import first_difference
from quasar.compare.replay import drift, replay, uniform_steps
from quasar.compare.store import Key, SampleRecord
from quasar.pipelines.pipeline import Pipeline
from quasar.prompts.conversations import Conversations
from quasar.prompts.questions import Question


def find_differences(run: Run, samples: Mapping[Key, SampleRecord]) -> list[dict[str, Any]]:
    """Return every answer of an arm that differs, though by construction it should not, from its plain arm's.

    Each entry has ``arm``, ``reference``, ``question_id``, ``turn``, ``repeat``, ``position`` (index of the first
    differing new token) and both ``token_ids`` there (``None`` where a text had ended). Turns whose prompts differ
    already, because an earlier answer did, are left out.
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
            here = [ids[place] if place < len(ids) else None for ids in (sample.token_ids, plain.token_ids)]
            found.append({
                "arm": arm.name, "reference": arm.reference, "question_id": sample.question_id, "turn": sample.turn,
                "repeat": sample.repeat, "position": place, "token_ids": here,
            })  # fmt: skip
    return found


def classify(
    found: Sequence[dict[str, Any]],
    run: Run,
    samples: Mapping[Key, SampleRecord],
    pipelines: Mapping[str, Pipeline],
    conversations: Conversations,
) -> None:
    """Add to every difference what it takes to tell a near-tie from a fault.

    ``top_two_gap`` is the distance between the two largest logits of plain decoding at that place (scores, with the
    target stream's noise, for a request that samples), ``drift`` the largest change of one there when the text is
    forwarded in steps like the arm's own instead of one by one, and ``kind`` is ``near-tie`` where the drift can close
    the gap, else ``fault``.
    """
    questions: dict[Any, Question] = {question.question_id: question for question in run.questions}
    for entry in found:
        keys = [(entry["question_id"], turn, entry["reference"], entry["repeat"]) for turn in range(entry["turn"] + 1)]
        answers = [samples[key].text for key in keys[:-1]]
        prompt = conversations.ids(questions[entry["question_id"]], answers)
        plain = samples[keys[-1]]
        upto = plain.token_ids[: entry["position"] + 1]
        if entry["token_ids"][1] is None:  # plain decoding had ended there
            upto = (*upto, entry["token_ids"][0])
        pipeline = pipelines[entry["reference"]]
        name = f"{entry['question_id']}/{entry['turn']}"
        [request] = pipeline.requests([prompt], run.sampling, [name], entry["repeat"])
        verifier = pipeline.composition.verifier
        alone = replay(verifier, request, upto, uniform_steps(len(upto), 1))
        top = alone[-1].topk(2).values
        entry["top_two_gap"] = float(top[0] - top[1])
        own = samples[(entry["question_id"], entry["turn"], entry["arm"], entry["repeat"])]
        steps = [(committed, 1 + drafted) for committed, drafted in zip(own.committed, own.drafted, strict=True)]
        entry["drift"] = float(drift(alone, [replay(verifier, request, upto, steps)])[-1])
        # Two scores that move towards each other by the drift each close a gap of twice the drift.
        entry["kind"] = "near-tie" if entry["top_two_gap"] <= 2 * entry["drift"] else "fault"
