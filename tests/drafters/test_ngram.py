"""Prompt lookup against a search that anybody can check, and what it costs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from quasar.core.context import Context, Row, TokenView
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams
from quasar.core.types import Draft, Verification
from quasar.drafters import ngram as ngram_module
from quasar.drafters.ngram import PRESETS, Ngram, NgramIndex

VOCAB = 12

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)
sizes = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda pair: (pair[0], pair[0] + pair[1]))
matches = st.sampled_from(["first", "last"])
shorts = st.sampled_from(["truncate", "pad", "require"])


def naive(ids, low, high, match, short, size):
    """Scan the whole text for the longest n-gram at its end, longest first, and copy what follows."""
    for length in range(min(high, len(ids)), low - 1, -1):
        tail = ids[len(ids) - length :]
        begins = [at + length for at in range(len(ids) - length) if ids[at : at + length] == tail]
        if short == "require":
            begins = [begin for begin in begins if len(ids) - begin >= size]
        if begins:
            begin = begins[0] if match == "first" else begins[-1]
            found = ids[begin : begin + size]
            return found + [ids[-1]] * (size - len(found)) if short == "pad" else found
    return []


def drafter(low=1, high=3, match="last", short="truncate", size=5, **others) -> Ngram:
    return Ngram(
        Ngram.Config(
            num_speculative_tokens=size,
            prompt_lookup_min=low,
            prompt_lookup_max=high,
            match=match,
            short=short,
            **others,
        )
    )


def context(*texts_of_rows, eos_ids=(), processors=(), vocab=VOCAB) -> Context:
    """Context over lists that may grow afterwards."""
    rows = tuple(
        Row(TokenView(ids), 1, str(row), 0, SamplingParams(), processors) for row, ids in enumerate(texts_of_rows)
    )
    found = Context(rows, Streams([(0, str(row), 0) for row in range(len(rows))]), eos_ids=eos_ids)
    nothing = Draft.empty(len(rows))
    found.verification = Verification(nothing, torch.full((len(rows), 1, vocab), 1 / vocab))
    return found


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


# --- rules of other projects ------------------------------------------------------------------------------------------


def test_an_occurrence_with_too_little_behind_it_is_passed_over_where_that_is_required():
    ids = [1, 2, 7, 8, 9, 1, 2, 5, 1, 2]
    assert drafts(drafter(size=3).propose(context(ids), [3])) == [[5, 1, 2]]
    assert drafts(drafter(size=4, short="require").propose(context(ids), [4])) == [[7, 8, 9, 1]]


def test_what_is_required_does_not_shrink_with_the_budget():
    ids = [1, 2, 7, 8, 9, 1, 2, 5, 1, 2]
    assert drafts(drafter(size=4, short="require").propose(context(ids), [1])) == [[7]]


def test_nothing_found_is_one_dummy_token_where_that_is_asked_for():
    proposed = drafter(on_miss="dummy", dummy_token_id=4).propose(context([1, 2, 3], [1, 1], [1, 2]), [5, 5, 0])
    assert drafts(proposed) == [[4], [1], []]


def test_a_draft_is_cut_before_an_eos_where_that_is_asked_for():
    ids = [1, 2, 7, 0, 9, 1, 2]
    assert drafts(drafter(size=4, cut_at_eos=True).propose(context(ids, eos_ids=(0,)), [4])) == [[7]]
    assert drafts(drafter(size=4).propose(context(ids, eos_ids=(0,)), [4])) == [[7, 0, 9, 1]]


class Ban:
    """Forbids one token."""

    needs_prefix = True

    def __init__(self, token):
        self.token = token

    def __call__(self, prefix, logits):
        return logits.index_fill(1, torch.tensor([self.token]), -torch.inf)


def test_a_draft_is_cut_before_a_token_that_a_processor_forbids_where_that_is_asked_for():
    ids = [1, 2, 7, 8, 9, 1, 2]
    asked = context(ids, processors=(Ban(8),))
    assert drafts(drafter(size=4, drop_forbidden=True).propose(asked, [4])) == [[7]]
    assert drafts(drafter(size=4).propose(asked, [4])) == [[7, 8, 9, 1]]


def test_an_occurrence_whose_first_token_is_forbidden_gives_way_to_the_next():
    ids = [1, 2, 7, 4, 1, 2, 8, 5, 1, 2]
    asked = context(ids, processors=(Ban(8),))
    assert drafts(drafter(size=2, drop_forbidden=True).propose(asked, [2])) == [[7, 4]]


def test_processors_see_the_draft_before_each_place():
    class NoEightAfterSeven:
        needs_prefix = True

        def __call__(self, prefix, logits):
            banned = [8] if int(prefix[0, -1]) == 7 else []
            return logits.index_fill(1, torch.tensor(banned, dtype=torch.int64), -torch.inf)

    asked = context([1, 2, 7, 8, 9, 1, 2], processors=(NoEightAfterSeven(),))
    assert drafts(drafter(size=4, drop_forbidden=True).propose(asked, [4])) == [[7]]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_stands_for_its_options(preset):
    config = Ngram.Config(preset=preset)
    assert {name: getattr(config, name) for name in PRESETS[preset]} == dict(PRESETS[preset])


def test_an_option_beside_a_preset_beats_it():
    assert Ngram.Config(preset="vllm_v0", match="last").match == "last"
    assert Ngram.Config(preset="vllm_v0", match="last").short == "pad"


def test_the_setting_of_the_paper_continues_the_first_occurrence_and_pads():
    ids = [3, 1, 9, 3, 1, 3]
    paper = Ngram(Ngram.Config(preset="vllm_v0"))
    assert drafts(paper.propose(context(ids), [5])) == [[1, 9, 3, 1, 3]]
    assert drafts(paper.propose(context([3, 1, 3]), [5])) == [[1, 3, 3, 3, 3]]


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
    index = NgramIndex(1, 4, "last")
    assert isinstance(index._starts, dict)
    index._starts = CountingDict()
    return index


def operations_of_one_step(length: int) -> int:
    index, ids = counting_index(), [(place * place) % 11 for place in range(length)]
    index.extend(ids)
    CountingDict.operations = 0
    ids.append(3)
    index.extend(ids)
    next(index.find(ids), None)
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


class Asked(Ban):
    """Counts how often it is asked."""

    times = 0

    def __call__(self, prefix, logits):
        self.times += 1
        return super().__call__(prefix, logits)


@pytest.mark.parametrize("match", ["first", "last"])
@pytest.mark.parametrize("length", [20, 400])
def test_a_text_full_of_forbidden_continuations_costs_one_question(match, length):
    ban, ids = Asked(8), [7, 8] * length + [7]
    asked = context(ids, processors=(ban,))
    assert drafts(drafter(match=match, drop_forbidden=True).propose(asked, [5])) == [[]]
    assert ban.times == 1


@pytest.mark.parametrize("match", ["first", "last"])
def test_of_occurrences_with_one_continuation_one_is_kept(match):
    index, ids = NgramIndex(1, 1, match), [7, 8] * 50 + [7, 9] + [7, 8] * 50 + [7]
    index.extend(ids)
    assert [start for start, _ in index.find(ids)] == ([1, 101] if match == "first" else [201, 101])


def test_an_index_is_kept_from_step_to_step(monkeypatch):
    made = []
    monkeypatch.setattr(ngram_module, "NgramIndex", lambda *options: made.append(options) or NgramIndex(*options))
    lookup_drafter, running = drafter(), context([1, 2, 1, 2])
    for _ in range(3):
        lookup_drafter.propose(running, [5])
    assert len(made) == 1


def test_an_index_dies_with_its_requests():
    lookup_drafter = drafter()
    lookup_drafter.propose(context([1, 2, 3, 1, 2]), [5])
    assert drafts(lookup_drafter.propose(context([9, 8, 7, 6, 1, 2]), [5])) == [[]]


# --- options ----------------------------------------------------------------------------------------------------------


def test_a_shortest_ngram_above_the_longest_is_refused():
    with pytest.raises(ValidationError, match=r"prompt_lookup_min \(4\) must not exceed prompt_lookup_max \(3\)"):
        drafter(low=4, high=3)


@pytest.mark.parametrize("options", [{"num_speculative_tokens": 0}, {"match": "best"}, {"prompt_lookup_mix": 3}])
def test_an_option_out_of_bounds_or_unknown_is_refused(options):
    with pytest.raises(ValidationError):
        Ngram.Config(**options)
