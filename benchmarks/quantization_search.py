"""How near to full precision each way to quantise comes: KL, top-1 agreement, bytes, and milliseconds where it runs.

    python benchmarks/quantization_search.py --data FILE.jsonl ... --limit 7 --tokens 48 [--only '*GPTQ*'] [--time]

One table. A row is a verifier as users compose it, on the backend that it chooses, or a recipe: weights chosen by
``quantization_methods.py``, multiplied in float32 layer by layer. Rows are printed as they come; `--only` takes up a
run that was ended. `--time` times forwards of 1 and 6 rows, by turns; a recipe gets the times of the verifier with the
same kernels and bytes.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from precision_cost import interleaved, timer
from quantization_methods import Emulated, Recipe, awq_factors, clipped, compensated, grid, moments
from torch import Tensor

from quasar.compare.tables import grid as as_table
from quasar.core.config import PipelineSpec
from quasar.core.models import EditableModel, LanguageModel
from quasar.core.sampling import SamplingParams
from quasar.fidelity.command import as_ids, choose_questions, continuations
from quasar.fidelity.measure import Continuation, differences, summary, teacher_forced
from quasar.models.int8_format import activation_steps
from quasar.models.self_sampled import self_sampled_texts
from quasar.pipelines.composition import compose
from quasar.pipelines.open_model import open_model
from quasar.pipelines.pipeline import Pipeline
from quasar.plugins.registry import load_registry
from quasar.prompts.conversations import Conversations
from quasar.verifiers.quantization import calibration
from quasar.verifiers.quantization.replace_layers import matching_layers, replace_layers
from quasar.verifiers.quantization.smoothquant import choose_factors, fold

ROWS = (1, 6)

W8A8 = Recipe(timed="int8")
W8A12 = Recipe(bits=12, searched=12, timed={"use": "int8", "activation_bits": 12})
W4 = Recipe("none", group=64, bits=None)
DOWN = "*.down_proj"

VARIANTS: dict[str, Any] = {
    "full precision in bfloat16": "full",
    "int8, smooth_alpha 0": {"use": "int8", "smooth_alpha": 0},
    "int8": "int8",
    "int8, all down_proj kept": {"use": "int8", "keep": [DOWN]},
    "int8, quantize_lm_head": {"use": "int8", "quantize_lm_head": True},
    "int8, activation_bits 12": {"use": "int8", "activation_bits": 12},
    "int8, activation_bits 12, quantize_lm_head": {"use": "int8", "activation_bits": 12, "quantize_lm_head": True},
    "int8, GPTQ": {"use": "int8", "weight_rounding": "gptq"},
    "int8, activation_bits 12, GPTQ": {"use": "int8", "activation_bits": 12, "weight_rounding": "gptq"},
    "int8, activation_bits 12, quantize_lm_head, GPTQ": {
        "use": "int8", "activation_bits": 12, "quantize_lm_head": True, "weight_rounding": "gptq"
    },
    "fp8, emulated": {"use": "fp8", "emulated": True, "dtype": "float32"},
    "int4, emulated, groups of 32": {"use": "int4", "emulated": True, "dtype": "float32"},
    "W8A8": W8A8,
    "W8A8, clipped": replace(W8A8, clip=True),
    "W8A8, GPTQ": replace(W8A8, compensate=True),
    "W8A8, AWQ factors": replace(W8A8, factors="awq"),
    "W8A8 but A12 in down_proj": replace(W8A8, wide={DOWN: 12}, timed=W8A12.timed),
    "W8A12, factors for 8": replace(W8A12, searched=8),
    "W8A12": W8A12,
    "W8A12, AWQ factors": replace(W8A12, factors="awq"),
    "W8A12, no factors": replace(W8A12, factors="none"),
    "W8A12, GPTQ": replace(W8A12, compensate=True),
    "W8A12, no factors, GPTQ": replace(W8A12, factors="none", compensate=True),
    "W4, groups of 64": W4,
    "W4, groups of 64, clipped": replace(W4, clip=True),
    "W4, groups of 64, GPTQ": replace(W4, compensate=True),
    "W4, groups of 64, AWQ": replace(W4, factors="awq"),
}  # fmt: skip
"""Verifiers as users compose them, and recipes."""


class Search:
    """The model, what is measured against, and the text that recipes calibrate on."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._registry = load_registry()
        self._model = open_model(arguments.model, self._registry, "cpu")
        self.models, self._tokenizer = self._model.models, self._model.tokenizer
        self._texts = arguments.texts
        self._kept: dict[Any, Any] = {}
        self._moments_of: Any = None
        self._last: dict[str, Tensor] = {}
        self.texts: Sequence[Continuation] = ()
        self.logits: Sequence[Tensor] = ()
        if not arguments.no_fidelity:
            self._refer(arguments)

    def _refer(self, arguments: argparse.Namespace) -> None:
        reference = self.pipeline({"use": "full", "dtype": "float32"})
        questions = choose_questions(arguments.data, arguments.limit)
        prompts = as_ids(questions, Conversations(self._tokenizer, "auto"))
        self.texts = [continuations(reference, [prompt], arguments.tokens)[0] for prompt in prompts]
        self.logits = [teacher_forced(reference.composition.verifier.model, text) for text in self.texts]

    def pipeline(self, verifier: Any) -> Pipeline:
        """Return plain decoding with a verifier, loaded."""
        spec = PipelineSpec.model_validate({"drafter": "none", "verifier": verifier})
        return self._model.pipeline(compose(spec, self._registry, SamplingParams(), "search"), eos_ids=())

    def compared(self, model: LanguageModel) -> dict[str, Any]:
        """Return the measures of a model."""
        pairs = zip(self.texts, self.logits, strict=True)
        return asdict(summary([differences(logits, teacher_forced(model, text)) for text, logits in pairs]))

    def _once(self, key: Any, make: Any) -> Any:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def _inputs(self, model: EditableModel, limit: int) -> dict[str, Tensor]:
        """Return what every group of layers reads while the model reads its own text."""
        start, target = self._tokenizer.conversation_start(), self.models.target("float32")
        texts = self._once("own-texts", lambda: self_sampled_texts(target, self._texts, calibration.TOKENS, start))
        names = [group.readers[0] for group in model.channel_groups()]
        return calibration.input_rows(model, names, texts, limit)

    def _factors(self, recipe: Recipe) -> dict[str, list[int]]:
        copy = self.models.target("float32").sharing_copy()
        rows = self._once("rows", lambda: self._inputs(copy, 512))
        if recipe.factors == "awq":
            return awq_factors(copy, rows, recipe.group)
        return choose_factors(copy, rows, None, activation_bits=recipe.searched)

    def _moments(self, model: EditableModel, scaled: Any) -> dict[str, Tensor]:
        """Return ``moments`` of every layer's input; those of the last factors are kept."""
        if self._moments_of != scaled:
            inputs = self._inputs(model, self._texts * calibration.TOKENS)
            groups = model.channel_groups()
            self._last = {
                name: second
                for group in groups
                for second in [moments(inputs.pop(group.readers[0]).float())]
                for name in group.readers
            }
            self._moments_of = scaled
        return self._last

    def cooked(self, recipe: Recipe) -> tuple[LanguageModel, int]:
        """Return the model that a recipe makes, and the bytes that it would take beside bfloat16."""
        model = self.models.target("float32").sharing_copy()
        scaled = (recipe.factors, recipe.group, recipe.searched)
        if recipe.factors != "none":
            fold(model, self._once(("factors", scaled), lambda: self._factors(recipe)))
        seconds = self._moments(model, scaled) if recipe.clip or recipe.compensate else {}
        names = {layer.weight.data_ptr(): layer.name for layer in model.linear_layers()}
        wide = {name: bits for pattern, bits in recipe.wide.items() for name in matching_layers(model, [pattern])}
        before = sum(2 * each.weight.numel() for each in model.linear_layers() if not each.is_head)

        def make(weight: Tensor, bias: Tensor | None) -> Emulated:
            name = names[weight.data_ptr()]
            bits = wide.get(name, recipe.bits)
            second, whole = seconds.get(name), weight.float()
            on = clipped(whole, second, recipe.group) if recipe.clip else grid(whole, recipe.group)
            values = compensated(whole, second, on) if recipe.compensate else on.nearest(whole)
            nbytes = weight.numel() + 4 * len(weight)
            if recipe.group is not None:
                nbytes = weight.numel() // 2 + 4 * on.scale.numel()
            return Emulated(values, bias, nbytes, 0 if bits is None else activation_steps(bits, weight.shape[1]))

        replace_layers(model, make, "emulated", "a recipe")
        quantised = sum(each.weight_bytes for each in model.module.modules() if isinstance(each, Emulated))
        full = sum(self.models.target("bfloat16").storages().values())
        return model, full - before + quantised


