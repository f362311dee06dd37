"""Tune a lossless cascade on this machine: how long blocks are, when they end, what drafts inside; or not to cascade.

    python benchmarks/tune_cascade.py [--prompts 2] [--tokens 64] [--verifier int8] [--cost-ratio 0.55]

Costs of forwards, the inner pipeline's steps and how often the two models agree are measured first; the rest follows
from `cascade_theory.py`. The best cascade is then run by turns with what it has to beat, plain decoding and prompt
lookup on the full model, and its prediction printed beside what was measured; if it was not faster, the advice is not
to cascade. `--verifier` may be a YAML mapping. `--cost-ratio` adds what the same formula gives where an inner forward
costs that share of an outer one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from cascade_theory import Costs, Text, best

from quasar import SamplingParams
from quasar.compare.data import load_questions
from quasar.core.composition import compose
from quasar.core.config import PipelineSpec
from quasar.core.errors import QuasarError
from quasar.core.hf import loading
from quasar.core.load import choose_device
from quasar.core.models import LanguageModel
from quasar.core.pipeline import Pipeline
from quasar.core.plugins import load_registry
from quasar.core.records import Generation
from quasar.core.replay import replay, uniform_steps
from quasar.core.session import Session
from quasar.core.types import Draft

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
LENGTHS = (4, 6, 8, 12, 16, 24, 32)
DOUBTS = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8)
INSIDE: dict[str, Any] = {
    "none": "none",
    "ngram": {"use": "ngram", "num_speculative_tokens": 5},
    "suffix": {"use": "suffix", "num_speculative_tokens": 8},
}
MARGIN = 1.02
"""A cascade is advised if it was faster by this factor: measurements are no better than that."""


class Bench:
    """Pipelines over one set of models, and the prompts."""

    def __init__(self, model: str, prompts: int, tokens: int) -> None:
        self._registry = load_registry()
        source = loading.find_model(model, self._registry.model(model))
        self._models = loading.LoadedModels(source, choose_device("auto"), self._registry)
        self._tokenizer = loading.load_tokenizer(source)
        self.sampling = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
        self.prompts = {
            str(question.question_id): self._tokenizer.render([{"role": "user", "content": question.turns[0]}])
            for question in load_questions("bundled", prompts)
        }

    def pipeline(self, drafter: Any, verifier: Any) -> Pipeline:
        """Return a loaded pipeline."""
        spec = PipelineSpec.model_validate({"drafter": drafter, "verifier": verifier})
        return Pipeline(compose(spec, self._registry, self.sampling, "tune"), self._models, self._tokenizer, ())

    def run(self, pipelines: Mapping[str, Pipeline]) -> tuple[dict[str, list[Generation]], dict[str, float]]:
        """Return every answer, and tokens per second of decode; the pipelines by turns, prompt by prompt."""
        warm = self.sampling.model_copy(update={"max_new_tokens": 4})
        for pipeline in pipelines.values():
            pipeline.run(pipeline.requests([next(iter(self.prompts.values()))], warm, ["warm"]))
        found: dict[str, list[Generation]] = {name: [] for name in pipelines}
        tokens, seconds = Counter[str](), Counter[str]()
        for prompt, ids in self.prompts.items():
            for name, pipeline in pipelines.items():
                times: list[float] = []
                requests = pipeline.requests([ids], self.sampling, [prompt])
                found[name] += pipeline.run(requests, lambda *_, times=times: times.append(time.perf_counter()))
                tokens[name] += len(found[name][-1].token_ids) - 1
                seconds[name] += times[-1] - times[0]  # from the first token on, which is prefill's
        return found, {name: tokens[name] / seconds[name] for name in pipelines}


def forward_seconds(models: Sequence[LanguageModel], rounds: int = 7) -> list[dict[int, float]]:
    """Return median seconds of a forward by its columns, after 200 tokens; the models by turns."""
    ids = [1 + 7919 * place % 40_000 for place in range(200)]
    sessions = [Session(model, 1, len(ids) + max(WIDTHS)) for model in models]
    times: list[dict[int, list[float]]] = [{width: [] for width in WIDTHS} for _ in models]
    for _ in range(rounds + 1):
        for width in WIDTHS:
            draft = Draft.chains([ids[: width - 1]])
            for session, found in zip(sessions, times, strict=True):
                started = time.perf_counter()
                session.forward([ids], draft)
                found[width].append(time.perf_counter() - started)
    return [{width: statistics.median(each[1:]) for width, each in found.items()} for found in times]


def text_of(bench: Bench, name: str, done: Generation, inner: Pipeline, full: Pipeline) -> Text:
    """Compare a text of the inner pipeline with what the full model says of it."""
    [request] = full.requests([bench.prompts[name]], bench.sampling, [name])
    output, steps = done.token_ids, uniform_steps(len(done.token_ids), 8)
    ours, theirs = (replay(p.composition.verifier, request, output, steps) for p in (inner, full))
    drawn = torch.tensor(output)
    likely = ours.log_softmax(dim=-1)[range(len(output)), output].exp().tolist()
    agrees = (theirs.argmax(dim=-1) == drawn).tolist()
    return Text(agrees, likely, [(step.committed[0], 1 + step.drafted[0]) for step in done.decode_steps])


def measure(bench: Bench, verifier: Any) -> tuple[dict[str, list[Text]], Costs, float, dict[str, float]]:
    """Return inner texts by what drafts inside, costs, the models' agreement, and speeds."""
    plain = bench.pipeline("none", "full")
    inner = {name: bench.pipeline(drafter, verifier) for name, drafter in INSIDE.items()}
    alone = {f"{name} on the inner verifier alone, another text": pipeline for name, pipeline in inner.items()}
    found, speeds = bench.run({"vanilla": plain} | alone)
    texts = {
        name: [
            text_of(bench, prompt, done, inner[name], plain) for prompt, done in zip(bench.prompts, each, strict=True)
        ]
        for name, each in zip(inner, list(found.values())[1:], strict=True)
    }
    models = [pipeline.composition.verifier.model for pipeline in (plain, inner["none"])]
    outer, cheap = forward_seconds(models)
    steps = [step for done in found["vanilla"] for step in done.decode_steps]
    host = max(0.0, 1 / speeds["vanilla"] - statistics.mean(step.seconds_verify for step in steps))
    agreement = statistics.mean(a for text in texts["none"] for a in text.agrees)
    return texts, Costs(outer, cheap, host), agreement, speeds


