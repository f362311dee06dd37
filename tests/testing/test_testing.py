"""The conformance kit: every kind of fault is named by a component that has it and no other, and sound ones pass."""

import random
import time
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import scipy.stats
import torch
from pydantic import BaseModel, Field

from quasar.acceptors.greedy import Greedy
from quasar.acceptors.rules.exact import sample_and_compare
from quasar.acceptors.stochastic import Stochastic
from quasar.core.components import Acceptor, Drafter, Verifier
from quasar.core.errors import ConfigError
from quasar.core.streams import draw, uniforms
from quasar.core.types import POINT_MASS, Acceptance, Draft, Trials, Verification
from quasar.drafters.datastore.store import write_datastore
from quasar.drafters.draft_model import DraftModel
from quasar.drafters.ngram import Ngram, NgramIndex
from quasar.drafters.none import NoDraft
from quasar.drafters.recycling import Recycling
from quasar.models.session import Session
from quasar.models.verifier import ModelVerifier
from quasar.plugins.registry import load_registry
from quasar.testing import (
    VOCAB,
    ConformanceError,
    Fault,
    TinyModel,
    TinyModels,
    check_component,
    conformance_report,
)
from quasar.testing.distributions import (
    chi_square,
    draws_against_distributions,
    independence,
    texts_against_distribution,
)
from quasar.verifiers.full import Full
from quasar.verifiers.int8 import Int8

REGISTRY = load_registry()
ELSEWHERE = {"cascade", "routed", "quasar"}  # whole pipelines in themselves; their own test files run the kit
COMPONENTS = [
    (line.kind, line.name)
    for kind in ("drafter", "verifier", "acceptor")
    for line in REGISTRY.listing(kind)
    if line.name not in ELSEWHERE
]
TABLE = torch.randn((VOCAB, VOCAB), generator=torch.Generator().manual_seed(99))


def names(report) -> list[str]:
    """The faults of a report, without the details."""
    return [line.partition(":")[0] for line in report]


def label(item) -> str:
    """What a parameter is called in the name of a test."""
    return item.__name__ if isinstance(item, type) else item.name


def last_tokens(context):
    return torch.tensor([[row.token_ids[-1]] for row in context.rows])


# --- sound components pass --------------------------------------------------------------------------------------------


DATASTORE = TemporaryDirectory()
write_datastore(Path(DATASTORE.name), [torch.arange(VOCAB, dtype=torch.int32)], "", TinyModels().tokenizer().tokens())

REQUIRED = {
    "union": {"drafters": [Ngram(), Recycling()]},
    "adaptive": {"drafter": Ngram()},
    "best_first": {"drafter": DraftModel()},
    "fp8": {"emulated": True},
    "int4": {"emulated": True},
    "retrieval": {"datastore": DATASTORE.name, "min_match": 1},
}
"""Options without a default, by component."""


@cache
def report_of(kind, name):
    """The report of a registered component, and the seconds of processor time that it took."""
    started = time.process_time()
    found = conformance_report(REGISTRY.find(kind, name), models=TinyModels(), **REQUIRED.get(name, {}))
    return found, time.process_time() - started


every_component = pytest.mark.parametrize(
    ("kind", "name"), COMPONENTS, ids=[f"{kind} {name}" for kind, name in COMPONENTS]
)


@every_component
def test_every_registered_component_keeps_its_contract(kind, name):
    assert report_of(kind, name)[0] == []


@every_component
def test_a_report_takes_less_than_ten_seconds(kind, name):
    assert report_of(kind, name)[1] < 10


@pytest.mark.parametrize(
    "options",
    [
        {"match": "first", "short": "pad"},
        {"match": "first", "short": "truncate", "num_speculative_tokens": 1},
        {"match": "last", "short": "pad", "num_speculative_tokens": 9},
        {"prompt_lookup_min": 2, "prompt_lookup_max": 4},
        {"preset": "vllm_v0"},
        {"preset": "transformers"},
        {"preset": "spec_bench", "dummy_token_id": 0},
    ],
)
def test_prompt_lookup_passes_with_any_options(options):
    check_component(Ngram, **options)


@pytest.mark.parametrize("component", [NoDraft, Greedy])
def test_built_in_components_pass_without_models(component):
    check_component(component)


@pytest.mark.parametrize("options", [{"backend": "reference"}, {"backend": "reference", "dtype": "float64"}])
def test_the_int8_verifier_passes_with_its_reference_backend(options):
    check_component(Int8, models=TinyModels(), **options)


