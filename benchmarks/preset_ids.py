"""Token ids of every preset, to hold two revisions against each other: the same seed has to give the same ids.

    python benchmarks/preset_ids.py before.json                        # on the tiny model that it makes
    python benchmarks/preset_ids.py before.json --model smollm2-135m
    python benchmarks/preset_ids.py after.json --against before.json   # another checkout, or another day

Each preset runs by the command line, at temperature 0 and 1; nothing else of quasar is used, so the script also runs
beside a revision that lays its code out differently. Only ids are kept, in ``{preset: {temperature: {arm: [ids]}}}``.
An arm that learns from the clock (``bandit``) drafts by what was fast: above temperature 0 two runs of one revision
give it other ids, so there it is left out of the comparison.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

PRESETS = ("smoke", "quickstart", "drafters", "cascade", "specquant", "paper-table4", "paper-table5")
TEMPERATURES = (0.0, 1.0)
BY_THE_CLOCK = {("specquant", "1.0", "bandit")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, metavar="OUT.json")
    parser.add_argument("--model", help="a built-in name or a folder; a tiny random one is made if left out")
    parser.add_argument("--against", type=Path, metavar="OTHER.json", help="compare; exit 1 where ids differ")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--quasar", default=str(Path(sys.executable).with_name("quasar")), help="the command to run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = arguments.model or str(save_tiny_model(Path(scratch) / "tiny"))
        found: dict[str, dict[str, dict[str, list[list[int]]]]] = {}
        for preset in PRESETS:
            found[preset] = {}
            for temperature in TEMPERATURES:
                found[preset][str(temperature)] = preset_ids(arguments, preset, temperature, model, Path(scratch))
                arguments.output.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return 0 if arguments.against is None else compare(json.loads(arguments.against.read_text()), found)


def preset_ids(
    arguments: argparse.Namespace, preset: str, temperature: float, model: str, scratch: Path
) -> dict[str, list[list[int]]]:
    """Run a preset and return the ids of every arm's answers, in the order of the questions."""
    folder = scratch / f"{preset} {temperature}"
    command = [arguments.quasar, "compare", "--preset", preset, "--limit", "1", "--quiet", "--output", str(folder)]
    settings = {"model": model, "sampling.temperature": temperature, "sampling.max_new_tokens": arguments.tokens}
    for key, value in settings.items():
        command += ["--set", f"{key}={yaml.safe_dump(value, default_flow_style=True).partition(chr(10))[0]}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {f"refused: {done.stderr.strip().splitlines()[-1]}": []}
    lines = (folder / "samples.jsonl").read_text(encoding="utf-8").split("\n")  # texts may hold other ends of lines
    rows = [json.loads(line) for line in lines if line]
    found: dict[str, list[list[int]]] = {}
    for row in sorted(rows, key=lambda row: (row["arm"], str(row["question_id"]), row["turn"])):
        found.setdefault(row["arm"], []).append(row["token_ids"])
    return found


def compare(before: dict, after: dict) -> int:
    """Print what differs; 1 if anything does."""
    differing = answers = 0
    for preset, temperatures in before.items():
        for temperature, arms in temperatures.items():
            now = after[preset][temperature]
            answers += sum(map(len, arms.values()))
            for arm in sorted(arms.keys() | now.keys()):
                if arms.get(arm) != now.get(arm) and (preset, temperature, arm) not in BY_THE_CLOCK:
                    differing += 1
                    print(f"{preset}, temperature {temperature}, arm '{arm}': ids differ")
    print(f"{answers} answers of {len(before)} presets: {differing or 'no'} arms differ")
    return 1 if differing else 0


def save_tiny_model(folder: Path) -> Path:
    """Write a random Llama of two layers with a byte-level tokenizer, the same one every time."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<eos>": 0, **{character: index + 1 for index, character in enumerate(alphabet)}}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, eos_token_id=0, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).float().save_pretrained(folder)
    return folder


if __name__ == "__main__":
    sys.exit(main())