def measured(search: Search, what: Any) -> dict[str, Any]:
    """Return the measures of a variant and its bytes."""
    if isinstance(what, Recipe):
        model, nbytes = search.cooked(what)
    else:
        verifier = search.pipeline(what).composition.verifier
        model, nbytes = verifier.model, sum(verifier.storages().values())
    return search.compared(model) | {"bytes": nbytes}


def timed(search: Search, rounds: int, chosen: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return milliseconds by variant; of those that run at all."""
    specs = {name: what.timed if isinstance(what, Recipe) else what for name, what in chosen.items()}
    specs = {name: spec for name, spec in specs.items() if spec is not None and "emulated" not in str(spec)}
    models = {str(spec): search.pipeline(spec).composition.verifier.model for spec in specs.values()}
    found = interleaved({name: timer(model, 300, ROWS) for name, model in models.items()}, ROWS, rounds)
    return {name: [1e3 * found[str(spec), rows].median for rows in ROWS] for name, spec in specs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data", nargs="+", default=["bundled"])
    parser.add_argument("--limit", type=int, default=7, help="prompts of each task (7)")
    parser.add_argument("--tokens", type=int, default=48, help="length of a continuation (48)")
    parser.add_argument("--texts", type=int, default=16, help="texts of 128 tokens that recipes calibrate on (16)")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="variants, by name or pattern")
    parser.add_argument("--time", action="store_true", help="milliseconds too; on an idle machine")
    parser.add_argument("--rounds", type=int, default=40, help="forwards of each kind with --time (40)")
    parser.add_argument("--no-fidelity", action="store_true", help="with --time: the times alone")
    arguments = parser.parse_args()
    chosen = {n: v for n, v in VARIANTS.items() if any(fnmatch.fnmatchcase(n, p) for p in arguments.only)}
    search = Search(arguments)
    times = timed(search, arguments.rounds, chosen) if arguments.time else {}
    head, rows = ["variant", "KL", "top-1", "MB", *(f"ms of {width}" for width in ROWS)], []
    for name, what in chosen.items():
        cells = ["-"] * 3
        if not arguments.no_fidelity:
            found = measured(search, what)
            cells = [
                *(f"{found[key]:.4f} ± {found[f'{key}_standard_error']:.4f}" for key in ("kl", "top1_agreement")),
                f"{found['bytes'] / 1e6:.0f}",
            ]
        rows.append([name, *cells, *(f"{ms:.2f}" for ms in times.get(name, ())), *["-"] * (0 if name in times else 2)])
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    places = sum(len(text.token_ids) for text in search.texts)
    print(f"{arguments.model}, {places} positions of {len(search.texts)} prompts, against float32\n")
    print(as_table(head, rows))


if __name__ == "__main__":
    main()
