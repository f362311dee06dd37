"""Where an arm's text leaves that of the plain arm with the same verifier, and by how little it was decided.

An exact pipeline differs from plain decoding only by rounding: several rows in one forward round otherwise than one
row alone. So every difference is listed with the gap between the two largest logits at that place: a gap within the
drift between row counts is a near-tie, a large one is a fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quasar.compare.config import Run
from quasar.compare.data import Question
from quasar.compare.runner import Conversations
from quasar.compare.statistics import first_difference
from quasar.compare.store import Key, SampleRecord
from quasar.core.pipeline import Pipeline


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


def add_gaps(
    found: Sequence[dict[str, Any]],
    run: Run,
    samples: Mapping[Key, SampleRecord],
    pipelines: Mapping[str, Pipeline],
    conversations: Conversations,
) -> None:
    """Add ``top_two_gap`` to every difference: logits of the plain arm's verifier, forwarded anew up to that place."""
    questions: dict[Any, Question] = {question.question_id: question for question in run.questions}
    for entry in found:
        keys = [(entry["question_id"], turn, entry["reference"], entry["repeat"]) for turn in range(entry["turn"] + 1)]
        answers = [samples[key].text for key in keys[:-1]]
        prompt = conversations.ids(questions[entry["question_id"]], answers)
        common = samples[keys[-1]].token_ids[: entry["position"]]
        top = pipelines[entry["reference"]].next_logits([*prompt, *common]).topk(2).values
        entry["top_two_gap"] = float(top[0] - top[1])
