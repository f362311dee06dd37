"""``relaxed`` follows its stated mixture where the drafter's law is known everywhere, and ``coupled`` plain decoding.

Null hypothesis of the statistical tests: the first token, which reading the prompt yields, follows the target, and
every later one the mixture weight · target + (1 − weight) · draft. Bound as in ``ring.py``. The negative control is a
drafter that does not tell its law after the last draft: its bonus places follow the target, and the ring sees that.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ring import FEWER, SAMPLES, World, chi_square, refutes
from test_model_drafts import NARROW, drafter
from toys import PROMPT, TableVerifier, Text, TreeDrafter, at_slots, last_two, requests, texts
from worlds import CHAIN, DRAFT, POINT_FIRST, POINT_TREE, SIBLINGS, TARGET, TWO_A_LEVEL, WORLD

from quasar.acceptors.coupled import Coupled
from quasar.acceptors.relaxed import Relaxed
from quasar.acceptors.stochastic import Stochastic
from quasar.core.context import Context
from quasar.core.sampling import SamplingParams
from quasar.core.types import Draft
from quasar.drafters.bigram import Bigram
from quasar.drafters.none import NoDraft
from quasar.pipelines.composition import fit

WEIGHT = 0.6
THREE = SamplingParams(temperature=1.0, max_new_tokens=4)


class Telling(TreeDrafter):
    """A sampled chain that tells its law after every slot."""

    next_distributions = True

    def propose(self, context: Context, budget) -> Draft:
        draft = super().propose(context, budget)
        return replace(
            draft, next_distributions=context.distributions(at_slots(self.tables[0], last_two(context), draft), draft)
        )


def mixture(prefix, logits):
    target = logits.double().softmax(dim=-1)
    if len(prefix) == len(PROMPT):
        return target
    return WEIGHT * target + (1 - WEIGHT) * DRAFT[prefix[-2], prefix[-1]].double().softmax(dim=-1)


MIXED = World(TARGET, sampling=THREE, law=mixture)


def sample(drafter, acceptor, samples: int) -> list[Text]:
    found: list[Text] = []
    for start in range(0, samples, 5000):
        batch = requests(range(start, start + min(5000, samples - start)), THREE)
        found += texts(drafter, TableVerifier(TARGET), acceptor, batch, None)
    return found


@pytest.mark.parametrize("twigs", [CHAIN, CHAIN[:1]], ids=["three drafts", "one draft"])
def test_relaxed_follows_its_mixture_where_the_draft_law_is_known_everywhere(twigs):
    observed = sample(Telling([DRAFT], twigs), Relaxed(Relaxed.Config(weight=WEIGHT)), SAMPLES)
    assert not refutes(chi_square(observed, MIXED.text_laws()))


@pytest.mark.parametrize(
    "options", [{"num_speculative_tokens": 2}, {"min_confidence": 0.5}, {"expansion": (1, 1)}], ids=str
)
def test_relaxed_follows_its_mixture_with_a_model_that_tells_its_laws(options):
    def mixture_with_model(prefix, logits):
        target = logits.double().softmax(dim=-1)
        drafted = NARROW[prefix[-1]].double().softmax(dim=-1)
        return target if len(prefix) == len(PROMPT) else WEIGHT * target + (1 - WEIGHT) * drafted

    acceptor = Relaxed(Relaxed.Config(weight=WEIGHT))
    world = World(TARGET, sampling=THREE, law=mixture_with_model)
    telling, untold = drafter(NARROW, next_distributions=True, **options), drafter(NARROW, **options)
    assert not refutes(chi_square(sample(telling, acceptor, FEWER), world.text_laws()))
    assert refutes(chi_square(sample(untold, acceptor, FEWER), world.text_laws()))
    assert fit(telling, TableVerifier(TARGET), acceptor, THREE).exact_with_respect_to.startswith("the mixture")
    assert fit(untold, TableVerifier(TARGET), acceptor, THREE).exact_with_respect_to is None


def test_relaxed_does_not_follow_the_target():
    observed = sample(Telling([DRAFT], CHAIN), Relaxed(Relaxed.Config(weight=WEIGHT)), SAMPLES)
    assert refutes(chi_square(observed, World(TARGET, sampling=THREE).text_laws()))


def test_control_without_the_law_after_the_last_draft_the_mixture_is_missed():
    observed = sample(TreeDrafter([DRAFT], CHAIN[:1]), Relaxed(Relaxed.Config(weight=WEIGHT)), SAMPLES)
    assert refutes(chi_square(observed, MIXED.text_laws()))


def test_the_composition_says_what_relaxed_follows():
    acceptor, verifier = Relaxed(Relaxed.Config(weight=WEIGHT)), TableVerifier(TARGET)
    told = fit(Bigram(), verifier, acceptor, THREE)
    untold = fit(TreeDrafter([DRAFT], CHAIN), verifier, acceptor, THREE)
    assert told.relaxed
    assert untold.relaxed
    assert told.exact_with_respect_to == "the mixture 0.6 · target + 0.4 · draft, after the first token"
    assert untold.exact_with_respect_to is None


@pytest.mark.parametrize(
    "twigs", [CHAIN, TWO_A_LEVEL, POINT_TREE, POINT_FIRST], ids=["chain", "pairs", "points", "mixed"]
)
def test_relaxed_with_weight_1_is_stochastic_token_for_token(twigs):
    drafter = TreeDrafter([DRAFT], twigs)
    assert sample(drafter, Relaxed(Relaxed.Config(weight=1.0)), 500) == sample(drafter, Stochastic(), 500)
    assert not fit(drafter, TableVerifier(TARGET), Relaxed(Relaxed.Config(weight=1.0)), THREE).relaxed


@pytest.mark.parametrize("twigs", [CHAIN, TWO_A_LEVEL, SIBLINGS, POINT_FIRST], ids=["chain", "pairs", "pair", "mixed"])
def test_coupled_gives_the_text_of_plain_decoding_whatever_is_drafted(twigs):
    plain = sample(NoDraft(), Stochastic(), 1000)
    assert sample(TreeDrafter([DRAFT], twigs), Coupled(), 1000) == plain
    assert sample(Bigram(), Coupled(), 1000) == plain
    assert fit(TreeDrafter([DRAFT], twigs), TableVerifier(TARGET), Coupled(), THREE).same_text


def test_coupled_drafts_from_the_target_s_own_law_are_all_accepted():
    batch = requests(range(200), THREE)
    from quasar.core.engine import Engine

    done = Engine(TreeDrafter([TARGET], CHAIN), TableVerifier(TARGET), Coupled()).generate(batch)
    assert all(one.acceptance_rate == 1.0 for one in done)


def test_coupling_accepts_more_than_independent_samples_that_happen_to_agree():
    from quasar.core.engine import Engine

    class Uncoupled(Coupled):
        couples = False

    batch = requests(range(1000), THREE)
    rates = []
    for acceptor in (Coupled(), Uncoupled()):
        done = Engine(TreeDrafter([DRAFT], CHAIN[:1]), TableVerifier(TARGET), acceptor).generate(batch)
        rates.append(sum(one.num_accepted for one in done) / sum(one.num_drafted for one in done))
    assert rates[0] > rates[1] + 0.1


def test_bigram_drafts_follow_the_target_under_the_ratio_test():
    found: list[Text] = []
    for start in range(0, SAMPLES, 5000):
        found += texts(Bigram(), TableVerifier(TARGET), Stochastic(), requests(range(start, start + 5000), THREE), 2)
    assert not refutes(chi_square(found, replace(WORLD, sampling=THREE).text_laws()))


def test_control_bigram_drafts_with_a_law_from_before_the_processors_are_caught():
    class Raw(Bigram):
        def propose(self, context, budget):
            draft = super().propose(context, budget)
            flat = torch.full_like(draft.trials.table, 1 / draft.trials.table.shape[-1])
            return replace(draft, trials=replace(draft.trials, table=flat))

    found = texts(Raw(), TableVerifier(TARGET), Stochastic(), requests(range(FEWER), THREE), 2)
    assert refutes(chi_square(found, replace(WORLD, sampling=THREE).text_laws()))
