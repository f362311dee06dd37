"""The adaptive length: what it learns, what it chooses, and that it pays in worlds whose costs are known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from drafting import context, nodes
from pydantic import ValidationError

from quasar.acceptors.stochastic import Stochastic
from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.types import Draft
from quasar.drafters.adaptive import Adaptive, subtrees
from quasar.drafters.bigram import Bigram
from quasar.drafters.cascade import Cascade
from quasar.drafters.ngram import Ngram
from quasar.drafters.recycling import Recycling
from quasar.drafters.routed import Routed
from quasar.drafters.scheduling import costs as costs_module
from quasar.drafters.scheduling.costs import Costs, CostTables
from quasar.drafters.scheduling.estimate import Estimate
from quasar.drafters.scheduling.evidence import Evidence
from quasar.drafters.scheduling.schedule import Node
from quasar.drafters.union import Union
from quasar.testing import Fault, TinyModels, check_component, conformance_report
from quasar.verifiers.full import Full

STEEP, NATIVE = Costs({1: 1.0, 2: 1.9, 6: 2.4, 17: 4.0}, 0.0), Costs({1: 1.0, 6: 1.45, 12: 2.1, 17: 2.7}, 0.0)


def estimate(most=16, decay=0.95, prior=0.5, probe_share=0.02) -> Estimate:
    return Estimate(most, decay, prior, probe_share)


# --- costs ------------------------------------------------------------------------------------------------------------


def test_costs_lie_on_lines_between_and_beyond_the_widths_of_the_table():
    costs = Costs({5: 3.0, 1: 1.0, 7: 3.5}, 0.0)
    assert [costs.forward(width) for width in (1, 2, 3, 5, 6, 7, 9)] == [1.0, 1.5, 2.0, 3.0, 3.25, 3.5, 4.0]
    assert costs.of_node(0) == 0.5
    assert costs.of_node(4) == 0.25


def test_the_cost_of_drafting_is_added_to_every_node():
    assert Costs({1: 1.0, 2: 1.5}, 0.25).of_node(3) == 0.75


def test_a_table_of_one_width_says_that_width_does_not_matter():
    assert {Costs({4: 2.0}, 0.0).forward(width) for width in (1, 4, 30)} == {2.0}


def test_costs_between_two_lengths_of_text_lie_on_a_line_and_shorter_texts_cost_what_the_shortest_did():
    tables = CostTables({1056: {1: 2.0, 3: 4.0}, 32: {1: 1.0, 2: 1.5, 3: 2.0}}, 0.25)
    assert [tables.at(length).forward(1) for length in (0, 40, 512 + 32, 1056, 2080)] == [1.0, 1.0, 1.5, 2.0, 3.0]
    assert tables.at(512 + 32).forward(2) == 2.25
    assert tables.at(0).of_node(0) == 0.75
    assert CostTables({1: {1: 1.0, 2: 1.5}}, 0.0).at(9000).forward(2) == 1.5


# --- the estimate -----------------------------------------------------------------------------------------------------


def chain(length: int) -> list[Node]:
    return [Node(7, place, 0) for place in range(length)]


def tree(*nodes: tuple[int, int]) -> list[Node]:
    return [Node(token, parent, 0) for token, parent in nodes]


def test_a_drafter_that_is_always_right_gets_all_and_one_that_never_is_gets_nothing():
    good, bad = estimate(), estimate()
    for _ in range(20):
        good.learn(16, chain(16), [7] * 16 + [1])
        bad.learn(16, chain(16), [1])
    assert good.ask(STEEP) == 16
    assert bad.ask(NATIVE) == 0


def test_a_chain_is_drafted_as_far_as_it_was_accepted():
    known = estimate()
    for _ in range(20):
        known.learn(16, chain(16), [7, 7, 7, 1])
    assert known.ask(NATIVE) == 3


def test_places_of_a_tree_are_told_apart():
    known = estimate(most=4)
    for _ in range(30):  # the second sibling and its child are right, the first is not
        known.learn(4, tree((1, 0), (2, 0), (3, 1), (4, 2)), [2, 4, 9])
    assert known.ask(Costs({1: 1.0, 5: 1.2}, 0.0)) == 4
    backwards = estimate(most=4)
    for _ in range(30):  # the first one and its child
        backwards.learn(4, tree((1, 0), (3, 1), (2, 0), (4, 3)), [1, 3, 9])
    assert backwards.ask(Costs({1: 1.0, 5: 2.0}, 0.0)) == 2


def test_a_draft_that_is_rarely_there_costs_little():
    rare = estimate()
    for step in range(60):
        there = step % 10 == 0
        rare.learn(4, chain(4) if there else [], [7, 7, 7, 7, 1] if there else [1])
    assert rare.ask(NATIVE) >= 4


def test_what_costs_more_is_drafted_less():
    known = estimate()
    for step in range(40):
        known.learn(16, chain(16), [7, 7, 1] if step % 2 else [1])
    assert known.ask(Costs({1: 1.0, 17: 1.2}, 0.0)) >= 2
    assert known.ask(Costs({1: 1.0, 17: 15.0}, 0.0)) == 0
    assert known.ask(Costs({1: 1.0, 17: 1.2}, 1.0)) == 0


def test_a_step_that_did_not_happen_teaches_nothing():
    known = estimate()
    for _ in range(50):
        known.learn(16, chain(16), [])
    assert known.ask(NATIVE) == estimate().ask(NATIVE) > 0


def test_it_probes_for_a_share_of_the_time_and_comes_back():
    known, costs = estimate(probe_share=0.02), Costs({1: 1.0, 2: 1.2}, 0.0)
    for _ in range(30):
        known.learn(16, chain(16), [1])
    asked = []
    for _ in range(100):
        asked.append(known.ask(costs))
        known.learn(asked[-1], chain(asked[-1]), [1])
    assert sum(asked) == 100 * 0.02 / 0.2
    for _ in range(60):
        asked.append(known.ask(costs))
        known.learn(asked[-1], chain(asked[-1]), [7] * asked[-1] + [1])
    assert asked[-1] == 16


# --- the evidence -----------------------------------------------------------------------------------------------------


def matching(*lengths: int) -> list[Node]:
    """A chain of 7 with these matches."""
    return [Node(7, place, length) for place, length in enumerate(lengths)]


def evidence(most=16, decay=0.95, probe_share=0.02) -> Evidence:
    return Evidence(most, decay, probe_share)


def test_a_long_match_is_trusted_before_anything_is_known_and_a_short_one_is_not():
    costs = Costs({1: 1.0, 2: 1.4, 17: 7.4}, 0.0)
    assert list(evidence().keep(matching(20, 21, 22), 16, costs)) == [0, 1, 2]
    assert list(evidence().keep(matching(1), 16, costs)) == []
    assert list(evidence().keep([], 16, costs)) == []


def test_a_node_has_to_raise_the_rate_by_more_than_costs_drift():
    known = evidence(probe_share=1e-9)  # a match of one token: assumed to be right in a quarter of the cases
    assert list(known.keep(matching(1), 16, Costs({1: 1.0, 2: 1.24}, 0.0))) == []
    assert list(known.keep(matching(1), 16, Costs({1: 1.0, 2: 1.20}, 0.0))) == [0]


def test_matches_of_a_length_are_judged_by_what_became_of_them():
    known, costs = evidence(), Costs({1: 1.0, 2: 1.3, 17: 5.8}, 0.0)
    for _ in range(40):  # here short matches are right and long ones are wrong
        known.learn(16, matching(1), [7, 1])
        known.learn(16, matching(20), [1])
    assert list(known.keep(matching(1), 16, costs)) == [0]
    assert list(known.keep(matching(20), 16, costs)) == []


def test_a_node_behind_a_wrong_one_says_nothing_of_its_kind():
    known, fresh = evidence(decay=1.0), evidence(decay=1.0)
    for _ in range(40):
        known.learn(16, matching(1, 9), [1])
    assert known._acceptance((4, 0), 9) == fresh._acceptance((4, 0), 9)
    assert known._acceptance((1, 0), 1) < fresh._acceptance((1, 0), 1)
    assert known._acceptance((1, 1), 1) == fresh._acceptance((1, 1), 1)


def test_siblings_are_told_apart_and_the_worthiest_nodes_stay_with_their_parents():
    known, nodes = evidence(), [Node(1, 0, 1), Node(2, 0, 1), Node(3, 1, 9), Node(4, 2, 9)]
    for _ in range(40):  # the second sibling and its child are right
        known.learn(16, nodes, [2, 4, 9])
    costs = Costs({1: 1.0, 17: 4.2}, 0.0)
    assert list(known.keep(nodes, 16, costs)) == [1, 3]
    assert list(known.keep(nodes, 16, Costs({1: 1.0, 17: 1.001}, 0.0))) == [0, 1, 2, 3]


def test_no_more_nodes_are_kept_than_may_be():
    assert list(evidence(most=2).keep(matching(9, 10, 11), 16, Costs({1: 1.0, 17: 1.1}, 0.0))) == [0, 1]


def test_a_draft_that_does_not_pay_is_tried_for_a_share_of_the_time():
    known, costs = evidence(probe_share=0.02), Costs({1: 1.0, 2: 1.2}, 0.0)
    tried = 0
    for step in range(160):
        kept = list(known.keep(matching(1, 2), 16, costs))
        known.learn(16, matching(1, 2)[: len(kept)], [1])
        tried += step >= 60 and len(kept)
    assert tried == 100 * 0.02 / 0.2


def test_what_comes_after_the_last_committed_token_is_not_counted():
    known, fresh = evidence(), evidence()
    known.learn(16, matching(5, 6, 7), [7, 7])  # the text ended there
    known.learn(16, matching(5, 6, 7), [])
    assert known._acceptance((3, 0), 7) > fresh._acceptance((3, 0), 7)
    assert known._counts == {(3, 0): (1.95, 1.95)}


# --- worlds whose costs are known -------------------------------------------------------------------------------------


def tokens_for_the_time(costs: Costs, right: float, there: float, fixed: int | None, seed: int) -> float:
    """Tokens for the time of one text of 256 tokens; chains are right with one probability at each place."""
    chance, known, done, time = random.Random(seed), estimate(), 0, 0.0
    while done < 256:
        asked = known.ask(costs) if fixed is None else fixed
        drafted = chain(asked) if chance.random() < there else []
        accepted = 0
        while accepted < len(drafted) and chance.random() < right:
            accepted += 1
        known.learn(asked, drafted, [7] * accepted + [1])
        done, time = done + accepted + 1, time + costs.forward(1 + len(drafted))
    return done / time


@pytest.mark.parametrize("there", [1.0, 0.3])
@pytest.mark.parametrize("right", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9])
def test_it_is_never_much_slower_than_plain_decoding_or_than_the_best_fixed_length(right, there):
    def mean(fixed: int | None) -> float:
        return sum(tokens_for_the_time(NATIVE, right, there, fixed, seed) for seed in range(30)) / 30

    adaptive = mean(None)
    assert adaptive >= 0.97
    assert adaptive >= 0.95 * max(mean(fixed) for fixed in (1, 2, 3, 4, 6, 8, 12, 16))


# --- the drafter ------------------------------------------------------------------------------------------------------


class Asked(Drafter):
    """Drafts chains of 7 as long as it may, and remembers what it was asked for."""

    name = "asked"
    drafts_by = "point_mass"

    def __init__(self) -> None:
        super().__init__()
        self.budgets: list[list[int]] = []

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        self.budgets.append(list(budget))
        return Draft.chains([[7] * limit for limit in budget])


def adaptive(inner: Drafter, **options) -> Adaptive:
    return Adaptive(Adaptive.Config(drafter=inner, **{"costs": {1: 1.0, 6: 1.45, 17: 2.7}, **options}))


def run(made: Adaptive, ids: list[int], steps: int, right: bool, running: Context | None = None) -> Context:
    """Commit what was drafted, or never."""
    running = running or context(ids)
    for _ in range(steps):
        (drafted,) = nodes(made.propose(running, [20]))
        ids.extend([*(token for token, _ in drafted), 1] if right else [1])
    return running


def test_a_drafter_is_asked_for_what_pays_and_for_no_more_than_the_budget():
    inner, ids = Asked(), [3]
    made = adaptive(inner, max_nodes=12)
    running = run(made, ids, 20, right=True)
    assert inner.budgets[-1] == [12]
    made.propose(running, [4])
    assert inner.budgets[-1] == [4]
    run(made, ids, 100, right=False, running=running)
    assert sum(limit for (limit,) in inner.budgets[-50:]) <= 15  # of 50 steps, a probe now and then


def test_rows_have_estimates_of_their_own():
    inner, good, bad = Asked(), [3], [3]
    made, running = adaptive(inner), context(good, bad)
    for _ in range(20):
        drafted = nodes(made.propose(running, [20, 20]))
        good.extend([*(token for token, _ in drafted[0]), 1])
        bad.append(1)
    assert inner.budgets[-1][0] == 16
    assert inner.budgets[-1][1] <= 1


def test_what_was_learnt_dies_with_the_request_unless_it_is_carried_over():
    for carry_over, expected in ((False, Asked().budgets), (True, [[0]])):
        inner = Asked()
        made = adaptive(inner, carry_over=carry_over)
        first = run(made, [3], 1, right=False) and inner.budgets[0]
        run(made, [3], 30, right=False)
        run(made, [3], 1, right=False)
        assert inner.budgets[-1:] == (expected or [first])


class Trees(Asked):
    """Drafts a tree of 8 nodes that is two deep, whatever it is asked for."""

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        super().propose(context, budget)
        return Draft.trees([[(token, 0) for token in range(4)] + [(token, 2) for token in range(4)] for _ in budget])


def test_a_tree_of_point_masses_is_cut_to_the_nodes_that_pay():
    made, ids = adaptive(Trees(), costs={1: 1.0, 9: 3.0}), [3]
    running, drafted = context(ids), []
    for _ in range(50):
        drafted += nodes(made.propose(running, [20]))
        ids.extend([0, 9])  # the first node is right, nothing below it is there
    assert drafted.count([(0, 0)]) >= 40
    assert max(map(len, drafted)) < 8


def test_what_is_kept_of_a_draft_keeps_its_laws_and_its_evidence():
    draft = replace(
        Draft.trees([[(1, 0), (2, 0), (3, 2)], [(4, 0)]], [[5, 6, 7], [8]]), next_distributions=torch.rand(2, 4, 5)
    )
    fewer = subtrees(draft, [[1, 2], []])
    assert nodes(fewer) == [[(2, 0), (3, 1)], []]
    assert fewer.matched == [[6, 7], []]
    assert torch.equal(fewer.next_distributions[0], draft.next_distributions[0, [0, 2, 3]])
    assert torch.equal(fewer.next_distributions[1, 0], draft.next_distributions[1, 0])


class Tells(Asked):
    """Says of its chains that they follow 1, 2, ... tokens."""

    matched = True

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        draft = super().propose(context, budget)
        return replace(draft, matched=[range(1, limit + 1) for limit in budget])


def test_a_drafter_that_tells_its_evidence_is_asked_for_all_and_kept_from_what_does_not_pay():
    inner, ids = Tells(), [3]
    made = adaptive(inner, max_nodes=12)
    running = run(made, ids, 60, right=False)
    assert inner.budgets == [[12]] * 60
    drafted = nodes(made.propose(running, [20]))[0]
    assert len(drafted) <= 1
    run(made, ids, 60, right=True, running=running)
    draft = made.propose(running, [20])
    assert draft.nodes > 5
    assert list(draft.matched[0]) == list(range(1, draft.nodes + 1))


def test_the_traits_are_those_of_the_wrapped_drafter():
    for inner in (Ngram(), Bigram()):
        made = adaptive(inner)
        assert (made.drafts_by, made.next_distributions, made.matched) == (
            inner.drafts_by,
            inner.next_distributions,
            inner.matched,
        )


# --- costs that are measured ------------------------------------------------------------------------------------------


class Clock:
    """A time that passes with the columns of forwards and the tokens of drafts only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        forward = costs_module.Session.forward

        def timed(session, texts, draft):
            self.now += 4 + draft.nodes
            return forward(session, texts, draft)

        monkeypatch.setattr(costs_module.Session, "forward", timed)
        monkeypatch.setattr(costs_module, "device_clock", lambda device: lambda: self.now)


