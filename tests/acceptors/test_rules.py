"""The two ways down a tree, place by place: what can be accepted, and what must be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quasar.acceptors.rules import exact as rules
from quasar.core.context import Context, Row, TokenView
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams, draw
from quasar.core.types import POINT_MASS, Acceptance, Draft, Trials, Verification
from tests.shared.draft_strategies import Tree, padded, rows_of_trees, trees

VOCAB = 4
quick = settings(deadline=None, max_examples=100)


def context(batch: int, length: int = 3, seed: int = 0) -> Context:
    params = SamplingParams(temperature=1.0, seed=seed)
    rows = tuple(Row(TokenView([0] * length), 1, "toy", sample, params) for sample in range(batch))
    return Context(rows, Streams([(seed, "toy", sample) for sample in range(batch)]))


def random_laws(batch: int, slots: int, seed: int, zeros: float = 0.4) -> Tensor:
    """Laws of which many entries are 0."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(batch, slots, VOCAB, generator=generator)
    weights *= torch.rand(batch, slots, VOCAB, generator=generator) >= zeros
    weights[..., 0] += (weights.sum(dim=-1) == 0).float()
    return weights / weights.sum(dim=-1, keepdim=True)


def sampled(draft: Draft, table: Tensor, points: Tensor | None = None) -> Draft:
    """Give every node of ``draft`` one trial by the law of its own number; nodes in ``points`` are point masses."""
    slots = torch.arange(draft.nodes).expand(draft.batch, -1)
    used = slots < draft.num_nodes[:, None]
    laws = slots if points is None else torch.where(points, POINT_MASS, slots)
    return replace(draft, trials=Trials(torch.where(used, slots + 1, 0), torch.where(used, laws, POINT_MASS), table))


def drawn(rows: list[Tree], seed: int) -> Draft:
    """The shape of ``rows`` with tokens drawn from random laws; every third node is a point mass."""
    draft = Draft.trees(rows)
    table = random_laws(draft.batch, draft.nodes, seed)
    keys = Streams([(seed, "draft", row) for row in range(draft.batch)]).target(
        torch.arange(draft.nodes).expand(draft.batch, -1)
    )
    points = (torch.arange(draft.nodes) % 3 == 2).expand(draft.batch, -1)
    tokens = torch.where(points, draft.token_ids, draw(table, keys)) if draft.nodes else draft.token_ids
    return sampled(replace(draft, token_ids=tokens), table, points)


def walk_of(acceptance: Acceptance, row: int) -> list[int]:
    """Slots from 0 along the accepted path."""
    return [0, *acceptance.path[row, : int(acceptance.num_accepted[row])].tolist()]


def assert_path(draft: Draft, acceptance: Acceptance) -> None:
    """Every accepted slot is a used node whose parent was accepted before it."""
    for row in range(draft.batch):
        walk = walk_of(acceptance, row)
        assert all(slot <= draft.num_nodes[row] for slot in walk)
        assert [int(draft.parents[row, slot - 1]) for slot in walk[1:]] == walk[:-1]


def assert_possible(draft: Draft, probs: Tensor, acceptance: Acceptance) -> None:
    """Every committed token had a target probability above 0."""
    for row in range(draft.batch):
        walk = walk_of(acceptance, row)
        tokens = [*(int(draft.token_ids[row, slot - 1]) for slot in walk[1:]), int(acceptance.next_token[row])]
        assert all(probs[row, slot, token] > 0 for slot, token in zip(walk, tokens, strict=True))


# Both rules.


@quick
@given(rows=rows_of_trees(VOCAB), seed=st.integers(0, 2**20))
def test_sampled_drafts_are_accepted_along_a_path_of_possible_tokens(rows: list[Tree], seed: int):
    draft = drawn(rows, seed)
    probs = random_laws(draft.batch, draft.nodes + 1, seed + 1)
    acceptance = rules.accept_exactly(Verification(draft, probs), context(draft.batch, seed=seed))
    assert_path(draft, acceptance)
    assert_possible(draft, probs, acceptance)


