"""Prompt lookup against a search that anybody can check, and what it costs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from quasar.core.context import Context, Row, TokenView
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams
from quasar.drafters import ngram as ngram_module
from quasar.drafters.ngram import Ngram, NgramIndex

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)
sizes = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda pair: (pair[0], pair[0] + pair[1]))
matches = st.sampled_from(["first", "last"])
shorts = st.sampled_from(["truncate", "pad"])


def naive(ids, low, high, match, short, size):
    """Scan the whole text for the longest n-gram at its end, longest first, and copy what follows."""
    for length in range(min(high, len(ids)), low - 1, -1):
        tail = ids[len(ids) - length :]
        starts = [at for at in range(len(ids) - length) if ids[at : at + length] == tail]
        if starts:
            begin = (starts[0] if match == "first" else starts[-1]) + length
            found = ids[begin : begin + size]
            return found + [ids[-1]] * (size - len(found)) if short == "pad" else found
    return []


def drafter(low=1, high=3, match="last", short="truncate", size=5) -> Ngram:
    return Ngram(
        Ngram.Config(
            num_speculative_tokens=size, prompt_lookup_min=low, prompt_lookup_max=high, match=match, short=short
        )
    )


def context(*texts_of_rows) -> Context:
    """Context over lists that may grow afterwards."""
    rows = tuple(Row(TokenView(ids), 1, str(row), 0, SamplingParams()) for row, ids in enumerate(texts_of_rows))
    return Context(rows, Streams([(0, str(row), 0) for row in range(len(rows))]))


def drafts(proposed) -> list[list[int]]:
    counts = proposed.num_nodes.tolist()
    return [row[:count] for row, count in zip(proposed.token_ids.tolist(), counts, strict=True)]


# --- the drafts -------------------------------------------------------------------------------------------------------


@given(ids=texts, lookup=sizes, match=matches, short=shorts, size=st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_a_draft_is_what_a_naive_scan_finds(ids, lookup, match, short, size):
    proposed = drafter(*lookup, match, short, size).propose(context(ids), [size])
    assert drafts(proposed) == [naive(ids, *lookup, match, short, size)]


@given(start=texts, blocks=st.lists(texts, max_size=6), lookup=sizes, match=matches)
@settings(max_examples=200, deadline=None)
def test_a_text_that_grows_by_blocks_gives_the_drafts_of_a_naive_scan(start, blocks, lookup, match):
    ids = list(start)
    lookup_drafter, running = drafter(*lookup, match), context(ids)
    for block in [[], *blocks]:
        ids.extend(block)
        assert drafts(lookup_drafter.propose(running, [5])) == [naive(ids, *lookup, match, "truncate", 5)]


@given(rows=st.lists(texts, min_size=2, max_size=4))
@settings(max_examples=50, deadline=None)
def test_rows_do_not_see_each_other(rows):
    together = drafter().propose(context(*rows), [5] * len(rows))
    assert drafts(together) == [drafts(drafter().propose(context(ids), [5]))[0] for ids in rows]


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_a_text_shorter_than_the_shortest_ngram_is_not_continued(length):
    # 2 is one below the shortest n-gram, 3 is the n-gram itself with nothing before it
    assert drafts(drafter(low=3, high=5).propose(context([7] * length), [5])) == [[]]


def test_a_text_one_longer_than_the_shortest_ngram_can_be_continued():
    assert drafts(drafter(low=3, high=5).propose(context([7] * 4), [5])) == [[7]]


@pytest.mark.parametrize(("match", "expected"), [("first", 5), ("last", 1)])
def test_one_repeated_token_is_continued_from_its_first_or_last_occurrence(match, expected):
    assert drafts(drafter(match=match).propose(context([4] * 12), [5])) == [[4] * expected]


def test_the_longest_ngram_wins_over_a_later_shorter_one():
    ids = [1, 2, 3, 50, 9, 3, 60, 1, 2, 3]
    assert drafts(drafter(size=1).propose(context(ids), [1])) == [[50]]


def test_an_eos_inside_the_prompt_is_copied_like_any_token():
    # the engine stops at it; see tests/identity
    assert drafts(drafter(size=3).propose(context([1, 2, 0, 7, 1, 2]), [3])) == [[0, 7, 1]]


# --- the budget -------------------------------------------------------------------------------------------------------


@given(ids=texts, limit=st.integers(0, 6), short=shorts)
@settings(max_examples=100, deadline=None)
def test_a_draft_stays_within_its_budget(ids, limit, short):
    assert len(drafts(drafter(short=short).propose(context(ids), [limit]))[0]) <= min(limit, 5)


def test_a_row_that_has_finished_gets_no_draft():
    assert drafts(drafter(short="pad").propose(context([1, 1, 1], [2, 2, 2]), [0, 3])) == [[], [2, 2, 2]]


def test_a_row_that_was_silent_for_a_while_catches_up():
    ids, lookup_drafter = [1, 2, 3], drafter()
    running = context(ids)
    lookup_drafter.propose(running, [5])
    ids.extend([9, 8, 1, 2])
    lookup_drafter.propose(running, [0])  # a step without budget does not even look
    ids.extend([3, 9])
    assert drafts(lookup_drafter.propose(running, [5])) == [naive(ids, 1, 3, "last", "truncate", 5)]


# --- cost -------------------------------------------------------------------------------------------------------------


class CountingDict(dict):
    """A dict that counts its look-ups and changes."""

    operations = 0

    def __setitem__(self, key, value):
        CountingDict.operations += 1
        super().__setitem__(key, value)

    def setdefault(self, key, default=None):
        CountingDict.operations += 1
        return super().setdefault(key, default)

    def get(self, key, default=None):
        CountingDict.operations += 1
        return super().get(key, default)


def counting_index() -> NgramIndex:
    index = NgramIndex(1, 4)
    assert isinstance(index._ends, dict)
    index._ends = CountingDict()
    return index


def operations_of_one_step(length: int) -> int:
    index, ids = counting_index(), [(place * place) % 11 for place in range(length)]
    index.extend(ids)
    CountingDict.operations = 0
    ids.append(3)
    index.extend(ids)
    next(index.find(ids, "last"), None)
    return CountingDict.operations


def test_a_step_costs_the_same_after_a_hundred_tokens_and_after_ten_thousand():
    assert operations_of_one_step(100) == operations_of_one_step(10_000) <= 2 * 4 + 4


class CountingView(TokenView):
    """Counts the tokens that are read."""

    __slots__ = ("read",)

    def __init__(self, ids):
        super().__init__(ids)
        self.read = 0

    def __getitem__(self, index):
        found = super().__getitem__(index)
        self.read += len(found) if isinstance(found, list) else 1
        return found

    def __iter__(self):
        self.read += len(self)
        return super().__iter__()


@pytest.mark.parametrize("length", [100, 5_000])
def test_a_step_reads_a_few_tokens_of_a_text_of_any_length(length):
    ids = [(place * place) % 11 for place in range(length)]
    view = CountingView(ids)
    running = Context((Row(view, 1, "", 0, SamplingParams()),), Streams([(0, "", 0)]))
    lookup_drafter = drafter()
    lookup_drafter.propose(running, [5])
    ids.extend([3, 5])
    view.read = 0
    lookup_drafter.propose(running, [5])
    assert view.read <= 20


def test_an_index_is_kept_from_step_to_step(monkeypatch):
    made = []
    monkeypatch.setattr(ngram_module, "NgramIndex", lambda *sizes: made.append(sizes) or NgramIndex(*sizes))
    lookup_drafter, running = drafter(), context([1, 2, 1, 2])
    for _ in range(3):
        lookup_drafter.propose(running, [5])
    assert len(made) == 1


def test_an_index_dies_with_its_requests():
    lookup_drafter = drafter()
    lookup_drafter.propose(context([1, 2, 3, 1, 2]), [5])
    assert drafts(lookup_drafter.propose(context([1, 2]), [5])) == [[]]


# --- options ----------------------------------------------------------------------------------------------------------


def test_a_shortest_ngram_above_the_longest_is_refused():
    with pytest.raises(ValidationError, match=r"prompt_lookup_min \(4\) must not exceed prompt_lookup_max \(3\)"):
        drafter(low=4, high=3)


@pytest.mark.parametrize("options", [{"num_speculative_tokens": 0}, {"match": "best"}, {"prompt_lookup_mix": 3}])
def test_an_option_out_of_bounds_or_unknown_is_refused(options):
    with pytest.raises(ValidationError):
        Ngram.Config(**options)
