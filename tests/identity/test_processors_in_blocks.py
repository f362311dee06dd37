"""Logits processors act at every place of a block, and each place sees the prefix that it would have had alone."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from harness import DRAFTERS, PROMPTS, generate, params, plain, requests, texts, truth
from tiny_models import VOCAB

from quasar.drafters.none import NoDraft

RAGGED = tuple(PROMPTS)
drafters = pytest.mark.parametrize("drafter", ["oracle", "partial-1", "partial-3", "flaky", "tree", "ngram-last-pad"])

PAIRS = tuple((before, after) for before in range(VOCAB) for after in range(before % 3, VOCAB, 3))
"""A third of all pairs of tokens."""

SETTINGS = {
    "repetition penalty at 0": {"temperature": 0.0, "repetition_penalty": 1.5},
    "repetition penalty": {"temperature": 1.0, "repetition_penalty": 1.5},
    "top-k": {"temperature": 0.8, "top_k": 5},
    "top-p": {"temperature": 1.2, "top_p": 0.6},
    "min-p": {"temperature": 1.5, "min_p": 0.2},
    "presence and frequency penalty": {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": 0.5},
    "negative frequency penalty": {"temperature": 0.0, "frequency_penalty": -1.0},
    "logit bias": {"temperature": 1.0, "logit_bias": tuple((token, 2.0) for token in range(0, VOCAB, 3))},
    "suppressed tokens": {"temperature": 1.0, "suppress_tokens": tuple(range(0, VOCAB, 3))},
    "no bigram twice": {"temperature": 0.0, "no_repeat_ngram_size": 2, "max_new_tokens": 30},
    "bad words": {
        "temperature": 1.0,
        "bad_words_ids": tuple((a, b) for a in range(VOCAB) for b in range(a % 3, VOCAB, 3)),
    },
    "everything": {"temperature": 0.9, "repetition_penalty": 1.3, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
}


@drafters
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_text_is_that_of_plain_decoding_with_the_same_processors(setting, drafter):
    assert_text_is_plain("llama-gqa", setting, drafter)


@pytest.mark.parametrize("drafter", ["oracle", "tree"])
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_text_is_that_of_plain_decoding_with_the_same_processors_on_gpt2(setting, drafter):
    assert_text_is_plain("gpt2", setting, drafter)


def assert_text_is_plain(family, setting, drafter):
    sampling = params(**setting)
    drafted = generate(family, DRAFTERS[drafter](truth(family, RAGGED, sampling)), requests(RAGGED, sampling))
    assert texts(drafted) == texts(plain(family, RAGGED, sampling))


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_these_settings_change_the_text(setting):
    # guards the test above
    without = params(setting["temperature"], max_new_tokens=setting.get("max_new_tokens", 16))
    assert texts(plain("llama-gqa", RAGGED, params(**setting))) != texts(plain("llama-gqa", RAGGED, without))


class Ban:
    """Forbids one token everywhere, and counts the places that it was asked about."""

    needs_prefix = False

    def __init__(self, token):
        self.token, self.places = token, 0

    def __call__(self, prefix, logits):
        self.places += len(logits)
        return logits.index_fill(1, torch.tensor([self.token]), -torch.inf)


class NoBigramTwice:
    """Forbids every pair of tokens that the prefix, prompt included, already holds."""

    needs_prefix = True

    def __call__(self, prefix, logits):
        ids = prefix[0].tolist()
        seen = [after for before, after in pairwise(ids) if before == ids[-1]]
        return logits.index_fill(1, torch.tensor(seen, dtype=torch.int64), -torch.inf)


@drafters
def test_a_banned_token_never_appears_although_it_is_drafted(drafter):
    unbanned = truth("llama-gqa", RAGGED, params(1.0))
    ban = Ban(unbanned["looping"][2])
    wanted = [replace(each, processors=(ban,)) for each in requests(RAGGED, params(1.0))]
    plainly = texts(generate("llama-gqa", NoDraft(), wanted))
    assert texts(generate("llama-gqa", DRAFTERS[drafter](unbanned), wanted)) == plainly
    assert ban.token not in {token for ids in plainly for token in ids}


def test_a_processor_is_asked_about_every_place_of_a_block():
    ban, sampling = Ban(0), params(1.0)
    known = truth("llama-gqa", ("looping",), sampling)
    wanted = [replace(requests(("looping",), sampling)[0], processors=(ban,))]
    done = generate("llama-gqa", DRAFTERS["oracle"](known), wanted)[0]
    assert ban.places == sum(step.drafted + 1 for step in done.steps)


@drafters
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_processor_of_the_prefix_sees_the_drafts_before_its_place(drafter, temperature):
    sampling = params(temperature, max_new_tokens=30)
    wanted = [replace(each, processors=(NoBigramTwice(),)) for each in requests(RAGGED, sampling)]
    plainly = texts(generate("llama-gqa", NoDraft(), wanted))
    known = dict(zip(RAGGED, plainly, strict=True))
    assert texts(generate("llama-gqa", DRAFTERS[drafter](known), wanted)) == plainly
    for name, ids in known.items():
        new = list(pairwise([*PROMPTS[name], *ids]))[len(PROMPTS[name]) - 1 :]
        assert len(set(new)) == len(new)
