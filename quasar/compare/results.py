"""What ``results.json`` holds, as types; ``quasar.compare.store`` lays them out with these names as keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, PlainSerializer, PlainValidator

from quasar.compare.config import Published
from quasar.compare.levels import LevelResult
from quasar.core.description import Description, Policy
from quasar.machine import Environment

SCHEMA_VERSION = 1

OVERALL = "overall"
"""The task that holds all others."""

_FlatDescription = Annotated[
    Description, PlainSerializer(Description.flat, return_type=dict[str, Any]), PlainValidator(Description.of)
]


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What an arm did in one task. Quantities without a value are ``None``; ``quasar.compare.counting`` defines them.

    Attributes:
        name: the arm's name.
        task: the task, or ``overall``.
        drafter: name of its drafter.
        verifier: name of its verifier.
        acceptor: name of its acceptor.
        temperature: of the run.
        num_prompts: prompts that were answered; a turn of a conversation is a prompt.
        num_tokens: new tokens, those that prefill yields included.
        num_steps: verifier forwards in decode.
        tokens_per_second: tokens committed in decode ÷ seconds of decode.
        speedup: ``tokens_per_second`` ÷ that of the baseline, prompts paired.
        speedup_ci95: both ends of its 95 % bootstrap interval over questions.
        speedup_end_to_end: the same with prefill's token and seconds.
        speedup_mean_of_prompts: ratio of the unweighted means over questions of ``tokens_per_second``.
        speedup_own_precision: speedup over plain decoding with the arm's own verifier.
        acceptance_length: tokens committed ÷ verifier forwards in decode, correction or bonus included.
        acceptance_length_mean_of_prompts: the unweighted mean over questions.
        acceptance_rate: accepted ÷ drafted.
        acceptance_rate_at: the same at each depth of the draft.
        draft_rate: share of the steps that had a draft.
        step_cost: seconds per verifier step ÷ seconds per plain step in full precision.
        exact_match: share of answers whose ids equal the baseline's.
        exact_match_own_precision: share of answers whose ids equal those of plain decoding with the arm's own verifier.
        exact_with_respect_to: the model whose distribution the answers follow.
        relaxed: the answers do not follow the verifier's distribution, by design.
        reason: why, in a sentence.
        policy: what a routing policy did, warm-up included.
        drafter_description: what the drafter says of itself, warm-up included.
        backend: what ran the verifier.
        dtype: what the verifier computed in.
        weight_bytes: bytes of the verifier's weights.
        peak_memory_bytes: bytes of the weights of verifier and drafter, each once, and of the largest caches.
        levels: the pipelines inside the drafter, outermost first.
        rows_forwarded: verifier columns in decode, padding included.
        layers_forwarded: decoder layers of the verifier's model in decode, summed over columns.
        seconds_prefill: seconds of all prefills.
        seconds_to_first_token: mean seconds from a request to its first token.
        seconds_decode: seconds of decode.
        seconds_draft: of these, seconds spent in drafting.
        seconds_verify: of these, seconds spent in the verifier.
        seconds_accept: of these, seconds spent in accepting and committing.
        finish_reasons: answers by what ended them: ``eos``, ``stop``, ``length`` or ``capacity``.
    """

    name: str
    task: str
    drafter: str
    verifier: str
    acceptor: str
    temperature: float
    num_prompts: int
    num_tokens: int
    num_steps: int
    tokens_per_second: float | None
    speedup: float | None
    speedup_ci95: tuple[float, float] | None
    speedup_end_to_end: float | None
    speedup_mean_of_prompts: float | None
    speedup_own_precision: float | None
    acceptance_length: float | None
    acceptance_length_mean_of_prompts: float | None
    acceptance_rate: float | None
    acceptance_rate_at: tuple[float | None, ...]
    draft_rate: float | None
    step_cost: float | None
    exact_match: float | None
    exact_match_own_precision: float | None
    exact_with_respect_to: str | None
    relaxed: bool
    reason: str
    policy: Policy | None
    drafter_description: _FlatDescription
    backend: str | None
    dtype: str | None
    weight_bytes: int | None
    peak_memory_bytes: int
    levels: tuple[LevelResult, ...]
    rows_forwarded: int
    layers_forwarded: int
    seconds_prefill: float
    seconds_to_first_token: float | None
    seconds_decode: float
    seconds_draft: float
    seconds_verify: float
    seconds_accept: float
    finish_reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that leaves, though by construction it should not, the text of its plain arm.

    Attributes:
        arm: who answered.
        reference: the plain arm with the same verifier.
        question_id: the question.
        turn: its turn, from 0.
        repeat: repetition of the run, from 0.
        position: index of the first new token that differs.
        token_ids: the arm's token there and the plain arm's; ``None`` where a text had ended.
    """

    arm: str
    reference: str
    question_id: int | str
    turn: int
    repeat: int
    position: int
    token_ids: tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class JudgedDifference(Difference):
    """A difference, and what tells a near-tie from a fault.

    Attributes:
        top_two_gap: distance between the two largest logits of plain decoding at that place; of scores, with the
            target stream's noise, for a request that samples.
        drift: largest change of one there when the text is forwarded in the arm's own steps instead of one by one.
        kind: ``near-tie`` where the drift can close the gap, else ``fault``.
    """

    top_two_gap: float
    drift: float
    kind: Literal["near-tie", "fault"]


@dataclass(frozen=True, slots=True)
class Score:
    """Scores of an arm's answers by one measure; standard errors are over questions, ``None`` for a single one.

    Attributes:
        arm: the arm's name.
        task: the task.
        measure: ``exact match`` or ``pass@1``.
        questions: how many.
        score: share of correct answers.
        score_standard_error: its standard error.
        same_result: share of answers with the baseline's number, or the same outcome of the tests.
        same_result_standard_error: its standard error.
        same_text: share of answers with the baseline's token ids.
        same_text_standard_error: its standard error.
        cut: share of answers that ``max_new_tokens`` ended.
    """

    arm: str
    task: str
    measure: str
    questions: int
    score: float
    score_standard_error: float | None
    same_result: float
    same_result_standard_error: float | None
    same_text: float
    same_text_standard_error: float | None
    cut: float


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scores against gold answers.

    Attributes:
        without_gold: tasks that have no score.
        scores: by arm, task and measure.
    """

    without_gold: tuple[str, ...]
    scores: tuple[Score, ...]


@dataclass(frozen=True, slots=True)
class RunEnvironment(Environment):
    """Where a comparison ran, and what it was asked for.

    Attributes:
        busy_processors_at_start: processors that others kept busy; ``None`` where the system does not say.
        configuration: every setting with its value, defaults included.
    """

    busy_processors_at_start: float | None
    configuration: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Results:
    """A finished comparison.

    Attributes:
        schema_version: version of this layout.
        environment: where it ran, and what it was asked for.
        model: the model's name as it was given.
        baseline: name of the arm that speedups are relative to.
        added_arms: names of the plain arms that were added.
        published: published figures by arm.
        arms: every arm in every task, ``overall`` last.
        differences: answers that left their plain arm's text.
        scoring: scores, if the run asked for them.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    schema_version: int
    environment: RunEnvironment
    model: str
    baseline: str
    added_arms: tuple[str, ...]
    published: Mapping[str, Published]
    arms: tuple[ArmResult, ...]
    differences: tuple[JudgedDifference, ...]
    scoring: Scoring | None
