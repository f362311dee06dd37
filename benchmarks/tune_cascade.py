"""Tune a lossless cascade on this machine: how long blocks are, when they end, what drafts inside; or not to cascade.

    python benchmarks/tune_cascade.py [--prompts 2] [--tokens 64] [--verifier int8] [--cost-ratio 0.55]

What forwards of both models cost inside the loop, the inner pipeline's steps and how often the two models agree are
measured first; the rest follows from `cascade_theory.py`. The best cascade is then run by turns with what it has to
beat, plain decoding and prompt lookup on the full model, and its prediction printed beside what was measured, as it is
and corrected by how much faster plain decoding has become meanwhile; if it was not faster, the advice is not to
cascade. `--verifier` may be a YAML mapping. `--cost-ratio` adds what the same formula gives where an inner forward
costs that share of an outer one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from cascade_theory import Costs, Text, best, by_columns

from quasar import SamplingParams
from quasar.compare.replay import replay, uniform_steps
from quasar.core.config import PipelineSpec
from quasar.core.errors import QuasarError
from quasar.core.records import Generation
from quasar.pipelines.composition import compose
from quasar.pipelines.open_model import open_model
from quasar.pipelines.pipeline import Pipeline
from quasar.plugins.registry import load_registry
from quasar.prompts.questions import load_questions

LENGTHS = (4, 6, 8, 12, 16, 24, 32)
DOUBTS = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8)
INSIDE: dict[str, Any] = {
    "none": "none",
    "ngram": {"use": "ngram", "num_speculative_tokens": 5},
    "suffix": {"use": "suffix", "num_speculative_tokens": 8},
}
PILOTS = (("none", 4), ("ngram", 12), ("suffix", 32))
"""Cascades that are run to see what forwards of many widths cost in the loop."""

MARGIN = 1.02
"""A cascade is advised if it was faster by this factor: measurements are no better than that."""


@dataclass
class Measured:
    """What a pipeline did.

    Attributes:
        pipeline: the pipeline.
        generations: an answer to each prompt.
        seconds: of decode, all answers together.
    """

    pipeline: Pipeline
    generations: list[Generation] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second of decode."""
        return sum(len(done.token_ids) - 1 for done in self.generations) / self.seconds

    def forwards(self, level: int) -> list[tuple[int, float]]:
        """Return columns and seconds of every forward of a level, 0 being the outermost."""
        steps = [step for done in self.generations for step in (*done.steps, *done.inner_steps)]
        return [(s.positions_forwarded, s.seconds_verify) for s in steps if s.level == level and not s.is_prefill]


class Bench:
    """Pipelines over one set of models, and the prompts."""

    def __init__(self, model: str, prompts: int, tokens: int) -> None:
        self._registry = load_registry()
        self._model = open_model(model, self._registry)
        self.sampling = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
        self.prompts = {
            str(question.question_id): self._model.tokenizer.render([{"role": "user", "content": question.turns[0]}])
            for question in load_questions("bundled", prompts)
        }

    def pipeline(self, drafter: Any, verifier: Any) -> Pipeline:
        """Return a loaded pipeline."""
        spec = PipelineSpec.model_validate({"drafter": drafter, "verifier": verifier})
        return self._model.pipeline(compose(spec, self._registry, self.sampling, "tune"), eos_ids=())

    def run(self, drafters: Mapping[str, tuple[Any, Any]]) -> dict[str, Measured]:
        """Answer every prompt with every (drafter, verifier); the pipelines by turns, prompt by prompt."""
        pipelines = {name: self.pipeline(*parts) for name, parts in drafters.items()}
        warm = self.sampling.model_copy(update={"max_new_tokens": 4})
        for pipeline in pipelines.values():
            pipeline.run(pipeline.requests([next(iter(self.prompts.values()))], warm, ["warm"]))
        found = {name: Measured(pipeline) for name, pipeline in pipelines.items()}
        for prompt, ids in self.prompts.items():
            for each in found.values():
                times: list[float] = []
                requests = each.pipeline.requests([ids], self.sampling, [prompt])
                [done] = each.pipeline.run(requests, lambda *_, times=times: times.append(time.perf_counter()))
                each.generations.append(done)
                each.seconds += times[-1] - times[0]  # from the first token on, which is prefill's
        return found


def text_of(bench: Bench, name: str, done: Generation, inner: Pipeline, full: Pipeline) -> Text:
    """Compare a text of the inner pipeline with what the full model says of it."""
    [request] = full.requests([bench.prompts[name]], bench.sampling, [name])
    output, steps = done.token_ids, uniform_steps(len(done.token_ids), 8)
    ours, theirs = (replay(p.composition.verifier, request, output, steps) for p in (inner, full))
    drawn = torch.tensor(output)
    likely = ours.log_softmax(dim=-1)[range(len(output)), output].exp().tolist()
    agrees = (theirs.argmax(dim=-1) == drawn).tolist()
    return Text(agrees, likely, [(step.committed, 1 + step.drafted) for step in done.decode_steps])


