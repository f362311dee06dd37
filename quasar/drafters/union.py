"""Several drafters in one tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from quasar.core.components import Drafter, DraftsBy, joint_drafts_by
from quasar.core.context import Context
from quasar.core.description import Description, describe_part
from quasar.core.types import POINT_MASS, Draft, Trials


class Proposal(NamedTuple):
    """One trial of one drafter.

    Attributes:
        depth: 1 for a token that follows the committed text.
        drafter: number in the list.
        slot: its node's in that drafter's own draft.
        parent: its parent's slot there.
        token: the draft token.
        matched: the evidence for it, 0 from a drafter that tells none.
        source: row of the joint table of distributions, ``POINT_MASS`` for none.
    """

    depth: int
    drafter: int
    slot: int
    parent: int
    token: int
    matched: int
    source: int


class Union(Drafter):
    """Several drafters in one tree, under a budget of nodes; equal beginnings share nodes.

    Equal siblings that were sampled keep their trials, in the order of the list of drafters. A union that samples
    counts trials against its budget, not nodes: else two draws that came out equal would decide what else is drafted.

    Source: token trees of several drafters, SpecInfer (Miao et al., arXiv 2305.09781).
    """

    name = "union"
    drafts_by: DraftsBy = "sampled"  # at most; an instance's is that of its parts

    class Config(Drafter.Config):
        """Options."""

        drafters: list[Drafter] = Field(
            min_length=1, examples=[["ngram", "suffix"]], description="Who proposes, the most trusted first."
        )
        max_nodes: int = Field(16, ge=1, le=1024, description="Nodes of the tree; trials, if a drafter samples.")
        order: Literal["given", "breadth"] = Field(
            "given", description="Who comes first: drafter after drafter, or depth after depth."
        )

    config: Config

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config)
        self.drafts_by = joint_drafts_by(self.config.drafters)
        self.matched = all(drafter.matched for drafter in self.config.drafters)

    @classmethod
    def traits(cls) -> dict[str, Any]:
        """It drafts by what its parts do, and so is the evidence theirs."""
        return {**super().traits(), "drafts_by": "of its parts", "matched": "of its parts"}

    def describe(self) -> Description:
        """What the drafters say."""
        return Description(details={"drafters": [describe_part(drafter) for drafter in self.config.drafters]})

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return the joint tree of every row."""
        drafters = self.config.drafters
        drafts = [drafter.propose(context.part(number), budget) for number, drafter in enumerate(drafters)]
        tables = [draft.trials.table for draft in drafts if draft.trials is not None and draft.trials.table.shape[1]]
        merged = [self._merge(proposals) for proposals in _proposals(drafts)]
        tree = Draft.trees([nodes for nodes, _, _ in merged], [best for _, _, best in merged] if self.matched else None)
        if self.drafts_by != "sampled":
            return tree
        width = max(len(trials) for _, trials, _ in merged)
        padded = [[*trials, *[(0, POINT_MASS)] * (width - len(trials))] for _, trials, _ in merged]
        both = torch.tensor(padded, dtype=torch.int64).reshape(len(padded), width, 2)
        table = torch.cat(tables, dim=1) if tables else _no_distributions(context)
        return replace(tree, trials=Trials(both[..., 0], both[..., 1], table))

    def _merge(self, proposals: list[Proposal]) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[int]]:
        """Put the proposals of one row into one tree, as far as the budget goes.

        Returns:
            Nodes as (token, parent slot), trials as (slot, source) in the order in which they are to be tried,
            and the best evidence for every node.
        """
        if self.config.order == "breadth":
            proposals.sort(key=lambda each: each.depth)
        most, samples = self.config.max_nodes, self.drafts_by == "sampled"
        slots: dict[tuple[int, int], int] = {}  # of each node (token, parent slot)
        homes: dict[tuple[int, int], int] = {}  # of each node (drafter, slot in its draft): the slot here
        tried: list[tuple[int, int, int]] = []
        best: list[int] = []
        for depth, drafter, own, parent, token, matched, source in proposals:
            home = homes.get((drafter, parent)) if parent else 0
            if home is None or (samples and len(tried) >= most):
                continue
            slot = slots.get((token, home))
            if slot is None:
                if len(slots) >= most:
                    continue
                slot = slots[token, home] = len(slots) + 1
                best.append(matched)
            elif matched > best[slot - 1]:
                best[slot - 1] = matched
            homes[drafter, own] = slot
            tried.append((depth, slot, source))
        # A node that two drafters drew is tried twice, before its children are.
        tried.sort(key=lambda each: each[0])
        return list(slots), [(slot, source) for _, slot, source in tried], best


def _proposals(drafts: Sequence[Draft]) -> Iterator[list[Proposal]]:
    """Yield what is proposed for each row, drafter after drafter, in the order of the trials."""
    lists, offset = [], 0
    for draft in drafts:
        counts, trials = draft.num_nodes.tolist(), draft.trials
        if trials is None:  # not by `explicit_trials`: more tensors would take longer than all the rest
            tried = [[(slot, POINT_MASS) for slot in range(1, count + 1)] for count in counts]
        else:
            distributions = torch.where(trials.sources == POINT_MASS, POINT_MASS, trials.sources + offset)
            offset += trials.table.shape[1]
            tried = [
                list(zip(*row, strict=True)) for row in zip(trials.nodes.tolist(), distributions.tolist(), strict=True)
            ]
        matched = [[0] * count for count in counts] if draft.matched is None else draft.matched
        lists.append((counts, draft.token_ids.tolist(), draft.parents.tolist(), matched, tried))
    for row in range(drafts[0].batch):
        found: list[Proposal] = []
        for number, (counts, tokens, parents, matched, tried) in enumerate(lists):
            own, depths = parents[row][: counts[row]], [0]
            for parent in own:
                depths.append(depths[parent] + 1)
            for slot, source in tried[row]:
                if slot:
                    node = slot - 1
                    found.append(
                        Proposal(depths[slot], number, slot, own[node], tokens[row][node], matched[row][node], source)
                    )
        yield found


def _no_distributions(context: Context) -> Tensor:
    vocab = 0 if context.verification is None else context.verification.vocab_size
    return torch.empty((context.batch, 0, vocab))