@quick
@given(rows=rows_of_trees(VOCAB), seed=st.integers(0, 2**20))
def test_point_masses_are_accepted_along_a_path_of_possible_tokens(rows: list[Tree], seed: int):
    draft = Draft.trees(rows)
    probs = random_laws(draft.batch, draft.nodes + 1, seed)
    acceptance = rules.accept_exactly(Verification(draft, probs), context(draft.batch, seed=seed))
    assert_path(draft, acceptance)
    assert_possible(draft, probs, acceptance)


@quick
@given(
    rows=rows_of_trees(VOCAB), seed=st.integers(0, 2**20), rubbish=st.sampled_from([-1, 0, 2, 99]), points=st.booleans()
)
def test_what_the_padding_holds_does_not_matter(rows: list[Tree], seed: int, rubbish: int, points: bool):
    clean = Draft.trees(rows) if points else drawn(rows, seed)
    rubbish_beyond = padded(rows, rubbish)
    unused = torch.arange(clean.nodes) >= clean.num_nodes[:, None]
    draft = replace(
        clean,
        token_ids=clean.token_ids.where(~unused, rubbish_beyond.token_ids),
        parents=rubbish_beyond.parents,
    )
    if draft.trials is not None:
        laws = draft.trials.sources.masked_fill(draft.trials.nodes == 0, rubbish)
        draft = replace(draft, trials=replace(draft.trials, sources=laws))
    probs = random_laws(draft.batch, draft.nodes + 1, seed)
    first = rules.accept_exactly(Verification(clean, probs), context(draft.batch))
    second = rules.accept_exactly(Verification(draft, probs), context(draft.batch))
    assert torch.equal(first.path, second.path)
    assert torch.equal(first.num_accepted, second.num_accepted)
    assert torch.equal(first.next_token, second.next_token)


@quick
@given(rows=rows_of_trees(VOCAB), seed=st.integers(0, 2**20), wanted=st.lists(st.booleans(), min_size=4, max_size=4))
def test_a_row_is_decided_alone_as_in_a_batch(rows: list[Tree], seed: int, wanted: list[bool]):
    """Also where some rows sampled their drafts and others did not."""
    draft = drawn(rows, seed)
    laws = draft.trials.sources.masked_fill(~torch.tensor(wanted)[: draft.batch, None], POINT_MASS)
    draft = replace(draft, trials=replace(draft.trials, sources=laws))
    probs = random_laws(draft.batch, draft.nodes + 1, seed + 1)
    together = rules.accept_exactly(Verification(draft, probs), context(draft.batch))
    for row, tree in enumerate(rows):
        size, only, trials = len(tree), slice(row, row + 1), draft.trials
        own = Draft(
            draft.token_ids[only, :size],
            draft.parents[only, :size],
            draft.num_nodes[only],
            Trials(trials.nodes[only, :size], trials.sources[only, :size], trials.table[only]),
        )
        whole = context(draft.batch)
        alone = Context((whole.rows[row],), Streams([(0, "toy", row)]))
        acceptance = rules.accept_exactly(Verification(own, probs[only, : size + 1]), alone)
        assert walk_of(acceptance, 0) == walk_of(together, row)
        assert acceptance.next_token[0] == together.next_token[row]


def test_a_step_without_drafts_draws_from_the_target_stream():
    batch = 200
    probs, place = random_laws(batch, 1, seed=0), context(batch)
    expected = draw(probs, place.streams.target(place.committed()[:, None]))[:, 0]
    for draft in (Draft.empty(batch), Draft.chains([[]] * batch, torch.empty((batch, 0, VOCAB)))):
        acceptance = rules.accept_exactly(Verification(draft, probs), place)
        assert torch.equal(acceptance.next_token, expected)
        assert acceptance.num_accepted.tolist() == [0] * batch


# Sample and compare.


