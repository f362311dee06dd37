"""What a forward in W8A8 costs against one in full precision, both on the same backend and interleaved in one run.

python benchmarks/precision_cost.py [--rounds 60]

Prints medians, and the ratios to one row in full precision: one row, and the six of five draft tokens.
"""

from __future__ import annotations

import argparse
import json

from quasar import load_pipeline
from quasar.core.pipeline import device_clock
from quasar.profile.forwards import Place, Timing, measure

ROWS = (1, 6)


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of W8A8 forwards relative to full precision.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    models, places = {}, {}
    for name in ("full", "int8"):
        verifier = load_pipeline(arguments.model, drafter="none", verifier=name, quiet=True).composition.verifier
        print(f"{name}: backend {verifier.describe()['backend']}")
        models[name] = verifier.model
        text = [1 + 7919 * place % 40_000 for place in range(arguments.context + max(ROWS))]
        places[name] = Place(verifier.model, text, arguments.context, max(ROWS))
    found = {(name, rows): Timing() for name in models for rows in ROWS}
    for _ in range(arguments.rounds):
        for name, model in models.items():
            timed = measure(model, [places[name]], ROWS, device_clock("cpu"), 1, 0.0)
            for rows in ROWS:
                found[name, rows].seconds += timed[arguments.context, rows].seconds
    base = found["full", 1].median
    for (name, rows), timing in found.items():
        low, high = (1e3 * each for each in timing.quartiles)
        ratio = timing.median / base
        print(
            f"{name:<5} {rows} rows: {1e3 * timing.median:6.2f} ms [{low:.2f}, {high:.2f}], {ratio:.2f} of full, 1 row"
        )
    print(json.dumps({f"{name} {rows}": round(each.median / base, 3) for (name, rows), each in found.items()}))


if __name__ == "__main__":
    main()
