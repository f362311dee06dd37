"""What a datastore costs: to build, to keep, to open, to ask; and its share of a step of decoding.

python benchmarks/datastore.py --megabytes 50

The corpus is the Python source of the packages of this environment, in the order of their paths, unless FILES are
given. It is built in a temporary folder by ``quasar datastore build``, in a process of its own, so that times include
reading and tokenising. Ends that are looked up are the last 16 tokens of random places in the files that come after
those of the corpus.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from quasar import SamplingParams, load_pipeline
from quasar.core.context import Context, Row, TokenView
from quasar.core.streams import Streams
from quasar.drafters.datastore.store import Datastore
from quasar.drafters.retrieval import Retrieval
from quasar.pipelines.open_model import open_model
from quasar.plugins.registry import load_registry

PROMPT = (
    "Write a Python function that reads a JSON file and returns the names in it, sorted.\n\n```python\nimport json\n"
)


def texts(files: Sequence[Path]) -> Iterator[str]:
    """Yield the text of every file that is UTF-8."""
    paths = files or sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py"))
    for path in paths:
        try:
            yield path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def corpus(files: Sequence[Path], megabytes: float, folder: Path) -> tuple[Path, list[str]]:
    """Write a JSONL file of so many megabytes of text, and return it and the next 200 texts."""
    target, size, held_out = folder / "corpus.jsonl", 0, list[str]()
    with target.open("w", encoding="utf-8") as file:
        for text in texts(files):
            if size < megabytes * 1e6:
                file.write(json.dumps(text) + "\n")
                size += len(text.encode())
            elif len(held_out) < 200:
                held_out.append(text)
            else:
                break
    print(f"corpus: {size / 1e6:.1f} MB of text")
    return target, held_out


def lookups(folder: Path, texts: Sequence[str], count: int) -> None:
    """Print the time of ``propose`` for ends of ``texts``, and how often something was found."""
    drafter = Retrieval(Retrieval.Config(datastore=folder))
    started = time.perf_counter()
    drafter.datastore = Datastore(folder)
    print(f"opened in {1e3 * (time.perf_counter() - started):.2f} ms")
    name = drafter.datastore.description.model
    codec = open_model(name, load_registry(), "cpu", quiet=True).tokenizer
    generator, times, found = random.Random(0), [], 0
    encoded = [ids for ids in map(codec.encode_part, texts) if len(ids) > 64]
    for _ in range(count):
        ids = generator.choice(encoded)
        end = generator.randrange(32, len(ids))
        context = Context((Row(TokenView(ids[:end]), 1, "", 0, SamplingParams()),), Streams([(0, "", 0)]))
        started = time.perf_counter()
        draft = drafter.propose(context, [64])
        times.append(time.perf_counter() - started)
        found += int(draft.num_nodes[0] > 0)
    high = statistics.quantiles(times, n=20)[-1]
    print(
        f"propose: median {1e6 * statistics.median(times):.0f} µs, 95 % {1e6 * high:.0f} µs, "
        f"something found in {100 * found / count:.0f} %"
    )


def decode(folder: Path, model: str, tokens: int) -> None:
    """Print the share of drafting in the time of a step."""
    pipeline = load_pipeline(model, drafter={"use": "retrieval", "datastore": str(folder)}, quiet=True)
    done = pipeline.generate(PROMPT, SamplingParams(max_new_tokens=tokens, ignore_eos=True)).generation
    steps = done.decode_steps
    drafting = sum(step.seconds_draft for step in steps)
    spent = sum(step.seconds_draft + step.seconds_verify + step.seconds_accept for step in steps)
    print(
        f"decode, {len(steps)} steps of {1e3 * spent / len(steps):.1f} ms: "
        f"drafting {100 * drafting / spent:.2f} % of them, acceptance length {done.acceptance_length:.2f}"
    )


def main() -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILES", help="texts to build from")
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--lookups", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of the text that is decoded")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "store"
        source, held_out = corpus(chosen.files, chosen.megabytes, Path(temporary))
        command = [sys.executable, "-m", "quasar.cli", "datastore", "build", folder, source, "--model", chosen.model]
        started = time.perf_counter()
        subprocess.run([str(part) for part in command], check=True)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"built in {time.perf_counter() - started:.1f} s, {size / 1e6:.1f} MB on disk")
        lookups(folder, held_out, chosen.lookups)
        decode(folder, chosen.model, chosen.tokens)


if __name__ == "__main__":
    main()