@quick
@given(tree=trees(VOCAB), seed=st.integers(0, 2**20))
def test_the_walk_follows_the_samples_as_far_as_there_are_children_for_them(tree: Tree, seed: int):
    draft, place = Draft.trees([tree]), context(1, seed=seed)
    probs = random_laws(1, draft.nodes + 1, seed)
    acceptance = rules.sample_and_compare(Verification(draft, probs), place)
    walk = walk_of(acceptance, 0)
    for depth, slot in enumerate(walk):
        sample = int(draw(probs[:, slot], place.streams.target(torch.tensor([[3 + depth]]))[:, 0]))
        children = [child + 1 for child, (token, parent) in enumerate(tree) if parent == slot and token == sample]
        if depth + 1 < len(walk):
            assert walk[depth + 1] == children[0]
        else:
            assert not children
            assert acceptance.next_token[0] == sample


def test_the_order_of_siblings_does_not_change_the_text():
    probs = random_laws(300, 4, seed=1, zeros=0.0)
    probs[:, 1:] = probs[:, 1:2]  # what follows a sibling does not depend on its place
    texts = []
    for tokens in ((0, 1, 2), (2, 0, 1)):
        draft = Draft.trees([[(token, 0) for token in tokens]] * 300)
        acceptance = rules.sample_and_compare(Verification(draft, probs), context(300))
        texts.append(
            [
                [tokens[slot - 1] for slot in walk_of(acceptance, row)[1:]] + [int(acceptance.next_token[row])]
                for row in range(300)
            ]
        )
    assert texts[0] == texts[1]


def test_trials_that_are_all_point_masses_need_no_laws():
    draft = Draft.chains([[1, 2]])
    trials = Trials(torch.tensor([[1, 2]]), torch.full((1, 2), POINT_MASS), torch.empty((1, 0, VOCAB)))
    probs = random_laws(1, 3, seed=0)
    with_trials = rules.accept_exactly(Verification(replace(draft, trials=trials), probs), context(1))
    without = rules.accept_exactly(Verification(draft, probs), context(1))
    assert torch.equal(with_trials.path, without.path)
    assert torch.equal(with_trials.next_token, without.next_token)


# The ratio test.


@quick
@given(rows=st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=5), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_drafts_from_the_target_itself_are_all_accepted(rows: list[list[int]], seed: int):
    width = max(map(len, rows))
    probs = random_laws(len(rows), width + 1, seed, zeros=0.0)
    draft = Draft.chains(rows, probs[:, :width])
    acceptance = rules.accept_exactly(Verification(draft, probs), context(len(rows)))
    assert acceptance.num_accepted.tolist() == [len(row) for row in rows]


def one_hot(tokens: list[int]) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), VOCAB).float()


@pytest.mark.parametrize("drafted", range(VOCAB))
@pytest.mark.parametrize("wanted", range(VOCAB))
def test_a_one_hot_draft_on_a_one_hot_target_is_kept_or_corrected(drafted: int, wanted: int):
    draft = Draft.chains([[drafted]] * 50, one_hot([drafted]).expand(50, 1, VOCAB))
    probs = one_hot([wanted, 3]).expand(50, 2, VOCAB)
    acceptance = rules.accept_exactly(Verification(draft, probs), context(50))
    assert set(acceptance.num_accepted.tolist()) == {int(drafted == wanted)}
    assert set(acceptance.next_token.tolist()) == {3 if drafted == wanted else wanted}


@pytest.mark.parametrize("point", [True, False])
def test_a_token_of_target_probability_0_is_refused_even_by_the_number_0(monkeypatch: pytest.MonkeyPatch, point: bool):
    monkeypatch.setattr(Context, "accept_uniforms", lambda self, count: torch.zeros((self.batch, count)).double())
    draft = Draft.chains([[2]] * 50, torch.full((50, 1, VOCAB), 1 / VOCAB))
    if point:
        draft = replace(draft, trials=replace(draft.trials, sources=torch.full((50, 1), POINT_MASS)))
    probs = torch.tensor([0.5, 0.5, 0.0, 0.0]).expand(50, 2, VOCAB)
    acceptance = rules.ratio_test(Verification(draft, probs), context(50))
    assert acceptance.num_accepted.sum() == 0
    assert set(acceptance.next_token.tolist()) <= {0, 1}


