"""Cascades: the law of whole texts is the outermost verifier's, and what would bias it is caught.

The null hypothesis, the test and the bound are stated in ``ring.py``; each line with ``follows_the_target`` is one
statistical test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from ring import World, chi_square, follows_the_target, p_value, refutes
from toys import TableVerifier, TreeDrafter, Twig, requests, same_everywhere, texts
from worlds import CHAIN, DRAFT, OTHER, POINT_CHAIN, POINT_FIRST, POINT_TREE, TARGET, THIRD, TWO_A_LEVEL

from quasar.acceptors.coupled import Coupled
from quasar.acceptors.stochastic import Stochastic
from quasar.core.components import Acceptor, Drafter
from quasar.core.context import Context
from quasar.core.engine import Engine
from quasar.core.records import StepRecord
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams
from quasar.core.types import Draft
from quasar.drafters import cascade as module
from quasar.drafters.cascade import Cascade, InnerBatch, UntilDoubt
from quasar.drafters.none import NoDraft
from quasar.drafters.union import Union


def cascade(drafter: Drafter, table: torch.Tensor, length: int, acceptor: Acceptor | None = None, **doubt: Any):
    parts = {"drafter": drafter, "verifier": TableVerifier(table), "acceptor": acceptor or Stochastic()}
    return Cascade(Cascade.Config(**parts, num_speculative_tokens=length, **doubt))


def two_levels(length: int = 4) -> Cascade:
    return cascade(cascade(TreeDrafter([DRAFT], CHAIN), OTHER, 2), THIRD, length)


SAMPLES_IN = TreeDrafter([DRAFT], CHAIN)
SIX_TOKENS = SamplingParams(temperature=1.0, max_new_tokens=6)  # the first block begins with a step without drafts
WORLD = World(TARGET, sampling=SIX_TOKENS)
ENDING = World(TARGET, eos=2, sampling=SIX_TOKENS)
SAMPLES, MORE = 2500, 4000

test_chain_of_samples_inside = follows_the_target(cascade(SAMPLES_IN, OTHER, 4), WORLD, SAMPLES)
test_chain_of_point_masses_inside = follows_the_target(
    cascade(TreeDrafter([DRAFT], POINT_CHAIN), OTHER, 4), WORLD, SAMPLES
)
test_tree_of_point_masses_inside = follows_the_target(
    cascade(TreeDrafter([DRAFT], POINT_TREE, ragged=True), OTHER, 3), ENDING, SAMPLES
)
test_tree_of_samples_inside = follows_the_target(cascade(TreeDrafter([DRAFT], TWO_A_LEVEL), OTHER, 4), WORLD, SAMPLES)
test_mixed_tree_inside = follows_the_target(
    cascade(TreeDrafter([DRAFT], POINT_FIRST, ragged=True), OTHER, 4), WORLD, SAMPLES
)
test_coupled_acceptance_inside = follows_the_target(cascade(SAMPLES_IN, OTHER, 4, Coupled()), WORLD, SAMPLES)
test_three_levels = follows_the_target(two_levels(), WORLD, SAMPLES)
test_three_levels_with_a_tree_inside = follows_the_target(
    cascade(cascade(TreeDrafter([DRAFT], POINT_FIRST), OTHER, 2, min_probability=0.3), THIRD, 4), WORLD, SAMPLES
)
test_a_union_of_a_cascade_and_samples = follows_the_target(
    Union(Union.Config(drafters=[cascade(SAMPLES_IN, OTHER, 2), TreeDrafter([THIRD], CHAIN)])), WORLD, SAMPLES
)
test_doubt_before_a_place_of_small_margin = follows_the_target(
    cascade(SAMPLES_IN, OTHER, 4, min_margin=0.3), WORLD, SAMPLES
)
test_doubt_before_a_place_of_large_entropy = follows_the_target(
    cascade(TreeDrafter([DRAFT], POINT_TREE), OTHER, 4, max_entropy=0.8), WORLD, SAMPLES
)
test_doubt_after_an_unlikely_token = follows_the_target(
    cascade(SAMPLES_IN, OTHER, 4, min_probability=0.3), WORLD, SAMPLES
)


# --- the same text ----------------------------------------------------------------------------------------------------

COLD = SamplingParams(temperature=0.0, max_new_tokens=12)
PROMPTS = [(a, b) for a in range(3) for b in range(3)]
SHAPES = {
    "chain": cascade(SAMPLES_IN, OTHER, 4),
    "tree": cascade(TreeDrafter([DRAFT], POINT_TREE, ragged=True), OTHER, 4),
    "the target itself": cascade(TreeDrafter([DRAFT], POINT_TREE), TARGET, 4),
    "three levels": two_levels(),
    "doubt": cascade(SAMPLES_IN, OTHER, 4, min_margin=0.2, min_probability=0.5, max_entropy=0.9),
    "coupled inside": cascade(SAMPLES_IN, TARGET, 4, Coupled()),
}


def batch(sampling: SamplingParams, samples: int = 1) -> list:
    return [request for prompt in PROMPTS for request in requests(range(samples), sampling, prompt=prompt)]


def run(drafter: Drafter, batch: list, acceptor: Acceptor | None = None, eos: int | None = 2) -> list:
    return texts(drafter, TableVerifier(TARGET), acceptor or Stochastic(), batch, eos)


@pytest.mark.parametrize("name", SHAPES)
def test_at_temperature_0_the_text_is_plain_decodings(name: str):
    assert run(SHAPES[name], batch(COLD)) == run(NoDraft(), batch(COLD))


@pytest.mark.parametrize("name", SHAPES)
def test_under_coupled_acceptance_the_text_is_plain_decodings(name: str):
    warm = batch(COLD.model_copy(update={"temperature": 1.0}), samples=20)
    assert run(SHAPES[name], warm, Coupled()) == run(NoDraft(), warm)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_do_not_depend_on_the_batch(name: str, temperature: float):
    requests = batch(COLD.model_copy(update={"temperature": temperature}), samples=1)
    together = run(SHAPES[name], requests)
    assert [run(SHAPES[name], [each])[0] for each in requests] == together
    assert run(SHAPES[name], requests[::-1]) == together[::-1]


def test_coupled_blocks_of_the_target_itself_are_all_accepted():
    warm = COLD.model_copy(update={"temperature": 1.0, "max_new_tokens": 11, "ignore_eos": True})
    for inner in (TreeDrafter([DRAFT], POINT_TREE), NoDraft()):
        engine = Engine(cascade(inner, TARGET, 4), TableVerifier(TARGET), Coupled(), eos_ids=(2,))
        assert {done.acceptance_length for done in engine.generate(batch(warm, samples=20))} == {5.0}


# --- negative controls ------------------------------------------------------------------------------------------------


class KeepsTheFirstLaw(Cascade):
    """States the inner drafter's law for what the inner verifier let pass, and hands nothing else on."""

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        inner = Context(context.rows, context.streams, context.level + 1)
        draft = self.config.drafter.propose(inner, budget)
        accepted = self.config.acceptor.accept(self.config.verifier.verify(inner, draft), inner).num_accepted
        nodes = draft.trials.nodes
        trials = replace(draft.trials, nodes=torch.where(nodes <= accepted[:, None], nodes, 0))
        return replace(draft, num_nodes=accepted, trials=trials)


