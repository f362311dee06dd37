import pytest
from quasar_template.echo import Echo

from quasar import Context, SamplingParams
from quasar.core import Row, Streams, TokenView
from quasar.testing import check_component


def propose(*rows, budget=None, **options):
    """Return the draft tokens of each row, for rows that have committed these ids."""
    made = tuple(Row(TokenView(ids), len(ids), str(i), 0, SamplingParams()) for i, ids in enumerate(rows))
    context = Context(made, Streams([(0, row.prompt_id, 0) for row in made]))
    draft = Echo(Echo.Config(**options)).propose(context, budget or [9] * len(rows))
    return [ids for ids, parents in draft.rows]


def test_echo_keeps_the_contract():
    check_component(Echo)


@pytest.mark.parametrize(
    ("ids", "drafted"),
    [
        ([1, 2, 3, 1], [2, 3, 1]),
        ([1, 2, 1, 3, 1], [3, 1]),  # the previous occurrence, not the first
        ([5, 5], [5]),
        ([1, 2, 3], []),
        ([7], []),
    ],
)
def test_it_proposes_what_followed_the_previous_occurrence(ids, drafted):
    assert propose(ids) == [drafted]


def test_it_proposes_no_more_than_it_may():
    assert propose([1, 2, 3, 4, 5, 1], [1, 2, 3, 1], [1, 2, 1], budget=[9, 2, 0], num_speculative_tokens=3) == [
        [2, 3, 4],
        [2, 3],
        [],
    ]


def test_it_looks_no_further_back_than_the_window():
    assert propose([1, 2, 3, 1], window=3) == [[]]
    assert propose([1, 2, 3, 1], window=4) == [[2, 3, 1]]