def test_a_token_that_the_target_wants_at_least_as_much_is_always_accepted():
    q = torch.tensor([0.1, 0.2, 0.3, 0.4])
    p = torch.tensor([0.1, 0.3, 0.4, 0.2])
    for token, always in ((0, True), (1, True), (2, True), (3, False)):
        draft = Draft.chains([[token]] * 400, q.expand(400, 1, VOCAB))
        acceptance = rules.accept_exactly(Verification(draft, p.expand(400, 2, VOCAB)), context(400))
        assert bool(acceptance.num_accepted.all()) == always


def test_a_draft_is_accepted_with_target_over_draft_probability():
    p, q, batch = 0.12, 0.4, 20_000
    target = torch.tensor([0.5, 0.2, 0.18, p])
    draft = Draft.chains([[3]] * batch, torch.tensor([0.2, 0.2, 0.2, q]).expand(batch, 1, VOCAB))
    acceptance = rules.accept_exactly(Verification(draft, target.expand(batch, 2, VOCAB)), context(batch))
    assert acceptance.num_accepted.float().mean().item() == pytest.approx(p / q, abs=0.016)  # five standard deviations
    correction = acceptance.next_token[acceptance.num_accepted == 0]
    assert 3 not in correction.tolist()
    assert (correction == 0).float().mean().item() == pytest.approx(1.0, abs=1e-9)  # only token 0 is wanted more often


def test_two_trials_of_one_node_both_count():
    """Two draws that came out equal: a node that is refused once is tried again by what is left."""
    batch, law = 20_000, torch.tensor([0.25, 0.25, 0.25, 0.25])
    target = torch.tensor([0.05, 0.35, 0.30, 0.30])
    once = Draft.chains([[0]] * batch, law.expand(batch, 1, VOCAB))
    nodes, laws = torch.tensor([[1, 1]]).expand(batch, 2), torch.zeros((batch, 2), dtype=torch.int64)
    twice = replace(once, trials=Trials(nodes, laws, law.expand(batch, 1, VOCAB)))
    verification = Verification(twice, target.expand(batch, 2, VOCAB))
    found = rules.accept_exactly(verification, context(batch))
    # Refused once, 0 is not in the residual any more; the second refusal shifts the law once again.
    rest = (target - law).clamp_min(0)
    rest = (rest / rest.sum() - law).clamp_min(0)
    rest = rest / rest.sum()
    corrections = found.next_token[found.num_accepted == 0]
    shares = torch.bincount(corrections, minlength=VOCAB) / len(corrections)
    assert found.num_accepted.float().mean().item() == pytest.approx(0.2, abs=0.015)
    torch.testing.assert_close(shares, rest, rtol=0, atol=0.02)


def test_later_siblings_are_not_tried_once_one_is_accepted():
    draft = sampled(Draft.trees([[(0, 0), (1, 0), (2, 1)]] * 50), torch.full((50, 3, VOCAB), 0.25))
    probs = torch.full((50, 4, VOCAB), 0.25)
    acceptance = rules.accept_exactly(Verification(draft, probs), context(50))
    assert {tuple(walk_of(acceptance, row)) for row in range(50)} == {(0, 1, 3)}


def test_a_node_without_a_trial_is_never_accepted_by_its_ratio():
    draft = sampled(Draft.trees([[(0, 0), (1, 0)]] * 50), torch.full((50, 2, VOCAB), 0.25))
    nodes = draft.trials.nodes.clone()
    nodes[:, 0] = 0
    draft = replace(draft, trials=replace(draft.trials, nodes=nodes))
    probs = torch.tensor([0.9, 0.1, 0.0, 0.0]).expand(50, 3, VOCAB)
    acceptance = rules.accept_exactly(Verification(draft, probs), context(50))
    assert 1 not in acceptance.path[:, 0].tolist()


def test_float32_draft_laws_meet_float64_targets():
    draft = Draft.chains([[1]] * 50, torch.full((50, 1, VOCAB), 0.25))
    probs = random_laws(50, 2, seed=0).double()
    acceptance = rules.accept_exactly(Verification(draft, probs), context(50))
    assert_possible(draft, probs, acceptance)
