"""Reuse what the model considered before: its likeliest next tokens, last time it stood after the same token."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.description import Description
from quasar.core.providers import ModelProvider
from quasar.core.types import Draft, Verification
from quasar.models.self_sampled import SelfSampledTexts, remembered_self_sampled_texts

Matrix = dict[int, list[int]]
"""By token, its likeliest successors, best first."""

_BLOCK = 64
"""Tokens in a block of ``likeliest``; times differ little between 32 and 128."""


def template(size: int, ranks: int) -> list[tuple[int, int]]:
    """Return the fixed tree: ``size`` nodes as (parent slot, rank among the parent's successors), the best first.

    A node is worth the product of 1 ÷ 2(rank + 1) along its path. The slots follow that order, so that a tree of fewer
    nodes is a beginning of a tree of more.
    """
    nodes: list[tuple[int, int]] = []
    waiting = [(-0.5, 0, 0)]  # minus the worth, parent slot, rank
    while waiting and len(nodes) < size:
        worth, parent, rank = heapq.heappop(waiting)
        nodes.append((parent, rank))
        heapq.heappush(waiting, (worth / 2, len(nodes), 0))
        if rank + 1 < ranks:
            heapq.heappush(waiting, (worth * (rank + 1) / (rank + 2), parent, rank + 1))
    return nodes


def likeliest(logits: Tensor, count: int) -> list[list[int]]:
    """Return the ``count`` largest entries of each row, largest first, as indices.

    Two steps, because ``topk`` over a whole vocabulary takes longer than all the rest of drafting: the largest entries
    lie in the blocks with the largest maxima. What was found is counted out in Python: between two forwards a call
    of torch costs more than dozens of integers.

    Args:
        logits: ``[rows, vocab]``, float.
        count: how many.
    """
    rows, vocab = logits.shape
    blocks = vocab // _BLOCK
    if blocks <= count:
        found: list[list[int]] = logits.topk(min(count, vocab), dim=1).indices.tolist()
        return found
    # Block b is every `blocks`-th token from b on: the maximum over them is then taken along whole stretches of memory.
    whole, inside = blocks * _BLOCK, count * _BLOCK
    body = logits[:, :whole].reshape(rows, _BLOCK, blocks)
    chosen = body.amax(dim=1).topk(count, dim=1).indices  # [rows, count]
    values = body.gather(2, chosen[:, None].expand(-1, _BLOCK, -1)).flatten(1)  # [rows, _BLOCK * count]
    if whole < vocab:
        values = torch.cat([values, logits[:, whole:]], dim=1)
    best = values.topk(count, dim=1).indices.tolist()
    return [
        [place // count * blocks + own[place % count] if place < inside else whole + place - inside for place in row]
        for row, own in zip(best, chosen.tolist(), strict=True)
    ]


@dataclass(slots=True)
class Memory:
    """What was learnt for a batch of requests.

    Attributes:
        matrices: of every row; one and the same, if it is carried over.
        lengths: committed tokens per row before the last step; slot 0 of its draft was the last of them.
    """

    matrices: list[Matrix]
    lengths: list[int]


class Recycling(Drafter):
    """A fixed tree over what the model found likeliest after each token, learnt from all nodes of every verification.

    Source: Token Recycling (Luo et al., arXiv 2408.08696). It deviates in three ways: each prompt starts with the same
    matrix, empty or that of ``own_texts``, unless ``carry_over`` is set; the tree is smaller; and it is chosen by rank
    instead of by search.
    """

    name = "recycling"
    drafts_by = "point_mass"
    matched = True
    _own: SelfSampledTexts | None = None

    class Config(Drafter.Config):
        """Options."""

        max_nodes: int = Field(8, ge=1, le=256, description="Nodes of the tree.")
        top_k: int = Field(8, ge=1, le=64, description="Successors that are kept for each token.")
        carry_over: bool = Field(
            False, description="Keep the matrix from prompt to prompt; results then depend on their order."
        )
        own_texts: bool = Field(
            False, description="Start with a matrix from texts that the model samples itself, once for each model."
        )

    config: Config

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config)
        self._template = template(self.config.max_nodes, self.config.top_k)
        self._carried: Matrix = {}

    def load(self, models: ModelProvider) -> None:
        """Read or sample the texts that the matrix starts with."""
        if self.config.own_texts:
            self._own = remembered_self_sampled_texts(models)
            self._carried = self._start()

    def describe(self) -> Description:
        """What the matrix starts with, and whether what is learnt is kept from prompt to prompt."""
        own = {} if self._own is None else {"own_texts": self._own.describe()}
        return Description(details={"carry_over": self.config.carry_over, **own})

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return a tree per row, without the nodes whose parent was never seen."""
        memory = context.scratch(self, lambda: self._remember(context))
        if context.verification is not None:
            self._learn(context, context.verification, memory)
        memory.lengths = [len(row.token_ids) for row in context.rows]
        trees = [
            self._grow(matrix, row.token_ids[-1], limit) if limit > 0 else []
            for matrix, row, limit in zip(memory.matrices, context.rows, budget, strict=True)
        ]
        return Draft.trees(trees, matched=[[1] * len(tree) for tree in trees])  # it looks at one token before each

    def _start(self) -> Matrix:
        known = {} if self._own is None else self._own.successors
        return {token: successors[: self.config.top_k] for token, successors in known.items()}

    def _remember(self, context: Context) -> Memory:
        matrices = [self._carried if self.config.carry_over else self._start() for _ in context.rows]
        return Memory(matrices, [len(row.token_ids) - 1 for row in context.rows])  # the prompt's step yields one token

    def _learn(self, context: Context, verification: Verification, memory: Memory) -> None:
        """Note the likeliest tokens after every slot of the last step."""
        going_on = [len(row.token_ids) > length for row, length in zip(context.rows, memory.lengths, strict=True)]
        if not any(going_on):
            return
        scores = verification.probs if verification.logits is None else verification.logits
        found = likeliest(scores.flatten(0, 1), self.config.top_k)
        counts, tokens = verification.draft.num_nodes.tolist(), verification.draft.token_ids.tolist()
        slots = verification.draft.nodes + 1
        for number, row in enumerate(context.rows):
            if going_on[number]:
                before = [row.token_ids[memory.lengths[number] - 1], *tokens[number][: counts[number]]]
                memory.matrices[number].update(zip(before, found[number * slots :], strict=False))

    def _grow(self, matrix: Matrix, last: int, limit: int) -> list[tuple[int, int]]:
        """Return the nodes of the tree below ``last``, as (token, parent slot)."""
        nodes: list[tuple[int, int]] = []
        places = [(last, 0, 0)]  # of the template's slots: token, slot, depth; slot -1 for what is not there
        for parent, rank in self._template:
            token, slot, depth = places[parent]
            successors = matrix.get(token, ()) if slot >= 0 and depth < limit else ()
            if rank < len(successors):
                nodes.append((successors[rank], slot))
                places.append((successors[rank], len(nodes), depth + 1))
            else:
                places.append((0, -1, 0))
        return nodes
