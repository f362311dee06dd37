"""The geometry of drafts against a naive reading of their parents, and what ``check_draft`` refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quasar.core import trees
from quasar.core.draft_contract import check_draft
from quasar.core.errors import ContractError
from quasar.core.types import POINT_MASS, Draft, Trials
from tests.shared.draft_strategies import Tree, padded, rows_of_trees

VOCAB = 5
rubbish = st.sampled_from([-1, 0, 3, 10**6])
quick = settings(deadline=None, max_examples=100)


def ancestors(tree: Tree, slot: int) -> list[int]:
    """Slots on the path to ``slot``, itself last, slot 0 left out."""
    return [] if slot == 0 else [*ancestors(tree, tree[slot - 1][1]), slot]


@quick
@given(rows=rows_of_trees(VOCAB), rubbish=rubbish)
def test_depths_count_the_ancestors(rows: list[Tree], rubbish: int):
    depths = trees.depths(padded(rows, rubbish))
    assert depths.shape == (len(rows), max(map(len, rows)) + 1)
    for row, tree in enumerate(rows):
        assert depths[row, : len(tree) + 1].tolist() == [len(ancestors(tree, s)) for s in range(len(tree) + 1)]


@quick
@given(rows=rows_of_trees(VOCAB), rubbish=rubbish)
def test_a_node_sees_itself_and_its_ancestors_only(rows: list[Tree], rubbish: int):
    visible = trees.visibility(padded(rows, rubbish))
    for row, tree in enumerate(rows):
        for slot in range(1, len(tree) + 1):
            seen = (visible[row, slot - 1].nonzero()[:, 0] + 1).tolist()
            assert seen == ancestors(tree, slot)


@quick
@given(rows=rows_of_trees(VOCAB), rubbish=rubbish)
def test_visibility_is_closed_under_ancestors(rows: list[Tree], rubbish: int):
    visible = trees.visibility(padded(rows, rubbish)).int()
    through_another = (visible @ visible).bool()
    for row, tree in enumerate(rows):
        size = len(tree)
        assert not (through_another & ~visible.bool())[row, :size, :size].any()


@quick
@given(rows=rows_of_trees(VOCAB), rubbish=rubbish)
def test_the_longest_path_is_that_of_the_nodes_in_use(rows: list[Tree], rubbish: int):
    expected = [max((len(ancestors(tree, slot)) for slot in range(1, len(tree) + 1)), default=0) for tree in rows]
    assert trees.longest_paths(padded(rows, rubbish)) == expected


@quick
@given(rows=rows_of_trees(VOCAB), rubbish=rubbish)
def test_prefixes_spell_the_path_to_every_slot(rows: list[Tree], rubbish: int):
    draft = padded(rows, rubbish)
    for row, tree in enumerate(rows):
        expected = [[tree[slot - 1][0] for slot in ancestors(tree, end)] for end in range(len(tree) + 1)]
        assert trees.prefixes(draft, row) == expected


@pytest.mark.parametrize("length", [0, 1, 4])
def test_a_chain_and_the_same_tree_have_one_geometry(length: int):
    chain = Draft.chains([[1] * length, [2] * length])
    tree = Draft.trees([[(1, slot) for slot in range(length)], [(2, slot) for slot in range(length)], [(0, 0)] * 5])
    assert trees.is_chain(chain)
    assert not trees.is_chain(tree)
    assert torch.equal(trees.depths(chain), trees.depths(tree)[:2, : length + 1])
    assert torch.equal(trees.visibility(chain), trees.visibility(tree)[:2, :length, :length])


@quick
@given(rows=rows_of_trees(VOCAB), rubbish=rubbish)
def test_a_sound_draft_passes_whatever_its_padding_holds(rows: list[Tree], rubbish: int):
    draft = padded(rows, rubbish)
    check_draft(draft, trees.longest_paths(draft), VOCAB, "point_mass", "toy")


# What is refused. Every case changes one thing of a sound draft of two rows, a tree of three nodes and a chain of one.

SOUND = Draft.trees([[(1, 0), (2, 0), (3, 1)], [(4, 0)]])
LAWS = torch.full((2, 3, VOCAB), 1 / VOCAB)
SAMPLED = replace(
    SOUND, trials=Trials(torch.tensor([[1, 2, 3], [1, 0, 0]]), torch.tensor([[0, 1, POINT_MASS], [2, -1, -1]]), LAWS)
)


def changed(values: torch.Tensor, row: int, column: int, value: float) -> torch.Tensor:
    result = values.clone()
    result[row, column] = value
    return result


def check(draft: Any, law: str = "point_mass", budget: tuple[int, ...] = (2, 1), vocab: int | None = VOCAB) -> None:
    check_draft(draft, budget, vocab, law, "toy")


def refusal(draft: Any, **options: Any) -> str | None:
    """Return why a draft is refused, ``None`` if it passes."""
    try:
        check(draft, **options)
    except ContractError as error:
        return str(error)
    return None


def test_the_sound_drafts_pass():
    assert refusal(SOUND) is None
    assert refusal(SAMPLED, law="sampled") is None
    assert refusal(Draft.empty(2), budget=(0, 0)) is None
    check(Draft.empty(2), law="sampled")
    check(Draft.empty(2), law="none")


MALFORMED = {
    "not a draft": ("the value", [[1, 2]]),
    "ids that are no tensor": ("token_ids", replace(SOUND, token_ids=[[1, 2, 3], [4, 0, 0]])),
    "ids of the wrong type": ("token_ids", replace(SOUND, token_ids=SOUND.token_ids.int())),
    "float ids": ("token_ids", replace(SOUND, token_ids=SOUND.token_ids.double())),
    "ids without a batch": ("token_ids", replace(SOUND, token_ids=SOUND.token_ids[0])),
    "ids of another batch": ("token_ids", replace(SOUND, token_ids=SOUND.token_ids[:1])),
    "ids elsewhere than on the host": ("token_ids", replace(SOUND, token_ids=SOUND.token_ids.to("meta"))),
    "an id beyond the vocabulary": ("token_ids", replace(SOUND, token_ids=changed(SOUND.token_ids, 0, 1, VOCAB))),
    "a negative id": ("token_ids", replace(SOUND, token_ids=changed(SOUND.token_ids, 1, 0, -1))),
    "parents of the wrong type": ("parents", replace(SOUND, parents=SOUND.parents.to(torch.int32))),
    "parents of another width": ("parents", replace(SOUND, parents=SOUND.parents[:, :2])),
    "a node that is its own parent": ("parents", replace(SOUND, parents=changed(SOUND.parents, 0, 1, 2))),
    "a parent that comes later": ("parents", replace(SOUND, parents=changed(SOUND.parents, 0, 0, 3))),
    "a negative parent": ("parents", replace(SOUND, parents=changed(SOUND.parents, 0, 2, -1))),
    "too many nodes": ("num_nodes", replace(SOUND, num_nodes=torch.tensor([4, 1]))),
    "a negative number of nodes": ("num_nodes", replace(SOUND, num_nodes=torch.tensor([3, -1]))),
    "a column of numbers of nodes": ("num_nodes", replace(SOUND, num_nodes=torch.tensor([[3], [1]]))),
    "trials of a point-mass drafter": ("trials", SAMPLED),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_draft_is_refused(case: str):
    field, draft = MALFORMED[case]
    with pytest.raises(ContractError, match=rf"^drafter 'toy' returned a bad draft: {field} should be .*\.$") as error:
        check(draft)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def trials(**fields: Any) -> Draft:
    return replace(SAMPLED, trials=replace(SAMPLED.trials, **fields))


_nodes, _sources = SAMPLED.trials.nodes, SAMPLED.trials.sources
MALFORMED_TRIALS = {
    "a sampled law without trials": ("trials", SOUND),
    "nodes of the wrong type": ("trials.nodes", trials(nodes=_nodes.double())),
    "nodes of another batch": ("trials.nodes", trials(nodes=_nodes[:1], sources=_sources[:1])),
    "a node that the row does not have": ("trials.nodes", trials(nodes=changed(_nodes, 1, 0, 2))),
    "a negative node": ("trials.nodes", trials(nodes=changed(_nodes, 0, 0, -1))),
    "laws of another width": ("trials.sources", trials(sources=_sources[:, :2])),
    "a law that is not in the table": ("trials.sources", trials(sources=changed(_sources, 0, 1, 3))),
    "a law below the point mass": ("trials.sources", trials(sources=changed(_sources, 0, 1, -2))),
    "a table that is no tensor": ("trials.table", trials(table=LAWS.tolist())),
    "a table without a batch": ("trials.table", trials(table=LAWS[0])),
    "a table of another batch": ("trials.table", trials(table=LAWS[:1])),
    "a table of integers": ("trials.table", trials(table=torch.ones((2, 3, VOCAB), dtype=torch.int64))),
    "a table over another vocabulary": ("trials.table", trials(table=torch.full((2, 3, 4), 1 / 4))),
    "a law that does not sum to 1": ("trials.table", trials(table=LAWS * 1.01)),
    "a law of zeros": ("trials.table", trials(table=changed(LAWS, 1, 2, 0.0))),
    "a law that is not a number": ("trials.table", trials(table=changed(LAWS, 0, 1, float("nan")))),
    "a law with a negative entry": ("trials.table", trials(table=LAWS + torch.tensor([0.3, -0.3, 0, 0, 0]))),
    "a law by which the token cannot be drawn": (
        "trials.table",
        trials(table=LAWS * torch.tensor([2, 0, 1, 1, 1.0])),
    ),
}


@pytest.mark.parametrize("case", MALFORMED_TRIALS)
def test_a_draft_with_malformed_trials_is_refused(case: str):
    field, draft = MALFORMED_TRIALS[case]
    with pytest.raises(ContractError, match=rf"^drafter 'toy' returned a bad draft: {field} should be .*\.$") as error:
        check(draft, law="sampled")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_a_draft_deeper_than_the_budget_is_refused():
    with pytest.raises(ContractError, match=r"its longest path should be within the row's budget of 1, got 2 in row 0"):
        check(SOUND, budget=(1, 1))


def test_nodes_of_a_finished_row_are_refused():
    with pytest.raises(ContractError, match=r"its longest path should be within the row's budget of 0, got 1 in row 1"):
        check(SOUND, budget=(2, 0))


def test_a_drafter_that_never_drafts_is_held_to_it():
    with pytest.raises(ContractError, match=r"num_nodes should be within 0\.\.0, got \[3\] in row 0"):
        check(SOUND, law="none")


def test_any_id_passes_while_the_vocabulary_is_unknown():
    assert refusal(replace(SOUND, token_ids=changed(SOUND.token_ids, 0, 0, 10**9)), vocab=None) is None


def test_sources_that_no_trial_names_may_hold_anything():
    assert refusal(trials(table=changed(LAWS, 1, 0, 0.0)), law="sampled") is None


def test_a_long_draft_is_refused_with_a_short_message():
    wide = Draft(torch.full((500, 4), 9), torch.arange(4).expand(500, 4), torch.full((500,), 4))
    with pytest.raises(ContractError) as error:
        check(wide, budget=(4,) * 500)
    assert len(str(error.value)) < 200