class Slow(Asked):
    """Takes 2 for a token."""

    clock: Clock

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        self.clock.now += 2 * budget[0]
        return super().propose(context, budget)


def load(made, models):
    checker = Full()
    checker.load(models)
    made.load(models)
    made.attach_verifier(checker)


def test_costs_that_were_not_given_are_measured_once_and_shown(monkeypatch):
    clock, models = Clock(monkeypatch), TinyModels()
    inner = Slow()
    inner.clock = clock
    made = adaptive(inner, costs=None, max_nodes=5)
    load(made, models)
    shown = made.describe()
    assert shown["costs"] == {key: {1: 1.0, 2: 1.25, 3: 1.5, 4: 1.75, 6: 2.25} for key in (128, 1024)}
    assert shown["draft_cost"] == 0.5
    clock.now += 1e6
    other = adaptive(Ngram(), costs=None, max_nodes=5, draft_cost=0.125)
    load(other, models)
    assert other.describe().flat() == {
        "costs": shown["costs"], "draft_cost": 0.125, "carry_over": False, "drafter": {"use": "ngram"},
    }  # fmt: skip


class Meets(Ngram):
    """Notes what it goes through before it drafts."""

    def load(self, models):
        self.loaded, self.met = models, None

    def attach_verifier(self, verifier):
        self.met = verifier