def test_options_may_come_as_a_ready_config():
    check_component(Ngram, Ngram.Config(num_speculative_tokens=2))


def test_a_report_is_the_same_every_time():
    assert conformance_report(StatesAnotherLaw) == conformance_report(StatesAnotherLaw)


# --- drafters: sound doubles to break ---------------------------------------------------------------------------------


class Chain(Drafter):
    """Counts upwards."""

    name = "chain"
    drafts_by = "point_mass"

    def size(self, limit):
        return min(2, limit)

    def propose(self, context, budget):
        return Draft.chains(
            [
                [(row.token_ids[-1] + 1 + place) % VOCAB for place in range(self.size(limit))]
                for row, limit in zip(context.rows, budget, strict=True)
            ]
        )


class Sampler(Drafter):
    """Draws a chain of two tokens from a table."""

    name = "sampler"
    drafts_by = "sampled"

    def propose(self, context, budget):
        tokens, laws = [[] for _ in context.rows], []
        for node in range(min(2, max(budget))):
            so_far = Draft.chains(tokens)
            logits = TABLE[torch.cat([last_tokens(context), so_far.token_ids], dim=1)]
            law = self.at_end(context.distributions(logits, so_far), so_far)
            raw = self.at_end(logits.softmax(dim=-1), so_far)
            drawn = self.draw(context, law, raw, node)
            laws.append(self.state(law, raw, node))
            for row, limit in enumerate(budget):
                if limit > node and self.keep(int(drawn[row]), node, len(tokens[row])):
                    tokens[row].append(int(drawn[row]))
        return self.finish(
            context, Draft.chains(tokens, torch.stack(laws, dim=1)) if laws else Draft.empty(len(tokens))
        )

    def at_end(self, laws, so_far):
        return laws[torch.arange(so_far.batch), so_far.num_nodes]

    def draw(self, context, law, raw, node):
        return draw(law, self.keys(context, node))

    def keys(self, context, node):
        return context.streams.own("draft", torch.full((context.batch, 1), node), context.committed())[:, 0]

    def state(self, law, raw, node):
        return law

    def keep(self, token, node, length):
        return length == node

    def finish(self, context, draft):
        return draft


class Siblings(Drafter):
    """Draws two siblings, which share a node if they are equal, beside the most likely token as a point mass."""

    name = "siblings"
    drafts_by = "sampled"
    same_key = False

    def propose(self, context, budget):
        law = context.distributions(TABLE[last_tokens(context)], Draft.empty(context.batch))[:, 0]
        tokens = [law.argmax(dim=-1)]
        for node in range(2):
            numbers = torch.full((context.batch, 1), 0 if self.same_key else node)
            tokens.append(draw(law, context.streams.own("draft", numbers, context.committed())[:, 0]))
        rows, nodes, laws = [], [], []
        for row, limit in enumerate(budget):
            tried = [(int(tokens[0][row]), POINT_MASS), (int(tokens[1][row]), 0), (int(tokens[2][row]), 0)]
            tried = self.merge(tried) if limit else []
            slots = list(dict.fromkeys(token for token, _ in tried))
            rows.append([(token, 0) for token in slots])
            padding = 3 - len(tried)
            nodes.append([slots.index(token) + 1 for token, _ in tried] + [0] * padding)
            laws.append([source for _, source in tried] + [POINT_MASS] * padding)
        shape = Draft.trees(rows)
        trials = Trials(torch.tensor(nodes), torch.tensor(laws), law[:, None])
        return replace(shape, trials=trials)

    def merge(self, tried):
        return tried


class SilentSampler(Sampler):
    """Samples, but not at temperature 0 and not after short texts."""

    def propose(self, context, budget):
        if context.rows[0].sampling.temperature == 0:
            return Draft.empty(context.batch)
        return super().propose(context, [limit if len(row.token_ids) > 5 else 0 for row, limit in
                                         zip(context.rows, budget, strict=True)])  # fmt: skip


@pytest.mark.parametrize("component", [Chain, Sampler, Siblings, SilentSampler])
def test_the_doubles_are_sound_before_they_are_broken(component):
    assert conformance_report(component) == []


# --- drafters: one fault each -----------------------------------------------------------------------------------------


class RanksOfConfig(Chain):
    """Has an option that nobody explains."""

    class Config(Drafter.Config):
        depth: int = 3
        width: int = Field(3, description="How wide.")


class Undocumented(Chain):
    pass


