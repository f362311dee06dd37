"""The evidence that drafters give for their nodes, against a search of the text."""

from __future__ import annotations

import pytest
from drafting import context, logits_of, verified
from hypothesis import given, settings
from hypothesis import strategies as st

from quasar.core.trees import prefixes
from quasar.core.types import Draft
from quasar.drafters.lookahead import Lookahead
from quasar.drafters.ngram import Ngram
from quasar.drafters.recycling import Recycling
from quasar.drafters.suffix import Suffix
from quasar.drafters.union import Union

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def occurs(string: list[int], ids: list[int]) -> bool:
    return any(ids[at : at + len(string)] == string for at in range(len(ids) - len(string) + 1))


def drafters() -> list:
    ngram, suffix = Ngram(Ngram.Config(num_speculative_tokens=6)), Suffix(Suffix.Config(max_match=5, min_token_prob=0))
    return [ngram, suffix, Union(Union.Config(drafters=[suffix, ngram]))]


@pytest.mark.parametrize("number", range(3), ids=["ngram", "suffix", "union"])
@given(ids=texts)
@settings(max_examples=100, deadline=None)
def test_so_many_tokens_before_a_node_and_the_node_occurred_earlier(number, ids):
    draft = drafters()[number].propose(context(ids), [8])
    paths = prefixes(draft, 0)[1:]
    for path, length in zip(paths, draft.matched[0], strict=True):
        assert length >= 1
        assert occurs([*ids, *path][-length - 1 :], ids)


def test_the_first_node_has_the_longest_match():
    ids = [5, 1, 2, 3, 9, 2, 3, 8, 1, 2, 3]
    assert drafters()[0].propose(context(ids), [3]).matched == [[3, 4, 5]]
    assert drafters()[1].propose(context(ids), [3]).matched == [[3, 4, 5]]


def test_what_fills_up_and_what_is_a_dummy_has_no_evidence():
    padded = Ngram(Ngram.Config(preset="vllm_v0")).propose(context([7, 8, 7]), [5])
    assert padded.matched == [[1, 2, 0, 0, 0]]
    dummy = Ngram(Ngram.Config(preset="spec_bench")).propose(context([7, 8, 9]), [5])
    assert (dummy.nodes, dummy.matched) == (1, [[0]])
    cut = Ngram(Ngram.Config(preset="transformers")).propose(context([7, 8, 7]), [5])
    assert list(map(len, cut.matched)) == cut.num_nodes.tolist()


def test_recycling_looks_at_one_token():
    made, ids = Recycling(Recycling.Config(max_nodes=3, top_k=2)), [3]
    running = context(ids)
    made.propose(running, [4])
    running.verification = verified(Draft.empty(1), logits_of([5, 6]))
    ids.append(3)
    draft = made.propose(running, [4])
    assert draft.nodes > 0
    assert draft.matched == [[1] * draft.nodes]


def test_a_shared_node_has_the_better_evidence_and_a_part_without_any_leaves_none():
    ids = [5, 1, 2, 3, 4, 0, 2, 3, 4, 1, 2, 3]
    short = Ngram(Ngram.Config(prompt_lookup_max=1, num_speculative_tokens=1))
    both = Union(Union.Config(drafters=[short, Ngram(Ngram.Config(num_speculative_tokens=1))]))
    draft = both.propose(context(ids), [4])
    assert both.matched
    assert draft.token_ids.tolist() == [[4]]
    assert draft.matched == [[3]]
    without = Union(Union.Config(drafters=[Lookahead(), short]))
    assert not without.matched
    assert without.propose(context(ids), [4]).matched is None
