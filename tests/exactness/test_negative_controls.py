"""Faults that the exactness ring must catch, each built on purpose: p must fall below the ring's own bound.

Where the literature or our own runs know the biased law of a fault, the test also finds those numbers. A cache fault is
among the session's tests (``tests/core/test_session.py``), where the identity test must catch it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from ring import BOUND, SAMPLES, TARGET, WORLD, World, chi_square, follows_the_target, marginal, p_value
from test_whole_text_law import CHAIN, DRAFT, OTHER, THREE_LAWS, TWO_A_LEVEL, WIDE, WIDE_DRAFT
from toys import (
    NestedPipeline,
    TableVerifier,
    TreeDrafter,
    Twig,
    WithoutReplacement,
    point,
    requests,
    same_everywhere,
    texts,
)
from torch import Tensor

from quasar.acceptors.stochastic import Stochastic
from quasar.core import rules
from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams, draw, uniforms
from quasar.core.types import Draft
from quasar.drafters.none import NoDraft

SHORT = SamplingParams(temperature=1.0, max_new_tokens=3)
TWO_TOKENS = (Twig(0), Twig(1))


def refutes(p: float) -> bool:
    """Whether the ring would have failed."""
    print(f"p = {p:.3g}")
    return p < BOUND


def second_token(drafter: Drafter, law: Sequence[float]) -> tuple[float, list[float]]:
    """p-value and law of the first drafted token, where the target gives one law everywhere."""
    world = World(same_everywhere(law), sampling=SHORT)
    found = world.sample(drafter, Stochastic(), SAMPLES)
    return chi_square(found, world.text_laws()), marginal(found, 1, world.vocab)


# Keys that are used twice.

SKEWED = (0.40, 0.35, 0.05, 0.20)
SKEWED_DRAFT = same_everywhere((0.1, 0.2, 0.3, 0.4))


class DrawsFromTheAcceptTest(TreeDrafter):
    """Draws a token by inverse CDF from the number that the accept test will use."""

    def pick(self, context: Context, law: Tensor, index: int, committed: Tensor) -> Tensor:
        numbers = torch.full((context.batch, 1), index)
        uniform = uniforms(context.streams.own("accept", numbers, committed, context.level))
        return (law.double().cumsum(dim=1) < uniform).sum(dim=1).clamp_max(law.shape[1] - 1)


class DrawsFromTheResidual(TreeDrafter):
    """Draws a token with the noise that the residual will be drawn with."""

    def pick(self, context: Context, law: Tensor, index: int, committed: Tensor) -> Tensor:
        return draw(law, context.streams.own("next", torch.full((context.batch, 1), index), committed)[:, 0])


def test_a_uniform_shared_by_draft_and_accept_test_is_caught():
    p, law = second_token(DrawsFromTheAcceptTest([SKEWED_DRAFT], [Twig(0)]), SKEWED)
    assert refutes(p)
    assert law == pytest.approx([0.567, 0.433, 0.0, 0.0], abs=0.015)


def test_a_uniform_shared_by_draft_and_accept_test_is_caught_in_longer_drafts():
    assert refutes(p_value(DrawsFromTheAcceptTest([DRAFT], CHAIN)))


def test_noise_shared_by_draft_and_residual_is_caught():
    p, law = second_token(DrawsFromTheResidual([SKEWED_DRAFT], [Twig(0)]), SKEWED)
    assert refutes(p)
    assert law == pytest.approx([0.435, 0.314, 0.051, 0.200], abs=0.015)


Own = Callable[..., Tensor]


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Callable[[Own], None]:
    """Replace ``Streams.own``; the new one gets the old one first."""
    original = Streams.own

    def use(broken: Own) -> None:
        monkeypatch.setattr(Streams, "own", lambda self, *key, **more: broken(original, self, *key, **more))

    return use


def test_a_target_key_shared_by_draft_and_target_draw_is_caught(streams):
    def shared(own, self, purpose, nodes, committed, level=0):
        position = committed[:, None] + nodes
        return own(self, purpose, nodes, committed, level) if purpose == "accept" else self.target(position)

    streams(shared)
    p, law = second_token(TreeDrafter([SKEWED_DRAFT], [Twig(0)]), SKEWED)
    assert refutes(p)
    assert law == pytest.approx([0.435, 0.314, 0.051, 0.200], abs=0.015)


def test_keys_without_their_purpose_are_caught(streams):
    streams(lambda own, self, purpose, nodes, committed, level=0: own(self, "any", nodes, committed, level))
    assert refutes(p_value(TreeDrafter([DRAFT], TWO_TOKENS)))


def test_keys_without_the_committed_length_are_caught(streams):
    streams(lambda own, self, purpose, nodes, committed, level=0: own(self, purpose, nodes, committed * 0, level))
    assert refutes(p_value(TreeDrafter([DRAFT], TWO_TOKENS)))


def test_keys_without_the_node_are_caught(streams):
    streams(lambda own, self, purpose, nodes, committed, level=0: own(self, purpose, nodes * 0, committed, level))
    assert refutes(p_value(TreeDrafter([DRAFT], CHAIN)))


def test_keys_without_the_level_are_caught(streams):
    streams(lambda own, self, purpose, nodes, committed, level=0: own(self, purpose, nodes, committed, 0))
    inner = TreeDrafter([DRAFT], TWO_TOKENS)
    assert refutes(p_value(NestedPipeline(inner, TableVerifier(OTHER), length=2)))


def test_target_keys_without_the_position_are_caught(monkeypatch):
    target = Streams.target
    monkeypatch.setattr(Streams, "target", lambda self, positions: target(self, positions * 0))
    assert refutes(p_value(NoDraft()))


# Siblings.


class DropsThePointMassOfAMergedNode(TreeDrafter):
    """A sampled child that equals its point-mass sibling takes its place and keeps its own law."""

    def finish(self, draft: Draft) -> Draft:
        nodes = draft.trials.nodes.clone()
        nodes[nodes[:, 0] == nodes[:, 1], 0] = 0
        return replace(draft, trials=replace(draft.trials, nodes=nodes))


class DropsRepeatedTrials(TreeDrafter):
    """Two draws that came out equal are tried once."""

    def finish(self, draft: Draft) -> Draft:
        nodes = draft.trials.nodes
        repeated = torch.stack([(nodes[:, :k] == nodes[:, k : k + 1]).any(dim=1) for k in range(nodes.shape[1])], dim=1)
        return replace(draft, trials=replace(draft.trials, nodes=nodes.masked_fill(repeated, 0)))


class SwapsTheLawsOfSiblings(TreeDrafter):
    """The residual is taken with the law of the other sibling."""

    def finish(self, draft: Draft) -> Draft:
        laws = draft.trials.laws.clone()
        laws[:, :2] = laws[:, :2].flip(1)
        return replace(draft, trials=replace(draft.trials, laws=laws))


def reordered(draft: Draft, order: Tensor) -> Draft:
    """The same draft with its trials in another order. ``order`` ``[batch, trials]``"""
    trials = draft.trials
    return replace(draft, trials=replace(trials, nodes=trials.nodes.gather(1, order), laws=trials.laws.gather(1, order)))


class TriesBackwards(WithoutReplacement):
    """The last sibling first, although its law depends on the others' draws."""

    def finish(self, draft: Draft) -> Draft:
        count = draft.trials.nodes.shape[1]
        return reordered(draft, torch.arange(count - 1, -1, -1).expand(draft.batch, count))


