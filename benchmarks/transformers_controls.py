"""Whether every control gives the ids that transformers' own plain ``generate`` gives, at temperature 0 in float32.

    python benchmarks/transformers_controls.py [--limit 2] [--tokens 32]

For each prompt the controls are chosen by what plain decoding says, so that every one of them has something to do: a
banned token is one that would have come, a stop string begins inside a token. All controls of a prompt run as one batch
here, without drafts and with prompt lookup, and one by one there.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LogitsProcessorList

from quasar import Pipeline, SamplingParams, load_pipeline
from quasar.prompts.questions import load_questions
from quasar.zoo.builtin_models import builtin_models

DRAFTERS = {"plain": "none", "ngram": "ngram", "ngram, padded": {"use": "ngram", "preset": "vllm_v0"}}
FLOAT32 = {"use": "full", "dtype": "float32"}


@dataclass(frozen=True)
class Control:
    """One setting, in our words and in theirs.

    Attributes:
        ours: fields of ``SamplingParams``.
        theirs: arguments of ``generate``; EOS ids are added unless they are here.
        processor: a custom logits processor, for both.
    """

    ours: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] = field(default_factory=dict)
    processor: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None


def alternate_parity(prefix: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Forbid even ids after even ones and odd ids after odd ones."""
    parity = torch.arange(logits.shape[-1], device=logits.device) % 2
    return logits.masked_fill(parity == prefix[:, -1:] % 2, -torch.inf)


def controls(plain: Sequence[int], decode: Callable[[Sequence[int]], str], eos: Sequence[int]) -> dict[str, Control]:
    """Return the controls that both sides have.

    Args:
        plain: what plain decoding says without any of them, eight tokens at least.
        decode: ids to text.
        eos: ids that end a text.
    """
    both = {
        "repetition_penalty": {"repetition_penalty": 1.3},
        "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
        "suppress_tokens": {"suppress_tokens": [plain[2], plain[5]]},
        "bad_words_ids": {"bad_words_ids": [[plain[1]], [plain[3], plain[4]]]},
        "max_new_tokens": {"max_new_tokens": 5},
        "several": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "suppress_tokens": [plain[0], plain[4]]},
    }
    found = {name: Control(options, options) for name, options in both.items()}
    found["nothing"] = Control()
    bias = {plain[1]: -4.0, plain[4]: -100.0, plain[0]: 3.0}
    found["logit_bias"] = Control({"logit_bias": bias}, {"sequence_bias": [[[k], v] for k, v in bias.items()]})
    ends, all_ends = [plain[4], plain[6]], [*eos, plain[4], plain[6]]
    found["several EOS ids"] = Control({"stop_token_ids": ends}, {"eos_token_id": all_ends})
    found["min_new_tokens"] = Control(
        {"stop_token_ids": ends, "min_new_tokens": 7}, {"eos_token_id": all_ends, "min_new_tokens": 7}
    )
    stop = decode(plain[3:6])[1:]  # begins inside a token, goes over tokens
    found["stop"] = Control({"stop": [stop]}, {"stop_strings": [stop]})
    found["ignore_eos"] = Control({"ignore_eos": True}, {"eos_token_id": None})
    found["custom processor"] = Control(processor=alternate_parity)
    return found


class Sides:
    """Our pipelines and their model over one checkpoint in float32.

    Args:
        folder: the checkpoint.
    """

    def __init__(self, folder: str) -> None:
        self.pipelines: dict[str, Pipeline] = {
            name: load_pipeline(folder, drafter=drafter, verifier=FLOAT32, device="cpu")
            for name, drafter in DRAFTERS.items()
        }
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.generation_config = GenerationConfig()  # nothing but what we pass
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.eos = list(self.pipelines["plain"].eos_ids)

    def encode(self, prompt: str) -> list[int]:
        """Return the ids of a user's message in the chat template."""
        return self.pipelines["plain"].tokenizer.render([{"role": "user", "content": prompt}])

    def theirs(self, ids: Sequence[int], tokens: int, control: Control) -> tuple[int, ...]:
        """Return what ``generate`` says."""
        prompt = torch.tensor([ids])
        options = {"max_new_tokens": tokens, "eos_token_id": self.eos, "pad_token_id": 0, **control.theirs}
        if control.processor is not None:
            options["logits_processor"] = LogitsProcessorList([control.processor])
        if "stop_strings" in options:
            options["tokenizer"] = self.tokenizer
        said = self.model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, **options)
        return tuple(said[0, len(ids) :].tolist())

    def ours(self, arm: str, ids: Sequence[int], tokens: int, chosen: Sequence[Control]) -> list[tuple[int, ...]]:
        """Return what our pipeline says, one batch for all controls."""
        pipeline, requests = self.pipelines[arm], []
        for control in chosen:
            sampling = SamplingParams(**{"max_new_tokens": tokens, **control.ours})
            custom = [control.processor] if control.processor is not None else []
            requests += pipeline.requests([ids], sampling, ["x"], 0, custom)
        return [done.token_ids for done in pipeline.run(requests)]

    def compare(self, prompt: str, tokens: int) -> Iterator[tuple[str, str, tuple[int, ...], tuple[int, ...]]]:
        """Yield (control, arm, their ids, our ids) for every control and arm; "nothing" comes first."""
        ids = self.encode(prompt)
        plain = self.theirs(ids, max(tokens, 8), Control({}, {"eos_token_id": None}))
        chosen = controls(plain, lambda some: self.tokenizer.decode(some), self.eos)
        wanted = {name: self.theirs(ids, tokens, control) for name, control in chosen.items()}
        for arm in DRAFTERS:
            said = self.ours(arm, ids, tokens, list(chosen.values()))
            for name, own in sorted(zip(chosen, said, strict=True), key=lambda pair: pair[0] != "nothing"):
                yield name, arm, wanted[name], own


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, default=2, help="prompts of each of the five tasks")
    parser.add_argument("--tokens", type=int, default=32)
    arguments = parser.parse_args()
    sides = Sides(str(next(model for model in builtin_models() if model.name == "smollm2-135m").fetch()))
    total, same, changed = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[str]()
    for question in load_questions("bundled", arguments.limit):
        unchanged: tuple[int, ...] = ()
        for name, arm, theirs, ours in sides.compare(question.turns[0], arguments.tokens):
            unchanged = theirs if name == "nothing" else unchanged
            total[name, arm] += 1
            same[name, arm] += theirs == ours
            changed[name] += arm == "plain" and theirs != unchanged
            if theirs != ours:
                place = next((i for i, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), None)
                print(f"  question {question.question_id}, {name}, {arm}: parts at token {place}", flush=True)
    print(f"{'control':<22}{'text differs from none':>24}" + "".join(f"{arm:>16}" for arm in DRAFTERS))
    for name in changed:
        shares = [f"{same[name, arm]} of {total[name, arm]}" for arm in DRAFTERS]
        print(f"{name:<22}{changed[name]:>24}" + "".join(f"{share:>16}" for share in shares))


if __name__ == "__main__":
    main()
