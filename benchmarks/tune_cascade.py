"""Tune a lossless cascade on this machine: how long blocks are, when they end, what drafts inside; or not to cascade.

    python benchmarks/tune_cascade.py [--prompts 2] [--tokens 64] [--verifier int8] [--cost-ratio 0.55]

Costs of forwards, the inner pipeline's steps and how often the two models agree are measured first; the rest follows
from `cascade_theory.py`. The best cascade is then run, and its prediction printed beside what was measured. What it has
to beat is the better of plain decoding and prompt lookup on the full model; if it is not predicted to, the advice is
not to cascade. `--cost-ratio` adds what the same formula gives where an inner forward costs that share of an outer one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from cascade_theory import Costs, Text, best

from quasar import SamplingParams
from quasar.compare.data import load_questions
from quasar.core.composition import compose
from quasar.core.config import PipelineSpec
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
"""A cascade is advised if it is predicted to be faster by this factor: predictions are no better than that."""


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

    def run(self, pipeline: Pipeline) -> tuple[list[Generation], float]:
        """Return every answer, and tokens per second of decode."""
        warm = self.sampling.model_copy(update={"max_new_tokens": 4})
        pipeline.run(pipeline.requests([next(iter(self.prompts.values()))], warm, ["warm"]))
        found, tokens, seconds = [], 0, 0.0
        for name, ids in self.prompts.items():
            times: list[float] = []
            requests = pipeline.requests([ids], self.sampling, [name])
            found += pipeline.run(requests, lambda *_, times=times: times.append(time.perf_counter()))
            tokens, seconds = tokens + len(found[-1].token_ids) - 1, seconds + times[-1] - times[0]
        return found, tokens / seconds


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
    """Return inner texts by what drafts inside, costs, the models' agreement, and the speeds to beat."""
    plain, lookup = bench.pipeline("none", "full"), bench.pipeline(INSIDE["ngram"], "full")
    plainly, speed = bench.run(plain)
    speeds = {"vanilla": speed, "ngram": bench.run(lookup)[1]}
    texts, prefill = {}, 0.0
    for inside, drafter in INSIDE.items():
        inner = bench.pipeline(drafter, verifier)
        found, speeds[f"{inside} on the inner verifier alone, another text"] = bench.run(inner)
        texts[inside] = [
            text_of(bench, name, done, inner, plain) for name, done in zip(bench.prompts, found, strict=True)
        ]
        prefill = statistics.mean(done.steps[0].seconds_verify for done in found)
    outer, cheap = forward_seconds([plain.composition.verifier.model, inner.composition.verifier.model])
    steps = [step for done in plainly for step in done.decode_steps]
    host = max(0.0, 1 / speeds["vanilla"] - statistics.mean(step.seconds_verify for step in steps))
    agreement = statistics.mean(a for text in texts["none"] for a in text.agrees)
    return texts, Costs(outer, cheap, host, prefill), agreement, speeds


def main() -> None:
    """Measure, predict, advise, and check the prediction."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--verifier", default="int8", help="the inner verifier")
    parser.add_argument("--prompts", type=int, default=2, help="prompts of each task")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--cost-ratio", type=float, action="append", default=[], help="another device, by the formula")
    parser.add_argument("--output", type=Path, help="write the advice there as YAML")
    arguments = parser.parse_args()
    bench = Bench(arguments.model, arguments.prompts, arguments.tokens)
    texts, costs, agreement, speeds = measure(bench, arguments.verifier)
    print(f"agreement of '{arguments.verifier}' and 'full', place by place: {100 * agreement:.1f} %")
    print("columns       " + " ".join(f"{width:>6}" for width in WIDTHS))
    for name, table in (("full, ms", costs.outer), (f"{arguments.verifier}, ms", costs.inner)):
        print(f"{name:<14}" + " ".join(f"{1e3 * table[width]:6.1f}" for width in WIDTHS))
    print(f"host {1e3 * costs.host:.1f} ms a step, inner prefill {1e3 * costs.prefill:.0f} ms a text")
    for name, speed in speeds.items():
        print(f"{name:<56} {speed:6.1f} tok/s")

    rate, accepted, inside, length, doubt = best(texts, costs, LENGTHS, DOUBTS)
    cascade = {
        "use": "pipeline", "drafter": INSIDE[inside], "verifier": arguments.verifier,
        "num_speculative_tokens": length, "min_probability": doubt,
    }  # fmt: skip
    found, measured = bench.run(bench.pipeline(cascade, "full"))
    steps = sum(done.num_steps for done in found)
    real = sum(step.committed[0] for done in found for step in done.decode_steps) / steps
    print(f"\nbest cascade: {inside} inside, blocks of {length}, ended after a token less likely than {doubt:g}")
    print(f"  predicted {rate:6.1f} tok/s, {accepted:.2f} tokens an outer forward")
    print(f"  measured  {measured:6.1f} tok/s, {real:.2f} tokens an outer forward")
    rival = max(("vanilla", "ngram"), key=lambda name: speeds[name])
    advice: Any = cascade
    if rate > MARGIN * speeds[rival]:
        print(f"advice: cascade; predicted {rate / speeds[rival]:.2f} times '{rival}' on the full model.")
    else:
        advice = "none" if rival == "vanilla" else INSIDE["ngram"]
        print(f"advice: do not cascade; predicted {rate / speeds[rival]:.2f} times '{rival}' on the full model.")
    if arguments.output is not None:
        import yaml

        arguments.output.write_text(yaml.safe_dump({"drafter": advice, "verifier": "full"}), encoding="utf-8")
    for ratio in arguments.cost_ratio:
        other = best(texts, costs.scaled(ratio), LENGTHS, DOUBTS)
        print(
            f"if an inner forward cost {ratio:g} of an outer one: {other[0]:.1f} tok/s, {other[0] / speeds[rival]:.2f} "
            f"times '{rival}' ({other[2]} inside, blocks of {other[3]}, doubt {other[4]:g})."
        )


if __name__ == "__main__":
    main()