class TriesTheLikeliestFirst(TreeDrafter):
    """Siblings in the order of the probability of what they drew."""

    def finish(self, draft: Draft) -> Draft:
        tokens = draft.token_ids.gather(1, (draft.trials.nodes - 1).clamp_min(0))
        likely = draft.trials.table.gather(2, tokens[:, :, None])[:, :, 0]
        return reordered(draft, likely.argsort(dim=1, descending=True))


SIBLINGS = (Twig(0), Twig(0))


def test_a_sampled_child_merged_into_a_point_mass_is_caught():
    law = (0.5, 0.3, 0.2)
    drafter = DropsThePointMassOfAMergedNode([same_everywhere((0.7, 0.25, 0.05))], (point(0, rank=2), Twig(0)))
    p, found = second_token(drafter, law)
    assert refutes(p)
    assert found == pytest.approx([0.5, 0.26, 0.24], abs=0.015)


def test_a_dropped_multiplicity_is_caught():
    assert refutes(p_value(DropsRepeatedTrials([WIDE_DRAFT], SIBLINGS), WIDE))


def test_laws_of_siblings_swapped_are_caught():
    assert refutes(p_value(SwapsTheLawsOfSiblings([DRAFT, OTHER], THREE_LAWS[:2])))


def test_siblings_without_replacement_tried_backwards_are_caught():
    assert refutes(p_value(TriesBackwards([WIDE_DRAFT], SIBLINGS), WIDE))


