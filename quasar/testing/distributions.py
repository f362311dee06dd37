"""Statistics of the conformance kit: do tokens follow the distributions that are claimed for them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

SMALLEST_P = 1e-6
"""Below this probability a deviation is no accident."""

_SMALLEST_CELL = 5.0

Cells = tuple[Sequence[float], Sequence[float]]
"""Observed and expected counts of the cells of one group."""


def chi_square(groups: Iterable[Cells]) -> float:
    """Return the probability of a deviation at least as large as the one observed, by Pearson's chi-square.

    Cells with a small expected count are pooled within their group. Draws of one group need not have one distribution:
    the test then errs on the side of finding nothing.

    Args:
        groups: cells of independent groups.

    Returns:
        0.0 if something was observed that cannot happen, 1.0 if there is nothing to test.
    """
    statistic, freedom = 0.0, 0
    for observed, expected in groups:
        if any(seen and not wanted for seen, wanted in zip(observed, expected, strict=True)):
            return 0.0
        cells = _pool(observed, expected)
        statistic += sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
        freedom += max(len(cells) - 1, 0)
    if not freedom:
        return 1.0
    halves = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def _pool(observed: Sequence[float], expected: Sequence[float]) -> list[tuple[float, float]]:
    """Join cells, rarest first, until each has a sufficient expected count."""
    pooled: list[tuple[float, float]] = []
    seen = wanted = 0.0
    for count, share in sorted(zip(observed, expected, strict=True), key=lambda cell: cell[1]):
        seen, wanted = seen + count, wanted + share
        if wanted >= _SMALLEST_CELL:
            pooled.append((seen, wanted))
            seen = wanted = 0.0
    if pooled and wanted:
        pooled[-1] = (pooled[-1][0] + seen, pooled[-1][1] + wanted)
    return pooled


def draws_against_distributions(tokens: Sequence[int], distributions: Sequence[Sequence[float]]) -> float:
    """Test tokens against the distributions that each is said to be drawn from; equal distributions make a group."""
    groups: dict[tuple[float, ...], tuple[list[float], list[float]]] = {}
    for token, distribution in zip(tokens, distributions, strict=True):
        key = tuple(round(share, 5) for share in distribution)
        observed, expected = groups.setdefault(key, ([0.0] * len(distribution), [0.0] * len(distribution)))
        observed[token] += 1
        for index, share in enumerate(distribution):
            expected[index] += share
    return chi_square(groups.values())


def texts_against_distribution(texts: Tensor, transition: Tensor, last: int) -> float:
    """Test whole texts against a model whose next token depends on the last one only.

    Three kinds of tests, of few cells and of many: each place alone, which is the sharpest for a bias that does not
    depend on the text; each place given the token before it; and whole texts, for what goes wrong between places.

    Args:
        texts: ``[samples, length]`` int64.
        transition: distribution after each token, ``[vocab, vocab]`` float64.
        last: the token before the texts.

    Returns:
        The smallest probability of these, times their number.
    """
    samples, length = texts.shape
    vocab = transition.shape[0]
    alone, after, found = (
        transition[last],
        torch.full((samples,), last),
        [],
    )  # distribution of a place, tokens before it
    pairs: list[Cells] = []
    shares, codes = torch.ones(1, dtype=transition.dtype), torch.zeros(samples, dtype=torch.int64)  # of whole texts
    for place in range(length):
        tokens = texts[:, place]
        found.append(chi_square([_cells(tokens, alone * samples)]))
        seen = torch.bincount(after * vocab + tokens, minlength=vocab**2).view(vocab, vocab)
        pairs += zip(seen.tolist(), (seen.sum(dim=1, keepdim=True) * transition).tolist(), strict=True)
        following = transition if place else transition[last][None]
        shares = (shares.view(-1, len(following))[:, :, None] * following).reshape(-1)
        alone, after, codes = alone @ transition, tokens, codes * vocab + tokens
    found += [chi_square(pairs), chi_square([_cells(codes, shares * samples)])]
    return min(1.0, len(found) * min(found))


def _cells(values: Tensor, expected: Tensor) -> Cells:
    return torch.bincount(values, minlength=expected.numel()).tolist(), expected.tolist()


def independence(ones: Sequence[int], others: Sequence[int], given: Sequence[int]) -> float:
    """Test whether two numbers that are observed together are independent, given a third.

    Their frequencies are estimated from the same data, so that the test errs on the side of finding nothing.
    """
    groups: list[Cells] = []
    triples = Counter(zip(given, ones, others, strict=True))
    by_one, by_other = Counter(zip(given, ones, strict=True)), Counter(zip(given, others, strict=True))
    for (stratum, one), count in by_one.items():
        widths = [other for where, other in by_other if where == stratum]
        share = count / given.count(stratum)
        observed = [float(triples[stratum, one, other]) for other in widths]
        groups.append((observed, [share * by_other[stratum, other] for other in widths]))
    return chi_square(groups)
