"""The loop around llama.cpp, over a library that is only pretended: its cache, its text, its steps."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

VOCAB, EOS = 32, 0


class PretendedLibrary(ModuleType):
    """Knows the cache and says what comes next: a fixed function of the last two tokens in it."""

    def __init__(self):
        super().__init__("llama_cpp")
        self.__version__, self.cache, self.forwards, self.rows = "0", [], 0, {}

    @staticmethod
    def llama_log_callback(function):
        return function

    def llama_model_default_params(self):
        return SimpleNamespace()

    llama_context_default_params = llama_model_default_params

    def llama_model_load_from_file(self, path, params):
        return 1

    llama_init_from_model = llama_model_load_from_file

    def llama_get_memory(self, context):
        return 1

    llama_model_get_vocab = llama_get_memory

    def llama_vocab_n_tokens(self, vocab):
        return VOCAB

    def llama_batch_init(self, size, embeddings, sequences):
        columns = {name: [0] * size for name in ("token", "pos", "logits", "n_seq_id")}
        return SimpleNamespace(n_tokens=0, seq_id=[[0] for _ in range(size)], **columns)

    def llama_memory_clear(self, memory, data):
        self.cache = []

    def llama_memory_seq_rm(self, memory, sequence, start, end):
        assert end == -1
        del self.cache[start:]

    def llama_decode(self, context, batch):
        self.forwards += 1
        self.rows = {}
        for i in range(batch.n_tokens):
            assert batch.pos[i] == len(self.cache), "a position that is not the next one of the cache"
            self.cache.append(batch.token[i])
            if batch.logits[i]:
                self.rows[i] = follow(self.cache)
        return 0

    def llama_synchronize(self, context):
        pass

    def llama_get_logits_ith(self, context, place):
        return np.eye(VOCAB)[self.rows[place]]


def follow(text):
    """Repeat the cycle 3 4 5 6; after a 9 the text ends."""
    return {3: 4, 4: 5, 5: 6, 6: 3 if text.count(3) < 4 else 9, 9: EOS}.get(text[-1], 3)


def plain(ids, count):
    text = list(ids)
    while len(text) < len(ids) + count and (len(text) == len(ids) or text[-1] != EOS):
        text.append(follow(text))
    return text[len(ids) :]


@pytest.fixture
def worker(monkeypatch):
    """The worker's module over the pretended library, with prompt lookup that copies what followed the last token."""

    class Lookup:
        def __init__(self, num_pred_tokens):
            self.count = num_pred_tokens

        def __call__(self, text):
            [places] = np.nonzero(text[:-1] == text[-1])
            return text[places[0] + 1 :][: self.count] if len(places) else np.array([], dtype=np.intc)

    library = PretendedLibrary()
    speculative = ModuleType("llama_cpp.llama_speculative")
    speculative.LlamaPromptLookupDecoding = Lookup
    monkeypatch.setitem(sys.modules, "llama_cpp", library)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)
    monkeypatch.delitem(sys.modules, "llama_worker", raising=False)
    monkeypatch.setattr(np.ctypeslib, "as_array", lambda values, shape: values)
    import llama_worker

    yield SimpleNamespace(module=llama_worker, library=library)
    del sys.modules["llama_worker"]


@pytest.mark.parametrize("draft_tokens", [0, 1, 5])
@pytest.mark.parametrize("count", [1, 2, 7, 12, 40])
@pytest.mark.parametrize("ids", [[3, 4, 5, 6, 3, 4], [7, 3], [3, 5, 3, 4, 9, 3]])
def test_text_is_plain_decoding_s_with_and_without_drafts(worker, ids, count, draft_tokens):
    model = worker.module.Model("file", 1, 64)
    for _ in range(2):  # the second answer starts from a cleared cache
        found, steps = model.generate(ids, count, [EOS], draft_tokens)
        assert found == plain(ids, count)
        assert sum(tokens for _, tokens in steps) == len(found)
        assert all(tokens >= 1 for _, tokens in steps)


def test_drafts_that_are_right_save_forwards(worker):
    model = worker.module.Model("file", 1, 64)
    model.generate([3, 4, 5, 6, 3, 4], 10, [EOS], 0)
    assert worker.library.forwards == 10
    worker.library.forwards = 0
    _, steps = model.generate([3, 4, 5, 6, 3, 4], 10, [EOS], 5)
    assert worker.library.forwards == len(steps) < 6


def test_requests_load_a_file_once(worker):
    models = {}
    for request in (
        {"do": "load"},
        {"do": "generate", "ids": [3], "max_new_tokens": 2, "eos_ids": [], "draft_tokens": 0},
    ):
        reply = worker.module.answer({**request, "path": "file"}, models, 1, 64)
    assert reply["token_ids"] == [4, 5]
    assert list(models) == ["file"]


def test_timed_forwards_read_the_text_before_once_and_leave_it_as_it_was(worker):
    models, library = {}, worker.library
    for rows in (1, 3, 1):
        reply = worker.module.answer(
            {"do": "forward", "path": "file", "ids": [3, 4] + [7] * rows, "rows": rows}, models, 1, 64
        )
        assert reply["seconds"] >= 0
        assert library.cache == [3, 4]
        assert sorted(library.rows) == list(range(rows))  # logits for every row
    assert library.forwards == 1 + 3
    models["file"].generate([5], 2, [], 0)
    worker.module.answer({"do": "forward", "path": "file", "ids": [3, 4, 7], "rows": 1}, models, 1, 64)
    assert library.cache == [3, 4]
