"""Every point-mass drafter gives plain decoding's text, on every kind of decoder, at any temperature and batch."""

from dataclasses import replace

import pytest
import torch
from doubles import Empty, SelfDraft
from harness import DRAFTERS, GAMMA, PROMPTS, generate, params, plain, requests, texts, truth
from tiny_models import FAMILIES, SLIDING, WINDOW, rounding, tiny_model

from quasar.acceptors.coupled import Coupled
from quasar.core.types import Draft
from quasar.drafters.bigram import Bigram
from quasar.drafters.none import NoDraft
from quasar.models.session import Session

BATCHES = {"one": ("looping",), "ragged": ("looping", "single", "long")}
every_family = pytest.mark.parametrize("family", FAMILIES)
any_temperature = pytest.mark.parametrize("temperature", [0.0, 1.0])
FULL_BLOCKS = 1 + 3 * (GAMMA + 1)
"""The prompt's own token and three blocks that a perfect draft fills."""


# --- plain decoding is transformers' own ------------------------------------------------------------------------------


@every_family
@pytest.mark.parametrize("name", PROMPTS)
def test_plain_greedy_decoding_is_what_transformers_generates(family, name):
    sampling = params(0.0, max_new_tokens=24)
    module = tiny_model(family).module
    ids = torch.tensor([PROMPTS[name]])
    expected = module.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    assert plain(family, (name,), sampling)[0].token_ids == tuple(expected[0, ids.shape[1] :].tolist())


@every_family
def test_greedy_decoding_with_a_repetition_penalty_is_what_transformers_generates(family):
    sampling = params(0.0, repetition_penalty=1.5)
    ids = torch.tensor([PROMPTS["long"]])
    expected = tiny_model(family).module.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False, repetition_penalty=1.5
    )
    assert plain(family, ("long",), sampling)[0].token_ids == tuple(expected[0, ids.shape[1] :].tolist())


@every_family
def test_logits_along_a_sampled_text_are_those_of_one_uncached_forward(family):
    model, names = tiny_model(family), tuple(PROMPTS)
    sampled = truth(family, names, params(1.0))
    whole = [[*PROMPTS[name], *sampled[name]] for name in names]
    session = Session(model, len(names))
    for missing in range(12, -1, -3):  # three tokens are pending each time
        parts = [ids[: len(ids) - missing] for ids in whole]
        cached = session.forward(parts, Draft.empty(len(names)))
        for row, part in enumerate(parts):
            with torch.inference_mode():
                alone = model.module(torch.tensor([part])).logits[0, -1]
            assert torch.allclose(cached[row, 0], alone, rtol=0, atol=rounding(family))


# --- drafted decoding is plain decoding -------------------------------------------------------------------------------


