"""Sort the suffixes of a text by their first tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def suffix_array(tokens: Tensor, depth: int) -> Tensor:
    """Return where the suffixes of a text begin, in the order of their first ``depth`` tokens or a few more.

    Ranks by 1, 2, 4, … tokens, each from the one before by one sort: five sorts for 16 tokens, whatever the text. What
    agrees that far is ordered by place.

    Args:
        tokens: the text; the order of suffixes is that of these numbers, and an end comes before all. ``[tokens]`` int.
        depth: how many tokens count.

    Returns:
        ``[tokens]`` int64.

    Source: Manber and Myers, "Suffix arrays: a new method for on-line string searches", 1993, cut off at ``depth``.
    """
    rank = torch.unique(tokens, return_inverse=True)[1] + 1
    order: Tensor = rank.argsort(stable=True)
    covered = 1
    while covered < depth and len(tokens):
        after = torch.zeros_like(rank)
        after[:-covered] = rank[covered:]
        keys, order = (rank * (len(tokens) + 1) + after).sort(stable=True)
        steps = torch.ones_like(keys)
        steps[1:] = keys[1:] != keys[:-1]
        rank[order] = steps.cumsum(dim=0)
        covered *= 2
    return order