class Unnamed(Drafter):
    """Has no name."""

    drafts_by = "point_mass"

    def propose(self, context, budget):
        return Draft.empty(context.batch)


class UnknownLaw(Chain):
    """Claims to draft in a way that does not exist."""

    drafts_by = "greedy"


class FreeConfig(Chain):
    """Has options that are no component's Config."""

    class Config(BaseModel):
        pass


class DraftsNever(Chain):
    """Claims that it never drafts."""

    drafts_by = "none"


class Raises(Chain):
    """Fails on a text of one token."""

    def propose(self, context, budget):
        return [row.token_ids[-7] for row in context.rows]


class ReturnsLists(Chain):
    """Returns lists."""

    def propose(self, context, budget):
        return [[1] for _ in context.rows]


class ShortIntegers(Chain):
    """Returns int32."""

    def propose(self, context, budget):
        draft = super().propose(context, budget)
        return replace(draft, token_ids=draft.token_ids.int())


class OneRow(Chain):
    """Drafts for the first row only."""

    def propose(self, context, budget):
        return Draft.chains([[1] if budget[0] else []])


class Backwards(Chain):
    """Names parents that come later."""

    def propose(self, context, budget):
        draft = super().propose(context, budget)
        return replace(draft, parents=draft.parents + 1)


class WithoutLaws(Chain):
    """Claims to sample and returns no laws."""

    drafts_by = "sampled"


class ForgetsNextLaws(Chain):
    """Promises a law after every slot, and returns none."""

    next_distributions = True


class ForgetsEvidence(Chain):
    """Promises evidence for every node, and returns none."""

    matched = True


class WrongEvidence(Chain):
    """Has evidence for one node more than it drafts."""

    matched = True

    def propose(self, context, budget):
        draft = super().propose(context, budget)
        return replace(draft, matched=[[1] * (count + 1) for count in draft.num_nodes.tolist()])


class ForeignIds(Chain):
    """Proposes an id that does not exist."""

    def propose(self, context, budget):
        draft = super().propose(context, budget)
        return replace(draft, token_ids=draft.token_ids + VOCAB)


class NegativeIds(ForeignIds):
    """Proposes −1."""

    def propose(self, context, budget):
        draft = super().propose(context, budget)
        return replace(draft, token_ids=draft.token_ids * 0 - 1)


class Over(Chain):
    """Ignores the budget."""

    def size(self, limit):
        return 3 if limit else 0


class NeverFinishes(Chain):
    """Drafts for rows that have finished."""

    def size(self, limit):
        return min(2, max(limit, 1))


class ChangesText(Chain):
    """Appends its draft to the text."""

    def propose(self, context, budget):
        context.rows[0].token_ids._ids.append(0)
        return super().propose(context, budget)


class ChangesScratch(Chain):
    """Clears the scratch of everybody."""

    def propose(self, context, budget):
        context._scratch.clear()
        return super().propose(context, budget)


class ChangesLaws(Chain):
    """Writes into the last verification."""

    def propose(self, context, budget):
        context.verification.probs.mul_(2)
        return super().propose(context, budget)


class ForgetsVerification(Chain):
    """Removes the last verification."""

    def propose(self, context, budget):
        context.verification = None
        return super().propose(context, budget)


class Dice(Chain):
    """Draws from a generator of its own."""

    def propose(self, context, budget):
        return Draft.chains([[random.randrange(VOCAB)][:limit] for limit in budget])


class GlobalDice(Sampler):
    """Samples with torch's global generator."""

    def draw(self, context, law, raw, node):
        return law.multinomial(1)[:, 0]


class Counts(Chain):
    """Counts its calls."""

    def __init__(self, config=None):
        super().__init__(config)
        self.calls = 0

    def propose(self, context, budget):
        self.calls += 1
        return Draft.chains([[self.calls % VOCAB][:limit] for limit in budget])


class KeepsIndex(Ngram):
    """Looks the drafts up in all texts that it has ever seen."""

    matched = False

    def __init__(self, config=None):
        super().__init__(config)
        self.kept = {}

    def propose(self, context, budget):
        rows = []
        for row, limit in zip(context.rows, budget, strict=True):
            ids = list(row.token_ids)
            rows.append([self.kept[ids[-1]]][:limit] if ids[-1] in self.kept else [])
        for row in context.rows:
            ids = list(row.token_ids)
            if row.prompt_length == 10:  # so that one request asked twice shows nothing
                self.kept.update(pairwise(ids))
        return Draft.chains(rows)


