"""The suffix automaton against searches that anybody can check, and the drafter that asks it."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from drafting import chains, context
from hypothesis import given, settings
from hypothesis import strategies as st

from quasar.core.errors import ConfigError
from quasar.drafters.matching.automaton import END, State, SuffixAutomaton
from quasar.drafters.suffix import Suffix
from quasar.testing import TinyModels, check_component

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)
longest = st.sampled_from([1, 2, 3, 5, 64])


def automaton(ids, most=64, recent=False) -> SuffixAutomaton:
    made = SuffixAutomaton(most, recent)
    for token in ids:
        made.append(token)
    return made


def naive_match(ids, most) -> int:
    """Length of the longest end of ``ids`` that occurs earlier."""
    for length in range(min(most, len(ids) - 1), 0, -1):
        if any(ids[at : at + length] == ids[-length:] for at in range(len(ids) - length)):
            return length
    return 0


def followers(ids, string) -> list[int]:
    """What followed ``string``, in order."""
    ends = range(len(string), len(ids))
    return [ids[end] for end in ends if ids[end - len(string) : end] == string]


def drafter(**options) -> Suffix:
    return Suffix(Suffix.Config(**options))


# --- the automaton ----------------------------------------------------------------------------------------------------


@given(ids=texts, most=longest)
@settings(max_examples=200, deadline=None)
def test_the_match_is_the_longest_end_that_occurs_earlier(ids, most):
    made = SuffixAutomaton(most)
    for end, token in enumerate(ids, start=1):
        made.append(token)
        assert made.match()[1] == naive_match(ids[:end], most)


@given(ids=texts, most=longest)
@settings(max_examples=200, deadline=None)
def test_a_state_knows_how_often_each_token_followed_its_strings(ids, most):
    made = automaton(ids, most)
    for start in range(len(ids)):
        for end in range(start, min(start + most, len(ids)) + 1):
            state = made.root
            for token in ids[start:end]:
                state = state.next[token]
            after = followers(ids, ids[start:end])
            assert state.counts == Counter(after)
            assert state.total == len(after)


@given(ids=texts, recent=st.booleans())
@settings(max_examples=200, deadline=None)
def test_the_most_frequent_or_the_latest_continuation_is_drafted(ids, recent):
    state, length = automaton(ids, recent=recent).match()
    if not length:
        return
    after = followers(ids, ids[-length:])
    counts = Counter(after)
    frequent = max(reversed(after), key=lambda token: counts[token])  # the latest of the most frequent ones
    assert state.best == (after[-1] if recent else frequent)


@given(ids=texts, other=texts, most=longest)
@settings(max_examples=200, deadline=None)
def test_a_text_is_followed_in_another_one(ids, other, most):
    made = automaton(ids, most)
    at: tuple[State, int] = (made.root, 0)
    for end, token in enumerate(other, start=1):
        at = made.follow(*at, token)
        found = [
            length
            for length in range(min(most, end), 0, -1)
            if any(ids[begin : begin + length] == other[end - length : end] for begin in range(len(ids)))
        ]
        assert at[1] == (found[0] if found else 0)


class CountedState(State):
    """A state that counts how many of them were made or looked at."""

    __slots__ = ()
    looked_at = 0

    def __getattribute__(self, name):
        CountedState.looked_at += name == "next"
        return super().__getattribute__(name)


@pytest.mark.parametrize("period", [1, 7, 997])
def test_a_token_costs_the_same_at_any_length(monkeypatch, period):
    monkeypatch.setattr("quasar.drafters.matching.automaton.State", CountedState)
    made, costs = SuffixAutomaton(16), []
    for start in (0, 1000, 8000):
        CountedState.looked_at = 0
        for place in range(start, start + 1000):
            made.append(place * place % period)
        costs.append(CountedState.looked_at)
    assert max(costs) <= 12 * 1000


# --- the drafter ------------------------------------------------------------------------------------------------------


def test_a_longer_match_gives_a_longer_draft():
    copied = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert chains(drafter().propose(context([*copied, 20, 1]), [9])) == [[2]]
    assert chains(drafter().propose(context([*copied, 20, 1, 2, 3]), [9])) == [[4, 5, 6]]
    assert chains(drafter(factor=2).propose(context([*copied, 20, 1, 2]), [9])) == [[3, 4, 5, 6]]
    assert chains(drafter(factor=0.5).propose(context([*copied, 20, 1]), [9])) == [[]]


def test_a_draft_stays_within_its_bounds():
    ids = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5]
    assert chains(drafter(num_speculative_tokens=2).propose(context(ids), [9])) == [[6, 7]]
    assert chains(drafter().propose(context(ids, ids, ids), [1, 0, 3])) == [[6], [], [6, 7, 1]]
    assert chains(drafter(min_match=6).propose(context(ids), [9])) == [[]]
    assert chains(drafter(max_match=2).propose(context(ids), [9])) == [[6, 7]]


def test_a_copy_that_reaches_the_end_of_the_text_goes_round():
    assert chains(drafter().propose(context([4] * 6), [9])) == [[4] * 5]
    assert chains(drafter(factor=3).propose(context([1, 2, 3, 1, 2, 3, 1, 2]), [9])) == [[3, 1, 2] * 3]


def test_a_draft_ends_before_what_followed_too_rarely():
    ids = [5, 1, 2, 5, 1, 2, 5, 1, 3, 5, 4, 5]  # 5 was followed by 1 in 3 of 4 cases, and both by 2 in 2 of 3
    for least, expected in ((0.8, []), (0.6, [1]), (0.45, [1, 2])):
        assert chains(drafter(factor=2, min_token_prob=least).propose(context(ids), [9])) == [expected]


def test_the_latest_continuation_is_taken_if_that_is_preferred():
    ids = [5, 1, 5, 1, 5, 2, 9, 5]
    assert chains(drafter().propose(context(ids), [1])) == [[1]]
    assert chains(drafter(prefer="recent").propose(context(ids), [1])) == [[2]]


@given(start=texts, blocks=st.lists(texts, max_size=5))
@settings(max_examples=100, deadline=None)
def test_a_text_that_grows_by_blocks_gives_the_drafts_of_a_fresh_drafter(start, blocks):
    ids, growing = list(start), drafter()
    running = context(ids)
    for block in [[], *blocks]:
        ids.extend(block)
        assert chains(growing.propose(running, [9])) == chains(drafter().propose(context(ids), [9]))


@pytest.mark.parametrize("new", [[6, 7, 8, 9, 6, 7], [1, 2], [1, 2, 3, 4, 1, 9, 4, 1]])
def test_a_text_that_was_replaced_is_read_anew(new):
    ids, used = [1, 2, 3, 4, 1, 2], drafter()
    running = context(ids)
    used.propose(running, [9])
    ids[:] = new
    assert chains(used.propose(running, [9])) == chains(drafter().propose(context(new), [9]))


def test_rows_do_not_see_each_other():
    rows = [[1, 2, 3, 1, 2], [7, 1, 2]]
    assert chains(drafter().propose(context(*rows), [9, 9])) == [[3, 1], []]


# --- a corpus ---------------------------------------------------------------------------------------------------------


def corpus(tmp_path, *lines, **options) -> Suffix:
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    made = drafter(corpus=path, **options)
    made.load(TinyModels())
    return made


def test_a_corpus_is_copied_from_where_it_matches_more_than_the_text(tmp_path):
    made = corpus(tmp_path, [6, 1, 2, 3, 4, 5, 0])
    assert chains(made.propose(context([6, 1, 2]), [9])) == [[3, 4, 5]]
    assert chains(made.propose(context([1, 2, 0, 1, 2]), [9])) == [[0, 1]]  # the same length: the text itself


def test_a_corpus_may_hold_strings(tmp_path):
    assert chains(corpus(tmp_path, "abcd").propose(context([0, 1]), [9])) == [[2, 3]]


def test_nothing_is_copied_across_two_texts_of_a_corpus(tmp_path):
    made = corpus(tmp_path, [1, 2], [3, 4])
    assert chains(made.propose(context([1]), [9])) == [[2]]
    assert chains(made.propose(context([1, 2]), [9])) == [[]]
    assert END not in chains(corpus(tmp_path, [1, 2], [1, 2], [1, 2, 3]).propose(context([0, 1, 2]), [9]))[0]


def test_requests_leave_a_corpus_as_it_is(tmp_path):
    made = corpus(tmp_path, [1, 2, 3])
    for _ in range(3):
        assert chains(made.propose(context([1, 2]), [9])) == [[3]]


@pytest.mark.parametrize("line", ["[1, 7]", "[-1]", "{}", "[1", "[[1]]", "[1.5]"])
def test_a_line_that_is_no_text_of_the_vocabulary_is_refused(tmp_path, line):
    path = tmp_path / "corpus.jsonl"
    path.write_text(f"[1, 2]\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"corpus\.jsonl, line 2: should be a list of token ids below 7"):
        drafter(corpus=path).load(TinyModels())


def test_a_corpus_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        drafter(corpus=tmp_path / "none.jsonl").load(TinyModels())


def test_the_contract_is_kept_with_other_options():
    check_component(Suffix, models=TinyModels(), factor=4.0, prefer="recent", min_token_prob=0.0)


def test_the_contract_is_kept_with_a_corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('"abcdefgabc"\n[1, 1, 1, 2]\n', encoding="utf-8")
    check_component(Suffix, models=TinyModels(), corpus=path)
