"""Contexts made by hand, and drafts as lists."""

from __future__ import annotations

import torch
from torch import Tensor

from quasar.core.context import Context, Row, TokenView
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams
from quasar.core.types import Draft, Verification


def context(*texts: list[int]) -> Context:
    """Context over lists that may grow afterwards."""
    rows = tuple(Row(TokenView(ids), 1, str(row), 0, SamplingParams()) for row, ids in enumerate(texts))
    return Context(rows, Streams([(0, str(row), 0) for row in range(len(texts))]))


def verified(draft: Draft, logits: Tensor) -> Verification:
    """What a verifier with these logits says. ``[batch, nodes + 1, vocab]``"""
    return Verification(draft, logits.softmax(dim=-1), logits)


def logits_of(*likeliest: list[int], vocab: int = 12) -> Tensor:
    """One row's logits: after each slot these tokens are the likeliest, in this order. ``[1, slots, vocab]``"""
    found = torch.zeros((1, len(likeliest), vocab))
    for slot, tokens in enumerate(likeliest):
        for rank, token in enumerate(tokens):
            found[0, slot, token] = 10.0 - rank
    return found


def chains(draft: Draft) -> list[list[int]]:
    """The tokens of every row."""
    counts = draft.num_nodes.tolist()
    return [row[:count] for row, count in zip(draft.token_ids.tolist(), counts, strict=True)]


def nodes(draft: Draft) -> list[list[tuple[int, int]]]:
    """The nodes of every row, as (token, parent slot)."""
    counts = draft.num_nodes.tolist()
    rows = zip(draft.token_ids.tolist(), draft.parents.tolist(), counts, strict=True)
    return [list(zip(tokens[:count], parents[:count], strict=True)) for tokens, parents, count in rows]