@every_family
@any_temperature
@pytest.mark.parametrize("names", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_text_is_that_of_plain_decoding(family, drafter, temperature, names):
    sampling = params(temperature)
    drafted = generate(family, DRAFTERS[drafter](truth(family, names, sampling)), requests(names, sampling))
    assert texts(drafted) == texts(plain(family, names, sampling))


@any_temperature
@pytest.mark.parametrize("family", SLIDING)
@pytest.mark.parametrize("drafter", ["oracle", "partial-3", "flaky", "tree"])
def test_text_is_that_of_plain_decoding_far_beyond_the_window(family, drafter, temperature):
    names, sampling = BATCHES["ragged"], params(temperature, max_new_tokens=5 * WINDOW + 4)
    drafted = generate(family, DRAFTERS[drafter](truth(family, names, sampling)), requests(names, sampling))
    assert texts(drafted) == texts(plain(family, names, sampling))


@any_temperature
def test_a_drafter_that_never_drafts_is_plain_decoding(temperature):
    names, sampling = BATCHES["ragged"], params(temperature)
    silent = generate("llama-gqa", Empty(), requests(names, sampling))
    assert texts(silent) == texts(plain("llama-gqa", names, sampling))
    assert {done.acceptance_length for done in silent} == {1.0}
    assert {done.acceptance_rate for done in silent} == {None}


def test_prompt_lookup_finds_something_in_these_prompts():
    # else the identities above would say nothing about it
    for name in ("ngram-first-truncate", "ngram-last-pad"):
        done = generate("llama-gqa", DRAFTERS[name]({}), requests(("long",), params(0.0)))[0]
        assert done.num_drafted > 0


def test_the_random_tree_is_accepted_along_branches_that_do_not_lie_next_to_each_other():
    names, sampling = BATCHES["ragged"], params(0.0, max_new_tokens=32)
    known = truth("llama-gqa", names, sampling)
    drafted = generate("llama-gqa", DRAFTERS["tree"](known), requests(names, sampling))
    steps = [step for done in drafted for step in done.steps]
    assert sum(step.accepted > 0 and step.depth < step.drafted for step in steps) > 5


# --- counts -----------------------------------------------------------------------------------------------------------


@every_family
@any_temperature
def test_a_perfect_draft_is_accepted_whole(family, temperature):
    sampling = params(temperature, max_new_tokens=FULL_BLOCKS)
    names = BATCHES["ragged"]
    drafted = generate(family, DRAFTERS["oracle"](truth(family, names, sampling)), requests(names, sampling))
    assert [(done.acceptance_length, done.acceptance_rate) for done in drafted] == [(GAMMA + 1, 1.0)] * 3


@every_family
@any_temperature
def test_a_draft_that_is_never_right_leaves_one_token_a_step(family, temperature):
    sampling, names = params(temperature), BATCHES["ragged"]
    drafted = generate(family, DRAFTERS["wrong"](truth(family, names, sampling)), requests(names, sampling))
    assert [(done.acceptance_length, done.acceptance_rate) for done in drafted] == [(1.0, 0.0)] * 3


@pytest.mark.parametrize("drafter", ["oracle", "wrong", "partial-1", "flaky"])
@pytest.mark.parametrize("names", BATCHES.values(), ids=BATCHES)
def test_nothing_is_forwarded_twice(drafter, names):
    sampling = params(1.0)
    known = truth("llama-gqa", names, sampling)
    drafted = generate("llama-gqa", DRAFTERS[drafter](known), requests(names, sampling))
    longest = max(drafted, key=lambda done: len(done.steps))
    columns = sum(step.positions_forwarded for step in longest.steps)
    prompt = max(len(PROMPTS[name]) for name in names)
    assert columns <= len(names) * (prompt + longest.num_steps * (GAMMA + 1))


# --- sampling from the model itself -----------------------------------------------------------------------------------


@every_family
@pytest.mark.parametrize("names", BATCHES.values(), ids=BATCHES)
def test_all_drafts_sampled_from_the_target_itself_are_accepted(family, names):
    sampling = params(1.0, max_new_tokens=FULL_BLOCKS)
    drafted = generate(family, SelfDraft(tiny_model(family), GAMMA), requests(names, sampling))
    assert [(done.acceptance_length, done.acceptance_rate) for done in drafted] == [(GAMMA + 1, 1.0)] * len(names)


@every_family
def test_a_model_that_drafts_for_itself_at_temperature_0_gives_plain_decodings_text(family):
    sampling, names = params(0.0), BATCHES["ragged"]
    drafted = generate(family, SelfDraft(tiny_model(family), GAMMA), requests(names, sampling))
    assert texts(drafted) == texts(plain(family, names, sampling))


def test_self_draft_under_processors_is_accepted_whole():
    sampling = params(0.8, max_new_tokens=FULL_BLOCKS, repetition_penalty=1.5, top_k=20, top_p=0.9)
    drafted = generate("llama-gqa", SelfDraft(tiny_model("llama-gqa"), GAMMA), requests(BATCHES["ragged"], sampling))
    assert [done.acceptance_rate for done in drafted] == [1.0] * 3


# --- coupled acceptance -----------------------------------------------------------------------------------------------


@any_temperature
@pytest.mark.parametrize("names", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("drafter", ["partial-3", "tree", "ngram-last-pad"])
def test_coupled_acceptance_gives_plain_decodings_text_for_point_masses(drafter, names, temperature):
    sampling = params(temperature)
    made = DRAFTERS[drafter](truth("llama-gqa", names, sampling))
    drafted = generate("llama-gqa", made, requests(names, sampling), acceptor=Coupled())
    assert texts(drafted) == texts(plain("llama-gqa", names, sampling))


@any_temperature
@pytest.mark.parametrize("family", ["llama-gqa", "gpt2", "gemma3-mixed"])
def test_coupled_acceptance_gives_plain_decodings_text_for_sampled_drafts(family, temperature):
    names, sampling = BATCHES["ragged"], params(temperature, max_new_tokens=24)
    drafted = generate(family, Bigram(), requests(names, sampling), acceptor=Coupled())
    assert texts(drafted) == texts(plain(family, names, sampling))
    assert sum(done.num_drafted for done in drafted) > 0


@every_family
def test_a_model_coupled_with_itself_accepts_all_and_gives_plain_decodings_text(family):
    names, sampling = BATCHES["ragged"], params(1.0, max_new_tokens=FULL_BLOCKS)
    drafter = SelfDraft(tiny_model(family), GAMMA)
    drafted = generate(family, drafter, requests(names, sampling), acceptor=Coupled())
    assert [done.acceptance_rate for done in drafted] == [1.0] * 3
    assert texts(drafted) == texts(plain(family, names, sampling))


# --- log-probabilities ------------------------------------------------------------------------------------------------


@any_temperature
@pytest.mark.parametrize("drafter", ["oracle", "partial-1", "partial-3", "flaky", "tree"])
def test_log_probabilities_are_those_of_plain_decoding_at_every_place(drafter, temperature):
    names, sampling = BATCHES["ragged"], params(temperature, logprobs=True, repetition_penalty=1.3)
    plainly = plain("llama-gqa", names, sampling)
    drafted = generate("llama-gqa", DRAFTERS[drafter](truth("llama-gqa", names, sampling)), requests(names, sampling))
    for done, expected in zip(drafted, plainly, strict=True):
        assert done.logprobs == pytest.approx(expected.logprobs, rel=0, abs=1e-9)
        assert len(done.logprobs) == len(done.token_ids)


def test_log_probabilities_are_the_models_own():
    sampling = params(0.7, logprobs=True, top_k=5)
    done = plain("llama-gqa", ("looping",), sampling)[0]
    ids = [*PROMPTS["looping"], *done.token_ids]
    with torch.inference_mode():
        laws = tiny_model("llama-gqa").module(torch.tensor([ids])).logits[0].log_softmax(dim=-1)
    start = len(PROMPTS["looping"])
    expected = [float(laws[place - 1, ids[place]]) for place in range(start, len(ids))]
    assert done.logprobs == pytest.approx(expected, rel=0, abs=1e-9)


# --- seeds and batches ------------------------------------------------------------------------------------------------


def test_at_temperature_0_the_seed_does_not_matter():
    found = {plain("llama-gqa", ("looping",), params(0.0, seed=seed))[0].token_ids for seed in range(5)}
    assert len(found) == 1


def test_at_temperature_1_the_seed_matters():
    found = {plain("llama-gqa", ("looping",), params(1.0, seed=seed))[0].token_ids for seed in range(10)}
    assert len(found) > 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("drafter", ["ngram-last-pad", "partial-3", "tree"])
def test_text_is_that_of_plain_decoding_for_any_seed(drafter, seed):
    names, sampling = BATCHES["ragged"], params(1.0, seed=seed)
    known = truth("llama-gqa", names, sampling)
    drafted = generate("llama-gqa", DRAFTERS[drafter](known), requests(names, sampling))
    assert texts(drafted) == texts(plain("llama-gqa", names, sampling))


@every_family
@any_temperature
def test_a_row_of_a_batch_is_the_same_request_alone(family, temperature):
    names, sampling = BATCHES["ragged"], params(temperature)
    alone = [plain(family, (name,), sampling)[0].token_ids for name in names]
    assert texts(plain(family, names, sampling)) == alone


def test_the_order_of_a_batch_changes_nothing():
    sampling = params(1.0)
    for names in (("long", "looping", "single"), ("single", "long", "looping")):
        known = truth("llama-gqa", names, sampling)
        drafted = generate("llama-gqa", DRAFTERS["tree"](known), requests(names, sampling))
        assert texts(drafted) == [plain("llama-gqa", (name,), sampling)[0].token_ids for name in names]


def test_rows_with_different_parameters_share_a_batch():
    choices = [params(0.0), params(1.0, seed=3), params(0.7, top_k=5, repetition_penalty=1.4)]
    wanted = [requests((name,), sampling)[0] for name, sampling in zip(PROMPTS, choices, strict=True)]
    alone = [generate("gpt2", NoDraft(), [request])[0].token_ids for request in wanted]
    known = dict(zip(PROMPTS, alone, strict=True))
    for drafter in ("ngram-last-truncate", "partial-3", "tree"):
        assert texts(generate("gpt2", DRAFTERS[drafter](known), wanted)) == alone


def test_two_samples_of_one_prompt_differ_and_each_is_its_own_plain_text():
    wanted = [replace(requests(("looping",), params(1.0))[0], sample_index=index) for index in range(3)]
    alone = [generate("llama-gqa", NoDraft(), [request])[0].token_ids for request in wanted]
    assert len(set(alone)) == 3
    assert texts(generate("llama-gqa", DRAFTERS["ngram-last-pad"]({}), wanted)) == alone
