"""What our loop costs: plain decoding and prompt lookup, here and in transformers' ``generate``, in one run.

    python benchmarks/plain_decoding.py [--prompts 3] [--tokens 48] [--rounds 3] [--dtype bfloat16]

Arms are interleaved; each figure is a median over prompts and rounds, prefill included on both sides, followed by its
smallest and largest value. Both sides run the same checkpoint in the same dtype with the same attention.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from transformers import AutoModelForCausalLM

from quasar import SamplingParams, load_pipeline
from quasar.prompts.questions import load_questions


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=3, help="prompts of each task")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    sampling = SamplingParams(max_new_tokens=arguments.tokens, ignore_eos=True)
    verifier = {"use": "full", "dtype": arguments.dtype}
    paper = {"use": "ngram", "num_speculative_tokens": 5}
    plain = load_pipeline(drafter="none", verifier=verifier)
    lookup = load_pipeline(drafter=paper, verifier=verifier)
    from quasar.zoo.builtin_models import builtin_models

    folder = next(model for model in builtin_models() if model.name == "smollm2-135m").fetch()
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, arguments.dtype)).eval()
    fixed = {"max_new_tokens": arguments.tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}

    def ours(pipeline):
        return lambda ids: pipeline.run(pipeline.requests([ids], sampling, ["x"], 0))[0].token_ids

    def generate(**options):
        return lambda ids: tuple(theirs.generate(torch.tensor([ids]), **fixed, **options)[0, len(ids) :].tolist())

    arms = {
        "quasar, none": ours(plain),
        "transformers, generate": generate(),
        "quasar, ngram": ours(lookup),
        "transformers, prompt_lookup": generate(prompt_lookup_num_tokens=5),
    }
    prompts = [
        plain.tokenizer.render([{"role": "user", "content": question.turns[0]}])
        for question in load_questions("bundled", arguments.prompts)
    ]
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for run in arms.values():
        run(prompts[0])
    for _ in range(arguments.rounds):
        for ids in prompts:
            texts = {}
            for name, run in arms.items():
                started = time.perf_counter()
                texts[name] = run(ids)
                rates[name].append(arguments.tokens / (time.perf_counter() - started))
            if len(set(texts.values())) > 1:
                print("  texts part on one prompt:", [name for name in texts if texts[name] != texts["quasar, none"]])
    for name, values in rates.items():
        print(f"{name:<30} {statistics.median(values):6.1f} tokens/s  [{min(values):.1f}, {max(values):.1f}]")


if __name__ == "__main__":
    main()
