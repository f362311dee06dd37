"""What a cascade should yield, from measured costs and from how often two models agree. No model in here.

A block costs the inner steps that write it and one outer forward over it, and yields the tokens that the outer model
agrees with and one more. Blocks are played along texts that the inner model wrote; after a correction the text is taken
to agree as well as the rest of it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median


@dataclass(frozen=True)
class Text:
    """One text of the inner pipeline.

    Attributes:
        agrees: whether the outer model would have drawn the same token, place by place.
        likely: probability of each token under the inner model at temperature 1.
        steps: inner steps as (tokens emitted, columns forwarded), in order.
    """

    agrees: Sequence[bool]
    likely: Sequence[float]
    steps: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Costs:
    """Seconds.

    Attributes:
        outer: of an outer forward, by its columns.
        inner: of an inner forward, by its columns.
        host: of a step beside its forward, on either level.
    """

    outer: Mapping[int, float]
    inner: Mapping[int, float]
    host: float = 0.0

    def scaled(self, ratio: float) -> Costs:
        """Return the costs of a device on which an inner forward is ``ratio`` times an outer one of its width."""
        inner = {width: ratio * seconds for width, seconds in self.outer.items()}
        return Costs(self.outer, inner, self.host)


def by_columns(forwards: Sequence[tuple[int, float]], least: int = 5) -> dict[int, float]:
    """Return the median cost of a forward by its columns, of those widths that were seen often enough.

    Args:
        forwards: columns and seconds.
        least: forwards of a width that are enough.
    """
    found: dict[int, list[float]] = {}
    for columns, seconds in forwards:
        found.setdefault(columns, []).append(seconds)
    return {columns: median(each) for columns, each in sorted(found.items()) if len(each) >= least}


def at(table: Mapping[int, float], width: int) -> float:
    """Return the cost of a forward of ``width`` columns: on a straight line between two that were measured."""
    known = sorted(table)
    if width <= known[0] or len(known) == 1:
        return table[known[0]]
    high = next((place for place in range(1, len(known)) if known[place] >= width), len(known) - 1)
    left, right = known[high - 1], known[high]
    return table[left] + (table[right] - table[left]) / (right - left) * (width - left)


def predict(texts: Sequence[Text], costs: Costs, length: int, doubt: float) -> tuple[float, float]:
    """Return tokens per second of decode, and the acceptance length of a cascade.

    Args:
        texts: of the inner pipeline.
        costs: what forwards cost.
        length: most tokens of a block.
        doubt: a block ends after a token that the inner model found less likely than this.
    """
    tokens, blocks, seconds = 0, 0, 0.0
    for text in texts:
        steps, place, size = cycle(text.steps), 0, len(text.agrees)
        while place < size:
            last = min(place + length, size) - 1
            last = next((end for end in range(place, last) if text.likely[end] < doubt), last)
            count = last - place + 1
            seconds += _writing(count, steps, costs) + at(costs.outer, count + 1) + costs.host
            wrong = next((end for end in range(place, place + count) if not text.agrees[end]), place + count)
            tokens, blocks, place = tokens + wrong - place + 1, blocks + 1, wrong + 1
    return tokens / seconds, tokens / blocks


def _writing(count: int, steps: cycle[tuple[int, int]], costs: Costs) -> float:
    """Return the seconds in which the inner pipeline writes ``count`` tokens."""
    seconds = 0.0
    while count > 0:
        emitted, columns = next(steps)
        # the engine never drafts beyond the block: a step that would emit more has fewer columns
        seconds += at(costs.inner, min(columns, count)) + costs.host
        count -= emitted
    return seconds


def best(
    texts: Mapping[str, Sequence[Text]], costs: Costs, lengths: Sequence[int], doubts: Sequence[float]
) -> tuple[float, float, str, int, float]:
    """Return the fastest cascade: tokens per second, acceptance length, inner drafting, block length and doubt."""
    found = [
        (*predict(each, costs, length, doubt), name, length, doubt)
        for name, each in texts.items()
        for length in lengths
        for doubt in doubts
    ]
    return max(found)
