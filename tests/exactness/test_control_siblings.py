"""Negative controls: siblings that are merged, reordered or tested with the wrong law. The chi-square must see each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ring import FEWER, p_value, refutes, second_token
from torch import Tensor
from toys import (
    TreeDrafter,
    Twig,
    WithoutReplacement,
    point,
    same_everywhere,
)
from worlds import DRAFT, OTHER, SIBLINGS, THREE_LAWS, TWO_A_LEVEL, WIDE, WIDE_DRAFT, WORLD

from quasar.acceptors.rules import exact as rules
from quasar.core.types import Draft


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
        laws = draft.trials.sources.clone()
        laws[:, :2] = laws[:, :2].flip(1)
        return replace(draft, trials=replace(draft.trials, sources=laws))


def reordered(draft: Draft, order: Tensor) -> Draft:
    """The same draft with its trials in another order. ``order`` ``[batch, trials]``"""
    trials = draft.trials
    return replace(
        draft, trials=replace(trials, nodes=trials.nodes.gather(1, order), sources=trials.sources.gather(1, order))
    )


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


def test_a_sampled_child_merged_into_a_point_mass_is_caught():
    law = (0.5, 0.3, 0.2)
    drafter = DropsThePointMassOfAMergedNode([same_everywhere((0.7, 0.25, 0.05))], (point(0, rank=2), Twig(0)))
    p, found = second_token(drafter, law)
    assert refutes(p)
    assert found == pytest.approx([0.5, 0.26, 0.24], abs=0.015)


def test_a_dropped_multiplicity_is_caught():
    assert refutes(p_value(DropsRepeatedTrials([WIDE_DRAFT], SIBLINGS), WIDE))


def test_laws_of_siblings_swapped_are_caught():
    assert refutes(p_value(SwapsTheLawsOfSiblings([DRAFT, OTHER], THREE_LAWS[:2]), WORLD, samples=FEWER))


def test_siblings_without_replacement_tried_backwards_are_caught():
    assert refutes(p_value(TriesBackwards([WIDE_DRAFT], SIBLINGS), WIDE, samples=FEWER))


def test_siblings_tried_in_the_order_of_their_draws_are_caught():
    assert refutes(p_value(TriesTheLikeliestFirst([WIDE_DRAFT], SIBLINGS), WIDE, samples=FEWER))


def test_a_residual_that_is_not_updated_is_caught(monkeypatch):
    monkeypatch.setattr(rules, "residual", lambda target, draft: target)
    assert refutes(p_value(TreeDrafter([DRAFT], SIBLINGS), WORLD, samples=FEWER))


def test_equal_draws_do_share_nodes_in_the_toys():
    """The ring would not test merging if draws never came out equal."""
    drafts: list[Draft] = []

    class Watched(TreeDrafter):
        def finish(self, draft: Draft) -> Draft:
            drafts.append(draft)
            return draft

    WIDE.sample(Watched([WIDE_DRAFT], TWO_A_LEVEL), 200)
    shared = torch.cat([(draft.trials.nodes > 0).sum(dim=1) > draft.num_nodes for draft in drafts])
    assert shared.float().mean() > 0.1
