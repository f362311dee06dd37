"""The counting rule, its degenerate cases, and the bootstrap interval."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quasar.compare.counting import (
    Quotient,
    Sample,
    acceptance_length,
    acceptance_length_mean_of_prompts,
    acceptance_rate,
    acceptance_rate_at,
    draft_rate,
    exact_match,
    first_difference,
    mean_of_prompts,
    paired_ratio,
    ratio_ci95,
    speedup,
    speedup_end_to_end,
    speedup_mean_of_prompts,
    step_cost,
    step_seconds,
    tokens_per_second,
    tokens_per_second_end_to_end,
)


def sample(question_id: int | str = 1, *, steps: int = 10, committed: int | None = None, **changes) -> Sample:
    """Return a plain answer (one token a step, 0.1 s each) unless told otherwise."""
    decode_tokens = steps if committed is None else committed
    plain = Sample(
        question_id=question_id,
        turn=0,
        task="chat",
        arm="vanilla",
        repeat=0,
        num_tokens=decode_tokens + 1,
        num_steps=steps,
        decode_tokens=decode_tokens,
        num_drafted=0,
        num_accepted=0,
        num_drafted_steps=0,
        drafted_at=(),
        accepted_at=(),
        seconds_prefill=0.5,
        seconds_decode=0.1 * steps,
        seconds_draft=0.0,
        seconds_verify=0.1 * steps,
        seconds_accept=0.0,
    )
    return replace(plain, **changes)


def empty(question_id: int | str = 1, **changes) -> Sample:
    """Return an answer that ended with the token of prefill."""
    return sample(question_id, steps=0, seconds_decode=0.0, **changes)


samples = st.builds(
    sample,
    st.integers(1, 4) | st.sampled_from(["1", "b"]),
    steps=st.integers(0, 20),
    committed=st.integers(0, 60),
    turn=st.integers(0, 1),
    repeat=st.integers(0, 2),
    num_drafted=st.integers(0, 50),
    num_accepted=st.integers(0, 50),
    num_drafted_steps=st.integers(0, 20),
    seconds_prefill=st.floats(0, 10),
    seconds_decode=st.floats(0, 10) | st.just(0.0),
)
arms = st.lists(samples, max_size=8)
RATIOS = [speedup, speedup_end_to_end, speedup_mean_of_prompts, step_cost]
QUANTITIES = [
    acceptance_length,
    acceptance_rate,
    draft_rate,
    tokens_per_second,
    tokens_per_second_end_to_end,
    step_seconds,
]

# Lengths and rates


def test_plain_decoding_has_length_one_exactly():
    arm = [sample(1, steps=7), sample(2, steps=113), empty(3)]
    assert acceptance_length(arm) == 1.0
    assert acceptance_length_mean_of_prompts(arm) == 1.0


def test_length_is_over_all_steps_of_all_answers():
    """Two answers of known lengths 1 and 5: neither the last one alone, nor the mean of the two."""
    arm = [sample(1, steps=30), sample(2, steps=10, committed=50)]
    assert acceptance_length(arm) == 80 / 40
    assert acceptance_length_mean_of_prompts(arm) == (1 + 5) / 2


def test_steps_without_a_draft_count():
    """Every other step drafts 4 and keeps 4."""
    arm = [sample(steps=10, committed=30, num_drafted=20, num_accepted=20, num_drafted_steps=5)]
    assert acceptance_length(arm) == 3.0
    assert acceptance_rate(arm) == 1.0
    assert draft_rate(arm) == 0.5


def test_turns_and_repeats_of_a_question_are_one_prompt_in_the_mean():
    arm = [
        sample(1, steps=10, committed=10),
        sample(1, steps=10, committed=30, turn=1),
        sample(2, steps=5, committed=20),
    ]
    assert acceptance_length_mean_of_prompts(arm) == (40 / 20 + 4) / 2


def test_rate_is_over_drafted_tokens_not_over_answers():
    arm = [sample(1, num_drafted=10, num_accepted=10), sample(2, num_drafted=30, num_accepted=2)]
    assert acceptance_rate(arm) == 12 / 40


def test_rate_at_each_depth_adds_answers_of_unequal_depth():
    arm = [sample(drafted_at=(4, 4), accepted_at=(3, 1)), sample(drafted_at=(6, 0, 2), accepted_at=(6,)), sample()]
    assert acceptance_rate_at(arm) == (9 / 10, 1 / 4, 0.0)
    assert acceptance_rate_at([sample(drafted_at=(0, 2), accepted_at=(0, 1))]) == (None, 0.5)
    assert acceptance_rate_at([sample()]) == acceptance_rate_at([]) == ()


# Speeds


def test_decode_and_end_to_end_are_timed_apart():
    arm = [sample(steps=8, committed=40, seconds_prefill=3.0, seconds_decode=2.0)]
    assert tokens_per_second(arm) == 40 / 2.0
    assert tokens_per_second_end_to_end(arm) == 41 / 5.0
    assert step_seconds(arm) == 2.0 / 8


def test_ratios_follow_their_definitions():
    method = [sample(steps=8, committed=40, seconds_prefill=1.0, seconds_decode=2.0)]
    baseline = [sample(steps=40, seconds_prefill=1.0, seconds_decode=4.0)]
    assert speedup(method, baseline) == 2.0
    assert speedup_end_to_end(method, baseline) == pytest.approx((41 / 3) / (41 / 5))
    assert step_cost(method, baseline) == pytest.approx(0.25 / 0.1)


def test_weighted_and_mean_of_prompts_differ_as_defined():
    """A long answer that gains nothing, a short one that gains fourfold; and no mean of the two ratios (2.5)."""
    baseline = [sample(1, steps=900, seconds_decode=90.0), sample(2, steps=100, seconds_decode=5.0)]
    method = [sample(1, steps=900, seconds_decode=90.0), sample(2, steps=25, committed=100, seconds_decode=1.25)]
    assert speedup(method, baseline) == pytest.approx((1000 / 91.25) / (1000 / 95))
    assert speedup_mean_of_prompts(method, baseline) == pytest.approx((10 + 80) / (10 + 20))


def test_mean_of_prompts_pools_the_turns_of_a_question():
    method = [
        sample(1, steps=10, seconds_decode=1.0),
        sample(1, steps=90, seconds_decode=1.0, turn=1),
        sample(2, steps=10, seconds_decode=1.0),
    ]
    assert mean_of_prompts(method, tokens_per_second) == (50 + 10) / 2


def test_mean_of_prompts_leaves_a_question_without_decode_out_of_both_means():
    method = [sample(1, seconds_decode=0.5), empty(2)]
    baseline = [sample(1, seconds_decode=1.0), sample(2, seconds_decode=100.0)]
    assert speedup_mean_of_prompts(method, baseline) == 2.0


def test_mean_of_prompts_can_follow_the_clock_of_spec_bench():
    method = [sample(steps=9, seconds_prefill=1.0, seconds_decode=1.0)]
    baseline = [sample(steps=9, seconds_prefill=1.0, seconds_decode=3.0)]
    assert speedup_mean_of_prompts(method, baseline) == 3.0
    assert speedup_mean_of_prompts(method, baseline, tokens_per_second_end_to_end) == 2.0


@pytest.mark.parametrize("extra", [{"question_id": 2}, {"turn": 1}])
@pytest.mark.parametrize("ratio", RATIOS)
def test_only_prompts_that_both_arms_answered_are_compared(ratio, extra):
    """An interrupted run: the slow second prompt, or second turn, exists on one side only."""
    done = sample(steps=10, seconds_decode=1.0)
    slow = replace(sample(steps=10, seconds_decode=500.0, seconds_prefill=40.0), **extra)
    assert ratio([done], [done, slow]) == 1.0
    assert ratio([done, slow], [done]) == 1.0
    assert ratio([slow], [done]) is None


@given(arm=arms, seed=st.integers(0, 2**32))
def test_an_arm_against_itself_is_exactly_one(arm, seed):
    """Whatever order the answers came in."""
    shuffled = random.Random(seed).sample(arm, len(arm))
    for ratio in RATIOS:
        assert ratio(arm, shuffled) in (1.0, None)
    for value in QUANTITIES:
        interval = ratio_ci95(arm, shuffled, value, seed=seed, resamples=50)
        assert interval in ((1.0, 1.0), None)
        if paired_ratio(arm, shuffled, value) is None:
            assert interval is None


def test_an_arm_against_itself_has_an_interval_of_width_zero():
    arm = [sample(i, steps=10 + i, seconds_decode=0.37 * i + 0.1) for i in range(9)]
    assert speedup(arm, arm) == 1.0
    assert ratio_ci95(arm, list(reversed(arm)), tokens_per_second) == (1.0, 1.0)


# Degenerate cases


def test_answers_of_one_token_have_no_decode():
    arm = [empty(1), empty(2)]
    assert acceptance_length(arm) is None
    assert acceptance_length_mean_of_prompts(arm) is None
    assert acceptance_rate(arm) is None
    assert draft_rate(arm) is None
    assert tokens_per_second(arm) is None
    assert step_seconds(arm) is None
    assert speedup(arm, arm) is None
    assert speedup_mean_of_prompts(arm, arm) is None
    assert ratio_ci95(arm, arm, tokens_per_second) is None
    assert tokens_per_second_end_to_end(arm) == 2 / 1.0
    assert speedup_end_to_end(arm, arm) == 1.0


def test_a_baseline_at_zero_speed_gives_no_ratio():
    stuck = [sample(i, steps=5, committed=0) for i in range(3)]
    moving = [sample(i, steps=5) for i in range(3)]
    assert speedup(moving, stuck) is None
    assert ratio_ci95(moving, stuck, tokens_per_second) is None
    assert speedup(stuck, moving) == 0.0


@given(method=arms, baseline=arms)
def test_no_value_is_ever_infinite_or_nan(method, baseline):
    values = [value(method) for value in QUANTITIES] + [mean_of_prompts(method, value) for value in QUANTITIES]
    values += [ratio(method, baseline) for ratio in RATIOS] + [*acceptance_rate_at(method)]
    for quantity in QUANTITIES:
        interval = ratio_ci95(method, baseline, quantity, resamples=20)
        values += interval or ()
        if interval:
            assert interval[0] <= interval[1]
    assert all(value is None or np.isfinite(value) for value in values)


# The interval


def test_one_question_has_no_interval_however_often_it_was_answered():
    method = [sample(1, turn=turn, repeat=repeat, seconds_decode=1 + repeat) for turn in (0, 1) for repeat in range(5)]
    assert speedup(method, method) == 1.0
    assert ratio_ci95(method, method, tokens_per_second) is None
    assert ratio_ci95([*method, empty(2)], [*method, empty(2)], tokens_per_second) is None
    assert ratio_ci95([*method, sample(2)], [*method, sample(2)], tokens_per_second) is not None


def noisy(seed: int, questions: int, ratio: float, repeats: int = 1) -> tuple[list[Sample], list[Sample]]:
    """Return two arms whose questions differ much in length and speed, and in ``ratio`` on average."""
    rng = np.random.default_rng(seed)
    method, baseline = [], []
    for question in range(questions):
        steps = int(rng.integers(20, 200))
        pace = 0.1 * rng.lognormal(0, 0.5)  # shared by both arms: pairing takes it out
        gain = ratio * rng.gamma(16, 1 / 16)  # per question, mean 1
        for repeat in range(repeats):
            noise = rng.lognormal(0, 0.02, 2)
            theirs = sample(question, steps=steps, seconds_decode=steps * pace * noise[0], repeat=repeat)
            baseline.append(theirs)
            method.append(replace(theirs, seconds_decode=steps * pace / gain * noise[1]))
    return method, baseline


def true_ratio(ratio: float) -> float:
    """Return the limit of the pooled ratio: tokens ÷ seconds, so the harmonic mean of the gains."""
    return ratio * 15 / 16  # 1 / E[1 / g] for g ~ Gamma(16, 1/16)


def covered(seed: int, questions: int, repeats: int) -> bool:
    interval = ratio_ci95(*noisy(seed, questions, 1.6, repeats), tokens_per_second, seed=seed)
    assert interval is not None
    return interval[0] <= true_ratio(1.6) <= interval[1]


@pytest.mark.parametrize("repeats", [1, 4])
def test_interval_covers_the_true_ratio(repeats):
    """Resampling answers instead of questions would cover far less with 4 repeats."""
    coverage = np.mean([covered(seed, 30, repeats) for seed in range(200)])
    assert 0.85 <= coverage <= 0.995, coverage


def test_interval_is_of_the_paired_ratio():
    """Every question gains exactly twofold, at paces that differ much: unpaired resampling would be wide."""
    baseline = [sample(i, steps=20 + 7 * i, seconds_decode=(1.0 + i) ** 2) for i in range(12)]
    method = [replace(s, seconds_decode=s.seconds_decode / 2) for s in baseline]
    assert ratio_ci95(method, baseline, tokens_per_second) == (2.0, 2.0)


def test_interval_is_reproducible_and_independent_of_the_order_of_the_run():
    method, baseline = noisy(3, 12, 1.5)
    first = ratio_ci95(method, baseline, tokens_per_second)
    assert first == ratio_ci95(method[::-1], baseline[5:] + baseline[:5], tokens_per_second)
    assert first != ratio_ci95(method, baseline, tokens_per_second, seed=1)
    assert first is not None
    assert first[0] < speedup(method, baseline) < first[1]


def test_interval_equals_a_plain_bootstrap():
    """Against the slow definition: draw questions with replacement, pool their samples, take the ratio."""
    method, baseline = noisy(5, 10, 1.5, repeats=2)
    rng = random.Random(0)
    ratios = []
    for _ in range(2_000):
        drawn = rng.choices(range(10), k=10)
        ours = [s for q in drawn for s in method if s.question_id == q]
        theirs = [s for q in drawn for s in baseline if s.question_id == q]
        ratios.append(tokens_per_second(ours) / tokens_per_second(theirs))
    expected = np.percentile(ratios, [2.5, 97.5])
    assert ratio_ci95(method, baseline, tokens_per_second, resamples=20_000) == pytest.approx(tuple(expected), rel=0.02)


def test_any_quotient_can_be_compared():
    method = [sample(i, seconds_draft=0.25 * i) for i in (1, 2, 3)]
    baseline = [sample(i, seconds_draft=0.125 * i) for i in (1, 2, 3)]
    seconds_per_step = Quotient(lambda s: s.seconds_draft, lambda s: s.num_steps)
    assert paired_ratio(method, baseline, seconds_per_step) == 2.0
    assert ratio_ci95(method, baseline, seconds_per_step) == (2.0, 2.0)


# Token identity


def test_exact_match_compares_by_key_not_by_order():
    ours = {(1, 0, 0): [5, 6], (1, 1, 0): [7], ("b", 0, 0): [8, 9]}
    theirs = {("b", 0, 0): (8, 9), (1, 0, 0): (5, 6), (1, 1, 0): (0,)}
    assert exact_match(ours, theirs) == 2 / 3
    assert exact_match({}, {}) is None


def test_a_prefix_is_no_match():
    assert exact_match({(1, 0, 0): [5, 6]}, {(1, 0, 0): [5, 6, 7]}) == 0.0
    assert exact_match({(1, 0, 0): [5, 6]}, {(1, 0, 0): []}) == 0.0


def test_answers_on_one_side_only_are_an_error():
    ours = {(question, 0, 0): [1] for question in range(5)}
    expected = r"^4 answers \(question id, turn, repeat\) are in one arm only: \(0, 0, 0\), \(1, 0, 0\), \(2, 0, 0\)$"
    with pytest.raises(ValueError, match=expected):
        exact_match(ours, {(4, 0, 0): [1]})
    with pytest.raises(ValueError, match=r"^1 answers .*: \('x', 1, 0\)$"):
        exact_match(ours, {**ours, ("x", 1, 0): [1]})


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_first_difference_is_the_length_of_the_common_prefix(a, b):
    place = first_difference(a, b)
    assert (place is None) == (a == b)
    if place is not None:
        assert a[:place] == b[:place]
        assert a[place : place + 1] != b[place : place + 1]
    assert place == first_difference(b, a)
