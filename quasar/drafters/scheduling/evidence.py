"""How likely each node of a draft is to be accepted, from how much of the text before it its drafter had seen."""

from __future__ import annotations

from collections.abc import Sequence

from quasar.drafters.scheduling.costs import Costs
from quasar.drafters.scheduling.schedule import Node, Probe, Schedule

_WEIGHT = 6.0
"""Observations that the assumption about a kind of node counts for; between 4 and 30 little changes."""

_HALF = 3
"""Tokens of a match after which a first sibling is assumed to be accepted half of the time."""

_MARGIN = 0.02
"""By how much a node has to raise the tokens per time: costs drift by more than that while a text is written, and in
simulation a margin is free where they are right and saves up to 2 % where a forward has become dearer than it was."""

Kind = tuple[int, int]
"""Nodes with one acceptance: binary digits of the length of their match, and rank among their siblings."""


class Evidence(Schedule):
    """Decayed counts of what became of each kind of node, and the nodes of a draft that pay.

    All nodes with a match of about the same length and the same rank among their siblings are one kind, in chains and
    trees and at any depth. So after a few steps it is known what a short match is worth in this text, and a draft is
    judged by what stands behind it instead of by what became of the drafts before it.

    Args:
        most: nodes that can be drafted in a step.
        decay: weight of an observation of a kind relative to the next one of it.
        probe_share: share of the time that is spent on drafting one node where none would pay.
    """

    def __init__(self, most: int, decay: float, probe_share: float) -> None:
        self._most, self._decay = most, decay
        self._counts: dict[Kind, tuple[float, float]] = {}  # accepted, and reached: the parent was accepted
        self._probe = Probe(probe_share)

    def ask(self, costs: Costs) -> int:
        """Return the most: the choice is made among what comes, and costs no drafting."""
        return self._most

    def learn(self, asked: int, nodes: Sequence[Node], committed: Sequence[int]) -> None:
        """Note what became of every kind."""
        if not committed:
            return
        depths = {0: 0}  # of the accepted slots: those that the committed text follows
        for slot, ((token, parent, _), kind) in enumerate(zip(nodes, _kinds(nodes), strict=True), start=1):
            depth = depths.get(parent)
            if depth is None or depth >= len(committed):
                continue
            right = token == committed[depth]
            accepted, reached = self._counts.get(kind, (0.0, 0.0))
            self._counts[kind] = (self._decay * accepted + right, self._decay * reached + 1)
            if right:
                depths[slot] = depth + 1

    def keep(self, nodes: Sequence[Node], asked: int, costs: Costs) -> list[int]:
        """Return the numbers of the nodes that give the most tokens for the time, or of one to see if it pays.

        A node is worth the product of the acceptances along its path, so a set of the worthiest nodes holds the
        parents of all of them, as in EAGLE-2 (Li et al., arXiv 2406.16858, section 4.2).
        """
        if not nodes:
            return []
        worth = [1.0]  # by slot
        for (_, parent, matched), kind in zip(nodes, _kinds(nodes), strict=True):
            worth.append(self._acceptance(kind, matched) * worth[parent])
        order = sorted(range(len(nodes)), key=lambda number: -worth[number + 1])[: self._most]  # stable: parents first
        plain = costs.forward(1)
        count, best, tokens = 0, 1 / plain, 1.0
        for tried, number in enumerate(order, start=1):
            tokens += worth[number + 1]
            rate = tokens / costs.forward(tried + 1)
            if rate > best * (1 + _MARGIN * (tried - count)):
                count, best = tried, rate
        if not count and self._probe.is_due(plain, costs.forward(2) - plain):
            count = 1
        return sorted(order[:count])

    def _acceptance(self, kind: Kind, matched: int) -> float:
        accepted, reached = self._counts.get(kind, (0.0, 0.0))
        assumed = matched / (matched + _HALF) / (1 + kind[1])
        return (accepted + _WEIGHT * assumed) / (reached + _WEIGHT)


def _kinds(nodes: Sequence[Node]) -> list[Kind]:
    siblings: dict[int, int] = {}
    found = []
    for _, parent, matched in nodes:
        rank = siblings.get(parent, 0)
        siblings[parent] = rank + 1
        found.append((matched.bit_length(), rank))
    return found
