"""Drafts sampled from a model: the law of whole texts is the target's, for every shape of draft and every vocabulary.

The draft model is a table over the last token, driven by a real session. The null hypothesis, the test and the bound
are stated in ``ring.py``; each line with ``follows_the_target`` is one statistical test.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ring import FEWER, World, follows_the_target, p_value, refutes, second_token
from test_same_text import TARGET, batch, ends, generate
from torch import Tensor
from toys import random_table, same_everywhere
from worlds import WIDE, WORLD

from quasar.acceptors.coupled import Coupled
from quasar.acceptors.stochastic import Stochastic
from quasar.core.cache import KVCache
from quasar.core.models import Block, LanguageModel
from quasar.core.sampling import SamplingParams
from quasar.drafters.best_first import BestFirst
from quasar.drafters.draft_model import DraftModel
from quasar.drafters.none import NoDraft
from quasar.models.drafter import ModelDrafter
from quasar.models.sampled_trees import SampledTree


class TableModel(LanguageModel):
    """Logits after a token are a row of a table ``[vocab, vocab]``."""

    name, max_length, dtype, device = "table", None, torch.float32, torch.device("cpu")

    def __init__(self, table: Tensor) -> None:
        self.table, self.vocab_size = table, table.shape[-1]

    def forward(self, block: Block, cache: KVCache) -> Tensor:
        return self.table[block.token_ids[:, -block.num_logits :]]


def drafter(table: Tensor, kind: type[ModelDrafter] = DraftModel, **options) -> ModelDrafter:
    made = kind(DraftModel.Config(**options))
    made.model = TableModel(table)
    return made


NARROW = random_table(3, seed=2)[0]
NEAR = TARGET.mean(dim=0)  # of the target that test_same_text has
EQUAL = random_table(4, seed=6)[0]
PADDED = torch.cat([torch.cat([EQUAL, torch.ones(4, 3)], dim=1), torch.zeros(3, 7)])  # the padding is likely

test_chain = follows_the_target(drafter(NARROW, num_speculative_tokens=3), WORLD)
test_chain_that_ends_before_doubtful_places = follows_the_target(
    drafter(EQUAL, num_speculative_tokens=3, min_confidence=0.55), WIDE, FEWER
)
test_three_chains = follows_the_target(drafter(EQUAL, num_speculative_tokens=3, num_drafts=3), WIDE)
test_tree = follows_the_target(drafter(EQUAL, expansion=(2, 2, 1)), WIDE)
test_tree_that_ends_before_doubtful_places = follows_the_target(
    drafter(EQUAL, expansion=(3, 2), min_confidence=0.55), WIDE, FEWER, seed=1
)
test_draft_model_with_a_padded_vocabulary = follows_the_target(drafter(PADDED, num_drafts=2), WIDE, FEWER)
test_draft_model_that_lacks_a_token = follows_the_target(drafter(NARROW, num_drafts=2), WIDE, FEWER)

test_best_first = follows_the_target(BestFirst(BestFirst.Config(drafter=drafter(EQUAL), max_nodes=5)), WIDE, FEWER)


def test_doubt_ends_some_chains_and_not_others():
    # guards the tests above
    confident = EQUAL.softmax(dim=-1).amax(dim=-1) >= 0.55
    assert 0 < int(confident.sum()) < 4


class DropsTheDoubtful(DraftModel):
    """Draws, and then forgets a token that was unlikely, as if nothing had been drawn."""

    def propose(self, context, budget):
        draft = super().propose(context, budget)
        if not draft.nodes:
            return draft
        drawn = draft.trials.table[:, 0].gather(1, draft.token_ids[:, :1])  # [batch, 1]
        kept = replace(draft.trials, nodes=draft.trials.nodes * (drawn > 0.3))
        return replace(draft, num_nodes=draft.num_nodes * (drawn[:, 0] > 0.3), trials=kept)


def test_a_confidence_stop_that_drops_the_token_it_drew_is_caught():
    world = World(same_everywhere([0.5, 0.3, 0.2]), sampling=SamplingParams(temperature=1.0, max_new_tokens=3))
    table = torch.tensor([0.4, 0.36, 0.24]).log().expand(3, 3)
    assert not refutes(p_value(drafter(table, num_speculative_tokens=1), world, FEWER))
    assert refutes(p_value(drafter(table, DropsTheDoubtful, num_speculative_tokens=1), world, FEWER))


def test_equal_draws_that_are_tried_once_only_are_caught(monkeypatch: pytest.MonkeyPatch):
    """Chains that begin alike share a node; with the second draw forgotten .31, .49, .14, .06 became .41, .35, .18, .06."""
    add = SampledTree.add

    def once(tree, token, parent, law):
        known = (token, parent) in tree.nodes
        slot = add(tree, token, parent, law)
        if known:
            tree.trials.pop()
        return slot

    law = (0.31, 0.49, 0.14, 0.06)
    table = torch.tensor([0.19, 0.09, 0.1, 0.62]).log().expand(4, 4)
    chains = drafter(table, num_speculative_tokens=1, num_drafts=3)
    assert not refutes(second_token(chains, law)[0])
    monkeypatch.setattr(SampledTree, "add", once)
    p, shares = second_token(chains, law)
    assert refutes(p)
    assert shares == pytest.approx([0.41, 0.35, 0.18, 0.06], abs=0.015)


def test_children_that_state_the_law_of_another_node_are_caught(monkeypatch: pytest.MonkeyPatch):
    add = SampledTree.add
    monkeypatch.setattr(SampledTree, "add", lambda t, token, parent, law: add(t, token, parent, 0))
    assert refutes(p_value(drafter(EQUAL, expansion=(2, 1)), WIDE, FEWER))


@pytest.mark.parametrize("options", [{}, {"num_drafts": 3}, {"expansion": (2, 2)}, {"min_confidence": 0.6}])
def test_coupled_acceptance_and_temperature_0_leave_the_text_as_it_is(options):
    for temperature, acceptor in ((1.0, Coupled()), (0.0, Stochastic())):
        requests = batch(temperature, samples=30)
        done = generate(drafter(NEAR, **options), requests, acceptor)
        assert ends(done) == ends(generate(NoDraft(), requests))
        assert 0 < sum(one.num_accepted for one in done) < sum(one.num_drafted for one in done)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_chosen_trees_leave_the_text_as_it_is(temperature):
    requests = batch(temperature, samples=30)
    done = generate(BestFirst(BestFirst.Config(drafter=drafter(NEAR), beam=2, max_nodes=5)), requests)
    assert ends(done) == ends(generate(NoDraft(), requests))
    assert 0 < sum(one.num_accepted for one in done) < sum(one.num_drafted for one in done)


@pytest.mark.parametrize("options", [{}, {"num_drafts": 3}, {"expansion": (2, 2)}, {"min_confidence": 0.6}])
def test_texts_do_not_depend_on_what_else_is_in_the_batch(options):
    requests, made = batch(1.0, samples=8), drafter(NARROW, **options)
    together = ends(generate(made, requests))
    assert together == [ends(generate(made, [request]))[0] for request in requests]
    assert together != ends(generate(NoDraft(), requests))


def test_more_chains_are_accepted_more_often():
    requests, rates = batch(1.0, samples=50, ignore_eos=True), []
    for num_drafts in (1, 2, 4):
        done = generate(drafter(torch.zeros(3, 3), num_speculative_tokens=1, num_drafts=num_drafts), requests)
        rates.append(sum(one.num_accepted for one in done) / sum(one.num_steps for one in done))
    assert rates[0] + 0.1 < rates[1] < rates[2] - 0.1