def test_siblings_tried_in_the_order_of_their_draws_are_caught():
    assert refutes(p_value(TriesTheLikeliestFirst([WIDE_DRAFT], SIBLINGS), WIDE))


def test_a_residual_that_is_not_updated_is_caught(monkeypatch):
    monkeypatch.setattr(rules, "residual", lambda target, draft: target)
    assert refutes(p_value(TreeDrafter([DRAFT], SIBLINGS)))


# Laws that the tokens were not drawn from.


@dataclass(frozen=True)
class Temperature:
    """A processor."""

    temperature: float
    needs_prefix = False

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        return logits / self.temperature


COLD = replace(
    WORLD,
    processors=(Temperature(0.5),),
    law=lambda prefix, logits: (logits.double() / 0.5).softmax(dim=-1),
)


class StatesTheRawLaw(TreeDrafter):
    """Samples after the processors, returns the law from before them."""

    def stated_law(self, law: Tensor, context: Context, drawn: Draft, parent: Tensor, twig: Twig) -> Tensor:
        raw = law.sqrt()  # at temperature 0.5 the law is the raw one squared
        return raw / raw.sum(dim=1, keepdim=True)


class SamplesTheTopTwo(TreeDrafter):
    """Samples from the two most likely tokens, returns the law from before the cut."""

    def pick(self, context: Context, law: Tensor, index: int, committed: Tensor) -> Tensor:
        cut = law * (law >= law.topk(2, dim=1).values[:, 1:])
        return super().pick(context, cut, index, committed)


class Greedy(TreeDrafter):
    """Takes the most likely token, claims to have drawn it."""

    def pick(self, context: Context, law: Tensor, index: int, committed: Tensor) -> Tensor:
        return law.argmax(dim=1)


test_sampling_and_stating_after_the_processors_is_sound = follows_the_target(TreeDrafter([DRAFT], CHAIN), COLD)


def test_a_law_from_before_the_temperature_is_caught():
    assert refutes(p_value(StatesTheRawLaw([DRAFT], CHAIN), COLD))


def test_a_law_from_before_top_k_is_caught():
    assert refutes(p_value(SamplesTheTopTwo([WIDE_DRAFT], CHAIN), WIDE))


def test_a_greedy_draft_that_claims_a_soft_law_is_caught():
    assert refutes(p_value(Greedy([DRAFT], CHAIN)))


# Levels.


class TruncatingLevel(Drafter):
    """Verifies the drafts of a first drafter, hands on the accepted ones and keeps that drafter's laws."""

    name = "truncating"
    law = "sampled"

    def __init__(self, drafter: TreeDrafter, verifier: TableVerifier) -> None:
        super().__init__()
        self.drafter, self.verifier = drafter, verifier

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        inner = Context(context.rows, context.streams, context.level + 1)
        draft = self.drafter.propose(inner, budget)
        accepted = rules.accept_exactly(self.verifier.verify(inner, draft), inner).num_accepted
        nodes = draft.trials.nodes
        trials = replace(draft.trials, nodes=torch.where(nodes <= accepted[:, None], nodes, 0))
        return replace(draft, num_nodes=accepted, trials=trials)


TRUNCATING = TruncatingLevel(TreeDrafter([DRAFT], CHAIN), TableVerifier(OTHER))