class BorrowsAcceptNoise(Sampler):
    """Draws with the random numbers of the accept test."""

    def keys(self, context, node):
        return context.streams.own("accept", torch.full((context.batch, 1), node), context.committed())[:, 0]


class WaitsForLuck(Sampler):
    """Drafts only if the target stream's next noise is small for token 0."""

    def finish(self, context, draft):
        lucky = uniforms(context.streams.target(context.committed()[:, None]))[:, 0] < 0.5
        laws = context.verification.probs[:, 0]
        coming = draw(laws, context.streams.target(context.committed()[:, None])[:, 0])
        count = torch.where(lucky | (coming > 2), draft.num_nodes, 0)
        nodes = torch.where(count[:, None] > 0, draft.trials.nodes, 0)
        return replace(draft, num_nodes=count, trials=replace(draft.trials, nodes=nodes))


class StatesRawLaw(Sampler):
    """Draws after the processors and states the law from before them."""

    def state(self, law, raw, node):
        return raw


class DrawsRawLaw(Sampler):
    """Draws from the law before the processors and states the one after them."""

    def draw(self, context, law, raw, node):
        return draw(raw, self.keys(context, node))


class IgnoresProcessors(Sampler):
    """Draws from the law before the processors, and says so."""

    def draw(self, context, law, raw, node):
        return draw(raw, self.keys(context, node))

    def state(self, law, raw, node):
        return raw


class ForgetsItsDrafts(Sampler):
    """Lets processors see the committed text only."""

    def propose(self, context, budget):
        tokens, laws = [[] for _ in context.rows], []
        for node in range(min(2, max(budget))):
            before = torch.tensor([[chain[-1] if chain else int(last)] for chain, last in
                                   zip(tokens, last_tokens(context), strict=True)])  # fmt: skip
            law = context.distributions(TABLE[before], Draft.empty(context.batch))[:, 0]
            laws.append(law)
            drawn = self.draw(context, law, law, node)
            for row, limit in enumerate(budget):
                if limit > node:
                    tokens[row].append(int(drawn[row]))
        return Draft.chains(tokens, torch.stack(laws, dim=1)) if laws else Draft.empty(len(tokens))


class StatesAnotherLaw(Sampler):
    """States the law of another node."""

    def state(self, law, raw, node):
        return law * 0.5 + law.roll(1, dims=-1) * 0.5


class UniformLaw(Sampler):
    """States a uniform law, for want of a better one."""

    def state(self, law, raw, node):
        return torch.full_like(law, 1 / VOCAB) if bool((law > 0).all()) else law


class DropsBadDraws(Sampler):
    """Drops a node because of its own draw."""

    def keep(self, token, node, length):
        return length == node and token not in (1, 5)


class OneNoise(Sampler):
    """Draws both places with the same random numbers."""

    def keys(self, context, node):
        return super().keys(context, 0)


class MergesAway(Siblings):
    """Drops the trial of the point mass where a sampled sibling is equal to it."""

    def merge(self, tried):
        (point, _), *sampled = tried
        return tried if all(token != point for token, _ in sampled) else sampled


class OneKey(Siblings):
    """Draws both siblings with one key, so that they are always equal."""

    same_key = True


BROKEN_DRAFTERS = {
    RanksOfConfig: Fault.DOCS,
    Undocumented: Fault.DOCS,
    Unnamed: Fault.TRAITS,
    UnknownLaw: Fault.TRAITS,
    FreeConfig: Fault.TRAITS,
    DraftsNever: Fault.TRAITS,
    Raises: Fault.RAISES,
    ReturnsLists: Fault.SHAPE,
    ShortIntegers: Fault.SHAPE,
    OneRow: Fault.SHAPE,
    Backwards: Fault.SHAPE,
    WithoutLaws: Fault.SHAPE,
    ForgetsNextLaws: Fault.SHAPE,
    ForgetsEvidence: Fault.SHAPE,
    WrongEvidence: Fault.SHAPE,
    ForeignIds: Fault.RANGE,
    NegativeIds: Fault.RANGE,
    Over: Fault.BUDGET,
    NeverFinishes: Fault.FINISHED,
    ChangesText: Fault.MUTATION,
    ChangesScratch: Fault.MUTATION,
    ChangesLaws: Fault.MUTATION,
    ForgetsVerification: Fault.MUTATION,
    Dice: Fault.CHANCE,
    GlobalDice: Fault.CHANCE,
    Counts: Fault.MEMORY,
    KeepsIndex: Fault.MEMORY,
    BorrowsAcceptNoise: Fault.FOREIGN,
    WaitsForLuck: Fault.FOREIGN,
    StatesRawLaw: Fault.PROCESSORS,
    DrawsRawLaw: Fault.PROCESSORS,
    IgnoresProcessors: Fault.PROCESSORS,
    ForgetsItsDrafts: Fault.PROCESSORS,
    StatesAnotherLaw: Fault.DISTRIBUTION,
    UniformLaw: Fault.DISTRIBUTION,
    DropsBadDraws: Fault.DISTRIBUTION,
    OneNoise: Fault.DISTRIBUTION,
    MergesAway: Fault.EXACTNESS,
    OneKey: Fault.EXACTNESS,
}


