"""Block verification: the law of whole texts is the target's, and blocks are accepted as far as theory says.

The null hypothesis, the test and the bound are stated in ``ring.py``; each line with ``follows_the_target`` is one
statistical test.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from ring import FEWER, World, follows_the_target, p_value, refutes
from test_control_laws import EndsOnDoubt
from test_model_drafts import EQUAL, NARROW, drafter
from test_same_text import TARGET, batch, ends, generate
from torch import Tensor
from toys import TreeDrafter, same_everywhere
from worlds import (
    CHAIN,
    DRAFT,
    OTHER,
    POINT_CHAIN,
    POINT_FIRST,
    POINT_TREE,
    THIRD,
    THREE_LAWS,
    TWO_A_LEVEL,
    WIDE,
    WIDE_DRAFT,
    WORLD,
)

from quasar.acceptors import block
from quasar.acceptors.block import BlockVerification
from quasar.acceptors.stochastic import Stochastic
from quasar.core.context import Context, Row, TokenView
from quasar.core.distributions import residual
from quasar.core.streams import Streams
from quasar.core.types import Draft, Verification
from quasar.drafters.bigram import Bigram
from quasar.drafters.none import NoDraft

BLOCKS, WIDE_BLOCKS = replace(WORLD, acceptor=BlockVerification()), replace(WIDE, acceptor=BlockVerification())

test_chain = follows_the_target(TreeDrafter([DRAFT], CHAIN), BLOCKS, FEWER)
test_chain_after_some_texts_only = follows_the_target(TreeDrafter([WIDE_DRAFT], CHAIN, ragged=True), WIDE_BLOCKS, FEWER)
test_chain_that_ends_after_a_doubtful_token = follows_the_target(EndsOnDoubt([DRAFT], CHAIN), BLOCKS, FEWER)
test_bigram = follows_the_target(Bigram(), BLOCKS, 3000)
test_draft_model = follows_the_target(drafter(NARROW, num_speculative_tokens=3), BLOCKS, FEWER)
test_two_draws_a_level = follows_the_target(TreeDrafter([WIDE_DRAFT], TWO_A_LEVEL), WIDE_BLOCKS, FEWER)
test_three_laws = follows_the_target(TreeDrafter([DRAFT, OTHER, THIRD], THREE_LAWS), BLOCKS, FEWER)
test_point_masses_among_samples = follows_the_target(TreeDrafter([DRAFT], POINT_FIRST, ragged=True), BLOCKS, FEWER)
test_chains_that_meet = follows_the_target(drafter(EQUAL, num_speculative_tokens=3, num_drafts=3), WIDE_BLOCKS, FEWER)
test_tree_of_a_model_that_ends_in_doubt = follows_the_target(
    drafter(EQUAL, expansion=(1, 1, 2), min_confidence=0.5), WIDE_BLOCKS, FEWER
)


# --- the same text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twigs", [POINT_CHAIN, POINT_TREE])
def test_point_masses_leave_plain_decodings_text_at_any_temperature(twigs):
    warm = batch(1.0, samples=20)
    assert ends(generate(TreeDrafter([DRAFT], twigs), warm, BlockVerification())) == ends(generate(NoDraft(), warm))


@pytest.mark.parametrize("twigs", [CHAIN, TWO_A_LEVEL, POINT_FIRST])
def test_at_temperature_0_the_text_is_plain_decodings(twigs):
    cold = batch(0.0, samples=1)
    assert ends(generate(TreeDrafter([DRAFT], twigs), cold, BlockVerification())) == ends(generate(NoDraft(), cold))


def test_texts_do_not_depend_on_what_else_is_in_the_batch():
    wanted, made = batch(1.0, samples=5), TreeDrafter([DRAFT], POINT_FIRST, ragged=True)
    together = ends(generate(made, wanted, BlockVerification()))
    assert together == [ends(generate(made, [each], BlockVerification()))[0] for each in wanted]


# --- how much is accepted ---------------------------------------------------------------------------------------------


def mean_accepted(acceptor, target: Tensor, drafted: Tensor, tests: int = 10_000) -> float:
    """Mean accepted length of chains that are drawn from ``drafted``.

    Args:
        acceptor: judges them.
        target: laws after the committed text and after every draft token. ``[length + 1, vocab]``
        drafted: laws of the draft tokens. ``[length, vocab]``
        tests: how many.
    """
    chains = torch.multinomial(drafted, tests, replacement=True, generator=torch.Generator().manual_seed(0)).T
    draft = Draft.chains(chains.tolist(), drafted.expand(tests, -1, -1))
    rows = tuple(Row(TokenView([0]), 1, "toy", number, WORLD.sampling) for number in range(tests))
    context = Context(rows, Streams([(0, "toy", number) for number in range(tests)]))
    found = acceptor.accept(Verification(draft, target.expand(tests, -1, -1)), context)
    return float(found.num_accepted.double().mean())


def expected(target: Tensor, drafted: Tensor) -> tuple[float, float]:
    """Exact means, from the definitions: token by token, and in blocks."""
    by_token = by_block = 0.0
    for size in range(1, len(drafted) + 1):
        for chain in product(range(target.shape[-1]), repeat=size):
            probability = kept = weight = 1.0
            for place, token in enumerate(chain):
                p, q = float(target[place, token]), float(drafted[place, token])
                probability, kept, weight = probability * q, kept * min(1, p / q), min(1, weight * p / q)
            by_token += probability * kept
            by_block += probability * weight
    return by_token, by_block


def test_the_example_of_the_paper():
    """Two tokens, (1/3, 2/3) drafted by (2/3, 1/3): 10/9 tokens of two are accepted one by one, 11/9 in blocks."""
    target, drafted = torch.tensor([[1 / 3, 2 / 3]] * 3), torch.tensor([[2 / 3, 1 / 3]] * 2)
    assert expected(target, drafted) == pytest.approx((10 / 9, 11 / 9))
    assert mean_accepted(Stochastic(), target, drafted) == pytest.approx(10 / 9, abs=0.03)
    assert mean_accepted(BlockVerification(), target, drafted) == pytest.approx(11 / 9, abs=0.03)


def test_blocks_are_accepted_as_far_as_their_weights_say():
    laws = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    by_token, by_block = expected(laws[:4], laws[4:])
    assert by_token + 0.1 < by_block
    assert mean_accepted(Stochastic(), laws[:4], laws[4:]) == pytest.approx(by_token, abs=0.04)
    assert mean_accepted(BlockVerification(), laws[:4], laws[4:]) == pytest.approx(by_block, abs=0.04)


def test_drafts_of_the_target_itself_are_accepted_whole():
    wanted = batch(1.0, samples=20, ignore_eos=True, max_new_tokens=9)
    done = generate(TreeDrafter([TARGET], CHAIN), wanted, BlockVerification())
    assert {one.acceptance_length for one in done} == {4.0}


# --- negative controls ------------------------------------------------------------------------------------------------


def without_weights(weight, law, drafted):
    """The residual and the rest of the ratio test."""
    return block_rest(torch.ones_like(weight), law, drafted)


def keeps_its_weight(weight, law, drafted):
    """A parent is as likely after a rejection as before."""
    return weight, residual(weight[:, None] * law, drafted)


def forgets_the_path(weight, target_prob, draft_prob):
    """A node's own ratio, whatever its parent's was."""
    return (target_prob / draft_prob).clamp_max(1)


def without_a_limit(weight, target_prob, draft_prob):
    """What a likely token made up for is not forgotten: the product of the ratios along the path."""
    return weight * target_prob / draft_prob


block_rest = block.rejected_trial
MISTAKES = {
    "the residual has no weight": ("rejected_trial", without_weights),
    "the weight stays": ("rejected_trial", keeps_its_weight),
    "the path is forgotten": ("entered", forgets_the_path),
    "weights above 1": ("entered", without_a_limit),
}


OPPOSITES = World(same_everywhere((1 / 3, 2 / 3)), acceptor=BlockVerification())
AGAINST = TreeDrafter([same_everywhere((2 / 3, 1 / 3))], CHAIN)

test_opposite_laws = follows_the_target(AGAINST, OPPOSITES, FEWER)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_weight_is_caught(name, monkeypatch):
    monkeypatch.setattr(block, *MISTAKES[name])
    assert refutes(p_value(AGAINST, OPPOSITES, FEWER))
