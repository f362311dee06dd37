"""Shapes of drafts as their constructors make them, and the counts of a generation."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch

from quasar.core.records import Generation, StepRecord
from quasar.core.types import POINT_MASS, Draft, OneHot, Verification


def test_chains_number_their_parents_0_1_2():
    draft = Draft.chains([[5, 6, 7], [8]])
    assert draft.parents.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert draft.num_nodes.tolist() == [3, 1]
    assert draft.token_ids.tolist() == [[5, 6, 7], [8, 0, 0]]
    assert draft.trials is None


@pytest.mark.parametrize("rows", [[], [[]], [[], []], [[1], []]])
def test_chains_take_rows_and_batches_of_nothing(rows: list[list[int]]):
    draft = Draft.chains(rows)
    assert draft.batch == len(rows)
    assert draft.nodes == max(map(len, rows), default=0)
    assert draft.token_ids.shape == draft.parents.shape == (draft.batch, draft.nodes)
    assert draft.num_nodes.tolist() == [len(row) for row in rows]


@pytest.mark.parametrize("rows", [[], [[]], [[], []], [[(1, 0)], []]])
def test_trees_take_rows_and_batches_of_nothing(rows: list[list[tuple[int, int]]]):
    draft = Draft.trees(rows)
    assert draft.token_ids.shape == draft.parents.shape == (len(rows), max(map(len, rows), default=0))
    assert draft.num_nodes.tolist() == [len(row) for row in rows]


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_an_empty_draft_has_rows_without_nodes(batch: int):
    draft = Draft.empty(batch)
    assert (draft.batch, draft.nodes) == (batch, 0)
    assert draft.num_nodes.tolist() == [0] * batch


@pytest.mark.parametrize("draft", [Draft.chains([[1], []]), Draft.trees([[(1, 0)]]), Draft.empty(2), Draft.chains([])])
def test_integers_of_a_draft_are_int64(draft: Draft):
    assert {draft.token_ids.dtype, draft.parents.dtype, draft.num_nodes.dtype} == {torch.int64}


def test_trees_keep_tokens_and_parents_in_slot_order():
    draft = Draft.trees([[(7, 0), (8, 0), (9, 2)], [(5, 0)]])
    assert draft.token_ids.tolist() == [[7, 8, 9], [5, 0, 0]]
    assert draft.parents.tolist() == [[0, 0, 2], [0, 0, 0]]


def test_a_sampled_chain_tries_each_node_once_by_its_own_law():
    laws = torch.full((2, 2, 4), 0.25)
    trials = Draft.chains([[1, 2], [3]], laws).trials
    assert trials is not None
    assert trials.nodes.tolist() == [[1, 2], [1, 0]]
    assert trials.sources.tolist() == [[0, 1], [0, POINT_MASS]]
    assert trials.table is laws


def test_a_sampled_chain_may_be_empty_in_every_row():
    trials = Draft.chains([[], []], torch.empty((2, 0, 4))).trials
    assert trials is not None
    assert trials.nodes.shape == trials.sources.shape == (2, 0)


def test_a_draft_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Draft.empty(1).num_nodes = torch.tensor([1])  # type: ignore[misc]


def step(drafted: int, accepted: int, committed: int, is_prefill: bool = False) -> StepRecord:
    return StepRecord(is_prefill, drafted, drafted, accepted, committed, 0, 0.0, 0.0, 0.0)


PREFILL = step(0, 0, 1, is_prefill=True)


def test_acceptance_length_counts_draft_less_steps_and_bonus_tokens_but_not_prefill():
    done = Generation((1,) * 7, "length", (PREFILL, step(3, 2, 3), step(0, 0, 1), step(3, 1, 2)))
    assert done.num_steps == 3
    assert done.acceptance_length == 2.0
    assert done.acceptance_rate == 0.5
    assert (done.num_drafted, done.num_accepted) == (6, 3)


def test_plain_decoding_has_an_acceptance_length_of_1_and_no_rate():
    done = Generation((1, 1, 1), "length", (PREFILL, step(0, 0, 1), step(0, 0, 1)))
    assert done.acceptance_length == 1.0
    assert done.acceptance_rate is None


def test_a_text_that_ends_with_prefill_has_no_acceptance_length():
    assert Generation((1,), "eos", (PREFILL,)).acceptance_length is None


def test_one_hot_laws_written_out_hold_everything_on_one_token():
    laws = OneHot(torch.tensor([[2, 0]]), 3, torch.float64)
    verification = Verification(Draft.chains([[1]]), laws)
    assert verification.probs.tolist() == [[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]]
    assert verification.probs.dtype == torch.float64
    assert verification.certain is laws.token_ids
    assert verification.vocab_size == 3


def test_laws_given_as_a_table_are_not_called_certain():
    table = torch.eye(3)[None]
    verification = Verification(Draft.chains([[1, 2]]), table)
    assert verification.probs is table
    assert verification.certain is None
    assert (verification.vocab_size, verification.device) == (3, table.device)


def test_rows_of_a_draft_leave_padding_out():
    draft = Draft.trees([[(7, 0), (8, 1)], []])
    assert draft.rows == (([7, 8], [0, 1]), ([], []))
