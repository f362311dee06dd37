"""What a comparison counts, from plain numbers; the same rule for every arm.

Prefill, and the token that it yields, are counted in no quantity of decode. A quantity over several answers is
*pooled*, numerator and denominator summed before dividing; ``…_mean_of_prompts`` is the other convention, in which a
short answer weighs as much as a long one. There the turns and repeats of a question are pooled first, as in Spec-Bench.

A quantity without a value (nothing was drafted, no step was made, no time passed) is ``None``, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import attrgetter

import numpy as np

AnswerKey = tuple[int | str, int, int]
"""What names one answer within an arm: question id, turn, repeat."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The counted form of one generated answer.

    Attributes:
        question_id: the prompt's id.
        turn: turn of the prompt, from 0.
        task: the prompt's task.
        arm: name of the pipeline that answered.
        repeat: which repetition of the run, from 0.
        num_tokens: new tokens, the one that prefill yields included.
        num_steps: verifier forwards in decode; prefill is not counted.
        decode_tokens: tokens committed in decode, i.e. ``num_tokens`` without prefill's.
        num_drafted: draft tokens.
        num_accepted: draft tokens that were accepted and committed.
        num_drafted_steps: decode steps that had a draft.
        drafted_at: draft tokens at each depth of the draft, from the first on.
        accepted_at: accepted and committed draft tokens at each depth.
        seconds_prefill: seconds until the first token.
        seconds_decode: seconds from the first token to the last.
        seconds_draft: seconds of decode spent in drafting.
        seconds_verify: seconds of decode spent in the verifier.
        seconds_accept: seconds of decode spent in accepting and committing.
    """

    question_id: int | str
    turn: int
    task: str
    arm: str
    repeat: int
    num_tokens: int
    num_steps: int
    decode_tokens: int
    num_drafted: int
    num_accepted: int
    num_drafted_steps: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    seconds_prefill: float
    seconds_decode: float
    seconds_draft: float
    seconds_verify: float
    seconds_accept: float


@dataclass(frozen=True, slots=True)
class Quotient:
    """A quantity that is one sum divided by another; call it on samples to get its pooled value.

    Attributes:
        numerator: a sample's share of the sum above the line.
        denominator: a sample's share of the sum below it.
    """

    numerator: Callable[[Sample], float]
    denominator: Callable[[Sample], float]

    def __call__(self, samples: Sequence[Sample]) -> float | None:
        """Return the pooled value, ``None`` where the denominator is 0."""
        return _divide(*self.sums(samples))

    def sums(self, samples: Sequence[Sample]) -> tuple[float, float]:
        """Return both sums, rounded once, so that they do not depend on the order of the samples."""
        return math.fsum(map(self.numerator, samples)), math.fsum(map(self.denominator, samples))


acceptance_length = Quotient(lambda s: s.decode_tokens, lambda s: s.num_steps)
"""Tokens committed per verifier forward in decode, draft-less steps and correction or bonus included; plain: 1.0."""

acceptance_rate = Quotient(lambda s: s.num_accepted, lambda s: s.num_drafted)
"""Share of draft tokens that were accepted and committed."""

draft_rate = Quotient(lambda s: s.num_drafted_steps, lambda s: s.num_steps)
"""Share of decode steps that had a draft."""

tokens_per_second = Quotient(lambda s: s.decode_tokens, lambda s: s.seconds_decode)
"""Tokens committed in decode per second of decode."""

tokens_per_second_end_to_end = Quotient(lambda s: s.num_tokens, lambda s: s.seconds_prefill + s.seconds_decode)
"""New tokens per second, prefill's token and time included."""

step_seconds = Quotient(lambda s: s.seconds_decode, lambda s: s.num_steps)
"""Seconds of decode per verifier forward, drafting and accepting included."""


def acceptance_rate_at(samples: Sequence[Sample]) -> tuple[float | None, ...]:
    """Return the acceptance rate at each depth of the draft, as many as the deepest draft has.

    The rate at a depth is over all tokens drafted there, those below a rejected token included.
    """
    drafted = [sum(column) for column in zip_longest(*(s.drafted_at for s in samples), fillvalue=0)]
    accepted = [sum(column) for column in zip_longest(*(s.accepted_at for s in samples), fillvalue=0)]
    return tuple(_divide(above, below) for above, below in zip_longest(accepted, drafted, fillvalue=0))


def mean_of_prompts(samples: Sequence[Sample], value: Quotient) -> float | None:
    """Return the unweighted mean over questions of ``value``; questions where it has no value are left out."""
    return _mean([pooled for group in _by_question(samples).values() if (pooled := value(group)) is not None])


def acceptance_length_mean_of_prompts(samples: Sequence[Sample]) -> float | None:
    """Return the unweighted mean over questions of the acceptance length."""
    return mean_of_prompts(samples, acceptance_length)


