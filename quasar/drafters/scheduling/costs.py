"""What steps cost: tables over the width of the forward, after short texts and long ones, given or measured once."""

from __future__ import annotations

import json
import statistics
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quasar.core.clock import device_clock
from quasar.core.components import Drafter, Verifier
from quasar.core.context import Context, Row, TokenView
from quasar.core.models import LanguageModel
from quasar.core.providers import ModelProvider
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams
from quasar.core.types import Draft
from quasar.models.session import Session

_CONTEXTS, _REPEATS = (128, 1024), 10
_STEP = 64
"""Lengths of text that are told apart."""

_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class Costs:
    """Cost of a forward by its width, in any unit; between two widths of the table, and beyond it, on a straight line.

    Args:
        table: cost by width; width 1 is a plain step.
        draft: cost of drafting one more node.
    """

    def __init__(self, table: Mapping[int, float], draft: float) -> None:
        self._table, self._draft = dict(sorted(table.items())), draft
        self._widths = list(self._table)
        self._of_node: dict[int, float] = {}

    def forward(self, width: int) -> float:
        """Return the cost of a forward over ``width`` columns."""
        if width in self._table or len(self._widths) == 1:
            return self._table.get(width, self._table[self._widths[0]])
        high = min(max(bisect_left(self._widths, width), 1), len(self._widths) - 1)
        left, right = self._widths[high - 1], self._widths[high]
        slope = (self._table[right] - self._table[left]) / (right - left)
        return self._table[left] + slope * (width - left)

    def of_node(self, number: int) -> float:
        """Return what node ``number``, counted from 0, adds to the step."""
        if number not in self._of_node:
            self._of_node[number] = self.forward(number + 2) - self.forward(number + 1) + self._draft
        return self._of_node[number]


class CostTables:
    """Costs by the length of the text before: a row reads all keys, so wide forwards cost more after long texts.

    Args:
        tables: cost by width, by length of the text; between two lengths, and beyond them, on a straight line.
        draft: cost of drafting one more node.
    """

    def __init__(self, tables: Mapping[int, Mapping[int, float]], draft: float) -> None:
        self._tables = {length: dict(sorted(table.items())) for length, table in sorted(tables.items())}
        self._draft = draft
        self._at: dict[int, Costs] = {}

    def at(self, length: int) -> Costs:
        """Return the costs after a text of about ``length`` tokens."""
        step = length // _STEP
        if step not in self._at:
            self._at[step] = self._between((step + 0.5) * _STEP)
        return self._at[step]

    def describe(self) -> dict[str, Any]:
        """Return the options that give the same decisions."""
        return {"costs": self._tables, "draft_cost": self._draft}

    def _between(self, length: float) -> Costs:
        lengths = list(self._tables)
        if len(lengths) == 1:
            return Costs(self._tables[lengths[0]], self._draft)
        high = min(max(bisect_left(lengths, length), 1), len(lengths) - 1)
        left, right = (Costs(self._tables[each], self._draft) for each in lengths[high - 1 : high + 1])
        share = (length - lengths[high - 1]) / (lengths[high] - lengths[high - 1])
        share = max(share, 0.0)  # a text shorter than all that were measured costs what the shortest did
        widths = sorted({*self._tables[lengths[high - 1]], *self._tables[lengths[high]]})
        return Costs({w: (1 - share) * left.forward(w) + share * right.forward(w) for w in widths}, self._draft)


def measure(
    models: ModelProvider, verifier: Verifier, drafter: Drafter, most: int, draft_cost: float | None
) -> CostTables:
    """Time forwards of the model that checks, once for all pipelines of a run, and drafting.

    A plain step after the shorter text costs 1.

    Args:
        models: keeps the measurements.
        verifier: loaded; if it has no model, the target is timed.
        drafter: loaded.
        most: nodes that can be drafted in a step.
        draft_cost: relative to a plain step; measured if ``None``.
    """
    model = verifier.language_model() or models.target()
    clock, checks = device_clock(str(model.device)), json.dumps(verifier.as_yaml())
    most_tokens = (model.max_length or 2 * _CONTEXTS[1]) // 2
    # Any text, without many repetitions.
    ids = [1 + 7919 * place % (model.vocab_size - 1) for place in range(min(_CONTEXTS[1], most_tokens))]
    widths = [width for width in _WIDTHS if width <= most] + [most + 1]
    seconds: dict[int, dict[int, float]] = {}
    for size in sorted({min(_CONTEXTS[0], most_tokens), len(ids)}):
        key = f"seconds of forwards after {size} tokens, by width {widths}: {checks}"

        def take(size: int = size) -> list[tuple[int, float]]:
            return list(typical(_time_forwards(model, ids[:size], widths, clock)).items())

        seconds[size] = dict(_once(models, key, take))
    unit = next(iter(seconds.values()))[1]
    if draft_cost is None:
        key = f"seconds for one more node of {most}: {json.dumps(drafter.as_yaml())} under {checks}"
        drafting: float = _once(models, key, lambda: _time_drafting(model, drafter, ids[:256], most, clock))
        draft_cost = max(0.0, drafting) / unit
    tables: dict[int, dict[int, float]] = {}
    for size, found in seconds.items():
        table, highest = tables.setdefault(size, {}), 0.0
        for width in widths:
            highest = table[width] = max(highest, round(found[width] / unit, 3))  # noise must not pay for nodes
    return CostTables(tables, round(draft_cost, 4))


def _once(models: ModelProvider, key: str, make: Callable[[], Any]) -> Any:
    if key not in models.measurements:
        models.measurements[key] = make()
    return models.measurements[key]


def _time_forwards(
    model: LanguageModel, ids: list[int], widths: list[int], clock: Callable[[], float]
) -> dict[int, list[float]]:
    """Return seconds of forwards over each width, after the same text, the widths by turns.

    Each is timed the second time in a row, because in a text most steps follow one of about their own width.
    """
    session, times = Session(model, 1, len(ids) + max(widths)), dict[int, list[float]]()
    for _ in range(_REPEATS + 1):
        for width in widths:
            draft = Draft.chains([ids[: width - 1]])
            session.forward([ids], draft)
            started = clock()
            session.forward([ids], draft)
            times.setdefault(width, []).append(clock() - started)
    return {width: found[1:] for width, found in times.items()}  # the first round warms up


def typical(times: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return seconds by width, from those of several rounds.

    A width is compared with width 1 of the same round, and the median of these ratios counts: what the machine did
    meanwhile then falls on both, where medians of either would differ by more than the price of a node.
    """
    plain = times[1]
    middle = statistics.median(plain)
    return {
        width: middle * statistics.median(seconds / one for seconds, one in zip(found, plain, strict=True))
        for width, found in times.items()
    }


def _time_drafting(
    model: LanguageModel, drafter: Drafter, ids: list[int], most: int, clock: Callable[[], float]
) -> float:
    """Return median seconds that the drafter takes for one more node."""
    context = Context((Row(TokenView(ids), len(ids) - 1, "", 0, SamplingParams()),), Streams([(0, "", 0)]))
    nothing = Draft.empty(1)
    logits = Session(model, 1, len(ids)).forward([ids[:-1]], nothing)
    context.verification = context.verification_of(nothing, logits)
    times: dict[int, list[float]] = {1: [], most: []}
    for _ in range(_REPEATS + 1):
        for size, found in times.items():
            started = clock()
            drafter.propose(context, [size])
            found.append(clock() - started)
    few, many = (statistics.median(found[1:]) for found in times.values())
    return (many - few) / max(most - 1, 1)
