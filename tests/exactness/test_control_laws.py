"""Negative controls: laws that tokens were not drawn from, and drafts that depend on their own draws.

The ring's chi-square must see each of them; the sound counterpart of each stands beside it or in the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from ring import FEWER, follows_the_target, p_value, refutes, second_token
from torch import Tensor
from toys import (
    TableVerifier,
    TreeDrafter,
    Twig,
    requests,
    same_everywhere,
    texts,
)
from worlds import CHAIN, DRAFT, OTHER, TARGET, WIDE, WIDE_DRAFT, WORLD

from quasar.acceptors.rules import exact as rules
from quasar.acceptors.stochastic import Stochastic
from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.sampling import SamplingParams
from quasar.core.types import Draft
from quasar.drafters.none import NoDraft


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


test_sampling_and_stating_after_the_processors_is_sound = follows_the_target(TreeDrafter([DRAFT], CHAIN), COLD, FEWER)


def test_a_law_from_before_the_temperature_is_caught():
    assert refutes(p_value(StatesTheRawLaw([DRAFT], CHAIN), COLD, samples=FEWER))


def test_a_law_from_before_top_k_is_caught():
    assert refutes(p_value(SamplesTheTopTwo([WIDE_DRAFT], CHAIN), WIDE, samples=FEWER))


def test_a_greedy_draft_that_claims_a_soft_law_is_caught():
    assert refutes(p_value(Greedy([DRAFT], CHAIN), WORLD, samples=FEWER))


class TruncatingLevel(Drafter):
    """Verifies the drafts of a first drafter, hands on the accepted ones and keeps that drafter's laws."""

    name = "truncating"
    drafts_by = "sampled"

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
    assert refutes(p_value(TRUNCATING, WORLD, samples=FEWER))


def test_a_level_that_truncates_cannot_be_seen_at_temperature_0():
    cold = SamplingParams(temperature=0.0, max_new_tokens=12)
    batch = [request for a in range(3) for b in range(3) for request in requests([0], cold, prompt=(a, b))]
    plain = texts(NoDraft(), TableVerifier(TARGET), Stochastic(), batch, eos=None)
    assert texts(TRUNCATING, TableVerifier(TARGET), Stochastic(), batch, eos=None) == plain


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


test_ending_a_chain_after_a_doubtful_token_is_sound = follows_the_target(EndsOnDoubt([DRAFT], CHAIN), WORLD)


def test_a_node_dropped_because_of_its_own_draw_is_caught():
    p, law = second_token(DropsAToken([same_everywhere((0.2, 0.4, 0.4))], [Twig(0)]), (0.5, 0.3, 0.2))
    assert refutes(p)
    assert law == pytest.approx([0.40, 0.36, 0.24], abs=0.015)


def test_ending_a_chain_before_a_doubtful_token_is_caught():
    assert refutes(p_value(DropsTheDoubtful([DRAFT], CHAIN), WORLD, samples=FEWER))