@pytest.mark.parametrize(("component", "fault"), BROKEN_DRAFTERS.items(), ids=label)
def test_a_drafters_fault_is_named(component, fault):
    assert names(conformance_report(component)) == [fault]


# --- acceptors --------------------------------------------------------------------------------------------------------


class Rule(Stochastic):
    """A sound acceptor."""

    name = "rule"


class PointRule(Acceptor):
    """Accepts point masses with the target's probability, on random numbers of its own; chains only."""

    name = "point_rule"
    takes = frozenset({"none", "point_mass"})
    exact = True


class LawlessRule(Rule):
    """Handles no law."""

    takes = frozenset()


class VagueRule(Rule):
    """Does not say whether it is exact."""

    exact = "mostly"


class TimidRule(Rule):
    """Says that it works at temperature 0 only, and refuses nothing."""

    greedy_only = True


class Edited(Rule):
    """Changes what the sound rule returns."""

    def accept(self, verification, context):
        return self.edit(super().accept(verification, context), verification, context)


class AcceptsUncles(Edited):
    """Accepts every node in order, as if all drafts were chains."""

    def edit(self, acceptance, verification, context):
        draft = verification.draft
        path = torch.arange(1, draft.nodes + 1).expand(draft.batch, draft.nodes)
        return replace(acceptance, path=path, num_accepted=draft.num_nodes)


class AcceptsPadding(Edited):
    """Accepts one node more than there is."""

    def edit(self, acceptance, verification, context):
        path = torch.cat([acceptance.path, torch.zeros_like(acceptance.path[:, :1]), acceptance.path[:, :0]], dim=1)
        return replace(acceptance, path=path, num_accepted=acceptance.num_accepted + 1)


class CountsTooFar(Edited):
    """Accepts more tokens than the path has places."""

    def edit(self, acceptance, verification, context):
        return replace(acceptance, num_accepted=acceptance.num_accepted + acceptance.path.shape[1] + 1)


class ReturnsTuple(Edited):
    """Returns a tuple."""

    def edit(self, acceptance, verification, context):
        return acceptance.path, acceptance.num_accepted, acceptance.next_token


class FloatTokens(Edited):
    """Returns floating-point tokens."""

    def edit(self, acceptance, verification, context):
        return replace(acceptance, next_token=acceptance.next_token.float())


class OneToken(Edited):
    """Returns the first row's token only."""

    def edit(self, acceptance, verification, context):
        return replace(acceptance, next_token=acceptance.next_token[:0])


class NextTokenTooHigh(Edited):
    """Returns a token that does not exist."""

    def edit(self, acceptance, verification, context):
        return replace(acceptance, next_token=acceptance.next_token + VOCAB)


class SpoilsLaws(Edited):
    """Writes into the laws that it was shown."""

    def edit(self, acceptance, verification, context):
        verification.probs.zero_()
        return acceptance


class TossesCoins(Edited):
    """Accepts nothing at all, now and then."""

    def edit(self, acceptance, verification, context):
        if random.random() < 0.5:
            return acceptance
        return replace(acceptance, num_accepted=acceptance.num_accepted * 0)


class GrowsTired(Edited):
    """Gives another token once it has seen many steps."""

    def __init__(self, config=None):
        super().__init__(config)
        self.steps = 0

    def edit(self, acceptance, verification, context):
        self.steps += 1
        return replace(acceptance, next_token=acceptance.next_token * 0) if self.steps > 3 else acceptance