def truncating() -> Cascade:
    sound = cascade(SAMPLES_IN, OTHER, 4)
    return KeepsTheFirstLaw(sound.config)


def test_a_level_that_truncates_and_keeps_the_first_law_is_caught_at_temperature_1_only():
    assert refutes(p_value(truncating(), WORLD, MORE))
    assert run(truncating(), batch(COLD)) == run(NoDraft(), batch(COLD))


class DropsTheToken(UntilDoubt):
    """Ends before the unlikely token instead of after it."""

    def cut(self, output, new):
        count, reason = super().cut(output, new)
        return (count - 1, reason) if reason == "doubt" else (count, reason)


def test_a_doubt_that_drops_the_token_is_caught(monkeypatch):
    monkeypatch.setattr(module, "UntilDoubt", DropsTheToken)
    assert refutes(p_value(cascade(SAMPLES_IN, OTHER, 4, min_probability=0.3), WORLD, SAMPLES))


class StatesTheLawsOfOtherPlaces(InnerBatch):
    """Lets the law of every token be that of the place before the step."""

    def collect(self, commits):
        super().collect([replace(new, slots=[0] * len(new.slots)) for new in commits])


def test_laws_of_other_places_are_caught(monkeypatch):
    monkeypatch.setattr(module, "InnerBatch", StatesTheLawsOfOtherPlaces)
    assert refutes(p_value(cascade(SAMPLES_IN, OTHER, 4), WORLD, SAMPLES))


