"""Every composition that claims to be exact: the law of whole texts, EOS included, is the target's.

The null hypothesis, the test and the bound are stated in ``ring.py``; each line here is one statistical test.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from ring import FEWER, World, follows_the_target
from toys import NestedPipeline, TableVerifier, TreeDrafter, Twig, WithoutReplacement, point
from worlds import (
    CHAIN,
    DRAFT,
    OTHER,
    POINT_CHAIN,
    POINT_FIRST,
    POINT_LAST,
    POINT_TREE,
    TARGET,
    THIRD,
    THREE_LAWS,
    TWO_A_LEVEL,
    WIDE,
    WIDE_DRAFT,
    WIDE_OTHER,
    WORLD,
)

from quasar.drafters.ngram import Ngram
from quasar.drafters.none import NoDraft

test_plain_decoding = follows_the_target(NoDraft(), WORLD)
test_prompt_lookup = follows_the_target(
    Ngram(Ngram.Config(num_speculative_tokens=3, prompt_lookup_max=2)), WORLD, FEWER, seed=1
)

test_chain_of_point_masses = follows_the_target(TreeDrafter([DRAFT], POINT_CHAIN), WORLD, FEWER, seed=2)
test_tree_of_point_masses = follows_the_target(TreeDrafter([DRAFT], POINT_TREE), WORLD, FEWER, seed=3)
test_tree_of_point_masses_after_some_texts_only = follows_the_target(
    TreeDrafter([DRAFT], POINT_TREE, ragged=True), WORLD, FEWER, seed=4
)

test_sampled_chain = follows_the_target(TreeDrafter([DRAFT], CHAIN), WORLD)
test_sampled_chain_after_some_texts_only = follows_the_target(TreeDrafter([DRAFT], CHAIN, ragged=True), WORLD)
test_sampled_chain_from_the_target_itself = follows_the_target(TreeDrafter([TARGET], CHAIN), WORLD)
test_sampled_chain_in_a_wider_vocabulary = follows_the_target(TreeDrafter([WIDE_DRAFT], CHAIN), WIDE)
test_float32_drafts_for_a_float64_target = follows_the_target(
    TreeDrafter([DRAFT], CHAIN), replace(WORLD, table=TARGET.double()), FEWER, seed=1
)

_never_3 = WIDE.table.clone()
_never_3[..., 3] = -torch.inf
_only_3 = torch.full_like(_never_3, -torch.inf)
_only_3[..., 3] = 0.0
test_drafts_that_the_target_never_says = follows_the_target(TreeDrafter([_only_3], CHAIN), World(_never_3), FEWER)
test_drafts_that_the_target_sometimes_never_says = follows_the_target(
    TreeDrafter([WIDE_DRAFT], CHAIN), World(_never_3), FEWER
)

test_two_draws_from_one_law_a_level = follows_the_target(TreeDrafter([DRAFT], TWO_A_LEVEL), WORLD)
test_two_draws_from_one_law_in_a_wider_vocabulary = follows_the_target(TreeDrafter([WIDE_DRAFT], TWO_A_LEVEL), WIDE)
test_three_draws_from_three_laws = follows_the_target(TreeDrafter([DRAFT, OTHER, THIRD], THREE_LAWS), WORLD)
test_siblings_drawn_without_replacement = follows_the_target(WithoutReplacement([WIDE_DRAFT], TWO_A_LEVEL), WIDE)

test_point_mass_tried_before_a_sampled_sibling = follows_the_target(TreeDrafter([DRAFT], POINT_FIRST), WORLD)
test_point_mass_tried_after_a_sampled_sibling = follows_the_target(TreeDrafter([DRAFT], POINT_LAST), WORLD)
test_mixed_siblings_after_some_texts_only = follows_the_target(
    TreeDrafter([WIDE_DRAFT, WIDE_OTHER], (point(0), Twig(0, 1), Twig(0), Twig(1, 1), point(2), point(3)), ragged=True),
    WIDE,
)

test_pipeline_of_sampled_drafts_as_a_drafter = follows_the_target(
    NestedPipeline(TreeDrafter([DRAFT], CHAIN), TableVerifier(OTHER), length=3), WORLD, FEWER
)
test_pipeline_of_point_masses_as_a_drafter = follows_the_target(
    NestedPipeline(TreeDrafter([DRAFT], (point(0), point(1))), TableVerifier(OTHER), length=3), WORLD, FEWER
)
test_pipeline_of_a_mixed_tree_as_a_drafter = follows_the_target(
    NestedPipeline(TreeDrafter([DRAFT], POINT_FIRST), TableVerifier(OTHER), length=2), WORLD, FEWER
)
test_pipeline_in_a_pipeline_as_a_drafter = follows_the_target(
    NestedPipeline(
        NestedPipeline(TreeDrafter([DRAFT], CHAIN), TableVerifier(OTHER), length=2), TableVerifier(THIRD), length=3
    ),
    WORLD,
    FEWER,
)
