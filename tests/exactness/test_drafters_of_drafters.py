"""Unions and the adaptive length: the law of whole texts is the target's, and what would bias it is caught.

The null hypothesis, the test and the bound are stated in ``ring.py``; each line with ``follows_the_target`` is one
statistical test.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ring import FEWER, follows_the_target, refutes, second_token
from test_model_drafts import EQUAL, NARROW, drafter
from test_same_text import RETRIEVAL
from toys import NestedPipeline, TableVerifier, TreeDrafter, Twig, same_everywhere
from worlds import (
    CHAIN,
    DRAFT,
    OTHER,
    POINT_FIRST,
    POINT_TREE,
    TARGET,
    THIRD,
    TWO_A_LEVEL,
    WIDE,
    WIDE_DRAFT,
    WIDE_OTHER,
    WORLD,
)

from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.types import Draft
from quasar.drafters.adaptive import Adaptive
from quasar.drafters.lookahead import Lookahead
from quasar.drafters.recycling import Recycling
from quasar.drafters.suffix import Suffix
from quasar.drafters.union import Union


def union(*drafters: Drafter, kind: type[Union] = Union, **options) -> Union:
    return kind(Union.Config(drafters=drafters, **options))


def adaptive(drafter: Drafter, costs: dict[int, float]) -> Adaptive:
    return Adaptive(Adaptive.Config(drafter=drafter, costs=costs, max_nodes=4))


ONE = (Twig(0),)
CHEAP, DEAR = {1: 1.0, 4: 1.1}, {1: 1.0, 2: 1.4, 4: 2.0}

test_suffix = follows_the_target(Suffix(), WORLD, FEWER, seed=1)
test_recycling = follows_the_target(Recycling(Recycling.Config(max_nodes=5, top_k=2)), WORLD, FEWER, seed=2)
test_lookahead = follows_the_target(Lookahead(Lookahead.Config(window=2, level=2)), WORLD, FEWER, seed=4)
test_retrieval = follows_the_target(RETRIEVAL, WORLD, FEWER, seed=5)
test_union_of_point_masses = follows_the_target(union(Suffix(), Recycling(), max_nodes=4), WORLD, FEWER, seed=3)

test_union_of_two_draft_models = follows_the_target(
    union(TreeDrafter([DRAFT], CHAIN), TreeDrafter([OTHER], CHAIN)), WORLD
)
test_union_of_one_draft_model_twice_under_a_tight_budget = follows_the_target(
    union(TreeDrafter([WIDE_DRAFT], CHAIN), TreeDrafter([WIDE_DRAFT], CHAIN), max_nodes=4), WIDE
)
test_union_level_by_level = follows_the_target(
    union(TreeDrafter([WIDE_DRAFT], CHAIN), TreeDrafter([WIDE_OTHER], TWO_A_LEVEL), order="breadth", max_nodes=5), WIDE
)
test_union_of_point_masses_before_samples = follows_the_target(
    union(TreeDrafter([TARGET], POINT_TREE), TreeDrafter([DRAFT], CHAIN)), WORLD
)
test_union_of_samples_before_point_masses = follows_the_target(
    union(TreeDrafter([DRAFT], CHAIN, ragged=True), Suffix(), Recycling(), max_nodes=6), WORLD, FEWER
)
test_union_of_mixed_trees = follows_the_target(
    union(
        TreeDrafter([DRAFT], POINT_FIRST, ragged=True), TreeDrafter([OTHER], TWO_A_LEVEL), order="breadth", max_nodes=7
    ),
    WORLD,
)
test_union_in_a_union = follows_the_target(
    union(union(TreeDrafter([DRAFT], ONE), TreeDrafter([DRAFT], ONE)), TreeDrafter([DRAFT], CHAIN)), WORLD
)
test_union_with_a_pipeline = follows_the_target(
    union(
        NestedPipeline(TreeDrafter([DRAFT], CHAIN), TableVerifier(OTHER), length=2), TreeDrafter([THIRD], TWO_A_LEVEL)
    ),
    WORLD,
    FEWER,
)
test_adaptive_samples = follows_the_target(adaptive(TreeDrafter([DRAFT], CHAIN), CHEAP), WORLD)
test_adaptive_samples_at_a_price = follows_the_target(adaptive(TreeDrafter([WIDE_DRAFT], TWO_A_LEVEL), DEAR), WIDE)
test_adaptive_union = follows_the_target(
    adaptive(union(Suffix(), TreeDrafter([DRAFT], CHAIN), Recycling()), CHEAP), WORLD, FEWER
)

test_union_with_a_model_of_chains = follows_the_target(
    union(Suffix(), drafter(NARROW, num_speculative_tokens=2, num_drafts=2), Recycling(), max_nodes=7), WORLD, FEWER
)
test_union_of_two_models = follows_the_target(
    union(drafter(EQUAL, expansion=(2, 1)), drafter(EQUAL.flip(0)), order="breadth", max_nodes=6), WIDE, FEWER
)
test_adaptive_chains_of_a_model = follows_the_target(adaptive(drafter(EQUAL, num_drafts=2), DEAR), WIDE, FEWER)
test_adaptive_union_with_a_doubtful_model = follows_the_target(
    adaptive(union(drafter(NARROW, min_confidence=0.4), Suffix()), DEAR), WORLD, FEWER
)


# --- negative controls ------------------------------------------------------------------------------------------------


LAW = (0.5, 0.4, 0.1)  # after a rejection two tokens are left, so that a second trial changes something
SKEWED = same_everywhere((0.1, 0.3, 0.6))


def twice(kind: type[Union] = Union, most: int = 8) -> Union:
    return union(TreeDrafter([SKEWED], ONE), TreeDrafter([SKEWED], ONE), kind=kind, max_nodes=most)


def caught(drafter: Drafter) -> bool:
    return refutes(second_token(drafter, LAW)[0])


def test_the_sound_counterparts_of_the_controls_are_not_caught():
    single = Adaptive.Config(drafter=TreeDrafter([SKEWED], ONE), costs=CHEAP)
    assert not any(caught(drafter) for drafter in (twice(), twice(most=1), Adaptive(single)))


def test_parts_that_draw_from_one_stream_are_caught(monkeypatch):
    monkeypatch.setattr(Context, "part", lambda self, number: self)
    assert caught(twice())


class KeepsOneTrial(Union):
    """A node that two drafters drew is tried once."""

    def _merge(self, proposals):
        nodes, trials, evidence = super()._merge(proposals)
        once = [trial for place, trial in enumerate(trials) if trial[0] not in {slot for slot, _ in trials[:place]}]
        return nodes, once, evidence


def test_equal_draws_of_two_drafters_that_are_tried_once_are_caught():
    assert caught(twice(KeepsOneTrial))


class CountsNodes(Union):
    """A draw that equals a node which is there already is tried although the budget is spent."""

    def _merge(self, proposals):
        self.drafts_by = "point_mass"
        try:
            return super()._merge(proposals)
        finally:
            self.drafts_by = "sampled"


def test_a_budget_that_a_draw_can_pass_by_being_equal_is_caught():
    assert caught(twice(CountsNodes, most=1))


class CutsAfterTheDraw(Adaptive):
    """Takes its limit from what was drawn: token 0 is never drafted last."""

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        draft = super().propose(context, budget)
        zero = (draft.num_nodes == 1) & (draft.token_ids[:, :1] == 0).any(dim=1)
        trials = draft.trials
        nodes = trials.nodes.masked_fill(zero[:, None], 0)
        kept = draft.num_nodes.masked_fill(zero, 0)
        return Draft(draft.token_ids, draft.parents, kept, type(trials)(nodes, trials.sources, trials.table))


def test_a_limit_that_depends_on_the_draw_is_caught():
    assert caught(CutsAfterTheDraw(Adaptive.Config(drafter=TreeDrafter([SKEWED], ONE), costs=CHEAP)))


# --- whether the ring sees what it should -----------------------------------------------------------------------------


def test_the_adaptive_length_does_change_in_these_worlds():
    sizes: list[int] = []

    class Watched(Adaptive):
        def propose(self, context: Context, budget: Sequence[int]) -> Draft:
            draft = super().propose(context, budget)
            sizes.extend(draft.num_nodes[torch.tensor(budget) > 0].tolist())
            return draft

    WIDE.sample(Watched(Adaptive.Config(drafter=TreeDrafter([WIDE_DRAFT], CHAIN), costs=DEAR, max_nodes=4)), 200)
    assert {0, 2} <= set(sizes)


def test_drafters_of_a_union_do_meet_in_one_node():
    shared: list[bool] = []

    class Watched(Union):
        def propose(self, context: Context, budget: Sequence[int]) -> Draft:
            draft = super().propose(context, budget)
            shared.extend(((draft.trials.nodes > 0).sum(dim=1) > draft.num_nodes).tolist())
            return draft

    second_token(twice(Watched), LAW)
    assert sum(shared) > len(shared) / 10
