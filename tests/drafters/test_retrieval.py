"""Retrieval: what is copied from a datastore, and which tokenizers fit."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from drafting import context, nodes
from hypothesis import given
from hypothesis import strategies as st

from quasar.core import trees
from quasar.core.errors import ConfigError
from quasar.drafters.datastore.store import write_datastore
from quasar.drafters.retrieval import Retrieval, frequent
from quasar.testing import TinyModels, check_component

TEXTS = [[1, 2, 3, 4, 5], [0, 2, 3, 4, 6], [2, 3, 6], [5, 5, 5, 5]]


@pytest.fixture
def drafter(tmp_path):
    def make(**options) -> Retrieval:
        documents = [torch.tensor(text, dtype=torch.int32) for text in TEXTS]
        write_datastore(tmp_path, documents, "letters", TinyModels().tokenizer().tokens())
        made = Retrieval(Retrieval.Config(datastore=tmp_path, **options))
        made.load(TinyModels())
        return made

    return make


def test_what_followed_most_often_comes_first(drafter):
    assert nodes(drafter().propose(context([0, 2, 3], [6, 2, 3], [4, 1]), [9, 9, 9])) == [
        [(4, 0), (6, 1)],  # "0 2 3" occurs once
        [(4, 0), (6, 0), (5, 1), (6, 1)],  # "2 3" three times
        [],
    ]


def test_a_tree_has_no_more_nodes_and_is_no_deeper_than_wanted(drafter):
    running = context([6, 2, 3])
    assert nodes(drafter(max_nodes=3).propose(running, [9])) == [[(4, 0), (6, 0), (5, 1)]]
    assert nodes(drafter(num_speculative_tokens=1).propose(running, [9])) == [[(4, 0), (6, 0)]]
    assert nodes(drafter().propose(running, [1])) == [[(4, 0), (6, 0)]]
    assert nodes(drafter().propose(running, [0])) == [[]]


def test_short_matches_and_further_occurrences_are_left_out(drafter):
    assert nodes(drafter(min_match=1).propose(context([0, 6, 1]), [9])) == [[(2, 0), (3, 1), (4, 2), (5, 3)]]
    assert nodes(drafter(min_match=3).propose(context([6, 2, 3]), [9])) == [[]]
    assert nodes(drafter(max_occurrences=1).propose(context([6, 2, 3]), [9])) == [[(4, 0), (5, 1)]]


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=8), st.integers(1, 12))
def test_the_most_frequent_beginnings_are_drafted(continuations, size):
    tree = frequent(continuations, size)
    paths: list[tuple[int, ...]] = [()]
    for token, parent in tree:
        paths.append((*paths[parent], token))
    counts = Counter(tuple(each[:end]) for each in continuations for end in range(1, len(each) + 1))
    found = paths[1:]
    assert len(set(found)) == len(found) == min(size, len(counts))
    assert sorted((counts[path] for path in found), reverse=True) == sorted(counts.values(), reverse=True)[:size]


def test_a_datastore_of_another_tokenizer_is_refused(tmp_path, drafter):
    drafter()
    write_datastore(tmp_path, [torch.tensor([1], dtype=torch.int32)], "somebody", {"a": 0})
    with pytest.raises(ConfigError, match=r"tokens of 'somebody'.*another tokenizer.*quasar datastore build"):
        Retrieval(Retrieval.Config(datastore=tmp_path)).load(TinyModels())


def test_the_datastore_is_described(drafter, tmp_path):
    assert drafter().describe().flat() == {"datastore": str(tmp_path), "datastore_tokens": 21}


@pytest.mark.parametrize("options", [{}, {"max_nodes": 2, "min_match": 1}, {"max_occurrences": 1, "min_match": 1}])
def test_the_contract_is_kept(drafter, tmp_path, options):
    drafter()
    draft = drafter(min_match=1).propose(context([0, 2, 3]), [9])
    assert trees.longest_paths(draft) == [2]
    check_component(Retrieval, models=TinyModels(), datastore=tmp_path, **options)