def paired(method: Sequence[Sample], baseline: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Return the samples of both arms whose prompt (question id and turn) the other arm has answered too."""
    prompt = attrgetter("question_id", "turn")
    common = {*map(prompt, method)} & {*map(prompt, baseline)}
    return [s for s in method if prompt(s) in common], [s for s in baseline if prompt(s) in common]


def paired_ratio(method: Sequence[Sample], baseline: Sequence[Sample], value: Quotient) -> float | None:
    """Return ``value`` of the method ÷ ``value`` of the baseline, over the prompts that both answered.

    ``None`` where either has no value, or the baseline's is 0.
    """
    ours, theirs = paired(method, baseline)
    return _divide(value(ours), value(theirs))


def speedup(method: Sequence[Sample], baseline: Sequence[Sample]) -> float | None:
    """Return how many times faster the method decodes: ratio of pooled tokens per second, prompts paired."""
    return paired_ratio(method, baseline, tokens_per_second)


def speedup_end_to_end(method: Sequence[Sample], baseline: Sequence[Sample]) -> float | None:
    """Return the speedup with prefill's time and token included, prompts paired."""
    return paired_ratio(method, baseline, tokens_per_second_end_to_end)


def step_cost(method: Sequence[Sample], baseline: Sequence[Sample]) -> float | None:
    """Return seconds per verifier step of the method ÷ those of the baseline, prompts paired."""
    return paired_ratio(method, baseline, step_seconds)


def speedup_mean_of_prompts(
    method: Sequence[Sample], baseline: Sequence[Sample], value: Quotient = tokens_per_second
) -> float | None:
    """Return the ratio of the unweighted means over questions of ``value``: Spec-Bench's rule.

    Spec-Bench's clock includes prefill; pass ``tokens_per_second_end_to_end`` to follow it there too. A question
    where either arm has no value is left out of both means.
    """
    ours, theirs = map(_by_question, paired(method, baseline))
    pairs = [(value(samples), value(theirs[question])) for question, samples in ours.items()]
    both = [(above, below) for above, below in pairs if above is not None and below is not None]
    return _divide(_mean([above for above, _ in both]), _mean([below for _, below in both]))


def ratio_ci95(
    method: Sequence[Sample], baseline: Sequence[Sample], value: Quotient, seed: int = 0, resamples: int = 2000
) -> tuple[float, float] | None:
    """Return a 95 % bootstrap interval of ``paired_ratio``.

    Questions are resampled, not answers, because the turns and repeats of a question resemble each other; both arms
    get the same questions. Percentiles 2.5 and 97.5; a resample in which the ratio has no value is left out.

    Args:
        method: samples of the arm above the line.
        baseline: samples of the arm below it.
        value: the quantity that is compared.
        seed: the same samples and seed give the same interval.
        resamples: how many resamples are drawn.

    Returns:
        Both ends, or ``None`` with fewer than two questions that have a value.
    """
    ours, theirs = map(_by_question, paired(method, baseline))
    # Sorted, so that the interval does not depend on the order in which the arms ran.
    sums = np.array([value.sums(ours[q]) + value.sums(theirs[q]) for q in sorted(ours, key=repr)]).reshape(-1, 4).T
    sums = sums[:, (sums[1] > 0) | (sums[3] > 0)]  # [4, questions]
    questions = sums.shape[1]
    if questions < 2:
        return None
    counts = np.random.default_rng(seed).multinomial(questions, np.full(questions, 1 / questions), size=resamples)
    # Not a matrix product: BLAS does not promise to round equal columns alike, and an arm against itself is exactly 1.
    ours_above, ours_below, theirs_above, theirs_below = ((counts * row).sum(axis=1) for row in sums)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = (ours_above / ours_below) / (theirs_above / theirs_below)
    ratios = ratios[np.isfinite(ratios)]
    return (float(np.percentile(ratios, 2.5)), float(np.percentile(ratios, 97.5))) if ratios.size else None


def exact_match(
    method_ids: Mapping[AnswerKey, Sequence[int]], baseline_ids: Mapping[AnswerKey, Sequence[int]]
) -> float | None:
    """Return the share of answers whose token ids equal the baseline's from first to last.

    A prefix is not a match. ``None`` without answers.

    Raises:
        ValueError: an answer is missing on one side; names up to three of them.
    """
    missing = sorted(method_ids.keys() ^ baseline_ids.keys(), key=repr)
    if missing:
        shown = ", ".join(map(repr, missing[:3]))
        raise ValueError(f"{len(missing)} answers (question id, turn, repeat) are in one arm only: {shown}")
    return _mean([first_difference(ids, baseline_ids[key]) is None for key, ids in method_ids.items()])


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the first place (from 0) where two lists of token ids differ, ``None`` if they are equal.

    Where one is a prefix of the other, that is the length of the shorter.
    """
    differences = (place for place, (left, right) in enumerate(zip(a, b, strict=False)) if left != right)
    return next(differences, None if len(a) == len(b) else min(len(a), len(b)))


def _divide(above: float | None, below: float | None) -> float | None:
    if above is None or not below:
        return None
    quotient = above / below
    return quotient if math.isfinite(quotient) else None


def _mean(values: Sequence[float]) -> float | None:
    return _divide(math.fsum(values), len(values))


def _by_question(samples: Sequence[Sample]) -> dict[int | str, list[Sample]]:
    groups: dict[int | str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.question_id, []).append(sample)
    return groups
