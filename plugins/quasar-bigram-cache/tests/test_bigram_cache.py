import random

import pytest
from quasar_bigram_cache.drafter import BigramCache, SuccessorTable

from quasar import SamplingParams
from quasar.core import Context, Row, Streams, TokenView
from quasar.testing import check_component


def make_context(*texts):
    """Return a context whose rows have committed ``texts``: lists that a test may append to, as the engine does."""
    rows = tuple(Row(TokenView(ids), len(ids), str(i), 0, SamplingParams()) for i, ids in enumerate(texts))
    return Context(rows, Streams([(0, row.prompt_id, 0) for row in rows]))


def propose(drafter, context, budget=None):
    draft = drafter.propose(context, budget or [99] * context.batch)
    return [ids[:count].tolist() for ids, count in zip(draft.token_ids, draft.num_nodes, strict=True)]


def drafted(text, **options):
    return propose(BigramCache(BigramCache.Config(**options)), make_context(text))[0]


def slow_follow(ids, size, fallback):
    """Search the text afresh for every token: what the table must agree with."""
    path = list(ids)
    while len(path) - len(ids) < size:
        after = [ids[i + 2] for i in range(len(ids) - 2) if list(ids[i : i + 2]) == path[-2:]]
        if not after and fallback:
            after = [ids[i + 1] for i in range(len(ids) - 1) if ids[i] == path[-1]]
        if not after:
            break
        path.append(after[-1])
    return path[len(ids) :]


@pytest.mark.parametrize("config", [None, BigramCache.Config(fallback=False)])
def test_it_keeps_the_contract(config):
    check_component(BigramCache, config)


def test_it_follows_pairs_and_joins_stretches():
    # (1, 2) -> 3 comes from the first stretch, (2, 3) -> 4 from the second.
    assert drafted([1, 2, 3, 9, 2, 3, 4, 8, 1, 2], num_speculative_tokens=2, fallback=False) == [3, 4]


def test_the_latest_successor_wins():
    assert drafted([1, 2, 3, 1, 2, 4, 1, 2], num_speculative_tokens=1) == [4]


def test_a_pair_outranks_a_more_recent_single_token():
    assert drafted([1, 2, 3, 9, 2, 4, 1, 2], num_speculative_tokens=1) == [3]


def test_an_unknown_pair_falls_back_to_the_last_token():
    text = [1, 2, 3, 9, 2]
    assert drafted(text, num_speculative_tokens=1) == [3]
    assert drafted(text, num_speculative_tokens=1, fallback=False) == []


@pytest.mark.parametrize("text", [[1], [1, 2], [1, 2, 3]])
def test_a_text_without_repetition_has_no_draft(text):
    assert drafted(text) == []


def test_two_equal_tokens_repeat():
    assert drafted([5, 5], num_speculative_tokens=3) == [5, 5, 5]


def test_the_length_is_bounded_by_the_option_and_by_the_budget():
    drafter = BigramCache(BigramCache.Config(num_speculative_tokens=4))
    context = make_context([1, 1, 1], [1, 1, 1], [1, 1, 1])
    assert propose(drafter, context, [9, 2, 0]) == [[1, 1, 1, 1], [1, 1], []]


def test_rows_do_not_see_each_other():
    assert propose(BigramCache(), make_context([1, 2, 3, 4, 1, 2], [1, 2])) == [[3, 4, 1, 2, 3], []]


def test_only_new_tokens_are_read():
    class Watched(list):
        read = 0

        def __getitem__(self, index):
            found = super().__getitem__(index)
            Watched.read += len(found) if isinstance(index, slice) else 1
            return found

    table, text = SuccessorTable(), Watched(range(1000))
    table.extend(text)
    Watched.read = 0
    text += [1000, 1001]
    table.extend(text)
    assert Watched.read == 4  # two new tokens and the pair before them


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("fallback", [True, False])
def test_a_growing_text_gives_what_a_search_of_the_whole_text_gives(seed, fallback):
    random_numbers = random.Random(seed)
    text = [random_numbers.randrange(4)]
    drafter = BigramCache(BigramCache.Config(num_speculative_tokens=6, fallback=fallback))
    context = make_context(text)
    for _ in range(40):
        assert propose(drafter, context) == [slow_follow(text, 6, fallback)]
        text += [random_numbers.randrange(4) for _ in range(random_numbers.randrange(1, 4))]


def test_another_batch_starts_with_empty_tables():
    drafter = BigramCache()
    assert propose(drafter, make_context([1, 2, 3, 1, 2])) == [[3, 1, 2, 3, 1]]
    assert propose(drafter, make_context([1, 2])) == [[]]