FIXED = World(same_everywhere((0.6, 0.2, 0.2)), sampling=SamplingParams(temperature=1.0, max_new_tokens=12))
SKEWED = same_everywhere((0.4, 0.3, 0.3))


class Remembers(TreeDrafter):
    """Drafts nothing where it drew token 0 before: the past may decide, as long as it is not what comes."""

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        draft = super().propose(context, budget)
        before: list[dict[int, int]] = context.scratch(self, lambda: [{} for _ in context.rows])
        silent = []
        for row, seen in zip(range(context.batch), before, strict=True):
            place = len(context.rows[row].token_ids)
            silent.append(seen.get(place) == 0)
            if budget[row] > 0:
                seen.setdefault(place, int(draft.token_ids[row, 0]))
        drop = torch.tensor(silent)
        trials = replace(draft.trials, nodes=draft.trials.nodes.masked_fill(drop[:, None], 0))
        return replace(draft, num_nodes=draft.num_nodes.masked_fill(drop, 0), trials=trials)


def remembering() -> Cascade:
    return cascade(Remembers([SKEWED], [Twig(0)]), same_everywhere((0.2, 0.2, 0.6)), 4)


def p_of_tokens(drafter: Drafter) -> float:
    """p-value of "all tokens are independent draws from the one law", by their shares."""
    found = [(token,) for text in FIXED.sample(drafter, SAMPLES) for token in text]
    return chi_square(found, {(0,): 0.6, (1,): 0.2, (2,): 0.2})


def test_a_drafter_may_learn_from_rejected_blocks():
    assert not refutes(p_of_tokens(remembering()))


def test_draws_that_come_back_in_the_next_block_are_caught(monkeypatch):
    monkeypatch.setattr(Streams, "inner", lambda self, level, committed, coupled: self)
    assert refutes(p_of_tokens(remembering()))


# --- whether the ring sees what it should -----------------------------------------------------------------------------


def steps_of(drafter: Drafter, temperature: float = 1.0) -> list[StepRecord]:
    sampling = COLD.model_copy(update={"temperature": temperature})
    engine = Engine(drafter, TableVerifier(TARGET), Stochastic(), eos_ids=(2,))
    return [step for done in engine.generate(batch(sampling, samples=20)) for step in done.inner_steps]


def test_the_inner_levels_do_accept_and_reject_in_these_worlds():
    steps = steps_of(two_levels())
    for level in (1, 2):
        drafted = sum(step.drafted for step in steps if step.level == level)
        accepted = sum(step.accepted for step in steps if step.level == level)
        assert 0.2 * drafted < accepted < 0.8 * drafted


def test_doubt_does_end_blocks_in_these_worlds():
    for doubt in ({"min_margin": 0.3}, {"max_entropy": 0.8}, {"min_probability": 0.3}):
        emitted = [step.committed for step in steps_of(cascade(SAMPLES_IN, OTHER, 4, **doubt))]
        full = [step.committed for step in steps_of(cascade(SAMPLES_IN, OTHER, 4))]
        assert sum(emitted) / len(emitted) < sum(full) / len(full)
