"""K-SEQ: the law of whole texts is the target's, and as many drafts are accepted as the paper says.

The null hypothesis, the test and the bound are stated in ``ring.py``; each line with ``follows_the_target`` is one
statistical test.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ring import FEWER, World, follows_the_target, p_value, refutes
from test_drafters_of_drafters import union
from test_model_drafts import EQUAL, NARROW, drafter
from test_same_text import batch, ends, generate
from toys import TableVerifier, TreeDrafter, Twig, requests, same_everywhere
from worlds import (
    DRAFT,
    OTHER,
    POINT_CHAIN,
    POINT_FIRST,
    POINT_LAST,
    POINT_TREE,
    THIRD,
    THREE_LAWS,
    WIDE,
    WIDE_DRAFT,
    WORLD,
)

from quasar.acceptors import k_seq
from quasar.acceptors.k_seq import KSeq, after_rejection, grouped, smallest_factor
from quasar.acceptors.stochastic import Stochastic
from quasar.core.distributions import residual
from quasar.core.engine import Engine
from quasar.core.sampling import SamplingParams
from quasar.core.types import Draft, Trials
from quasar.drafters.none import NoDraft

GROUPS, WIDE_GROUPS = replace(WORLD, acceptor=KSeq()), replace(WIDE, acceptor=KSeq())

test_one_chain = follows_the_target(drafter(NARROW, num_speculative_tokens=3), GROUPS, FEWER)
test_three_chains = follows_the_target(drafter(EQUAL, num_speculative_tokens=3, num_drafts=3), WIDE_GROUPS)
test_tree = follows_the_target(drafter(EQUAL, expansion=(3, 2)), WIDE_GROUPS)
test_tree_that_ends_in_doubt = follows_the_target(drafter(EQUAL, expansion=(1, 3), min_confidence=0.5), WIDE_GROUPS)
test_three_laws = follows_the_target(TreeDrafter([DRAFT, OTHER, THIRD], THREE_LAWS), GROUPS, FEWER)
test_point_masses_among_samples = follows_the_target(TreeDrafter([DRAFT], POINT_FIRST, ragged=True), GROUPS, FEWER)
test_samples_before_point_masses = follows_the_target(TreeDrafter([DRAFT], POINT_LAST), GROUPS, FEWER)
test_chains_of_two_models = follows_the_target(
    union(
        drafter(EQUAL, num_speculative_tokens=2, num_drafts=2), TreeDrafter([WIDE_DRAFT], [Twig(0)]),
        drafter(EQUAL.flip(0), num_drafts=3, num_speculative_tokens=1), order="breadth", max_nodes=8,
    ),
    WIDE_GROUPS,
    FEWER,
)  # fmt: skip


# --- the rule itself --------------------------------------------------------------------------------------------------

laws = st.lists(st.floats(0.001, 1), min_size=4, max_size=4).map(
    lambda weights: torch.tensor([weights], dtype=torch.float64) / sum(weights)
)


@given(target=laws, drafted=laws, count=st.integers(1, 6))
@settings(deadline=None)
def test_tests_and_residual_together_give_the_target(target, drafted, count):
    k = torch.tensor([float(count)], dtype=torch.float64)
    factor = smallest_factor(target, drafted, k)
    assert 1 <= float(factor) <= count
    single = torch.minimum(drafted, target / factor)
    beta = single.sum()
    accepted = 1 - (1 - beta) ** count
    rest = after_rejection(target, drafted, factor, k)
    torch.testing.assert_close(accepted * single / beta + (1 - accepted) * rest, target, atol=1e-9, rtol=0)
    assert float(accepted) <= float(factor * beta) + 1e-9  # and only just, unless ρ is 1
    assert count == 1 or float(factor) < 1 + 1e-9 or float(factor * beta - accepted) < 1e-6


def test_the_trials_of_one_law_after_one_slot_are_a_group():
    draft = Draft(torch.tensor([[1, 2, 3, 1]]), torch.tensor([[0, 0, 1, 1]]), torch.tensor([4]))
    nodes, sources = torch.tensor([[1, 2, 2, 1, 3, 4, 3, 0]]), torch.tensor([[0, 1, 0, -1, 2, 3, 2, -1]])
    trials, sizes, last = grouped(draft, Trials(nodes, sources, torch.ones(1, 4, 5)))
    assert trials.nodes.tolist() == [[1, 2, 2, 1, 3, 3, 4, 0]]
    assert trials.sources.tolist() == [[0, 0, 1, -1, 2, 2, 3, -1]]
    assert sizes.tolist() == [[2, 2, 1, 1, 2, 2, 1, 1]]
    assert last.tolist() == [[False, True, True, True, False, True, True, True]]


def test_with_one_draft_it_is_the_ratio_test():
    wanted = batch(1.0, samples=100)
    made = drafter(NARROW, num_speculative_tokens=3)
    assert ends(generate(made, wanted, KSeq())) == ends(generate(made, wanted, Stochastic()))


@pytest.mark.parametrize("twigs", [POINT_CHAIN, POINT_TREE])
def test_point_masses_leave_plain_decodings_text_at_any_temperature(twigs):
    warm = batch(1.0, samples=20)
    assert ends(generate(TreeDrafter([DRAFT], twigs), warm, KSeq())) == ends(generate(NoDraft(), warm))


def test_texts_do_not_depend_on_what_else_is_in_the_batch():
    wanted, made = batch(1.0, samples=8), drafter(NARROW, num_drafts=3)
    together = ends(generate(made, wanted, KSeq()))
    assert together == [ends(generate(made, [each], KSeq()))[0] for each in wanted]


TARGET_LAW, DRAFT_LAW = (0.5, 0.4, 0.1), (0.1, 0.3, 0.6)


def three_drafts():
    return drafter(torch.tensor(DRAFT_LAW).log().expand(3, 3), num_speculative_tokens=1, num_drafts=3)


def test_drafts_are_accepted_as_often_as_the_paper_says():
    target, drafted = (torch.tensor([law], dtype=torch.float64) for law in (TARGET_LAW, DRAFT_LAW))
    factor = smallest_factor(target, drafted, torch.tensor([3.0], dtype=torch.float64))
    expected = 1 - (1 - torch.minimum(drafted, target / factor).sum()) ** 3
    engine = Engine(three_drafts(), TableVerifier(same_everywhere(TARGET_LAW)), KSeq())
    done = engine.generate(requests(range(10_000), SamplingParams(temperature=1.0, max_new_tokens=3)))
    steps = [step for one in done for step in one.decode_steps if step.drafted]
    rate = sum(step.accepted for step in steps) / len(steps)
    assert rate == pytest.approx(float(expected), abs=4 * 0.5 / len(steps) ** 0.5)


# --- negative controls ------------------------------------------------------------------------------------------------


def shares(monkeypatch, **changed):
    """p-value of the second token's law with K-SEQ changed."""
    for name, replacement in changed.items():
        monkeypatch.setattr(k_seq, name, replacement)
    sampling = SamplingParams(temperature=1.0, max_new_tokens=3)
    return p_value(three_drafts(), World(same_everywhere(TARGET_LAW), sampling=sampling, acceptor=KSeq()))


def test_the_sound_rule_is_not_caught(monkeypatch):
    assert not refutes(shares(monkeypatch))


def test_a_residual_for_one_draft_is_caught(monkeypatch):
    assert refutes(shares(monkeypatch, after_rejection=lambda target, drafted, *_: residual(target, drafted)))


def test_a_factor_of_1_is_caught(monkeypatch):
    assert refutes(shares(monkeypatch, smallest_factor=lambda target, drafted, count: torch.ones_like(count)))


def test_a_residual_after_every_draft_is_caught(monkeypatch):
    def every(draft, trials):
        ordered, sizes, last = grouped(draft, trials)
        return ordered, sizes, torch.ones_like(last)

    assert refutes(shares(monkeypatch, grouped=every))
