"""``quasar profile``: load a verifier, time its forwards, and say what the machine would allow."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from tqdm import tqdm

from quasar.core.clock import device_clock
from quasar.core.config import parse_yaml
from quasar.core.description import description_of
from quasar.core.errors import CapacityError, ConfigError
from quasar.core.models import LanguageModel
from quasar.machine import busy_processors, environment, is_busy
from quasar.pipelines.load import load_pipeline
from quasar.pipelines.pipeline import Pipeline
from quasar.profile.forwards import Place, Timing, measure
from quasar.profile.memory import bytes_read, read_bandwidth
from quasar.profile.parts import operator_parts, shares
from quasar.profile.report import table
from quasar.profile.results import Forward, Profile, lay_out
from quasar.prompts.questions import BUNDLED, load_questions

ROWS = (1, 2, 4, 6, 8, 12, 16, 32)
"""Rows of a forward: 1 is plain decoding, 6 the paper's five drafts and slot 0."""

CONTEXTS = (128, 512, 1536)
"""Committed tokens before and in slot 0."""


def run(arguments: argparse.Namespace) -> None:
    """Profile as the command line asks, and print a table or JSON.

    Raises:
        QuasarError: in one line.
    """
    others = busy_processors()
    rows, contexts = arguments.rows or ROWS, arguments.contexts or CONTEXTS
    for flag, smallest in (("--rows", min(rows)), ("--contexts", min(contexts)), ("--rounds", arguments.rounds)):
        if smallest is not None and smallest < 1:
            raise ConfigError(f"{flag}: must be at least 1, got {smallest}.")
    pipeline = load_pipeline(
        arguments.model, drafter="none", verifier=parse_yaml(arguments.verifier, "--verifier"),
        device=arguments.device, plugins=arguments.plugin, quiet=arguments.quiet,
        registry=arguments.registry,
    )  # fmt: skip
    total = None if arguments.rounds is None else arguments.rounds + 1  # and one that is not counted
    with tqdm(desc="rounds", total=total, disable=arguments.quiet, file=sys.stderr) as bar:
        found = profile(pipeline, rows, contexts, arguments.rounds, arguments.seconds, bar.update)
    print(json.dumps(lay_out(found, others), indent=2) if arguments.json else table(found))
    if is_busy(others):
        print(f"warning: the machine was busy when this began (others used {others:.1f} processors); the times mean "
              "little.", file=sys.stderr)  # fmt: skip


def profile(
    pipeline: Pipeline,
    rows: Sequence[int] = ROWS,
    contexts: Sequence[int] = CONTEXTS,
    rounds: int | None = None,
    seconds: float = 60.0,
    progress: Any = lambda: None,
) -> Profile:
    """Measure the forwards of a pipeline's verifier.

    Args:
        pipeline: its drafter and acceptor do not matter.
        rows: widths.
        contexts: lengths; those that the model cannot hold are cut to what it can.
        rounds: how often each pair of them is timed; ``None`` goes on for ``seconds``.
        seconds: see above.
        progress: called after every round.

    Raises:
        ConfigError: the verifier does not run a language model of ours.
        CapacityError: the model is shorter than the widest forward.
    """
    verifier = pipeline.composition.verifier
    model = verifier.language_model()
    if model is None:
        raise ConfigError(f"profile: verifier '{verifier.name}' has no language model to time; name one that has.")
    device = str(model.device)
    clock, widest = device_clock(device), max(rows)
    lengths = _fitting(contexts, widest, model)
    text = _text(pipeline.tokenizer, max(lengths) + widest)
    places = [Place(model, text, context, widest) for context in lengths]
    before = read_bandwidth(device, clock)
    timings = measure(model, places, list(dict.fromkeys(rows)), clock, rounds, seconds, progress)
    bandwidth = max(before, read_bandwidth(device, clock))
    read = bytes_read(model)
    floor = read / bandwidth
    return Profile(
        model=model.name,
        options=verifier.as_yaml(),
        verifier=description_of(verifier),
        bytes_read_per_forward=read,
        read_bandwidth_bytes_per_second=bandwidth,
        floor_ms=1e3 * floor,
        cache_bytes={place.context: place.cache_bytes for place in places},
        parts_from="the model's own clock" if hasattr(model, "timings") else "a clock around torch's operators",
        forwards=tuple(
            _forward(place, width, timings, floor, model) for place in places for width in dict.fromkeys(rows)
        ),
        environment=environment(device),
    )


def _fitting(contexts: Sequence[int], widest: int, model: LanguageModel) -> list[int]:
    """Cut contexts to what the model holds beside the widest block; equal ones are measured once."""
    if model.max_length is None:
        return list(dict.fromkeys(contexts))
    room = model.max_length - widest + 1
    if room < 1:
        raise CapacityError(
            f"--rows {widest}: model '{model.name}' holds {model.max_length} tokens; ask for fewer rows."
        )
    return list(dict.fromkeys(min(context, room) for context in contexts))


def _text(tokenizer: Any, length: int) -> list[int]:
    """Return ``length`` ids of the bundled prompts, repeated if need be."""
    ids = list(chain.from_iterable(tokenizer.encode(q.turns[0]) for q in load_questions(BUNDLED)))
    return (ids * (length // len(ids) + 1))[:length]


def _forward(
    place: Place, rows: int, timings: Mapping[tuple[int, int], Timing], floor: float, model: LanguageModel
) -> Forward:
    timing = timings[place.context, rows]
    low, high = timing.quartiles
    first = timings.get((place.context, 1))
    return Forward(
        context=place.context,
        rows=rows,
        ms=1e3 * timing.median,
        ms_quartiles=(1e3 * low, 1e3 * high),
        num_forwards=len(timing.seconds),
        times_one_row=timing.median / first.median if first else None,
        times_floor=timing.median / floor,
        shares=_shares(place, rows, timing, model),
    )


def _shares(place: Place, rows: int, timing: Timing, model: LanguageModel) -> dict[str, float] | None:
    """Return shares of the parts; ``None`` where nobody can tell (a GPU without a clock of the model's own)."""
    if timing.parts:
        return shares(timing.parts, sum(timing.seconds))
    if model.device.type != "cpu":
        return None
    return shares(operator_parts(lambda: place.forward(rows), getattr(model, "module", None)), timing.median)