def drafters_of(inner, own):
    """Every drafter that takes drafters, round ``inner``, and who checks the drafts of that: ``own`` inside a pipeline."""
    yield Union(Union.Config(drafters=[Ngram(), inner])), None
    yield adaptive(inner), None
    yield Routed(Routed.Config(arms={"low": inner, "mid": Ngram(), "high": Ngram()}, policy="length")), None
    yield Cascade(Cascade.Config(drafter=inner, verifier=own, acceptor=Stochastic())), own


@pytest.mark.parametrize("number", range(4), ids=["union", "adaptive", "routed", "cascade"])
def test_drafters_inside_drafters_are_loaded_and_meet_who_checks_them(number):
    models, inner, own, outer = TinyModels(), Meets(), Full(), Full()
    made, checker = list(drafters_of(inner, own))[number]
    made.load(models)
    made.attach_verifier(outer)
    assert inner.loaded is models
    assert inner.met is (checker or outer)


def test_a_width_is_compared_with_the_plain_step_of_its_round():
    rounds = {1: [1.0, 10.0, 1.0, 2.0, 8.0], 2: [1.5, 15.0, 1.5, 3.0, 12.0]}
    assert costs_module.typical(rounds) == {1: 2.0, 2: 3.0}


def test_a_wider_forward_is_never_taken_for_a_cheaper_one(monkeypatch):
    monkeypatch.setattr(costs_module, "_time_forwards", lambda *_: {1: [2.0], 2: [5.0], 3: [3.0]})
    made = adaptive(Ngram(), costs=None, max_nodes=2)
    load(made, TinyModels())
    assert made.describe()["costs"] == {key: {1: 1.0, 2: 2.5, 3: 2.5} for key in (128, 1024)}


