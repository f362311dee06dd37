"""Every control under every drafter and every acceptor that promises plain decoding's text.

Ids, log-probabilities, finish reason, and the stream of commits equal plain decoding's, in float64. The oracle commits
whole blocks, so a control's interesting token comes to lie at every place of a block, bonus included; ``partial`` puts
it at the correction.
"""

from __future__ import annotations

from functools import cache

import pytest
from doubles import Oracle, Partial, RandomTree, WatchedVerifier
from harness import GAMMA, PROMPTS, params
from tiny_models import VOCAB, tiny_model

from quasar.acceptors.block import BlockVerification
from quasar.acceptors.coupled import Coupled
from quasar.acceptors.greedy import Greedy
from quasar.acceptors.k_seq import KSeq
from quasar.acceptors.relaxed import Relaxed
from quasar.acceptors.stochastic import Stochastic
from quasar.acceptors.top_k_ratio import TopKRatio
from quasar.acceptors.typical import Typical
from quasar.core.engine import Engine, Request
from quasar.drafters.bigram import Bigram
from quasar.drafters.ngram import Ngram
from quasar.drafters.none import NoDraft
from quasar.hf.processors import build_processors

FAMILY = "llama-gqa"
NAMES = tuple(PROMPTS)

CONTROLS = {
    "nothing": {},
    "repetition penalty": {"repetition_penalty": 1.4},
    "presence and frequency": {"presence_penalty": 1.2, "frequency_penalty": 0.7},
    "logit bias": {"logit_bias": tuple((token, 1.5) for token in range(0, VOCAB, 4))},
    "banned": {"suppress_tokens": tuple(range(0, VOCAB, 3)), "bad_words_ids": ((4, 7), (5,))},
    "no bigram twice": {"no_repeat_ngram_size": 2},
    "min new tokens": {"min_new_tokens": 7},
    "stop ids": {"stop_token_ids": tuple(range(0, VOCAB, 9))},
    "stop string": {"stop": ("b", "kz")},
    "budget": {"max_new_tokens": 6},
}

DRAFTERS = {
    "oracle": lambda known: Oracle(known, GAMMA),
    "partial": lambda known: Partial(known, GAMMA, 2),
    "tree": lambda known: RandomTree(known, 8),
    "ngram": lambda _: Ngram(),
    "bigram": lambda _: Bigram(),
}

HOT = {
    "stochastic": Stochastic(),
    "block": BlockVerification(),
    "k_seq": KSeq(),
    "coupled": Coupled(),
    "relaxed 1": Relaxed(Relaxed.Config(weight=1.0)),
}
COLD = HOT | {
    "greedy": Greedy(),
    "typical": Typical(),
    "top 1": TopKRatio(TopKRatio.Config(top_k=1)),
    "ratio 1": TopKRatio(TopKRatio.Config(ratio=1.0)),
}


def letters(ids) -> str:
    return "".join(chr(ord("a") + token % 26) for token in ids)


def run(drafter, acceptor, sampling):
    """What is returned, and what was streamed."""
    eos = (13, 44)
    requests = [
        Request(PROMPTS[name], sampling, name, 0, build_processors(sampling, len(PROMPTS[name]), eos)) for name in NAMES
    ]
    streamed = [[] for _ in requests]
    engine = Engine(drafter, WatchedVerifier(tiny_model(FAMILY)), acceptor, eos_ids=eos, decode=letters)
    done = engine.generate(requests, lambda row, ids: streamed[row].extend(ids))
    assert [tuple(ids) for ids in streamed] == [one.token_ids for one in done]
    assert all(len(one.logprobs) == len(one.token_ids) for one in done)
    return done


@cache
def plain(temperature: float, control: str):
    return run(NoDraft(), Stochastic(), params(temperature, logprobs=True, **CONTROLS[control]))


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(
    ("temperature", "acceptor"),
    [(0.0, name) for name in COLD] + [(1.0, name) for name in HOT],
    ids=lambda value: str(value),
)
def test_outcome_is_plain_decoding_s(temperature, acceptor, drafter, control):
    if drafter == "bigram" and temperature > 0 and acceptor != "coupled":
        pytest.skip("sampled drafts under the ratio test follow the law, not the text")
    expected = plain(temperature, control)
    known = {name: one.token_ids for name, one in zip(NAMES, expected, strict=True)}
    sampling = params(temperature, logprobs=True, **CONTROLS[control])
    done = run(DRAFTERS[drafter](known), COLD[acceptor], sampling)
    for one, other in zip(done, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.finish_reason == other.finish_reason
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-9)


def test_the_controls_end_texts_in_every_way():
    # guards the test above
    reasons = {one.finish_reason for control in CONTROLS for one in plain(1.0, control)}
    assert reasons == {"eos", "stop", "length"}


@pytest.mark.parametrize(
    ("temperature", "control"),
    [
        (temperature, control)
        for temperature in (0.0, 1.0)
        for control in CONTROLS
        if control not in ("nothing", "budget", "min new tokens")
        and (temperature, control) != (1.0, "no bigram twice")  # random texts of this length have none
    ],
)
def test_each_control_changes_the_text(temperature, control):
    # guards the test above
    texts = [[one.token_ids for one in plain(temperature, name)] for name in ("nothing", control)]
    assert texts[0] != texts[1]


def test_log_probabilities_are_the_model_s_own_before_every_processor():
    import torch

    done = plain(0.0, "repetition penalty")[0]
    ids = [*PROMPTS[NAMES[0]], *done.token_ids]
    module = tiny_model(FAMILY).module
    logits = module(torch.tensor([ids])).logits[0, len(PROMPTS[NAMES[0]]) - 1 : -1]
    expected = logits.log_softmax(dim=-1)[range(len(done.token_ids)), list(done.token_ids)]
    assert done.logprobs == pytest.approx(expected.tolist(), abs=1e-9)


def test_log_probabilities_cost_nothing_unless_asked_for():
    assert run_without()[0].logprobs is None


def run_without():
    sampling = params(0.0)
    request = Request(PROMPTS["single"], sampling, "single")
    return Engine(NoDraft(), WatchedVerifier(tiny_model(FAMILY)), Stochastic()).generate([request])
