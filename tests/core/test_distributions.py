"""Laws sum to 1 under every processor, temperature 0 is one of them, and residuals complete what was accepted."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quasar.core import trees
from quasar.core.context import Context, LogitsProcessor, Row, TokenView
from quasar.core.distributions import residual, slot_distributions, target_distributions
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams
from quasar.core.types import Draft, OneHot
from quasar.hf.processors import build_processors
from tests.shared.draft_strategies import Tree, rows_of_trees

VOCAB = 5
quick = settings(deadline=None, max_examples=100)
weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-7, 1.0)), min_size=VOCAB, max_size=VOCAB).filter(any)
dtypes = st.sampled_from([torch.float32, torch.float64])


def row(sampling: SamplingParams, processors: tuple[LogitsProcessor, ...] = (), ids: list[int] | None = None) -> Row:
    ids = ids or [1, 2, 3]
    return Row(TokenView(ids), len(ids), "toy", 0, sampling, processors)


def processed(params: SamplingParams, ids: list[int] | None = None) -> Row:
    return row(params, build_processors(params, len(ids or [1, 2, 3]), eos_ids=(0,)), ids)


def normalised(values: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    found = torch.tensor(values, dtype=torch.float64)
    return (found / found.sum()).to(dtype)


# Residuals.


@quick
@given(p=weights, q=weights, dtype=dtypes)
def test_what_is_accepted_and_the_residual_make_up_the_target(p: list[float], q: list[float], dtype: torch.dtype):
    target, draft = normalised(p, dtype), normalised(q, dtype)
    accepted = torch.minimum(target, draft)
    whole = accepted + (1 - accepted.sum()) * residual(target, draft)
    torch.testing.assert_close(whole, target, rtol=0, atol=5e-7 if dtype == torch.float32 else 1e-14)


@quick
@given(p=weights, q=weights, dtype=dtypes)
def test_a_residual_is_a_law(p: list[float], q: list[float], dtype: torch.dtype):
    found = residual(normalised(p, dtype), normalised(q, dtype))
    assert found.dtype == dtype
    assert (found >= 0).all()
    assert found.sum().item() == pytest.approx(1.0, abs=1e-6)


@quick
@given(p=weights, q=weights, dtype=dtypes)
def test_a_residual_holds_only_what_the_target_wants_more_of(p: list[float], q: list[float], dtype: torch.dtype):
    target, draft = normalised(p, dtype), normalised(q, dtype)
    found = residual(target, draft)
    if bool((target > draft).any()):
        assert (found[target <= draft] == 0).all()


@quick
@given(p=weights, dtype=dtypes)
def test_where_nothing_is_left_the_residual_is_the_target(p: list[float], dtype: torch.dtype):
    target = normalised(p, dtype)
    assert torch.equal(residual(target, target), target)


@quick
@given(p=weights, q=weights)
def test_a_residual_does_not_change_its_arguments(p: list[float], q: list[float]):
    target, draft = normalised(p), normalised(q)
    before = target.clone(), draft.clone()
    residual(target, draft)
    assert torch.equal(target, before[0])
    assert torch.equal(draft, before[1])


def test_the_residual_of_what_the_target_never_says_is_the_target():
    target = torch.tensor([0.5, 0.5, 0.0])
    assert torch.equal(residual(target, torch.tensor([0.0, 0.0, 1.0])), target)


def test_the_residual_of_a_point_mass_is_the_target_without_it():
    found = residual(torch.tensor([0.5, 0.3, 0.2]), torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(found, torch.tensor([0.0, 0.6, 0.4]))


def test_rows_of_a_batch_have_residuals_of_their_own():
    generator = torch.Generator().manual_seed(0)
    target, draft = torch.rand(2, 20, VOCAB, generator=generator).softmax(dim=-1)
    draft[::3] = target[::3]
    together = residual(target, draft)
    assert all(torch.equal(residual(target[i], draft[i]), together[i]) for i in range(20))


# Laws.

parameters = st.builds(
    SamplingParams,
    temperature=st.one_of(st.just(0.0), st.just(1e-8), st.floats(0.05, 5.0)),
    top_k=st.integers(0, VOCAB + 1),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    min_new_tokens=st.sampled_from([0, 2]),
)
logits_of_two_rows = st.lists(st.floats(-30, 30, width=32), min_size=2 * 3 * VOCAB, max_size=2 * 3 * VOCAB)


@quick
@given(
    params=parameters,
    values=logits_of_two_rows,
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float64]),
)
def test_laws_sum_to_1_under_every_processor(params: SamplingParams, values: list[float], dtype: torch.dtype):
    logits = torch.tensor(values, dtype=dtype).reshape(2, 3, VOCAB)
    found = slot_distributions(logits, Draft.chains([[1, 2], [3]]), [processed(params), processed(params)])
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert found.shape == logits.shape
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(2, 3, dtype=found.dtype), rtol=0, atol=1e-5)


@quick
@given(values=st.lists(st.sampled_from([-1.0, 0.0, 1.0, 2.0]), min_size=VOCAB, max_size=VOCAB))
def test_at_temperature_0_all_probability_is_on_the_first_of_the_most_likely(values: list[float]):
    found = slot_distributions(torch.tensor([[values]]), Draft.empty(1), [row(SamplingParams(temperature=0.0))])[0, 0]
    assert found.tolist() == [float(token == values.index(max(values))) for token in range(VOCAB)]


@pytest.mark.parametrize("first", [0, 1, 17, 31_000, 49_151])
def test_ties_go_to_the_lowest_id_in_a_large_vocabulary(first: int):
    logits = torch.zeros(1, 1, 49_152)
    logits[..., first:] = 3.5
    found = slot_distributions(logits, Draft.empty(1), [row(SamplingParams(temperature=0.0))])
    assert found[0, 0].nonzero().tolist() == [[first]]


def test_ties_that_only_half_precision_makes_go_to_the_lowest_id():
    logits = torch.tensor([[[1.0, 8.001, 8.002]]]).bfloat16()
    assert slot_distributions(logits, Draft.empty(1), [row(SamplingParams(temperature=0.0))]).tolist() == [
        [[0.0, 1.0, 0.0]]
    ]


def test_a_tiny_temperature_is_the_limit_of_small_ones():
    logits = torch.tensor([[[-80.0, 2.0, 50.0, 49.9, -3.0]]])
    cold = slot_distributions(logits, Draft.empty(1), [processed(SamplingParams(temperature=1e-8))])
    zero = slot_distributions(logits, Draft.empty(1), [processed(SamplingParams(temperature=0.0))])
    assert torch.equal(cold, zero)


def test_rows_with_parameters_of_their_own_do_not_see_each_other():
    every = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5, top_k=2),
        SamplingParams(temperature=1.0, repetition_penalty=1.5),
        SamplingParams(temperature=1.0, min_new_tokens=2),
        SamplingParams(temperature=1.0),
    ]
    rows = [processed(params, [1, 2, 3, index % VOCAB]) for index, params in enumerate(every)]
    logits = torch.randn(6, 3, VOCAB, generator=torch.Generator().manual_seed(0))
    chains = [[1, 2], [3], [], [4, 4], [0, 1], [2]]
    together = slot_distributions(logits, Draft.chains(chains), rows)
    for index in range(6):
        own = len(chains[index]) + 1
        alone = slot_distributions(logits[index : index + 1, :own], Draft.chains([chains[index]]), [rows[index]])
        assert torch.equal(together[index, :own], alone[0])


def test_the_context_offers_the_same_function():
    params = SamplingParams(temperature=0.7, top_k=3)
    logits, rows = torch.randn(1, 2, VOCAB, generator=torch.Generator().manual_seed(0)), (processed(params),)
    context = Context(rows, Streams([(0, "toy", 0)]))
    assert torch.equal(
        context.distributions(logits, Draft.chains([[1]])), slot_distributions(logits, Draft.chains([[1]]), rows)
    )


def test_logits_are_left_as_they_are():
    params = SamplingParams(temperature=0.5, top_k=2, repetition_penalty=2.0)
    logits = torch.randn(1, 2, VOCAB, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    slot_distributions(logits, Draft.chains([[1]]), [processed(params)])
    assert torch.equal(logits, before)


@dataclass
class Recorder:
    """A processor that writes down the prefixes that it is shown."""

    needs_prefix: bool
    seen: list[list[int]] = field(default_factory=list)

    def __call__(self, prefix: Tensor, logits: Tensor) -> Tensor:
        assert prefix.shape[0] == logits.shape[0]
        self.seen += prefix.tolist()
        return logits


@quick
@given(rows=rows_of_trees(VOCAB, most_rows=3, most=5))
def test_a_processor_sees_the_prefix_of_every_slot(rows: list[Tree]):
    draft = Draft.trees(rows)
    recorders = [Recorder(needs_prefix=True) for _ in rows]
    batch = [row(SamplingParams(temperature=1.0), (recorder,), [9, index]) for index, recorder in enumerate(recorders)]
    slot_distributions(torch.zeros(len(rows), draft.nodes + 1, VOCAB), draft, batch)
    for index, recorder in enumerate(recorders):
        paths = trees.prefixes(draft, index)
        assert recorder.seen[: len(paths)] == [[9, index, *path] for path in paths]


def test_a_processor_that_looks_at_logits_alone_is_called_once_for_all_slots():
    recorder = Recorder(needs_prefix=False)
    batch = [row(SamplingParams(temperature=1.0), (recorder,)) for _ in range(3)]
    slot_distributions(torch.zeros(3, 4, VOCAB), Draft.chains([[1, 2, 3]] * 3), batch)
    assert recorder.seen == [[]] * 12


def test_a_penalty_at_a_place_knows_the_drafts_before_it_and_no_later_one():
    params = SamplingParams(temperature=1.0, repetition_penalty=2.0)
    laws = slot_distributions(torch.ones(1, 3, VOCAB), Draft.chains([[4, 2]]), [processed(params, [1])])[0]
    penalised = [set((slot < slot.max()).nonzero()[:, 0].tolist()) for slot in laws]
    assert penalised == [{1}, {1, 4}, {1, 2, 4}]


# Laws that are one-hot by construction.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_at_temperature_0_the_tokens_are_known_and_are_those_of_the_table(dtype: torch.dtype):
    draft, rows = Draft.chains([[1, 2], [3]]), [processed(SamplingParams()), processed(SamplingParams())]
    logits = torch.randn((2, 3, VOCAB), generator=torch.Generator().manual_seed(1)).to(dtype)
    logits[0, 0, 1:3] = 9.0  # a tie goes to the lower id
    found, table = target_distributions(logits, draft, rows), slot_distributions(logits, draft, rows)
    assert isinstance(found, OneHot)
    assert found.token_ids[0, 0] == 1
    assert torch.equal(found.table(), table)
    assert found.table().dtype == table.dtype


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=1.0), SamplingParams(logit_bias={3: 50.0}), SamplingParams(min_new_tokens=9)]
)
def test_a_temperature_or_a_processor_in_one_row_makes_a_table(params: SamplingParams):
    draft, rows = Draft.chains([[1], [3]]), [processed(SamplingParams()), processed(params)]
    logits = torch.zeros((2, 2, VOCAB))
    found = target_distributions(logits, draft, rows)
    assert isinstance(found, Tensor)
    assert torch.equal(found, slot_distributions(logits, draft, rows))
