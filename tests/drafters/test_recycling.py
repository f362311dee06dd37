"""Token recycling: what it learns from which node, and the tree that it draws."""

from __future__ import annotations

import pytest
import torch
from drafting import context, logits_of, nodes, verified
from hypothesis import given, settings
from hypothesis import strategies as st

from quasar.core.types import Draft
from quasar.drafters.recycling import Recycling, likeliest, template
from quasar.testing import Fault, TinyModels, check_component, conformance_report


def drafter(**options) -> Recycling:
    return Recycling(Recycling.Config(**options))


# --- the largest entries ----------------------------------------------------------------------------------------------


@given(rows=st.integers(1, 4), vocab=st.integers(1, 1500), count=st.integers(1, 10), seed=st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_the_largest_entries_are_those_of_topk(rows, vocab, count, seed):
    logits = torch.randn((rows, vocab), generator=torch.Generator().manual_seed(seed))
    assert likeliest(logits, count) == logits.topk(min(count, vocab)).indices.tolist()


@pytest.mark.parametrize("place", [0, 63, 64, 639, 640, 699])
def test_an_entry_at_the_edge_of_a_block_is_found(place):
    logits = torch.zeros((1, 700), dtype=torch.bfloat16)
    logits[0, place] = 1
    assert likeliest(logits, 3)[0][0] == place


# --- the template -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 8, 16, 80])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_smaller_template_is_the_beginning_of_a_larger_one(size, ranks):
    found = template(size, ranks)
    assert len(found) == len(set(found)) == size
    assert found == template(size + 7, ranks)[:size]
    assert all(parent <= place and rank < ranks for place, (parent, rank) in enumerate(found))
    worth = [1.0]
    for parent, rank in found:
        worth.append(worth[parent] / 2 / (rank + 1))
        assert rank == 0 or (parent, rank - 1) in found  # the better sibling is there
    assert worth[1:] == sorted(worth[1:], reverse=True)


# --- learning ---------------------------------------------------------------------------------------------------------


def test_nothing_is_known_at_first():
    assert nodes(drafter().propose(context([1, 2, 3]), [5])) == [[]]


def test_the_step_of_the_prompt_teaches_what_follows_its_last_token():
    running = context([3, 4, 3])  # the prompt ended with 4
    running.verification = verified(Draft.empty(1), logits_of([7, 8]))
    made = drafter(top_k=2, max_nodes=2)
    assert nodes(made.propose(running, [5])) == [[]]
    running = context([3, 4, 4])
    running.verification = verified(Draft.empty(1), logits_of([7, 8]))
    assert nodes(made.propose(running, [5])) == [[(7, 0), (8, 0)]]


def test_every_node_teaches_whether_it_was_accepted_or_not():
    ids = [3, 3]
    running, made = context(ids), drafter(top_k=1, max_nodes=4)
    running.verification = verified(Draft.empty(1), logits_of([5]))
    first = made.propose(running, [9])  # 3 → 5, and nothing is known after 5
    assert nodes(first) == [[(5, 0)]]
    tree = Draft.trees([[(5, 0), (6, 0), (8, 2)]])
    running.verification = verified(tree, logits_of([9], [3], [8], [1]))  # after 3, 5, 6 and 8
    ids.extend([9, 6])  # nothing of the tree was accepted
    assert nodes(made.propose(running, [9])) == [[(8, 0), (1, 1)]]
    running.verification = verified(Draft.empty(1), logits_of([5]))
    ids.append(5)
    assert nodes(made.propose(running, [2])) == [[(3, 0), (9, 1)]]  # and 9 comes after 3 since the step before


def test_padding_teaches_nothing():
    rows = [[2, 4], [2, 4]]
    running, made = context(*rows), drafter(top_k=1)
    made.propose(running, [1, 1])
    tree = Draft.chains([[5], []])  # the second row's node is padding, with token 0
    running.verification = verified(tree, torch.cat([logits_of([6], [7]), logits_of([6], [7])]))
    for ids, new in zip(rows, ([5, 5], [0]), strict=True):
        ids.extend(new)
    assert nodes(made.propose(running, [1, 1])) == [[(7, 0)], []]


def test_a_step_without_budget_teaches_too():
    ids = [3, 4]
    running, made = context(ids), drafter(top_k=1)
    made.propose(running, [9])
    running.verification = verified(Draft.empty(1), logits_of([4]))
    ids.append(9)
    assert nodes(made.propose(running, [0])) == [[]]
    running.verification = verified(Draft.empty(1), logits_of([4]))
    ids.append(4)
    assert nodes(made.propose(running, [3])) == [[(4, 0), (4, 1), (4, 2)]]


def test_a_tree_is_no_deeper_than_the_budget():
    running = context([4, 4, 4])
    running.verification = verified(Draft.empty(1), logits_of([4, 5, 6]))
    assert nodes(drafter(top_k=3).propose(running, [1])) == [[(4, 0), (5, 0), (6, 0)]]


def test_rows_do_not_learn_from_each_other():
    running = context([1, 2, 2], [1, 3, 2])
    running.verification = verified(Draft.empty(2), torch.cat([logits_of([5]), logits_of([6])]))
    assert nodes(drafter(top_k=1).propose(running, [1, 1])) == [[(5, 0)], []]


# --- from prompt to prompt --------------------------------------------------------------------------------------------


def test_what_was_learnt_dies_with_the_requests_unless_it_is_carried_over():
    for carry_over, expected in ((False, []), (True, [(5, 0)])):
        made = drafter(top_k=1, max_nodes=1, carry_over=carry_over)
        running = context([1, 2, 2])
        running.verification = verified(Draft.empty(1), logits_of([5]))
        made.propose(running, [1])
        assert nodes(made.propose(context([7, 2]), [1])) == [expected]
        assert made.describe().flat() == {"carry_over": carry_over}


@pytest.mark.parametrize("options", [{"max_nodes": 20, "top_k": 3}, {"max_nodes": 1, "top_k": 1}])
def test_the_contract_is_kept(options):
    check_component(Recycling, models=TinyModels(), **options)


def test_carrying_over_is_the_only_thing_that_the_kit_finds():
    (fault,) = conformance_report(Recycling, models=TinyModels(), carry_over=True)
    assert fault.startswith(Fault.MEMORY)
