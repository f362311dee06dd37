"""The runners of the race: our pipelines, transformers' ``generate``, and llama.cpp in a process of its own.

Every arm is given the same ids and answers with ids and its steps: seconds since the start, and how many tokens came.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gguf_export import export

from quasar.compare.config import Run
from quasar.core.sampling import SamplingParams
from quasar.pipelines.open_model import OpenModel

DRAFT_TOKENS = 5
"""Draft tokens a step of every peer's prompt lookup, as in the paper; the n-gram lengths are their own defaults."""

QUASAR, TRANSFORMERS, LLAMA = "quasar", "transformers", "llama.cpp"

Steps = list[tuple[float, int]]
Answer = Callable[[list[int], int], tuple[list[int], Steps]]
"""From a prompt's ids and a number of new tokens to the new ids and the steps in which they came."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One runner.

    Attributes:
        name: in every table.
        family: who made it.
        load: returns how it answers, and what the report should say of it; raises if it cannot run here.
        reference: the arm whose text it should have, token for token; ``None`` for the others' arms.
    """

    name: str
    family: str
    load: Callable[[], tuple[Answer, dict[str, Any]]]
    reference: str | None = None


def our_arms(run: Run, model: OpenModel, eos_ids: tuple[int, ...]) -> Iterator[Arm]:
    """Yield the pipelines of a comparison; those of one precision share their model."""

    def load(arm: Any) -> tuple[Answer, dict[str, Any]]:
        pipeline = model.pipeline(arm.composition, eos_ids)

        def answer(ids: list[int], max_new_tokens: int) -> tuple[list[int], Steps]:
            sampling = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=not eos_ids)
            steps: Steps = []
            started = time.perf_counter()
            requests = pipeline.requests([ids], sampling, ["race"], 0)
            [done] = pipeline.run(requests, lambda row, new: steps.append((time.perf_counter() - started, len(new))))
            return list(done.token_ids), steps

        return answer, {**arm.composition.as_yaml(), **arm.composition.verifier.describe()}

    for arm in run.arms:
        yield Arm(arm.name, QUASAR, lambda arm=arm: load(arm), arm.reference)


class _Arrivals:
    """A streamer for ``generate`` that notes when tokens come; the first call brings the prompt."""

    def __init__(self) -> None:
        self.steps: Steps = []
        self._started, self._prompt_seen = time.perf_counter(), False

    def put(self, tokens: torch.Tensor) -> None:
        if self._prompt_seen:
            self.steps.append((time.perf_counter() - self._started, tokens.numel()))
        self._prompt_seen = True

    def end(self) -> None:
        pass


def transformers_arms(location: str, eos_ids: tuple[int, ...]) -> Iterator[Arm]:
    """Yield ``generate`` plain and with prompt lookup, on one unmodified model in the checkpoint's dtype."""
    loaded: list[Any] = []

    def load(options: dict[str, Any]) -> tuple[Answer, dict[str, Any]]:
        from transformers import AutoModelForCausalLM, __version__

        if not loaded:
            loaded.append(AutoModelForCausalLM.from_pretrained(location, dtype="auto").eval())
        [model] = loaded

        def answer(ids: list[int], max_new_tokens: int) -> tuple[list[int], Steps]:
            prompt = torch.tensor([ids])
            arrivals = _Arrivals()
            text = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=max_new_tokens, do_sample=False,
                eos_token_id=list(eos_ids) or None, pad_token_id=0, streamer=arrivals, **options,
            )  # fmt: skip
            return text[0, len(ids) :].tolist(), arrivals.steps

        return answer, {"transformers": __version__, "dtype": str(model.dtype).removeprefix("torch."), **options}

    yield Arm("transformers", TRANSFORMERS, lambda: load({}))
    yield Arm("transformers-lookup", TRANSFORMERS, lambda: load({"prompt_lookup_num_tokens": DRAFT_TOKENS}))


class LlamaProcess:
    """``llama_worker.py`` under an interpreter that has llama-cpp-python, with threads of its own.

    Args:
        python: the interpreter.
        threads: of llama.cpp.
        context: tokens that prompt and answer need at most.
    """

    def __init__(self, python: str, threads: int, context: int) -> None:
        worker = Path(__file__).with_name("llama_worker.py")
        self._command = [python, str(worker), "--threads", str(threads), "--context", str(context)]
        self._process: subprocess.Popen[str] | None = None

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and return its answer.

        Raises:
            RuntimeError: what the worker said, or that it is gone.
        """
        if self._process is None:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"the llama.cpp process ended with status {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()


def llama_arms(process: LlamaProcess, model: str, eos_ids: tuple[int, ...]) -> Iterator[Arm]:
    """Yield llama.cpp plain and with its prompt lookup, F16 and Q8_0, on files written from our weights."""

    def load(kind: str, draft_tokens: int) -> tuple[Answer, dict[str, Any]]:
        path = str(export(model, kind))
        description = process.ask(do="load", path=path)["description"]

        def answer(ids: list[int], max_new_tokens: int) -> tuple[list[int], Steps]:
            reply = process.ask(
                do="generate", path=path, ids=ids, max_new_tokens=max_new_tokens, eos_ids=eos_ids,
                draft_tokens=draft_tokens,
            )  # fmt: skip
            return reply["token_ids"], [(seconds, count) for seconds, count in reply["steps"]]

        return answer, {**description, "file": Path(path).name, "draft_tokens": draft_tokens}

    for kind in ("F16", "Q8_0"):
        yield Arm(f"llama-{kind.lower()}", LLAMA, lambda kind=kind: load(kind, 0))
        yield Arm(f"llama-{kind.lower()}-lookup", LLAMA, lambda kind=kind: load(kind, DRAFT_TOKENS))
