"""What a step of drafting costs at growing context, without any model: flat, because each token is read once.

python benchmarks/drafting_cost.py

Texts repeat themselves a little: words from a Zipf law, and now and then a copy of something earlier. The logits that
``recycling`` learns from are random, over a vocabulary of 49152, for as many nodes as it drafted.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import torch

from quasar import SamplingParams
from quasar.core.components import Drafter
from quasar.core.context import Context, Row, TokenView
from quasar.core.streams import Streams
from quasar.core.types import Verification
from quasar.drafters.adaptive import Adaptive
from quasar.drafters.ngram import Ngram
from quasar.drafters.recycling import Recycling
from quasar.drafters.suffix import Suffix
from quasar.drafters.union import Union

VOCAB = 49152
COSTS = {1: 1.0, 6: 1.45, 17: 2.7}


def union() -> Union:
    """Return the drafter that the documentation recommends."""
    return Union(Union.Config(drafters=[Suffix(), Recycling()]))


DRAFTERS = {
    "ngram": Ngram,
    "suffix": Suffix,
    "recycling": Recycling,
    "recycling, 16 nodes": lambda: Recycling(Recycling.Config(max_nodes=16)),
    "union of suffix and recycling": union,
    "the same, adaptive": lambda: Adaptive(Adaptive.Config(drafter=union(), costs=COSTS)),
}


def tokens(count: int, generator: random.Random, before: list[int]) -> list[int]:
    """Return ``count`` tokens that follow ``before``."""
    ids: list[int] = []
    while len(ids) < count:
        earlier = before + ids
        if len(earlier) > 50 and generator.random() < 0.02:
            start = generator.randrange(len(earlier) - 20)
            ids += earlier[start : start + generator.randrange(2, 20)]
        else:
            ids += [int(generator.paretovariate(0.8)) % VOCAB for _ in range(8)]
    return ids[:count]


def measure(drafter: Drafter, length: int, steps: int) -> tuple[float, float, float]:
    """Return seconds of reading the text, and the median and the 95th percentile of seconds of a step after it."""
    generator = random.Random(0)
    ids = tokens(length, generator, [])
    coming = tokens(3 * steps, generator, ids[-2000:])
    context = Context((Row(TokenView(ids), length - 1, "", 0, SamplingParams()),), Streams([(0, "", 0)]))
    started = time.perf_counter()
    draft = drafter.propose(context, [64])
    reading = time.perf_counter() - started
    logits = torch.randn((1, 65, VOCAB), generator=torch.Generator().manual_seed(0))
    times = []
    for step in range(steps):
        scores = logits[:, : draft.nodes + 1]
        context.verification = Verification(draft, scores, scores)
        ids += coming[2 * step : 2 * step + 2]
        started = time.perf_counter()
        draft = drafter.propose(context, [64])
        times.append(time.perf_counter() - started)
    return reading, statistics.median(times), statistics.quantiles(times, n=20)[-1]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--steps", type=int, default=200, help="Steps that are timed; two tokens are committed in each."
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[1_000, 4_000, 16_000, 32_000])
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'drafter':30} {'tokens':>7} {'reading':>10} {'median step':>12} {'95 %':>10}")
    for name, make in DRAFTERS.items():
        for length in chosen.lengths:
            reading, median, high = measure(make(), length, chosen.steps)
            print(f"{name:30} {length:7} {1e3 * reading:7.1f} ms {1e6 * median:9.0f} µs {1e6 * high:7.0f} µs")


if __name__ == "__main__":
    main()
