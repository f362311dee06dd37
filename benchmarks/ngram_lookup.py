"""What a step of ``ngram`` costs at growing context: flat, because every token is indexed once.

python benchmarks/ngram_lookup.py
"""

from __future__ import annotations

import random
import statistics
import time

from quasar import SamplingParams
from quasar.core.context import Context, Row, TokenView
from quasar.core.streams import Streams
from quasar.drafters.ngram import Ngram


def median_step(length: int, steps: int = 400) -> float:
    """Return microseconds of a median step after ``length`` tokens, one new token a step."""
    generator = random.Random(0)
    ids = [generator.randrange(500) for _ in range(length)]
    context = Context((Row(TokenView(ids), length, "", 0, SamplingParams()),), Streams([(0, "", 0)]))
    drafter = Ngram()
    drafter.propose(context, [64])  # indexes the prompt
    times = []
    for _ in range(steps):
        ids.append(generator.randrange(500))
        started = time.perf_counter()
        drafter.propose(context, [64])
        times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times)


if __name__ == "__main__":
    for size in (100, 1_000, 10_000, 100_000):
        print(f"{size:>7} tokens: {median_step(size):6.1f} µs a step")
