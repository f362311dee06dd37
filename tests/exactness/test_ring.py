"""The instrument itself: enumeration and chi-square."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ring import SAMPLES, chi_square, refutes
from worlds import OTHER, WIDE, WORLD

from quasar.drafters.none import NoDraft


def test_the_chi_square_refuses_a_text_that_cannot_occur():
    assert chi_square([(0,)] * 50 + [(1,)], {(0,): 1.0, (1,): 0.0}) == 0.0


def test_texts_of_the_wrong_law_are_caught_and_of_the_right_one_are_not():
    wrong = replace(WORLD, table=OTHER)
    observed = WORLD.sample(NoDraft(), SAMPLES)
    assert refutes(chi_square(observed, wrong.text_laws()))
    assert not refutes(chi_square(observed, WORLD.text_laws()))


def test_the_enumerated_laws_sum_to_1():
    assert sum(WORLD.text_laws().values()) == pytest.approx(1.0, abs=1e-12)
    assert set(WIDE.text_laws()) == {
        (a, b, c, d) for a in range(4) for b in range(4) for c in range(4) for d in range(4)
    }