def test_a_level_that_truncates_and_keeps_the_first_law_is_caught():
    assert refutes(p_value(TRUNCATING))


def test_a_level_that_truncates_cannot_be_seen_at_temperature_0():
    cold = SamplingParams(temperature=0.0, max_new_tokens=12)
    batch = [request for a in range(3) for b in range(3) for request in requests([0], cold, prompt=(a, b))]
    plain = texts(NoDraft(), TableVerifier(TARGET), Stochastic(), batch, eos=None)
    assert texts(TRUNCATING, TableVerifier(TARGET), Stochastic(), batch, eos=None) == plain


# Drafts that depend on their own draws.


class DropsAToken(TreeDrafter):
    """Does not draft token 0 if that is what was drawn."""

    def finish(self, draft: Draft) -> Draft:
        drop = (draft.num_nodes > 0) & (draft.token_ids[:, 0] == 0)
        trials = replace(draft.trials, nodes=draft.trials.nodes.masked_fill(drop[:, None], 0))
        return replace(draft, num_nodes=draft.num_nodes.masked_fill(drop, 0), trials=trials)


class EndsOnDoubt(TreeDrafter):
    """A chain that ends at the first token of small probability, which is kept."""

    kept = 1

    def finish(self, draft: Draft) -> Draft:
        trials, batch = draft.trials, draft.batch
        likely = trials.table.gather(2, draft.token_ids[:, :, None])[:, :, 0]  # [batch, nodes]
        doubtful = torch.cat([likely < 0.3, torch.ones((batch, 1), dtype=torch.bool)], dim=1)
        ends = doubtful.to(torch.int8).argmax(dim=1) + self.kept
        num_nodes = torch.minimum(draft.num_nodes, ends)
        nodes = torch.where(trials.nodes <= num_nodes[:, None], trials.nodes, 0)
        return replace(draft, num_nodes=num_nodes, trials=replace(trials, nodes=nodes))


class DropsTheDoubtful(EndsOnDoubt):
    """Ends before the token of small probability instead."""

    kept = 0


test_ending_a_chain_after_a_doubtful_token_is_sound = follows_the_target(EndsOnDoubt([DRAFT], CHAIN))


def test_a_node_dropped_because_of_its_own_draw_is_caught():
    p, law = second_token(DropsAToken([same_everywhere((0.2, 0.4, 0.4))], [Twig(0)]), (0.5, 0.3, 0.2))
    assert refutes(p)
    assert law == pytest.approx([0.40, 0.36, 0.24], abs=0.015)


def test_ending_a_chain_before_a_doubtful_token_is_caught():
    assert refutes(p_value(DropsTheDoubtful([DRAFT], CHAIN)))


def test_the_chi_square_refuses_a_text_that_cannot_occur():
    assert chi_square([(0,)] * 50 + [(1,)], {(0,): 1.0, (1,): 0.0}) == 0.0


def test_texts_of_the_wrong_law_are_caught_and_of_the_right_one_are_not():
    wrong = replace(WORLD, table=OTHER)
    observed = WORLD.sample(NoDraft(), Stochastic(), SAMPLES)
    assert refutes(chi_square(observed, wrong.text_laws()))
    assert not refutes(chi_square(observed, WORLD.text_laws()))


def test_the_enumerated_laws_sum_to_1():
    assert sum(WORLD.text_laws().values()) == pytest.approx(1.0, abs=1e-12)
    assert set(WIDE.text_laws()) == {(a, b, c, d) for a in range(4) for b in range(4) for c in range(4) for d in range(4)}


def test_two_levels_of_siblings_do_share_nodes():
    """The ring would not test merging if draws never came out equal."""
    batch = Context(tuple(), Streams(()))
    assert batch.batch == 0
    drafter, seen = TreeDrafter([WIDE_DRAFT], TWO_A_LEVEL), []
    drafter.finish = lambda draft: seen.append(draft) or draft
    WIDE.sample(drafter, Stochastic(), 200)
    shared = [(draft.trials.nodes > 0).sum(dim=1) > draft.num_nodes for draft in seen]
    assert torch.cat(shared).float().mean() > 0.1
