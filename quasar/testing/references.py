"""Reference parts of the conformance kit: a table for a target model and drafters over tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quasar.core.components import Drafter, Verifier
from quasar.core.context import Context
from quasar.core.streams import draw
from quasar.core.types import POINT_MASS, Draft, Trials, Verification
from quasar.testing.tiny_model import VOCAB


def _table(seed: int, sharpness: float) -> Tensor:
    return torch.randn((VOCAB, VOCAB), generator=torch.Generator().manual_seed(seed)) * sharpness


TARGET, DRAFT = _table(1, 0.6), _table(2, 1.2)
"""Logits after each token, of the target and of the sampled drafters. ``[vocab, vocab]``

The target is the flatter one: then many drafts are rejected, and what goes wrong there weighs more.
"""


class TableVerifier(Verifier):
    """The target: its logits depend on the last token only. Keeps the drafts that it judged."""

    name = "table"
    precision = "full"

    def __init__(self) -> None:
        super().__init__()
        self.drafts: list[Draft] = []

    def vocab_size(self) -> int:
        """Size of the table."""
        return VOCAB

    def verify(self, context: Context, draft: Draft) -> Verification:
        """Look every slot's token up."""
        self.drafts.append(draft)
        used = torch.arange(draft.nodes) < draft.num_nodes[:, None]
        logits = TARGET[torch.cat([last_tokens(context), draft.token_ids.where(used, 0)], dim=1)]
        return Verification(draft, context.distributions(logits, draft), logits)


class NoDrafts(Drafter):
    """Plain decoding."""

    name = "reference_none"
    drafts_by = "none"

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return nothing."""
        return Draft.empty(context.batch)


class PointChain(Drafter):
    """Follows the table's second choice after the first; rows differ in length."""

    name = "reference_chain"
    drafts_by = "point_mass"

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return up to three tokens."""
        choices = TARGET.argsort(dim=-1, descending=True)[:, :2].tolist()
        rows = []
        for row, limit in zip(context.rows, budget, strict=True):
            chain = [row.token_ids[-1]]
            for place in range(min(limit, 1 + len(row.token_ids) % 3)):
                chain.append(choices[chain[-1]][place % 2])
            rows.append(chain[1:])
        return Draft.chains(rows)


class PointTree(Drafter):
    """Two siblings with a child each, the second child deeper than the first row allows a chain to be."""

    name = "reference_tree"
    drafts_by = "point_mass"

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return a tree of up to five nodes, cut to the budget."""
        best = TARGET.argsort(dim=-1, descending=True)[:, :3].tolist()
        rows = []
        for row, limit in zip(context.rows, budget, strict=True):
            first, second, third = best[row.token_ids[-1]]
            nodes = [(third, 0), (first, 0), (second, 0), (best[first][0], 2), (best[second][1], 3)]
            rows.append(nodes[: (0, 3, 5)[min(limit, 2)]])
        return Draft.trees(rows)


class SampledDrafts(Drafter):
    """Draws from the table ``DRAFT``: a chain, or a tree of a point mass and two draws, one of them with a child.

    Equal siblings share a node and keep their trials.
    """

    name = "reference_sampled"
    drafts_by = "sampled"

    def __init__(self, tree: bool) -> None:
        super().__init__()
        self.tree = tree

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return a draft of depth two at most."""
        root = self._distribution(context, last_tokens(context))
        first, second = (self._draw(context, root, node, depth=0) for node in range(2))
        child_distribution = self._distribution(context, first[:, None])
        child = self._draw(context, child_distribution, 2, depth=1)
        point = root.argmax(dim=-1)
        rows, nodes, distributions = [], [], []
        for row, limit in enumerate(budget):
            # (token, parent's place in this list or -1, row of the distribution table), in the order in which they are
            # tried
            tried = [(first[row], -1, 0), (child[row], 0, 1)]
            if self.tree:
                tried = [(point[row], -1, POINT_MASS), (first[row], -1, 0), (second[row], -1, 0), (child[row], 1, 1)]
            kept = tried if limit > 1 else tried[:-1]
            merged, slots = _merge([(int(token), parent) for token, parent, _ in kept])
            use = limit > 0
            rows.append(merged if use else [])
            nodes.append([*slots, *[0] * (len(tried) - len(slots))] if use else [0] * len(tried))
            distributions.append([distribution for _, _, distribution in tried])
        trials = Trials(
            torch.tensor(nodes), torch.tensor(distributions), torch.stack([root, child_distribution], dim=1)
        )
        shape = Draft.trees(rows)
        return Draft(shape.token_ids, shape.parents, shape.num_nodes, trials)

    def _distribution(self, context: Context, tokens: Tensor) -> Tensor:
        return context.distributions(DRAFT[tokens], Draft.empty(context.batch))[:, 0]

    def _draw(self, context: Context, distribution: Tensor, node: int, depth: int) -> Tensor:
        keys = context.draft_keys(torch.full((context.batch, 1), node), torch.tensor(depth))
        return draw(distribution, keys[:, 0])


def _merge(tried: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """Give equal siblings one node; return the nodes as (token, parent slot), and the slot of every trial."""
    nodes: list[tuple[int, int]] = []
    slots: list[int] = []
    for token, parent in tried:
        node = (token, 0 if parent < 0 else slots[parent])
        if node not in nodes:
            nodes.append(node)
        slots.append(nodes.index(node) + 1)
    return nodes, slots


def last_tokens(context: Context) -> Tensor:
    """Return the last committed token of every row, ``[batch, 1]``."""
    return torch.tensor([[row.token_ids[-1]] for row in context.rows])
