"""Draw a token from a distribution over a wide vocabulary on the CPU, without making noise for every token.

The noise of ``quasar.core.streams.exponentials`` comes in blocks: the least number of a block first, then what the
others have beyond it. The least bounds every score of its block from above, so most blocks need not be looked into.
In numpy, because these are some sixty operations on a few hundred numbers, and torch takes several times as long to
begin one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Numbers = NDArray[Any]

BLOCK = 128
"""Tokens whose least noise is a number of its own. Other sizes give other texts."""

GOLDEN = 0x9E3779B97F4A7C15
FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31


@cache
def _multiples(first: int, last: int, sign: int) -> Words:
    """Return multiples of ``GOLDEN`` modulo 2^64. Shared, never written."""
    return np.array([sign * GOLDEN * number % 2**64 for number in range(first, last)], dtype=np.uint64)


def _mixed(words: Words) -> Words:
    """Scramble 64 bits in place, as ``quasar.core.streams.mix`` does."""
    for bits, factor in FACTORS:
        words ^= words >> np.uint64(bits)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(LAST_SHIFT)
    return words


def _exponentials(words: Words) -> Numbers:
    """Return minus the logarithm of the uniform numbers that scrambled words stand for."""
    numbers = (words >> np.uint64(12)).astype(np.float64)
    numbers += 0.5
    numbers *= 2.0**-52
    np.log(numbers, out=numbers)
    return np.negative(numbers, out=numbers)


def draw_one(distribution: Numbers, key: int) -> int:
    """Return argmax of probability ÷ noise.

    Args:
        distribution: ``[vocab]``, floating; need not be normalised.
        key: of the noise, any 64 bits.
    """
    if len(distribution) % BLOCK:
        distribution = np.concatenate([distribution, np.zeros(-len(distribution) % BLOCK, distribution.dtype)])
    table, start = distribution.reshape(-1, BLOCK), np.array([key % 2**64], dtype=np.uint64)
    words = _mixed(start + _multiples(1, len(table) + 1, -1))
    places = (words & np.uint64(BLOCK - 1)).astype(np.intp)
    least = _exponentials(words)
    least /= BLOCK
    largest = table.max(axis=1)
    above = largest / least  # no score of the block is larger
    known = (table[np.arange(len(table)), places] / least).max()  # some scores there are
    likely = _best(table, start, least, places, largest.argmax()[None])[1]
    chosen = np.flatnonzero(~(above < max(known, likely)))
    return _best(table, start, least, places, chosen)[0]


def _best(table: Numbers, start: Words, least: Numbers, places: NDArray[np.intp], chosen: Any) -> tuple[int, float]:
    """Return the token of some blocks with the largest score, and that score."""
    counters = _multiples(0, table.size, 1).reshape(-1, BLOCK)
    noise = _exponentials(_mixed(start + counters[chosen]))
    noise[np.arange(len(chosen)), places[chosen]] = 0.0
    noise += least[chosen][:, None]
    scores = table[chosen] / noise
    place = int(scores.argmax())
    return int(chosen[place // BLOCK]) * BLOCK + place % BLOCK, float(scores.flat[place])
