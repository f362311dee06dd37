"""Who is faster: our pipelines, transformers and llama.cpp on the same prompts and weights, interleaved in one run.

    python benchmarks/peers.py [--limit 1] [--max-new-tokens 128] [--out race.json]
    python benchmarks/peers.py --data FILE_OR_FOLDER ... --limit 16 --llama-python OTHER_VENV/bin/python

Temperature 0. Every arm gets the same ids (the chat template is applied once, here) and the same EOS ids, and uses the
same number of threads. A prompt's first turn is asked. All arms answer a prompt one after another, a different arm
first each time. llama.cpp is optional: it runs in a process of its own, under an interpreter that has
llama-cpp-python. Results are written after every prompt; ``--resume`` continues them. An arm that fails is reported,
and the others go on.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PAUSE_SECONDS = 0.02
_WARM_UP_TOKENS = 8
_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, as ids; it is number ``place`` of the ``count`` prompts of its task."""

    question: str
    task: str
    ids: list[int]
    place: int
    count: int

    def among(self, limit: int | None) -> bool:
        """Whether it is one of ``limit`` prompts, evenly spread over its task; ``None`` for all."""
        if limit is None or limit >= self.count:
            return True
        return self.place * limit % self.count < limit


def main() -> int:
    arguments = _arguments()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # before torch and our kernels are loaded
    from quasar.core.errors import QuasarError

    try:
        return race(arguments)
    except QuasarError as error:
        print(f"peers: error: {error}", file=sys.stderr)
        return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Race our pipelines against transformers and llama.cpp.")
    parser.add_argument("--pipelines", type=Path, metavar="FILE.yaml", help="our arms; default: preset quickstart")
    parser.add_argument("--arms", nargs="+", metavar="NAME", help="only these, ours or theirs")
    parser.add_argument("--data", nargs="+", default=[], metavar="PATH", help="JSONL files, or folders of them")
    parser.add_argument("--limit", type=int, default=1, help="prompts of each bundled task, or of each file (1)")
    parser.add_argument(
        "--arm-limit", nargs="+", default=[], type=_arm_limit, metavar="NAME=N",
        help="slow arms may answer fewer prompts of each task; ratios are over the prompts that both arms answered",
    )  # fmt: skip
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--ignore-eos", action="store_true", help="every answer to its full length")
    parser.add_argument("--threads", type=int, default=physical_cores(), help="of every arm; default: physical cores")
    parser.add_argument("--model", default="smollm2-135m", help="llama.cpp runs if it is a built-in model")
    parser.add_argument(
        "--llama-python", metavar="PATH", help="an interpreter with llama-cpp-python; default: this one"
    )
    parser.add_argument("--out", default="peers.json", help="a name in benchmarks/results, or a path")
    parser.add_argument("--resume", action="store_true", help="keep the answers in --out")
    arguments = parser.parse_args()
    for name in ("limit", "max_new_tokens", "threads"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return arguments


def _arm_limit(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"'{text}' should be NAME=N, for example transformers=4")
    return name, int(number)


def physical_cores() -> int:
    """Return the cores that this process may use, two hardware threads of one counted once."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = set()
    for number in allowed:
        path = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        siblings.add(path.read_text(encoding="ascii").strip() if path.is_file() else str(number))
    return len(siblings)


def race(arguments: argparse.Namespace) -> int:
    """Run everything; 1 if no arm could be loaded."""
    import torch
    from peers_arms import LlamaProcess, llama_arms, our_arms, transformers_arms
    from peers_store import Store, command, hashed

    from quasar.compare.config import load_run
    from quasar.machine import busy_processors, environment
    from quasar.pipelines.open_model import open_model

    others = busy_processors()
    torch.set_num_threads(arguments.threads)
    preset = None if arguments.pipelines else "quickstart"
    run = load_run(arguments.pipelines, preset, [f"model={arguments.model}", "sampling.temperature=0"], with_data=False)
    model = open_model(run.config.model, run.registry, "cpu")
    eos_ids = () if arguments.ignore_eos else model.eos_ids
    prompts = _prompts(arguments, model.tokenizer, model.max_length)
    longest = max(len(prompt.ids) for prompt in prompts) + arguments.max_new_tokens
    arms = [*our_arms(run, model, eos_ids), *transformers_arms(model.location, eos_ids)]
    process = LlamaProcess(arguments.llama_python or sys.executable, arguments.threads, longest)
    if arguments.llama_python or find_spec("llama_cpp"):
        arms += llama_arms(process, run.config.model, eos_ids)
    else:
        print("llama.cpp is left out: this interpreter has no llama_cpp; see --llama-python.", file=sys.stderr)
    arms = _chosen(arms, arguments.arms, "--arms")
    limits = dict(arguments.arm_limit)
    _chosen(arms, list(limits), "--arm-limit")
    settings = {
        "model": run.config.model, "temperature": 0.0, "max_new_tokens": arguments.max_new_tokens,
        "eos_ids": list(eos_ids), "threads": arguments.threads, "arms": [arm.name for arm in arms],
        "arm_limits": limits,
        "prompts": {prompt.question: hashed(prompt.ids) for prompt in prompts},
        "pipelines": {arm.name: arm.composition.as_yaml() for arm in run.arms},
    }  # fmt: skip
    store = Store(arguments.out)
    where = {**asdict(environment("cpu")), "command": command(), "busy_processors_at_start": others}
    results = {"schema_version": 1, "settings": settings, "environment": where, "arms": {},
               "answers": store.earlier(settings) if arguments.resume else []}  # fmt: skip
    try:
        return _run(arms, prompts, limits, arguments.max_new_tokens, results, store)
    finally:
        process.close()


def _chosen(arms: list[Any], names: list[str] | None, option: str) -> list[Any]:
    from quasar.core.errors import ConfigError, did_you_mean

    known = [arm.name for arm in arms]
    for name in names or ():
        if name not in known:
            raise ConfigError(f"{option}: no arm '{name}'.{did_you_mean(name, known)}")
    return [arm for arm in arms if names is None or arm.name in names]


def _prompts(arguments: argparse.Namespace, tokenizer: Any, max_length: int | None) -> list[Prompt]:
    """Read the prompts; of a file, ``--limit`` of them evenly spread, so that every part of it is seen."""
    from quasar.core.errors import CapacityError
    from quasar.prompts.conversations import Conversations
    from quasar.prompts.questions import BUNDLED, load_questions

    if arguments.data:
        paths = [path for name in arguments.data for path in _files(Path(name))]
        found = []
        for path in paths:
            questions = load_questions(str(path))
            count = min(arguments.limit, len(questions))
            found += [(path.stem, questions[i * len(questions) // count]) for i in range(count)]
    else:
        found = [(question.task, question) for question in load_questions(BUNDLED, arguments.limit)]
    conversations = Conversations(tokenizer, "auto")
    counts = Counter(task for task, _ in found)
    places = {task: itertools.count() for task in counts}
    prompts = [
        Prompt(
            f"{task}/{question.question_id}", task, conversations.ids(question, []), next(places[task]), counts[task]
        )
        for task, question in found
    ]
    for prompt in prompts:
        if max_length is not None and len(prompt.ids) + arguments.max_new_tokens > max_length:
            raise CapacityError(
                f"prompt {prompt.question} has {len(prompt.ids)} tokens and the model holds {max_length}."
            )
    return prompts


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.jsonl")) if path.is_dir() else [path]


def _run(
    arms: list[Any],
    prompts: list[Prompt],
    limits: dict[str, int],
    max_new_tokens: int,
    results: dict[str, Any],
    store: Any,
) -> int:
    from peers_report import summary, table
    from tqdm import tqdm

    from quasar.machine import is_busy

    running = _load(arms, prompts[0], results)
    done = {(answer["question"], answer["arm"]) for answer in results["answers"]}
    failures = dict.fromkeys(running, 0)
    with tqdm(total=len(prompts) * len(arms), unit="answer", file=sys.stderr) as bar:
        for number, prompt in enumerate(prompts):
            turn = number % len(arms)
            for arm in (*arms[turn:], *arms[:turn]):
                bar.set_postfix_str(f"{arm.name}, {prompt.question}")
                bar.update()
                if arm.name not in running or (prompt.question, arm.name) in done:
                    continue
                if not prompt.among(limits.get(arm.name)):
                    continue
                record = _answer(running[arm.name], prompt, arm.name, max_new_tokens)
                results["answers"].append(record)
                failures[arm.name] = failures[arm.name] + 1 if "error" in record else 0
                if failures[arm.name] == _FAILURES:
                    del running[arm.name]
                    results["arms"][arm.name]["error"] = f"given up after {_FAILURES} failures in a row"
            results["summary"] = summary(results["arms"], results["answers"])
            store.write(results)
    print(table(results))
    others = results["environment"]["busy_processors_at_start"]
    if is_busy(others):
        print(f"\nThe machine was busy when this began (others used {others:.1f} processors): the times mean little.")
    print(f"\nWritten to {store.path}")
    return 0 if running else 1


def _load(arms: list[Any], first: Prompt, results: dict[str, Any]) -> dict[str, Any]:
    """Load every arm and let it answer once, uncounted."""
    running = {}
    for arm in arms:
        entry = results["arms"][arm.name] = {"family": arm.family, "reference": arm.reference}
        try:
            answer, entry["description"] = arm.load()
            answer(first.ids, _WARM_UP_TOKENS)
            running[arm.name] = answer
        except Exception as error:  # any arm may fail in its own way; the others go on
            entry["error"] = f"{type(error).__name__}: {error}"
            print(f"{arm.name} does not run: {entry['error']}", file=sys.stderr)
    return running


def _answer(answer: Any, prompt: Prompt, arm: str, max_new_tokens: int) -> dict[str, Any]:
    time.sleep(_PAUSE_SECONDS)  # threads of the arm before go on spinning for a moment
    record = {"question": prompt.question, "task": prompt.task, "arm": arm, "prompt_tokens": len(prompt.ids)}
    try:
        token_ids, steps = answer(prompt.ids, max_new_tokens)
    except Exception as error:  # as above
        return {**record, "error": f"{type(error).__name__}: {error}"}
    if sum(count for _, count in steps) != len(token_ids):
        return {**record, "error": f"{len(token_ids)} tokens came in steps of {sum(count for _, count in steps)}"}
    return {**record, "token_ids": token_ids, "steps": steps}


if __name__ == "__main__":
    sys.exit(main())
