"""Trees of draft tokens while they are drawn, one draw after another, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from quasar.core.types import Draft, Trials


@dataclass(slots=True)
class SampledTree:
    """The draft of one row while it is drawn.

    Attributes:
        nodes: (token, parent slot) in slot order.
        paths: draft tokens on the path to every slot.
        trials: (slot, row of the table of distributions) of every draw.
        tips: slots that the next level grows from; a slot counts once for every draw that led to it.
        distributions: row of the table of distributions, of every slot after which the model was asked.
    """

    nodes: list[tuple[int, int]] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=lambda: [[]])
    trials: list[tuple[int, int]] = field(default_factory=list)
    tips: list[int] = field(default_factory=lambda: [0])
    distributions: dict[int, int] = field(default_factory=dict)

    def add(self, token: int, parent: int, distribution: int) -> int:
        """Note a draw and return its slot; equal siblings share one, and keep their trials."""
        if (token, parent) not in self.nodes:
            self.nodes.append((token, parent))
            self.paths.append([*self.paths[parent], token])
        slot = self.nodes.index((token, parent)) + 1
        self.trials.append((slot, distribution))
        return slot

    def spots(self) -> list[int]:
        """Return the tips, each once."""
        return sorted(set(self.tips))

    def note_distributions(self, first: int) -> None:
        """Note that the rows of the table from ``first`` on are the distributions at the tips."""
        self.distributions.update((slot, first + spot) for spot, slot in enumerate(self.spots()))

    def turn_to_unknown(self) -> None:
        """Make the tips those slots after which the model was not asked."""
        self.tips = [slot for slot in range(len(self.paths)) if slot not in self.distributions]


def draft_of(grown: Sequence[SampledTree], tables: Sequence[Tensor]) -> Draft:
    """Return the draft of all rows; ``tables`` are the distributions that were drawn from, level by level."""
    shape = Draft.trees([tree.nodes for tree in grown])
    if not shape.nodes:
        return shape
    width = max(len(tree.trials) for tree in grown)
    padded = torch.tensor([[*tree.trials, *[(0, 0)] * (width - len(tree.trials))] for tree in grown])
    return replace(shape, trials=Trials(padded[..., 0], padded[..., 1], torch.cat(list(tables), dim=1)))


def distributions_at_slots(grown: Sequence[SampledTree], tables: Sequence[Tensor]) -> Tensor:
    """Return the distribution after every slot, ``[batch, nodes + 1, vocab]``; shorter rows are padded with any."""
    slots = max(len(tree.paths) for tree in grown)
    index = torch.tensor([[tree.distributions.get(slot, 0) for slot in range(slots)] for tree in grown])
    return torch.cat(list(tables), dim=1)[torch.arange(len(grown))[:, None], index]