def mapping(text: str) -> Any:
    """Read a name or a YAML mapping."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not YAML; for example int8 or '{{use: int8}}'.") from error


def main() -> None:
    """Measure, predict, advise, and check the prediction."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--verifier", default="int8", type=mapping, help="the inner one")
    parser.add_argument("--prompts", type=int, default=2, help="prompts of each task")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--cost-ratio", type=float, action="append", default=[], help="another device, by the formula")
    parser.add_argument("--output", type=Path, help="write the advice there as YAML")
    arguments = parser.parse_args()
    bench = Bench(arguments.model, arguments.prompts, arguments.tokens)
    texts, costs, agreement, speeds = measure(bench, arguments.verifier)
    print(f"agreement of '{arguments.verifier}' and 'full', place by place: {100 * agreement:.1f} %")
    print("columns       " + " ".join(f"{width:>6}" for width in WIDTHS))
    for name, table in (("full, ms", costs.outer), ("inner, ms", costs.inner)):
        print(f"{name:<14}" + " ".join(f"{1e3 * table[width]:6.1f}" for width in WIDTHS))
    print(f"host {1e3 * costs.host:.1f} ms a step")
    for name, rate in speeds.items():
        print(f"{name:<56} {rate:6.1f} tok/s")

    rate, accepted, inside, length, doubt = best(texts, costs, LENGTHS, DOUBTS)
    cascade = {
        "use": "pipeline", "drafter": INSIDE[inside], "verifier": arguments.verifier,
        "num_speculative_tokens": length, "min_probability": doubt,
    }  # fmt: skip
    drafters = {"vanilla": "none", "ngram": INSIDE["ngram"], "cascade": cascade}
    found, together = bench.run({name: bench.pipeline(drafter, "full") for name, drafter in drafters.items()})
    steps = [step for done in found["cascade"] for step in done.decode_steps]
    real = sum(step.committed[0] for step in steps) / len(steps)
    print(f"\nbest cascade: {inside} inside, blocks of {length}, ended after a token less likely than {doubt:g}")
    print(f"  predicted {rate:6.1f} tok/s, {accepted:.2f} tokens an outer forward")
    print(f"  measured  {together['cascade']:6.1f} tok/s, {real:.2f} tokens an outer forward")
    print(f"  by turns with it: vanilla {together['vanilla']:.1f}, ngram {together['ngram']:.1f} tok/s")
    rival = max(("vanilla", "ngram"), key=lambda name: together[name])
    advice: Any = cascade
    gain = together["cascade"] / together[rival]
    if gain > MARGIN:
        print(f"advice: cascade; {gain:.2f} times '{rival}' on the full model.")
    else:
        advice = "none" if rival == "vanilla" else INSIDE["ngram"]
        print(f"advice: do not cascade; it is {gain:.2f} times '{rival}' on the full model.")
    if arguments.output is not None:
        arguments.output.write_text(yaml.safe_dump({"drafter": advice, "verifier": "full"}), encoding="utf-8")
    for ratio in arguments.cost_ratio:
        other = best(texts, costs.scaled(ratio), LENGTHS, DOUBTS)
        print(
            f"if an inner forward cost {ratio:g} of an outer one: {other[0]:.1f} tok/s, "
            f"{other[0] / together[rival]:.2f} times '{rival}' "
            f"({other[2]} inside, blocks of {other[3]}, doubt {other[4]:g})."
        )


if __name__ == "__main__":
    try:
        main()
    except QuasarError as error:
        sys.exit(f"tune_cascade: {error}")
