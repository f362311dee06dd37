"""The law after logits processors, applied to both sides at every place of a block.

The expected law is this file's own reading of each parameter, in float64 and without transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from ring import FEWER, World, follows_the_target
from torch import Tensor
from toys import PROMPT, NestedPipeline, TableVerifier, TreeDrafter
from worlds import CHAIN, DRAFT, OTHER, POINT_FIRST, TARGET, TWO_A_LEVEL

from quasar.core.sampling import SamplingParams
from quasar.hf.processors import build_processors

EOS = 2


def processed_law(params: SamplingParams) -> Callable[[Sequence[int], Tensor], Tensor]:
    """What the parameters mean, token by token."""

    def law(prefix: Sequence[int], logits: Tensor) -> Tensor:
        scores = logits.double().tolist()
        for token in set(prefix):
            scores[token] *= params.repetition_penalty if scores[token] < 0 else 1 / params.repetition_penalty
        if len(prefix) - len(PROMPT) < params.min_new_tokens:
            scores[EOS] = -torch.inf
        probs = torch.tensor(scores, dtype=torch.float64).div(params.temperature).softmax(dim=0)
        if params.top_k:
            probs[probs.argsort(descending=True)[params.top_k :]] = 0
            probs /= probs.sum()
        order = probs.argsort(descending=True)
        kept_before = probs[order].cumsum(dim=0) - probs[order]
        probs[order[kept_before >= params.top_p]] = 0
        probs /= probs.sum()
        probs[probs < params.min_p * probs.max()] = 0
        return probs / probs.sum()

    return law


def world(**parameters: Any) -> World:
    params = SamplingParams(**{"temperature": 1.0, "max_new_tokens": 4, **parameters})
    return World(TARGET, EOS, params, build_processors(params, len(PROMPT), (EOS,)), processed_law(params))


test_temperature = follows_the_target(TreeDrafter([DRAFT], POINT_FIRST), world(temperature=0.7), FEWER)
test_high_temperature = follows_the_target(TreeDrafter([DRAFT], CHAIN), world(temperature=1.5), FEWER)
test_top_k = follows_the_target(TreeDrafter([DRAFT], TWO_A_LEVEL), world(top_k=2), FEWER)
test_top_p = follows_the_target(TreeDrafter([DRAFT], POINT_FIRST), world(top_p=0.7), FEWER)
test_min_p = follows_the_target(TreeDrafter([DRAFT], TWO_A_LEVEL), world(min_p=0.3), FEWER)
test_all_of_them_through_two_levels = follows_the_target(
    NestedPipeline(TreeDrafter([DRAFT], CHAIN), TableVerifier(OTHER), length=3),
    world(temperature=0.7, top_k=2, top_p=0.9, min_p=0.1),
    FEWER,
)
test_repetition_penalty_looks_at_the_drafts_before_it = follows_the_target(
    TreeDrafter([DRAFT], CHAIN[:2]), world(repetition_penalty=1.8), samples=1000
)
test_min_new_tokens_looks_at_the_drafts_before_it = follows_the_target(
    TreeDrafter([DRAFT], CHAIN[:2]), world(min_new_tokens=3), samples=1000
)
