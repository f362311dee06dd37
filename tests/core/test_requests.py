"""Running requests: what commit does to one, and what the records of a batch say."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from quasar.acceptors.stochastic import Stochastic
from quasar.core.engine import Engine, Request
from quasar.core.requests import RunningRequest
from quasar.core.sampling import SamplingParams
from quasar.core.stopping import NewTokens, StopRule
from quasar.core.types import Draft, Verification
from quasar.drafters.ngram import Ngram
from quasar.testing import TinyModels
from quasar.verifiers.full import Full

EOS, VOCAB = 9, 10


def running(**sampling) -> RunningRequest:
    params = SamplingParams(**sampling)
    return RunningRequest(Request([1, 2, 3], params), StopRule(params, [EOS], 3, None, None))


def new(*token_ids: int, probs: torch.Tensor | None = None) -> NewTokens:
    """A chain of which everything was accepted."""
    draft = Draft.chains([token_ids[:-1]])
    probs = torch.full((1, len(token_ids), VOCAB), 1 / VOCAB) if probs is None else probs
    return NewTokens(0, list(token_ids), list(range(len(token_ids))), Verification(draft, probs))


def test_what_is_kept_is_appended_to_the_list_that_components_see():
    request = running(max_new_tokens=4)
    ids = request.token_ids
    assert request.budget == 3
    assert request.commit(new(4, 5)).token_ids == [4, 5]
    assert (request.output, request.budget, request.finish_reason) == ([4, 5], 1, None)
    kept = request.commit(new(6, EOS, 7))
    assert (kept.token_ids, kept.slots) == ([6, EOS], [0, 1])
    assert (request.output, request.budget, request.finish_reason) == ([4, 5, 6, EOS], 0, "eos")
    assert ids == [1, 2, 3, 4, 5, 6, EOS]


def test_log_probabilities_are_those_of_the_slots_that_tokens_follow():
    probs = torch.arange(1.0, 3 * VOCAB + 1).reshape(1, 3, VOCAB)
    probs /= probs.sum(dim=-1, keepdim=True)
    request = running(logprobs=True)
    request.commit(new(4, EOS, 5, probs=probs))
    assert request.logprobs == pytest.approx([float(probs[0, 0, 4].log()), float(probs[0, 1, EOS].log())])
    assert running().logprobs is None


def test_a_request_begins_anew_behind_another_text():
    request = running(max_new_tokens=2)
    ids = request.token_ids
    request.commit(new(4, 5))
    assert request.finish_reason == "length"
    rule = StopRule(SamplingParams(max_new_tokens=8), [], 1, None, None)
    request.begin([7], rule)
    assert (request.output, request.budget, request.finish_reason) == ([], 7, None)
    assert ids == [7]
    request.begin([7], StopRule(SamplingParams(max_new_tokens=8), [], 1, 1, None))
    assert (request.budget, bool(request.finish_reason)) == (0, True)


def test_a_record_has_the_counts_of_its_request_and_the_seconds_and_positions_of_the_step():
    verifier, seen, ticks = Full(), [], count()
    verifier.load(TinyModels())
    engine = Engine(
        Ngram(), verifier, Stochastic(), on_step=seen.append, clock=lambda: 1.5 * next(ticks)
    )  # fmt: skip
    sizes = (3, 12)
    requests = [Request([1, 2, 1, 2, size % 5, 1], SamplingParams(max_new_tokens=size), str(size)) for size in sizes]
    short, long = engine.generate(requests)
    for done, size in zip((short, long), sizes, strict=True):
        assert sum(step.committed for step in done.steps) == len(done.token_ids) == size
        assert {step.seconds_verify for step in done.steps} == {1.5}
    together = len(short.steps)
    assert together < len(long.steps)
    for one, other in zip(short.steps, long.steps[:together], strict=True):
        assert one.positions_forwarded == other.positions_forwarded >= 2 * (1 + max(one.drafted, other.drafted))
    # a subscriber hears of both requests in turn, then of the one that goes on
    turns = [step for pair in zip(short.steps, long.steps, strict=False) for step in pair]
    assert seen == [*turns, *long.steps[together:]]
