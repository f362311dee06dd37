"""The random numbers of an acceptor: its own for tests and for what is left, the target's for what plain decoding draws."""

from __future__ import annotations

import torch

from quasar.acceptors.rules import sample_and_compare
from quasar.core.context import Context
from quasar.core.rows import Row, TokenView
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams, uniforms
from quasar.core.types import Draft

BATCH, VOCAB = 400, 7


def context(**more):
    sampling = SamplingParams(temperature=1.0)
    rows = tuple(Row(TokenView([1, 2, 3][: 1 + i % 3]), 1, str(i), 0, sampling) for i in range(BATCH))
    return Context(rows, Streams([(0, row.prompt_id, 0) for row in rows]), **more)


def logits():
    return torch.randn((BATCH, 1, VOCAB), generator=torch.Generator().manual_seed(0))


def test_tests_have_as_many_numbers_as_were_asked_for_and_every_call_begins_with_the_same_ones():
    place = context()
    assert place.accept_uniforms(5).shape == (BATCH, 5)
    assert torch.equal(place.accept_uniforms(5)[:, :2], place.accept_uniforms(2))
    assert len(place.accept_uniforms(5).unique()) == 5 * BATCH


def test_no_draft_and_no_inner_level_draws_with_the_numbers_of_the_tests():
    numbers, depths = torch.arange(5).expand(BATCH, 5), torch.arange(5)
    for other in (context(), context(coupled=True)):
        drawn = uniforms(other.draft_keys(numbers, depths))
        assert not set(drawn.flatten().tolist()) & set(context().accept_uniforms(5).flatten().tolist())
    assert not (context(level=1).accept_uniforms(5) == context().accept_uniforms(5)).any()


def test_the_targets_draw_is_that_of_plain_decoding():
    place, nothing = context(), Draft.empty(BATCH)
    verification = place.verification_of(nothing, logits())
    plain = sample_and_compare(verification, place).next_token
    zero = torch.zeros(BATCH, dtype=torch.int64)
    assert torch.equal(place.draw_target(verification.probs[:, 0], zero), plain)
    assert not torch.equal(place.draw_target(verification.probs[:, 0], zero + 1), plain)
    assert not torch.equal(place.draw_next(verification.probs[:, 0], zero), plain)


def test_what_is_left_is_drawn_anew_for_every_slot():
    probs, zero = logits()[:, 0].softmax(dim=-1), torch.zeros(BATCH, dtype=torch.int64)
    draws = [context().draw_next(probs, zero + slot) for slot in range(3)]
    assert torch.equal(draws[0], context().draw_next(probs, zero))
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[1], draws[2])


def test_earlier_names_mean_the_same():
    place, nothing = context(), Draft.empty(BATCH)
    assert torch.equal(place.law(logits(), nothing), place.distributions(logits(), nothing))
    assert torch.equal(place.judge(nothing, logits()).probs, place.verification_of(nothing, logits()).probs)