class AcceptsAll(Rule):
    """Accepts every first child, and draws the token after them."""

    takes = frozenset({"none", "point_mass", "sampled"})
    target_stream = False

    def accept(self, verification, context):
        draft, rows = verification.draft, []
        for row in range(draft.batch):
            slot, path = 0, []
            for node in range(int(draft.num_nodes[row])):
                if int(draft.parents[row, node]) == slot:
                    slot = node + 1
                    path.append(slot)
            rows.append(path)
        width = max(map(len, rows))
        ends = torch.tensor([path[-1] if path else 0 for path in rows])
        laws = verification.probs[torch.arange(draft.batch), ends]
        keys = context.streams.own("next", torch.zeros((draft.batch, 1), dtype=torch.int64), context.committed())
        path = torch.tensor([[*path, *[0] * (width - len(path))] for path in rows]).reshape(draft.batch, width).long()
        return Acceptance(path, torch.tensor([len(path) for path in rows]), draw(laws, keys[:, 0]))


class AcceptsAllAndSaysSo(AcceptsAll):
    """Accepts everything, and claims nothing."""

    exact = False


class GreedyAtAnyTemperature(Rule):
    """Takes the most likely token at any temperature."""

    target_stream = False

    def accept(self, verification, context):
        probs = verification.probs
        one_hot = torch.zeros_like(probs).scatter_(-1, probs.argmax(dim=-1, keepdim=True), 1.0)
        return sample_and_compare(replace(verification, distributions=one_hot), context)


class NeverResamples(Rule):
    """After a rejection draws from the target law instead of the residual."""

    takes = frozenset({"none", "sampled"})
    target_stream = False

    def accept(self, verification, context):
        found = super().accept(verification, context)
        slots = torch.where(found.num_accepted > 0, found.path.amax(dim=1) if found.path.shape[1] else 0, 0)
        laws = verification.probs[torch.arange(len(slots)), slots]
        keys = context.streams.own("again", slots[:, None], context.committed())
        return replace(found, next_token=draw(laws, keys[:, 0]))


class OtherNoise(Rule):
    """Claims plain decoding's text, and draws from a stream of its own."""

    def accept(self, verification, context):
        class Elsewhere:
            def __getattr__(self, name):
                return getattr(context.streams, name)

            def target(self, positions):
                return context.streams.own("elsewhere", positions, context.committed())

        return super().accept(verification, replace(context, streams=Elsewhere()))


class ModestNoise(OtherNoise):
    """Draws from a stream of its own, and claims the law only."""

    target_stream = False


BROKEN_ACCEPTORS = {
    LawlessRule: Fault.TRAITS,
    VagueRule: Fault.TRAITS,
    TimidRule: Fault.TRAITS,
    PointRule: Fault.TRAITS,  # it has no accept
    AcceptsUncles: Fault.PATH,
    AcceptsPadding: Fault.PATH,
    CountsTooFar: Fault.PATH,
    ReturnsTuple: Fault.SHAPE,
    FloatTokens: Fault.SHAPE,
    OneToken: Fault.SHAPE,
    NextTokenTooHigh: Fault.RANGE,
    SpoilsLaws: Fault.MUTATION,
    TossesCoins: Fault.CHANCE,
    GrowsTired: Fault.MEMORY,
    AcceptsAll: Fault.EXACTNESS,
    GreedyAtAnyTemperature: Fault.EXACTNESS,
    NeverResamples: Fault.EXACTNESS,
    OtherNoise: Fault.STREAM,
}


@pytest.mark.parametrize("component", [Rule, AcceptsAllAndSaysSo, ModestNoise])
def test_a_sound_acceptor_passes(component):
    assert conformance_report(component) == []


@pytest.mark.parametrize(("component", "fault"), BROKEN_ACCEPTORS.items(), ids=label)
def test_an_acceptors_fault_is_named(component, fault):
    assert names(conformance_report(component)) == [fault]


# --- verifiers --------------------------------------------------------------------------------------------------------


class Table(Verifier):
    """A sound verifier: a table of what follows the last token."""

    name = "table"
    precision = "full"

    def verify(self, context, draft):
        logits = TABLE[torch.cat([last_tokens(context), draft.token_ids], dim=1)]
        return Verification(draft, self.distributions(context, logits, draft), logits)

    def distributions(self, context, logits, draft):
        return context.distributions(logits, draft)

    def vocab_size(self):
        return VOCAB


class Imprecise(Table):
    """Says nothing of its precision."""

    precision = ""


class NegativeVocabulary(Table):
    """Has a vocabulary of −1."""

    def vocab_size(self):
        return -1


