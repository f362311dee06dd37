"""Random numbers as pure functions of their key.

Null hypotheses of the statistical tests: numbers of different keys are independent and uniform, and draws follow their
law. Each test refuses at p below 1e-5; there are about thirty, keys are fixed, and a run repeats itself.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from quasar.core.streams import Streams, draw, exponentials, fold, mix, uniforms

BOUND = 1e-5
quick = settings(deadline=None, max_examples=100)
int64 = st.integers(-(2**63), 2**63 - 1)

N = 4096
ONE = Streams([(0, "prompt", 0)])
MANY = Streams([(0, "prompt", sample) for sample in range(N)])
RANGE = torch.arange(N)[None]
AT_7 = torch.tensor([7])
ZERO = torch.zeros((1, 1), dtype=torch.int64)

FAMILIES = {
    "target, positions": lambda: ONE.target(RANGE)[0],
    "target, samples": lambda: MANY.target(torch.full((N, 1), 7))[:, 0],
    "target, seeds": lambda: Streams([(seed, "prompt", 0) for seed in range(N)]).target(torch.full((N, 1), 7))[:, 0],
    "target, prompts": lambda: Streams([(0, str(i), 0) for i in range(N)]).target(torch.full((N, 1), 7))[:, 0],
    "own, nodes": lambda: ONE.own("draft", RANGE, AT_7)[0],
    "own, committed lengths": lambda: MANY_OF_ONE.own("draft", torch.zeros((N, 1), dtype=torch.int64), RANGE[0])[:, 0],
    "own, purposes": lambda: torch.cat([ONE.own(str(i), ZERO, AT_7)[0] for i in range(500)]),
    "own, levels": lambda: torch.cat([ONE.own("draft", ZERO, AT_7, i)[0] for i in range(500)]),
}
MANY_OF_ONE = Streams([(0, "prompt", 0)] * N)


@pytest.mark.parametrize("family", FAMILIES)
def test_uniforms_are_uniform(family: str):
    p = stats.kstest(uniforms(FAMILIES[family]()).numpy(), "uniform").pvalue
    assert p > BOUND, f"p = {p:.3g}"


def independence(a: Tensor, b: Tensor) -> float:
    """p-value of "a and b are independent uniforms", from an 8 × 8 table."""
    cells = (a * 8).long() * 8 + (b * 8).long()
    return float(stats.chisquare(torch.bincount(cells, minlength=64).numpy()).pvalue)


@pytest.mark.parametrize("family", FAMILIES)
def test_neighbouring_keys_are_independent(family: str):
    numbers = uniforms(FAMILIES[family]())
    for distance in (1, 2):
        p = independence(numbers[:-distance], numbers[distance:])
        assert p > BOUND, f"p = {p:.3g} at distance {distance}"
    correlation = stats.pearsonr(numbers[:-1].numpy(), numbers[1:].numpy())
    assert correlation.pvalue > BOUND, f"r = {correlation.statistic:.3g}"


def test_purposes_of_one_node_are_independent():
    zeros, committed = torch.zeros((N, 1), dtype=torch.int64), torch.full((N,), 7)
    purposes = [MANY.own(purpose, zeros, committed)[:, 0] for purpose in ("draft", "accept", "next")]
    keys = [*purposes, MANY.own("draft", zeros, committed, level=1)[:, 0], MANY.target(committed[:, None])[:, 0]]
    for a, b in itertools.combinations(keys, 2):
        assert independence(uniforms(a), uniforms(b)) > BOUND


def test_a_number_says_nothing_of_the_noise_drawn_with_another_purpose():
    """The pair that matters most: the accept test and the token that was drawn."""
    zeros, committed = torch.zeros((N, 1), dtype=torch.int64), torch.full((N,), 7)
    tokens = draw(torch.full((N, 4), 0.25), MANY.own("draft", zeros, committed)[:, 0])
    accept = uniforms(MANY.own("accept", zeros, committed)[:, 0])
    table = torch.bincount(tokens * 8 + (accept * 8).long(), minlength=32).reshape(4, 8)
    assert stats.chi2_contingency(table.numpy()).pvalue > BOUND


def test_every_part_of_a_key_counts():
    keys: list[int] = []
    requests = [(seed, prompt, sample) for seed in (0, 1, 2**40) for prompt in ("", "0", "a") for sample in (0, 1, 10)]
    streams, rows = Streams(requests), len(requests)
    keys += streams.target(torch.arange(20).expand(rows, 20)).flatten().tolist()
    for purpose, level, committed in itertools.product(("draft", "accept", "next"), (0, 1, 2), range(5)):
        lengths = torch.full((rows,), committed)
        keys += streams.own(purpose, torch.arange(12).expand(rows, 12), lengths, level).flatten().tolist()
    assert len(set(keys)) == len(keys)


def test_parts_of_a_key_do_not_run_together():
    """1 then 11 is not 11 then 1, neither among numbers nor where the text of a key is put together."""
    streams = Streams([(1, "1", 11), (11, "1", 1), (1, "11", 1), (1, "1\x1f1", 1)])
    assert len(set(streams.target(torch.zeros((4, 1), dtype=torch.int64)).flatten().tolist())) == 4
    a = ONE.own("draft", torch.tensor([[1]]), torch.tensor([11]))
    b = ONE.own("draft", torch.tensor([[11]]), torch.tensor([1]))
    assert a != b


@quick
@given(order=st.permutations(range(6)), size=st.integers(1, 6))
def test_a_key_is_the_same_in_any_batch(order: list[int], size: int):
    requests = [(seed, prompt, sample) for seed in (0, 1) for prompt in ("a", "b", "c") for sample in [seed]]
    committed, nodes = torch.arange(6) + 3, torch.arange(4).expand(6, 4)
    whole, chosen = Streams(requests), order[:size]
    part = Streams([requests[i] for i in chosen])
    assert torch.equal(part.target(nodes[chosen]), whole.target(nodes)[chosen])
    assert torch.equal(
        part.own("draft", nodes[chosen], committed[chosen], 1), whole.own("draft", nodes, committed, 1)[chosen]
    )


def test_asking_for_one_stream_leaves_the_others_as_they_are():
    first, second = Streams([(0, "a", 0)]), Streams([(0, "a", 0)])
    first.own("draft", RANGE, AT_7)
    first.target(RANGE)
    assert torch.equal(first.own("accept", RANGE, AT_7), second.own("accept", RANGE, AT_7))


def unmix(value: int) -> int:
    """The number that ``mix`` turns into ``value``, both unsigned 64 bits."""

    def unshift(x: int, bits: int) -> int:
        y = x
        for _ in range(64 // bits + 1):
            y = x ^ (y >> bits)
        return y

    value = unshift(value, 31) * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
    value = unshift(value, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
    return unshift(value, 30)


def key_of(bits: int) -> Tensor:
    """The key whose scrambled bits are ``bits``."""
    key = unmix(bits % 2**64)
    return torch.tensor([key - 2**64 if key >= 2**63 else key])


@pytest.mark.parametrize("bits", [0, 1, 2**11, 2**12, 2**63, -1, -(2**11), -(2**12)])
def test_the_extreme_uniforms_are_neither_0_nor_1(bits: int):
    number = uniforms(key_of(bits)).item()
    assert mix(key_of(bits)).item() % 2**64 == bits % 2**64
    assert 0.0 < number < 1.0


@pytest.mark.parametrize("bits", [0, -1])
def test_the_extreme_numbers_draw_no_impossible_token(bits: int):
    """The noise of token 0 is the smallest or the largest there is; its probability is 0."""
    assert draw(torch.tensor([[0.0, 0.5, 0.5]]), key_of(bits)).item() in (1, 2)


@quick
@given(key=int64)
def test_a_uniform_lies_between_0_and_1(key: int):
    assert 0.0 < uniforms(torch.tensor(key)).item() < 1.0


@quick
@given(key=int64, value=int64, other=int64)
def test_folding_in_another_number_gives_another_key(key: int, value: int, other: int):
    base = torch.tensor(key)
    assert (fold(base, value) == fold(base, other)).item() == (value == other)


@quick
@given(keys=st.lists(int64, min_size=1, max_size=16), value=int64)
def test_a_few_keys_are_derived_as_many_are(keys: list[int], value: int):
    few = torch.tensor(keys)
    assert torch.equal(fold(few, value), fold(few.repeat(20), value)[: len(keys)])
    assert torch.equal(
        fold(few[:, None], torch.tensor([value, 1])),
        fold(few.repeat(20)[:, None], torch.tensor([value, 1]))[: len(keys)],
    )


@quick
@given(a=int64, b=int64)
def test_scrambling_keeps_different_keys_different(a: int, b: int):
    assert (mix(torch.tensor(a)) == mix(torch.tensor(b))).item() == (a == b)


# Drawing.

KEYS = fold(torch.tensor(1), torch.arange(40_000))
LAWS = {
    "even": [0.25] * 4,
    "skewed": [0.7, 0.2, 0.06, 0.04],
    "with zeros": [0.0, 0.5, 0.0, 0.3, 0.2],
    "with a rare token": [0.999, 0.001],
    "not normalised": [3.0, 1.0, 4.0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_their_law(name: str, dtype: torch.dtype):
    law = torch.tensor(LAWS[name], dtype=dtype)
    counts = torch.bincount(draw(law.expand(len(KEYS), -1), KEYS), minlength=len(law))
    assert counts[law == 0].sum() == 0
    expected = (law / law.sum() * len(KEYS)).double()[law > 0]
    p = stats.chisquare(counts[law > 0].numpy(), (expected / expected.sum() * len(KEYS)).numpy()).pvalue
    assert p > BOUND, f"p = {p:.3g}"


def test_draws_from_a_wide_law_follow_it():
    law, keys = torch.linspace(1, 3, 500, dtype=torch.float64).softmax(dim=0), KEYS[:8000]
    counts = torch.bincount(draw(law.expand(len(keys), -1), keys), minlength=500)
    assert stats.chisquare(counts.numpy(), (law * len(keys)).numpy()).pvalue > BOUND


@pytest.mark.parametrize("exponent", [-120, -60, 60])
def test_draws_depend_on_ratios_only_down_to_the_smallest_float32(exponent: int):
    law = torch.tensor([0.5, 0.25, 0.125, 0.125]).expand(2000, -1)
    assert torch.equal(draw(law * 2.0**exponent, KEYS[:2000]), draw(law, KEYS[:2000]))


def test_a_token_of_the_smallest_float32_probability_is_not_drawn_and_does_no_harm():
    law = torch.tensor([1e-45, 0.5, 0.5, 1e-38]).expand(2000, -1)
    assert set(draw(law, KEYS[:2000]).tolist()) == {1, 2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_one_hot_law_returns_its_token_whatever_the_key(dtype: torch.dtype):
    tokens = torch.arange(2000) % 7
    law = torch.nn.functional.one_hot(tokens, 7).to(dtype)
    assert torch.equal(draw(law, KEYS[:2000]), tokens)


def test_a_one_hot_law_returns_its_token_beside_other_laws():
    tokens = torch.arange(2000) % 7
    law = torch.nn.functional.one_hot(tokens, 7).float()
    law[::2] = 1 / 7
    assert torch.equal(draw(law, KEYS[:2000])[1::2], tokens[1::2])


@quick
@given(
    weights=st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=2, max_size=6).filter(any),
    key=int64,
)
def test_a_token_of_probability_0_is_never_drawn(weights: list[float], key: int):
    assert weights[draw(torch.tensor([weights]), torch.tensor([key])).item()] > 0


def test_noise_belongs_to_a_token_not_to_its_place_among_the_likely_ones():
    """Cutting tokens off a law leaves a draw as it is, unless it was one of those."""
    law = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15]).expand(2000, -1)
    cut = law * torch.tensor([0, 1, 1, 0, 1])
    before, after = draw(law, KEYS[:2000]), draw(cut, KEYS[:2000])
    kept = (before != 0) & (before != 3)
    assert torch.equal(before[kept], after[kept])


def test_a_draw_is_the_same_alone_and_in_a_batch():
    laws = torch.rand((30, 3, 6), generator=torch.Generator().manual_seed(0))
    laws[0, 0] = torch.tensor([0, 0, 1, 0, 0, 0])  # one-hot, among others that are not
    keys = KEYS[:90].reshape(30, 3)
    together = draw(laws, keys)
    for row, slot in itertools.product(range(30), range(3)):
        assert draw(laws[row, slot], keys[row, slot]) == together[row, slot]


# Noise in blocks: the least of a block is a number of its own, so that a draw can leave out blocks.

WIDE = (1024, 1025, 1100, 1300, 5000)


def test_the_noise_of_a_vocabulary_is_exponential_and_independent():
    noise = 1 - (-exponentials(KEYS[:300], 400)).exp()  # uniform
    assert stats.kstest(noise.flatten().numpy(), "uniform").pvalue > BOUND
    for place in (0, 1, 127, 128, 399):
        assert stats.kstest(noise[:, place].numpy(), "uniform").pvalue > BOUND
    for distance in (1, 2, 64, 127, 128):  # in a block, and beyond
        assert independence(noise[:, :-distance].flatten(), noise[:, distance:].flatten()) > BOUND
    assert independence(noise[:-1].flatten(), noise[1:].flatten()) > BOUND


def test_the_least_of_a_block_lies_anywhere_in_it_and_says_nothing_of_the_others():
    blocks = exponentials(KEYS[:6000], 256).reshape(-1, 128)
    least, place = blocks.min(dim=1)
    assert stats.chisquare(torch.bincount(place, minlength=128).numpy()).pvalue > BOUND
    assert stats.kstest((least * 128).numpy(), "expon").pvalue > BOUND
    others = 1 - (-(blocks - least[:, None])).exp()
    at = torch.arange(128) == (place[:, None] + 1) % 128
    assert stats.kstest(others[at].numpy(), "uniform").pvalue > BOUND
    assert independence(others[at], 1 - (-128 * least).exp()) > BOUND
    assert independence(others[at], place / 128) > BOUND


def test_the_noise_of_a_token_does_not_depend_on_the_size_of_the_vocabulary():
    assert torch.equal(exponentials(KEYS[:5], 300), exponentials(KEYS[:5], 1000)[:, :300])


@settings(deadline=None, max_examples=60)
@given(
    vocab=st.sampled_from(WIDE),
    spread=st.sampled_from([0.0, 0.1, 1.0, 3.0, 10.0, 40.0]),
    seed=st.integers(0, 10**6),
    zeros=st.sampled_from([0.0, 0.5, 0.999]),
)
def test_leaving_blocks_out_draws_the_same_token(vocab: int, spread: float, seed: int, zeros: float):
    generator = torch.Generator().manual_seed(seed)
    law = (spread * torch.randn(4, vocab, generator=generator)).softmax(dim=-1)
    law[torch.rand(4, vocab, generator=generator) < zeros] = 0
    law[:, seed % vocab] += 1e-3
    keys = KEYS[seed % 30_000 :][:4]
    assert torch.equal(draw(law, keys), (law / exponentials(keys, vocab)).argmax(dim=-1))


@pytest.mark.parametrize("vocab", WIDE)
def test_a_wide_one_hot_law_returns_its_token(vocab: int):
    tokens = torch.tensor([0, 127, 128, vocab - 1])
    assert torch.equal(draw(torch.nn.functional.one_hot(tokens, vocab).float(), KEYS[:4]), tokens)


def test_draws_from_block_to_block_follow_their_law():
    law, keys = torch.linspace(0, 6, 1500, dtype=torch.float64).softmax(dim=0), KEYS[:8000]
    counts = torch.bincount(draw(law.expand(len(keys), -1), keys), minlength=1500)
    together = counts.reshape(-1, 30).sum(dim=1)
    expected = law.reshape(-1, 30).sum(dim=1) * len(keys)
    assert stats.chisquare(together.numpy(), expected.numpy()).pvalue > BOUND


def test_a_law_that_is_not_a_number_stops_nothing():
    assert 0 <= draw(torch.full((1, 2000), torch.nan), KEYS[:1]).item() < 2000
