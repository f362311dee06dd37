"""llama.cpp behind JSON lines: run by any interpreter that has llama-cpp-python, for ``peers.py`` and others.

Reads one request a line on standard input and answers each with one line:

    {"do": "load", "path": FILE}
        {"description": {...}}
    {"do": "generate", "path": FILE, "ids": [...], "max_new_tokens": N, "eos_ids": [...], "draft_tokens": K}
        {"token_ids": [...], "steps": [[seconds, tokens], ...]}
    {"do": "forward", "path": FILE, "ids": [...], "rows": N}
        {"seconds": of a forward of the last N ids, with logits for each, after the others were read}

The loop calls the C library itself, with an argmax over the logits where they lie: the binding's ``Llama.generate``
copies them and runs its samplers, and with a draft model computes logits of the whole prompt. What is measured is
llama.cpp, at its best. Drafts are the binding's ``LlamaPromptLookupDecoding``. Temperature is 0.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time

import llama_cpp
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

_MICRO_BATCH = 512


@llama_cpp.llama_log_callback
def _silent(level, text, data):
    """Drop llama.cpp's messages."""


class Model:
    """One GGUF file and one context over it."""

    def __init__(self, path: str, threads: int, context: int) -> None:
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise ValueError(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = context
        params.n_ubatch = _MICRO_BATCH
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise ValueError(f"llama.cpp makes no context of {context} tokens for {path}")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(context, 0, 1)
        self.read: list[int] | None = None  # what `forward` left in the memory

    def decode(self, ids, past: int, logits_from: int) -> None:
        """Run ``ids`` after ``past`` cached tokens, with logits from the given place on."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.logits[i] = token, past + i, i >= logits_from
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        status = llama_cpp.llama_decode(self.context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status} for {len(ids)} tokens after {past}")

    def best(self, place: int) -> int:
        """Return the most probable token after a place of the last batch."""
        logits = llama_cpp.llama_get_logits_ith(self.context, place)
        return int(np.ctypeslib.as_array(logits, shape=(self.vocab_size,)).argmax())

    def forward(self, ids, rows: int) -> float:
        """Return the seconds of one forward of the last ``rows`` ids; those before them are read once."""
        before = ids[:-rows]
        if self.read != before:
            llama_cpp.llama_memory_clear(self.memory, True)
            self.decode(before, 0, len(before))
            llama_cpp.llama_synchronize(self.context)
            self.read = before
        started = time.perf_counter()
        self.decode(ids[-rows:], len(before), 0)
        llama_cpp.llama_synchronize(self.context)
        seconds = time.perf_counter() - started
        llama_cpp.llama_memory_seq_rm(self.memory, 0, len(before), -1)
        return seconds

    def generate(self, ids, max_new_tokens: int, eos_ids, draft_tokens: int):
        """Return new token ids, and per step the seconds since the start and how many tokens it yielded."""
        eos, steps = set(eos_ids), []
        propose = LlamaPromptLookupDecoding(num_pred_tokens=draft_tokens) if draft_tokens else None
        text = np.zeros(len(ids) + max_new_tokens, dtype=np.intc)
        started = time.perf_counter()
        llama_cpp.llama_memory_clear(self.memory, True)
        self.read = None
        text[: len(ids)] = ids
        self.decode(ids, 0, len(ids) - 1)
        text[len(ids)] = self.best(len(ids) - 1)
        steps.append((time.perf_counter() - started, 1))
        length = len(ids) + 1
        while length < len(text) and int(text[length - 1]) not in eos:
            draft = [] if propose is None else propose(text[:length])[: len(text) - length - 1].tolist()
            past, yielded = length - 1, 0
            self.decode([int(text[past]), *draft], past, 0)
            for place in range(len(draft) + 1):
                token = self.best(place)
                text[length], length, yielded = token, length + 1, yielded + 1
                if token in eos or (place < len(draft) and token != draft[place]):
                    break
            llama_cpp.llama_memory_seq_rm(self.memory, 0, length - 1, -1)
            steps.append((time.perf_counter() - started, yielded))
        return text[len(ids) : length].tolist(), steps


def answer(request: dict, models: dict[str, Model], threads: int, context: int) -> dict:
    path = request["path"]
    if path not in models:
        models[path] = Model(path, threads, context)
    if request["do"] == "load":
        return {"description": {"llama_cpp_python": llama_cpp.__version__, "threads": threads, "context": context}}
    if request["do"] == "forward":
        return {"seconds": models[path].forward(request["ids"], request["rows"])}
    token_ids, steps = models[path].generate(
        request["ids"], request["max_new_tokens"], request["eos_ids"], request["draft_tokens"]
    )
    return {"token_ids": token_ids, "steps": steps}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the C library prints must not get between our lines
    llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    models: dict[str, Model] = {}
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line), models, arguments.threads, arguments.context)
        except Exception as error:  # the race goes on without this answer
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
