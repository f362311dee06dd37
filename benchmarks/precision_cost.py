"""What a forward in int8 costs against one in full precision and, optionally, one of llama.cpp; interleaved in one run.

    python benchmarks/precision_cost.py [--rounds 60] [--llama-python OTHER_VENV/bin/python]

Prints medians, and ratios to one row in full precision: one row, and the six of five draft tokens.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from gguf_export import export
from peers_arms import LlamaProcess

from quasar import load_pipeline
from quasar.core.clock import device_clock
from quasar.core.models import LanguageModel
from quasar.profile.forwards import Place, Timing, measure

ROWS = (1, 6)
ARMS = {
    "full": "full",
    "int8": "int8",
    "int8, 12-bit activations": {"use": "int8", "activation_bits": 12},
    "int8, 12-bit activations, head too": {"use": "int8", "activation_bits": 12, "quantize_lm_head": True},
}

Timer = Callable[[int], list[float]]
"""From a number of rows to the seconds of a forward or several."""


def text_of(length: int, vocab_size: int) -> list[int]:
    """Return ids that no n-gram repeats in."""
    return [1 + 7919 * place % (vocab_size - 1) for place in range(length)]


def timer(model: LanguageModel, context: int, widths: Sequence[int]) -> Timer:
    """Return how a model is timed after ``context`` tokens."""
    widest = max(widths)
    place = Place(model, text_of(context + widest, model.vocab_size), context, widest)
    return lambda rows: measure(model, [place], (rows,), device_clock("cpu"), 1, 0.0)[context, rows].seconds


def interleaved(timers: Mapping[str, Timer], widths: Sequence[int], rounds: int) -> dict[tuple[str, int], Timing]:
    """Return timings by name and rows; everything by turns."""
    found = {(name, rows): Timing() for name in timers for rows in widths}
    for _ in range(rounds):
        for name, rows in found:
            found[name, rows].seconds += timers[name](rows)
    return found


def llama_timers(python: str, model: str, context: int, vocab_size: int) -> dict[str, Timer]:
    """Return how llama.cpp is timed, on files written from the same weights."""
    process = LlamaProcess(python, torch.get_num_threads(), context + max(ROWS))

    def seconds(path: str, rows: int) -> list[float]:
        ids = text_of(context + rows, vocab_size)
        return [process.ask(do="forward", path=path, ids=ids, rows=rows)["seconds"]]

    timers = {}
    for kind in ("F16", "Q8_0"):
        path = str(export(model, kind))
        process.ask(do="load", path=path)
        timers[f"llama.cpp {kind}"] = partial(seconds, path)
    return timers


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of int8 forwards relative to full precision.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--llama-python", metavar="PATH", help="an interpreter with llama-cpp-python")
    arguments = parser.parse_args()
    timers, vocab_size = {}, 0
    for name, verifier in ARMS.items():
        loaded = load_pipeline(arguments.model, drafter="none", verifier=verifier, quiet=True).composition.verifier
        print(f"{name}: backend {loaded.describe()['backend']}")
        timers[name], vocab_size = timer(loaded.model, arguments.context, ROWS), loaded.model.vocab_size
    if arguments.llama_python:
        timers |= llama_timers(arguments.llama_python, arguments.model, arguments.context, vocab_size)
    found = interleaved(timers, ROWS, arguments.rounds)
    base = found["full", 1].median
    for (name, rows), timing in found.items():
        low, high = (1e3 * each for each in timing.quartiles)
        ratio = timing.median / base
        print(
            f"{name:<35}{rows} rows {1e3 * timing.median:6.2f} ms [{low:.2f}, {high:.2f}], {ratio:.2f} of full, 1 row"
        )
    print(json.dumps({f"{name} {rows}": round(each.median / base, 3) for (name, rows), each in found.items()}))


if __name__ == "__main__":
    main()