def test_options_from_describe_give_the_same_drafter():
    made = adaptive(Ngram(), costs=None)
    load(made, TinyModels())
    shown = made.describe()
    again = adaptive(Ngram(), costs=shown["costs"], draft_cost=shown["draft_cost"])
    load(again, TinyModels())
    assert again.describe() == shown


@pytest.mark.parametrize(
    "costs",
    [{}, {0: 1.0}, {1: 0.0}, {1: -1.0}, {"one": 1.0}, {64: {}}, {64: {0: 1.0}}, {64: {1: 0.0}}, {64: {1: 1.0}, 1: 1.0}],
)
def test_costs_that_make_no_sense_are_refused(costs):
    with pytest.raises(ValidationError):
        Adaptive.Config(drafter=Ngram(), costs=costs)


@pytest.mark.parametrize("options", [{"costs": {1: 1.0, 6: 1.5}}, {"max_nodes": 2}])
def test_the_contract_is_kept(options):
    check_component(Adaptive, models=TinyModels(), drafter=Recycling(), **options)


def test_carrying_over_is_the_only_thing_that_the_kit_finds():
    options = {"drafter": Ngram(), "costs": {1: 1.0, 2: 1.3}, "carry_over": True}
    (fault,) = conformance_report(Adaptive, models=TinyModels(), **options)
    assert fault.startswith(Fault.MEMORY)
