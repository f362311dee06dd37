"""What decides how much is drafted: the contract, what it looks at, and when it tries what does not seem to pay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from quasar.drafters.scheduling.costs import Costs


class Node(NamedTuple):
    """A node of a draft.

    Attributes:
        token: its id.
        parent: its parent's slot.
        matched: the evidence for it, as in ``Draft.matched``; 0 where there is none.
    """

    token: int
    parent: int
    matched: int


class Schedule(ABC):
    """Learns what becomes of drafts and bounds the next one, before it is made or after."""

    @abstractmethod
    def learn(self, asked: int, nodes: Sequence[Node], committed: Sequence[int]) -> None:
        """Note what became of a draft.

        Args:
            asked: nodes that could be drafted.
            nodes: those that were, and were kept.
            committed: tokens of the step, correction or bonus included; empty if there was no step.
        """

    @abstractmethod
    def ask(self, costs: Costs) -> int:
        """Return how many nodes to ask the drafter for."""

    @abstractmethod
    def keep(self, nodes: Sequence[Node], asked: int, costs: Costs) -> Sequence[int]:
        """Return the numbers, in order, of the nodes to verify, every parent among them; for point masses only.

        Args:
            nodes: what was drafted.
            asked: the limit that the drafter had.
            costs: what forwards cost.
        """


class Probe:
    """Puts a share of every plain step aside, and says when that pays for one node.

    Args:
        share: of the time.
    """

    def __init__(self, share: float) -> None:
        self._share, self._saved = share, 0.0

    def is_due(self, plain: float, price: float) -> bool:
        """Note a plain step.

        Args:
            plain: its cost.
            price: of one node.
        """
        self._saved += self._share * plain
        if self._saved < price:
            return False
        self._saved = 0.0
        return True
