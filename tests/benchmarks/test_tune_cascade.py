"""What a cascade is predicted to yield: by hand, and against the formula for independent places."""

from __future__ import annotations

import random

import pytest
from cascade_theory import Costs, Text, at, best, by_columns, predict

FLAT = Costs({1: 1.0}, {1: 0.5})
PLAIN_STEPS = ((1, 1),)


def text(agrees: str, likely: str | None = None, steps=PLAIN_STEPS) -> Text:
    return Text([each == "1" for each in agrees], [int(each) / 10 for each in likely or "9" * len(agrees)], steps)


def test_costs_lie_on_straight_lines_between_those_measured():
    table = {2: 1.0, 4: 2.0, 8: 3.0}
    assert [at(table, width) for width in (1, 2, 3, 4, 6, 8, 12)] == [1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0]


def test_the_cost_of_a_width_is_the_median_of_those_seen_often_enough():
    forwards = [(1, 2.0), (4, 9.0), (1, 3.0), (1, 70.0), (2, 5.0), (2, 4.0), (2, 6.0)]
    assert by_columns(forwards, least=3) == {1: 3.0, 2: 5.0}


def test_blocks_are_played_along_the_text():
    # 1 1 1 | + 1 token: 4 places; then 1 0: one accepted and the correction
    speed, length = predict([text("111110")], FLAT, 3, 0.0)
    assert length == pytest.approx(6 / 2)
    assert speed == pytest.approx(6 / (3 * 0.5 + 1 + 2 * 0.5 + 1))


def test_a_block_ends_after_the_doubtful_token():
    assert predict([text("111111", "919999")], FLAT, 6, 0.5)[1] == pytest.approx((3 + 4) / 2)
    assert predict([text("111111", "919999")], FLAT, 6, 0.0)[1] == pytest.approx(7.0)


def test_inner_steps_are_cut_at_the_end_of_a_block():
    widths = Costs({1: 1.0}, {1: 1.0, 6: 6.0})
    speed, _ = predict([text("1111", steps=((3, 6),))], widths, 4, 0.0)
    # the first step may have 4 columns, the second one
    assert speed == pytest.approx(5 / (4 + 1 + 1))


def test_the_host_is_paid_for():
    costs = Costs({1: 1.0}, {1: 0.5}, host=0.1)
    speed, _ = predict([text("11"), text("11")], costs, 2, 0.0)
    assert speed == pytest.approx(6 / (2 * (2 * 0.6 + 1.1)))


def test_independent_places_give_the_usual_formula():
    numbers, agreement, size = random.Random(0), 0.9, 8
    places = ["1" if numbers.random() < agreement else "0" for _ in range(100_000)]
    speed, length = predict([text("".join(places))], FLAT, size, 0.0)
    expected = (1 - agreement ** (size + 1)) / (1 - agreement)
    assert length == pytest.approx(expected, rel=0.01)
    assert speed == pytest.approx(expected / (size * 0.5 + 1), rel=0.01)


def test_another_device_is_another_ratio():
    costs = Costs({1: 2.0, 4: 4.0}, {1: 1.8, 4: 3.0}).scaled(0.5)
    assert costs.inner == {1: 1.0, 4: 2.0}


def test_the_best_is_the_fastest_of_all():
    texts = {"slow": [text("1" * 12)], "fast": [text("1" * 12, steps=((4, 1),))]}
    rate, _, inside, length, doubt = best(texts, FLAT, (2, 4, 12), (0.0, 0.95))
    assert (inside, length, doubt) == ("fast", 12, 0.0)
    assert rate == pytest.approx(13 / (3 * 0.5 + 1))