def costs_of(full: Sequence[Measured], inner: Sequence[Measured], cascades: Sequence[Measured]) -> Costs:
    """Return what forwards cost where they are paid for: between drafting and accepting, in the loop.

    Args:
        full: pipelines on the full verifier without a level inside.
        inner: the same on the inner verifier.
        cascades: pipelines of both.
    """
    levels = [[pair for each in cascades for pair in each.forwards(level)] for level in (0, 1)]
    outer = [pair for each in full for pair in each.forwards(0)] + levels[0]
    cheap = [pair for each in inner for pair in each.forwards(0)] + levels[1]
    both = levels[0] + levels[1]
    beside = sum(each.seconds for each in cascades) - sum(seconds for _, seconds in both)
    return Costs(by_columns(outer), by_columns(cheap), max(0.0, beside / len(both)))


def measure(bench: Bench, verifier: Any) -> tuple[dict[str, list[Text]], Costs, float, dict[str, Measured]]:
    """Return inner texts by what drafts inside, costs, the models' agreement, and what was run."""
    alone = {
        f"{name} on the inner verifier alone, another text": (drafter, verifier) for name, drafter in INSIDE.items()
    }
    pilots = {
        f"cascade, {inside} inside, blocks of {length}": (cascade(inside, verifier, length, 0.0), "full")
        for inside, length in PILOTS
    }
    done = bench.run({"vanilla": ("none", "full")} | alone | pilots)
    full = done["vanilla"].pipeline
    texts = {
        name: [
            text_of(bench, prompt, text, done[label].pipeline, full)
            for prompt, text in zip(bench.prompts, done[label].generations, strict=True)
        ]
        for name, label in zip(INSIDE, alone, strict=True)
    }
    costs = costs_of([done["vanilla"]], [done[label] for label in alone], [done[label] for label in pilots])
    agreement = statistics.mean(a for text in texts["none"] for a in text.agrees)
    return texts, costs, agreement, done


def cascade(inside: str, verifier: Any, length: int, doubt: float) -> dict[str, Any]:
    """Return the options of a cascade."""
    return {
        "use": "cascade", "drafter": INSIDE[inside], "verifier": verifier,
        "num_speculative_tokens": length, "min_probability": doubt,
    }  # fmt: skip


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
    texts, costs, agreement, done = measure(bench, arguments.verifier)
    print(f"agreement of '{arguments.verifier}' and 'full', place by place: {100 * agreement:.1f} %")
    widths = sorted(costs.outer.keys() | costs.inner.keys())
    print("columns       " + " ".join(f"{width:>6}" for width in widths))
    for name, table in (("full, ms", costs.outer), ("inner, ms", costs.inner)):
        cells = (f"{1e3 * table[width]:6.1f}" if width in table else "     -" for width in widths)
        print(f"{name:<14}" + " ".join(cells))
    print(f"host {1e3 * costs.host:.1f} ms a step")
    for name, each in done.items():
        print(f"{name:<56} {each.rate:6.1f} tok/s")

    rate, accepted, inside, length, doubt = best(texts, costs, LENGTHS, DOUBTS)
    chosen = cascade(inside, arguments.verifier, length, doubt)
    drafters = {"vanilla": "none", "ngram": INSIDE["ngram"], "cascade": chosen}
    together = bench.run({name: (drafter, "full") for name, drafter in drafters.items()})
    drift = together["vanilla"].rate / done["vanilla"].rate
    steps = [step for done in together["cascade"].generations for step in done.decode_steps]
    real = sum(step.committed for step in steps) / len(steps)
    print(f"\nbest cascade: {inside} inside, blocks of {length}, ended after a token less likely than {doubt:g}")
    print(f"  predicted    {rate:6.1f} tok/s, {accepted:.2f} tokens an outer forward")
    print(
        f"  the machine  {drift * rate:6.1f} tok/s, the same if all is {drift:.2f} times as fast, as vanilla is by now"
    )
    print(f"  measured     {together['cascade'].rate:6.1f} tok/s, {real:.2f} tokens an outer forward")
    print(f"  by turns with it: vanilla {together['vanilla'].rate:.1f}, ngram {together['ngram'].rate:.1f} tok/s")
    rival = max(("vanilla", "ngram"), key=lambda name: together[name].rate)
    advice: Any = chosen
    gain = together["cascade"].rate / together[rival].rate
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
            f"{other[0] / together[rival].rate:.2f} times '{rival}' "
            f"({other[2]} inside, blocks of {other[3]}, doubt {other[4]:g})."
        )


if __name__ == "__main__":
    try:
        main()
    except QuasarError as error:
        sys.exit(f"tune_cascade: {error}")
