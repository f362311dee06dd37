"""Time forwards of several widths after prefixes of several lengths, interleaved: drift then meets them all alike."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from quasar.core.models import LanguageModel
from quasar.core.types import Draft
from quasar.models.session import Session
from quasar.profile.parts import own_parts

MIN_ROUNDS = 3
"""Rounds that are made however short the time: a spread needs them."""


class Place:
    """A session whose cache holds a text of one length, and the tokens that follow there.

    Attributes:
        context: committed tokens, slot 0 included.

    Args:
        model: runs the forwards.
        text: token ids, at least ``context + widest - 1``.
        context: see above.
        widest: most rows of a forward.
    """

    def __init__(self, model: LanguageModel, text: Sequence[int], context: int, widest: int) -> None:
        self.context = context
        self._capacity = context + widest
        self._session = Session(model, 1, self._capacity)
        self._prefix = [list(text[:context])]
        self._following = list(text[context : context + widest - 1])

    def forward(self, rows: int) -> None:
        """Run one block: slot 0 and a chain of ``rows - 1`` nodes; the prefix is cached from the first call on."""
        self._session.forward(self._prefix, Draft.chains([self._following[: rows - 1]]))

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values that a forward reads here."""
        return self._session.nbytes * self.context // self._capacity


@dataclass(slots=True)
class Timing:
    """Forwards of one width at one place.

    Attributes:
        seconds: of each forward.
        parts: seconds per part of the model, summed over these forwards; empty for a model that does not time itself.
    """

    seconds: list[float] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile, seconds."""
        if len(self.seconds) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high


def measure(
    model: LanguageModel,
    places: Sequence[Place],
    widths: Sequence[int],
    clock: Callable[[], float],
    rounds: int | None,
    seconds: float,
    progress: Callable[[], object] = lambda: None,
) -> Mapping[tuple[int, int], Timing]:
    """Time every width at every place once a round, in another order each round, after one uncounted pass.

    Args:
        model: what the places run, asked for its own ``timings()`` if it has them.
        places: one for each context length.
        widths: rows of a forward.
        clock: seconds, with the device's queue empty.
        rounds: how many; ``None`` goes on for ``seconds``, and for ``MIN_ROUNDS`` at least.
        seconds: see above.
        progress: called after every round, the uncounted one included.

    Returns:
        The timings by ``(context, rows)``.
    """
    cells = [(place, rows) for place in places for rows in widths]
    timings = {(place.context, rows): Timing() for place, rows in cells}
    for place, rows in cells:
        place.forward(rows)
    progress()
    shuffle = random.Random(0).shuffle
    deadline, done = time.monotonic() + seconds, 0
    while done < rounds if rounds is not None else done < MIN_ROUNDS or time.monotonic() < deadline:
        shuffle(cells)
        for place, rows in cells:
            timing = timings[place.context, rows]
            own_parts(model)  # forget what was spent before
            started = clock()
            place.forward(rows)
            timing.seconds.append(clock() - started)
            for part, spent in own_parts(model).items():
                timing.parts[part] = timing.parts.get(part, 0.0) + spent
        done += 1
        progress()
    return timings