class LawsAreNotLaws(Table):
    """Returns scores."""

    def distributions(self, context, logits, draft):
        return logits.exp()


class SkipsSlotZero(Table):
    """Returns no law after the last committed token."""

    def distributions(self, context, logits, draft):
        return context.distributions(logits, draft)[:, 1:]


class RawLaws(Table):
    """Forgets the processors."""

    def distributions(self, context, logits, draft):
        return logits.softmax(dim=-1)


class HiddenRawLaws(Table):
    """Forgets the processors, and shows no logits that would give it away."""

    def verify(self, context, draft):
        found = super().verify(context, draft)
        return Verification(draft, found.logits.softmax(dim=-1))


class PerTensorScale(Table):
    """Rounds with one scale for a whole block, so that a token's law depends on the tokens beside it."""

    def verify(self, context, draft):
        logits = TABLE[torch.cat([last_tokens(context), draft.token_ids], dim=1)]
        scale = logits.abs().max() / 3
        logits = (logits / scale).round() * scale
        return Verification(draft, context.distributions(logits, draft), logits)


class ReadsNoTree(ModelVerifier):
    """Takes every draft for a chain."""

    name = "reads_no_tree"
    precision = "full"

    def load_model(self, models):
        return models.target()

    def verify(self, context, draft):
        chain = replace(draft, parents=torch.arange(draft.nodes).expand(draft.batch, draft.nodes))
        texts = [row.token_ids for row in context.rows]
        logits = self._session(context).forward(texts, chain)
        return Verification(draft, context.distributions(logits, draft), logits)


class ReadsOldTexts(ModelVerifier):
    """Puts the last token of whatever it saw before in front of every text."""

    name = "reads_old_texts"
    precision = "full"
    before = ()

    def load_model(self, models):
        return models.target()

    def verify(self, context, draft):
        seen = [[*self.before, *row.token_ids] for row in context.rows]
        self.before = tuple(seen[0][-1:])
        logits = Session(self.model, context.batch).forward(seen, draft)
        return Verification(draft, context.distributions(logits, draft), logits)


class WritesIntoDraft(Table):
    """Changes the draft that it judges."""

    def verify(self, context, draft):
        found = super().verify(context, draft)
        draft.token_ids.zero_()
        return found


class CopiesDraft(Table):
    """Returns another draft than it judged."""

    def verify(self, context, draft):
        return replace(super().verify(context, draft), draft=Draft.empty(draft.batch))


BROKEN_VERIFIERS = {
    Imprecise: Fault.TRAITS,
    NegativeVocabulary: Fault.TRAITS,
    LawsAreNotLaws: Fault.SHAPE,
    SkipsSlotZero: Fault.SHAPE,
    CopiesDraft: Fault.SHAPE,
    RawLaws: Fault.PROCESSORS,
    HiddenRawLaws: Fault.PROCESSORS,
    PerTensorScale: Fault.NEIGHBOURS,
    ReadsNoTree: Fault.NEIGHBOURS,
    ReadsOldTexts: Fault.MEMORY,
    WritesIntoDraft: Fault.MUTATION,
}


def test_a_sound_verifier_passes():
    assert conformance_report(Table) == []


@pytest.mark.parametrize(("component", "fault"), BROKEN_VERIFIERS.items(), ids=label)
def test_a_verifiers_fault_is_named(component, fault):
    assert names(conformance_report(component, models=TinyModels())) == [fault]


def test_every_fault_has_a_component_that_shows_it():
    assert {*BROKEN_DRAFTERS.values(), *BROKEN_ACCEPTORS.values(), *BROKEN_VERIFIERS.values()} == set(Fault)


# --- the report -------------------------------------------------------------------------------------------------------


class TwoFaults(Over):
    class Config(Drafter.Config):
        depth: int = 3


def test_all_faults_are_listed_in_one_error_one_line_each():
    with pytest.raises(ConformanceError) as raised:
        check_component(TwoFaults)
    lines = str(raised.value).splitlines()
    assert lines[0] == "TwoFaults does not keep its contract:"
    assert names(lines[1:]) == [Fault.DOCS, Fault.BUDGET]


def test_the_error_is_an_assertion_error():
    assert issubclass(ConformanceError, AssertionError)


def test_an_exception_is_reported_with_its_place():
    assert "test_testing.py" in conformance_report(Raises)[0]


def test_wrong_options_are_the_callers_mistake():
    with pytest.raises(ConfigError, match="num_speculative_token"):
        check_component(Ngram, num_speculative_token=3)


