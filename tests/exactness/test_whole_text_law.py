"""Every composition that claims to be exact: the law of whole texts, EOS included, is the target's.

The null hypothesis, the test and the bound are stated in ``ring.py``; each line here is one statistical test.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from ring import TARGET, WORLD, World, follows_the_target
from toys import NestedPipeline, TableVerifier, TreeDrafter, Twig, WithoutReplacement, point, random_table

from quasar.drafters.ngram import Ngram
from quasar.drafters.none import NoDraft

DRAFT, OTHER, THIRD = (random_table(3, seed) for seed in (2, 3, 4))
WIDE = World(random_table(4, seed=5))
WIDE_DRAFT, WIDE_OTHER = random_table(4, seed=6), random_table(4, seed=7, sharpness=0.5)

CHAIN = (Twig(0), Twig(1), Twig(2))
POINT_TREE = (point(0), point(0, 1), point(1), point(2), point(2, 1))
POINT_FIRST = (point(0), Twig(0), point(1), Twig(1), point(2), Twig(2))
POINT_LAST = (Twig(0), point(0), Twig(1), point(1), Twig(2), point(2))
THREE_LAWS = (Twig(0), Twig(0, 1), Twig(0, 2), Twig(1), Twig(2, 1))
TWO_A_LEVEL = (Twig(0), Twig(0), Twig(1), Twig(1), Twig(2), Twig(2))

test_plain_decoding = follows_the_target(NoDraft())
test_prompt_lookup = follows_the_target(Ngram(Ngram.Config(num_speculative_tokens=3, prompt_lookup_max=2)))

test_chain_of_point_masses = follows_the_target(TreeDrafter([DRAFT], (point(0), point(1), point(2))))
test_tree_of_point_masses = follows_the_target(TreeDrafter([DRAFT], POINT_TREE))
test_tree_of_point_masses_after_some_texts_only = follows_the_target(TreeDrafter([DRAFT], POINT_TREE, ragged=True))

test_sampled_chain = follows_the_target(TreeDrafter([DRAFT], CHAIN))
test_sampled_chain_after_some_texts_only = follows_the_target(TreeDrafter([DRAFT], CHAIN, ragged=True))
test_sampled_chain_from_the_target_itself = follows_the_target(TreeDrafter([TARGET], CHAIN))
test_sampled_chain_in_a_wider_vocabulary = follows_the_target(TreeDrafter([WIDE_DRAFT], CHAIN), WIDE)
test_float32_drafts_for_a_float64_target = follows_the_target(
    TreeDrafter([DRAFT], CHAIN), replace(WORLD, table=TARGET.double())
)

_never_3 = WIDE.table.clone()
_never_3[..., 3] = -torch.inf
_only_3 = torch.full_like(_never_3, -torch.inf)
_only_3[..., 3] = 0.0
test_drafts_that_the_target_never_says = follows_the_target(TreeDrafter([_only_3], CHAIN), World(_never_3))
test_drafts_that_the_target_sometimes_never_says = follows_the_target(TreeDrafter([WIDE_DRAFT], CHAIN), World(_never_3))

test_two_draws_from_one_law_a_level = follows_the_target(TreeDrafter([DRAFT], TWO_A_LEVEL))
test_two_draws_from_one_law_in_a_wider_vocabulary = follows_the_target(TreeDrafter([WIDE_DRAFT], TWO_A_LEVEL), WIDE)
test_three_draws_from_three_laws = follows_the_target(TreeDrafter([DRAFT, OTHER, THIRD], THREE_LAWS))
test_siblings_drawn_without_replacement = follows_the_target(WithoutReplacement([WIDE_DRAFT], TWO_A_LEVEL), WIDE)

test_point_mass_tried_before_a_sampled_sibling = follows_the_target(TreeDrafter([DRAFT], POINT_FIRST))
test_point_mass_tried_after_a_sampled_sibling = follows_the_target(TreeDrafter([DRAFT], POINT_LAST))
test_mixed_siblings_after_some_texts_only = follows_the_target(
    TreeDrafter([WIDE_DRAFT, WIDE_OTHER], (point(0), Twig(0, 1), Twig(0), Twig(1, 1), point(2), point(3)), ragged=True),
    WIDE,
)

test_pipeline_of_sampled_drafts_as_a_drafter = follows_the_target(
    NestedPipeline(TreeDrafter([DRAFT], CHAIN), TableVerifier(OTHER), length=3), samples=10_000
)
test_pipeline_of_point_masses_as_a_drafter = follows_the_target(
    NestedPipeline(TreeDrafter([DRAFT], (point(0), point(1))), TableVerifier(OTHER), length=3), samples=10_000
)
test_pipeline_of_a_mixed_tree_as_a_drafter = follows_the_target(
    NestedPipeline(TreeDrafter([DRAFT], POINT_FIRST), TableVerifier(OTHER), length=2), samples=10_000
)
test_pipeline_in_a_pipeline_as_a_drafter = follows_the_target(
    NestedPipeline(
        NestedPipeline(TreeDrafter([DRAFT], CHAIN), TableVerifier(OTHER), length=2), TableVerifier(THIRD), length=3
    ),
    samples=10_000,
)
