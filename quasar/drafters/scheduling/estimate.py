"""How likely each node of a draft is to be accepted, from what became of the last ones."""

from __future__ import annotations

from collections.abc import Sequence

from quasar.drafters.scheduling.costs import Costs
from quasar.drafters.scheduling.schedule import Node, Probe, Schedule

_CONTINUED = 0.8
"""Acceptance of a node whose parent was accepted, as long as nothing is known."""

_POOL_WEIGHT = 2.0
"""Observations that the assumptions at the start count for."""


class Estimate(Schedule):
    """Decayed counts of what became of each node, and the number of nodes that pays.

    Nodes are numbered in slot order. A number is accepted with its own probability, given that its parent was, times
    the parent's; so chains and trees are one case, and a long run says as much about each of its places as many short
    ones. Numbers of which little is known lean on all others at their level, first tokens or later ones.

    Args:
        most: nodes that can be drafted in a step.
        decay: weight of a step relative to the next.
        prior: acceptance of a first token that is assumed at the start.
        probe_share: share of the time that is spent on drafting one node where none would pay.
    """

    def __init__(self, most: int, decay: float, prior: float, probe_share: float) -> None:
        self._most, self._decay, self._assumed = most, decay, (prior, _CONTINUED)
        self._probe = Probe(probe_share)
        self._parents = list(range(most))  # slot of each number's parent when it was last seen; a chain until then
        self._tried, self._existed = [0.0] * most, [0.0] * most
        self._reached, self._accepted = [0.0] * most, [0.0] * most  # its parent was accepted; so was the node

    def learn(self, asked: int, nodes: Sequence[Node], committed: Sequence[int]) -> None:
        """Note what became of every number."""
        if not committed:
            return
        for counts in (self._tried, self._existed, self._reached, self._accepted):
            counts[:] = [self._decay * count for count in counts]
        for number in range(min(asked, self._most)):
            self._tried[number] += 1
        depths = {0: 0}  # of the accepted slots: those that the committed text follows
        for number, (token, parent, _) in enumerate(nodes[: self._most]):
            self._existed[number] += 1
            self._parents[number] = parent
            depth = depths.get(parent)
            if depth is None:
                continue
            self._reached[number] += 1
            if depth < len(committed) and token == committed[depth]:
                self._accepted[number] += 1
                depths[number + 1] = depth + 1

    def ask(self, costs: Costs) -> int:
        """Return how many nodes to ask for: those that give the most tokens for the time, or one to see if it pays."""
        first, later = self._pooled()
        plain = costs.forward(1)
        limit, best = 0, 1 / plain
        tokens, time, exists, likely = 1.0, plain, 1.0, [1.0]  # `likely` by slot
        for number in range(self._most):
            parent = self._parents[number]
            exists = (self._existed[number] + exists) / (self._tried[number] + 1)
            given = (self._accepted[number] + (later if parent else first)) / (self._reached[number] + 1)
            likely.append(given * likely[parent])
            tokens += exists * likely[-1]
            time += exists * costs.of_node(number)
            if tokens / time > best:
                limit, best = number + 1, tokens / time
        return limit or int(self._probe.is_due(plain, costs.of_node(0)))

    def keep(self, nodes: Sequence[Node], asked: int, costs: Costs) -> Sequence[int]:
        """Return the numbers of the first nodes, as many as were asked for: a tree may have more than its depth."""
        return range(min(asked, len(nodes)))

    def _pooled(self) -> tuple[float, float]:
        """Return the acceptance of all first tokens, and of all others given their parents'."""
        accepted, reached = [0.0, 0.0], [0.0, 0.0]
        for parent, hits, cases in zip(self._parents, self._accepted, self._reached, strict=True):
            accepted[parent > 0] += hits
            reached[parent > 0] += cases
        first, later = (
            (hits + _POOL_WEIGHT * assumed) / (cases + _POOL_WEIGHT)
            for hits, cases, assumed in zip(accepted, reached, self._assumed, strict=True)
        )
        return first, later