@pytest.mark.parametrize("thing", [int, "ngram", NgramIndex])
def test_what_is_no_component_is_reported(thing):
    assert names(conformance_report(thing)) == [Fault.TRAITS]


def test_a_verifier_that_loads_models_is_only_looked_at_without_them():
    assert conformance_report(Full) == []
    assert conformance_report(ReadsNoTree) == []


# --- the tiny model ---------------------------------------------------------------------------------------------------


def test_the_tiny_model_sees_order_and_places():
    model = TinyModel(torch.float64)

    def after(text):
        return Session(model, 1).forward([text], Draft.empty(1))[0, 0]

    assert not torch.allclose(after([1, 2, 3]), after([1, 1, 3]))
    assert not torch.allclose(after([1, 1, 2, 3]), after([1, 2, 1, 3]))  # the same tokens at other places
    assert not torch.allclose(after([3]), after([3, 3]))


def test_copies_of_the_tiny_model_share_weights_and_not_modules():
    model = TinyModel()
    twin = model.sharing_copy()
    assert twin.storages().keys() == model.storages().keys()
    next(iter(twin.linear_layers())).replace(torch.nn.Identity())
    assert len(list(twin.linear_layers())) == 3
    assert len(list(model.linear_layers())) == 4


# --- the statistics ---------------------------------------------------------------------------------------------------


def test_chi_square_is_that_of_scipy():
    observed, expected = [20.0, 30.0, 50.0], [25.0, 25.0, 50.0]
    assert chi_square([(observed, expected)]) == pytest.approx(scipy.stats.chisquare(observed, expected).pvalue)


def test_groups_add_up():
    groups = [([20.0, 30.0], [25.0, 25.0]), ([40.0, 20.0, 40.0], [30.0, 30.0, 40.0])]
    statistic = sum((o - e) ** 2 / e for group in groups for o, e in zip(*group, strict=True))
    assert chi_square(groups) == pytest.approx(scipy.stats.chi2.sf(statistic, 3))


def test_rare_cells_are_pooled():
    pooled = chi_square([([54.0, 46.0, 3.0, 5.0], [50.0, 50.0, 4.0, 4.0])])
    assert pooled == pytest.approx(scipy.stats.chisquare([54, 46, 8], [50, 50, 8]).pvalue)


def test_what_cannot_happen_has_probability_0():
    assert chi_square([([99.0, 1.0], [100.0, 0.0])]) == 0


def test_nothing_to_test_is_no_fault():
    assert chi_square([]) == 1
    assert chi_square([([3.0], [3.0])]) == 1


def test_draws_from_their_laws_are_accepted_and_others_are_not():
    generator = torch.Generator().manual_seed(0)
    laws = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]).repeat(1000, 1)
    tokens = laws.multinomial(1, generator=generator)[:, 0].tolist()
    assert draws_against_distributions(tokens, laws.tolist()) > 0.001
    assert draws_against_distributions(tokens, laws.roll(1, 0).tolist()) < 1e-6


def test_texts_are_tested_beyond_their_single_places():
    # each place alone follows the law, but the third token repeats the first
    generator = torch.Generator().manual_seed(0)
    even = torch.full((2, 2), 0.5, dtype=torch.float64)
    sound = torch.randint(0, 2, (2000, 3), generator=generator)
    repeated = torch.cat([sound[:, :2], sound[:, :1]], dim=1)
    assert texts_against_distribution(sound, even, 0) > 0.001
    assert texts_against_distribution(repeated, even, 0) < 1e-6


def test_dependence_is_seen_and_independence_is_not_mistaken_for_it():
    numbers = random.Random(0)
    one, other = ([numbers.randrange(3) for _ in range(2000)] for _ in range(2))
    given = [numbers.randrange(2) for _ in range(2000)]
    shifted = [(number + place) % 3 for number, place in zip(one, given, strict=True)]
    assert independence(one, other, given) > 0.001
    assert independence(one, [a if b else 0 for a, b in zip(one, other, strict=True)], given) < 1e-6
    assert independence(one, shifted, given) < 1e-6


def test_two_numbers_that_depend_on_a_third_only_are_independent_given_it():
    numbers = random.Random(0)
    given = [numbers.randrange(2) for _ in range(2000)]
    one, other = ([place + numbers.randrange(2) for place in given] for _ in range(2))
    assert independence(one, other, given) > 0.001
    assert independence(one, other, [0] * 2000) < 1e-6
