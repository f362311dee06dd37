"""Drafted decoding on the int8 verifier is plain decoding on it, and the model in full precision stays as it was."""

import pytest
import torch
from doubles import SelfDraft
from harness import DRAFTERS, GAMMA, PROMPTS, ngram, params, requests, texts
from tiny_models import Models, tiny_model

from quasar.acceptors.stochastic import Stochastic
from quasar.core.engine import Engine
from quasar.core.types import Draft
from quasar.drafters.none import NoDraft
from quasar.models.session import Session
from quasar.verifiers.int8 import Int8

every_family = pytest.mark.parametrize("family", ["llama-gqa", "gpt2"])
any_temperature = pytest.mark.parametrize("temperature", [0.0, 1.0])
any_batch = pytest.mark.parametrize("names", [("looping",), tuple(PROMPTS)], ids=["one", "ragged"])


@pytest.fixture(scope="module")
def int8_of():
    made = {}

    def make(family):
        if family not in made:
            made[family] = Int8(Int8.Config(backend="reference", dtype="float64"))
            made[family].load(Models(tiny_model(family)))
        return made[family]

    return make


def run(verifier, drafter, names, sampling):
    return Engine(drafter, verifier, Stochastic()).generate(requests(names, sampling))


@every_family
@any_temperature
@any_batch
@pytest.mark.parametrize("match", ["first", "last"])
def test_prompt_lookup_on_int8_gives_the_text_of_plain_decoding_on_int8(int8_of, family, temperature, names, match):
    verifier, sampling = int8_of(family), params(temperature, max_new_tokens=24)
    drafted = run(verifier, ngram(match, "pad"), names, sampling)
    assert texts(drafted) == texts(run(verifier, NoDraft(), names, sampling))
    assert sum(done.num_drafted for done in drafted) > 0


@every_family
@any_temperature
@any_batch
@pytest.mark.parametrize("drafter", ["oracle", "partial-3", "tree"])
def test_known_drafts_on_int8_give_the_text_of_plain_decoding_on_int8(int8_of, family, temperature, names, drafter):
    verifier, sampling = int8_of(family), params(temperature)
    plainly = run(verifier, NoDraft(), names, sampling)
    known = {name: done.token_ids for name, done in zip(names, plainly, strict=True)}
    assert texts(run(verifier, DRAFTERS[drafter](known), names, sampling)) == texts(plainly)


@every_family
def test_the_quantised_model_accepts_all_that_it_drafts_for_itself(int8_of, family):
    verifier, sampling = int8_of(family), params(1.0, max_new_tokens=1 + 2 * (GAMMA + 1))
    drafted = run(verifier, SelfDraft(verifier.model, GAMMA), tuple(PROMPTS), sampling)
    assert [done.acceptance_rate for done in drafted] == [1.0] * 3


@every_family
def test_the_model_in_full_precision_is_not_changed(family):
    model = tiny_model(family)
    texts, draft = [list(ids) for ids in PROMPTS.values()], Draft.chains([[4, 9], [], [1]])
    before = Session(model, 3).forward(texts, draft)
    verifier = Int8(Int8.Config(backend="reference", dtype="float64"))
    verifier.load(Models(model))
    run(verifier, ngram("last", "pad"), ("looping",), params(1.0))
    assert torch.equal(Session(model, 3).forward(texts, draft), before)


@every_family
def test_int8_really_computes_something_else(int8_of, family):
    texts, nothing = [list(PROMPTS["long"])], Draft.empty(1)
    full = Session(tiny_model(family), 1).forward(texts, nothing)
    quantised = Session(int8_of(family).model, 1).forward(texts, nothing)
    assert not torch.allclose(full, quantised, rtol=0, atol=1e-3)


@every_family
def test_a_later_draft_leaves_earlier_int8_logits_bit_equal(int8_of, family):
    model, texts = int8_of(family).model, [list(PROMPTS["long"])]
    one, other = (Session(model, 1).forward(texts, Draft.chains([chain])) for chain in ([5, 6, 7], [5, 6, 80]))
    assert torch.equal(one[:, :3], other[:, :3])
    assert not torch.equal(one[:, 3], other[:, 3])
