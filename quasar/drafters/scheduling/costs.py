"""What steps cost: a table over the width of the forward, given or measured once."""

from __future__ import annotations

import json
import statistics
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quasar.core.components import Drafter, Verifier
from quasar.core.context import Context, Row, TokenView
from quasar.core.model_verifier import ModelVerifier
from quasar.core.models import LanguageModel, ModelProvider
from quasar.core.pipeline import device_clock
from quasar.core.sampling import SamplingParams
from quasar.core.session import Session
from quasar.core.streams import Streams
from quasar.core.types import Draft

_CONTEXT, _REPEATS = 256, 12
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

    def describe(self) -> dict[str, Any]:
        """Return the options that give the same decisions."""
        return {"costs": dict(self._table), "draft_cost": self._draft}


def measure(models: ModelProvider, verifier: Verifier, drafter: Drafter, most: int, draft_cost: float | None) -> Costs:
    """Time forwards of the model that checks, once for all pipelines of a run, and drafting; a plain step costs 1.

    Args:
        models: keeps the measurements.
        verifier: loaded; if it has no model, the target is timed.
        drafter: loaded.
        most: nodes that can be drafted in a step.
        draft_cost: relative to a plain step; measured if ``None``.
    """
    model = verifier.model if isinstance(verifier, ModelVerifier) else models.target()
    clock, checks = device_clock(str(model.device)), json.dumps(verifier.resolved())
    size = min(_CONTEXT, (model.max_length or 2 * _CONTEXT) // 2)
    ids = [1 + 7919 * place % (model.vocab_size - 1) for place in range(size)]  # any text, without many repetitions
    widths = [width for width in _WIDTHS if width <= most] + [most + 1]
    key = f"seconds of forwards, by width {widths}: {checks}"
    seconds = dict(_once(models, key, lambda: list(typical(_time_forwards(model, ids, widths, clock)).items())))
    if draft_cost is None:
        key = f"seconds for one more node of {most}: {json.dumps(drafter.resolved())} under {checks}"
        drafting: float = _once(models, key, lambda: _time_drafting(model, drafter, ids, most, clock))
        draft_cost = max(0.0, drafting) / seconds[1]
    highest, table = 0.0, {}
    for width in widths:
        highest = table[width] = max(highest, round(seconds[width] / seconds[1], 3))  # noise must not pay for nodes
    return Costs(table, round(draft_cost, 4))


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
    context.verification = context.judge(nothing, logits)
    times: dict[int, list[float]] = {1: [], most: []}
    for _ in range(_REPEATS + 1):
        for size, found in times.items():
            started = clock()
            drafter.propose(context, [size])
            found.append(clock() - started)
    few, many = (statistics.median(found[1:]) for found in times.values())
    return (many - few) / max(most - 1, 1)
