"""How much to draft, decided before each step from what was accepted lately and from what a forward costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from pydantic import Field, field_validator

from quasar.core.components import Drafter, DraftsBy, Verifier
from quasar.core.context import Context
from quasar.core.description import Description, describe_part
from quasar.core.providers import ModelProvider
from quasar.core.types import Draft
from quasar.drafters.scheduling.costs import CostTables, measure
from quasar.drafters.scheduling.estimate import Estimate
from quasar.drafters.scheduling.evidence import Evidence
from quasar.drafters.scheduling.schedule import Node, Schedule


@dataclass(slots=True)
class Memory:
    """One row: what is known of its acceptance, and what was drafted in the last step.

    Attributes:
        schedule: shared by all rows if it is carried over.
        length: committed tokens before the last step.
        asked: nodes that could be drafted in it.
        nodes: those that were verified.
    """

    schedule: Schedule
    length: int = 0
    asked: int = 0
    nodes: list[Node] = field(default_factory=list)


class Adaptive(Drafter):
    """Lets a drafter draft as many nodes as pay, 0 included: the most tokens for the time, by estimate.

    A drafter that tells how much it had matched before each node (trait ``matched``) drafts first, and the nodes that
    pay are kept: sound, because those are point masses and nothing of them was drawn. Any other one is bounded before
    it is asked, from past steps and costs only; the bound is at once the longest path that it may draft.

    Source: the trade-off is that of Leviathan et al. (arXiv 2211.17192, section 3), solved node by node, so that it
    holds for trees as well.
    """

    name = "adaptive"
    _models: ModelProvider
    drafts_by: DraftsBy = "sampled"  # at most; an instance's is that of its part

    class Config(Drafter.Config):
        """Options."""

        drafter: Drafter = Field(examples=["ngram"], description="Who proposes.")
        max_nodes: int = Field(16, ge=1, le=256, description="Most nodes that may be drafted in a step.")
        costs: dict[int, float] | dict[int, dict[int, float]] | None = Field(
            None,
            min_length=1,
            description="Cost of a forward by its width (nodes + 1), in any unit, or such tables by the length of the "
            "text; measured at the start if left out.",
        )
        draft_cost: float | None = Field(
            None,
            ge=0,
            description="Cost of drafting one more node, in the same unit; measured with them, else 0. Not weighed "
            "where the drafter tells its evidence: it has drafted by then.",
        )
        decay: float = Field(
            0.95,
            gt=0,
            le=1,
            description="Weight of what was seen relative to what is seen next: of a step, or of a node of one kind.",
        )
        prior: float = Field(
            0.5, ge=0, le=1, description="Acceptance of a first node that is assumed at the start, without evidence."
        )
        probe_share: float = Field(
            0.02, gt=0, le=1, description="Share of the time that is spent on trying a node where none would pay."
        )
        carry_over: bool = Field(
            False, description="Keep what was learnt from prompt to prompt; results then depend on their order."
        )

        @field_validator("costs")
        @classmethod
        def _positive(cls, value: Any) -> Any:
            if any(not table or min(table) < 1 or min(table.values()) <= 0 for table in _tables(value or {}).values()):
                raise ValueError("widths are at least 1 and costs are above 0")
            return value

    config: Config

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config)
        inner, costs = self.config.drafter, self.config.costs
        self.drafts_by, self.next_distributions, self.matched = inner.drafts_by, inner.next_distributions, inner.matched
        self._costs = None if costs is None else CostTables(_tables(costs), self.config.draft_cost or 0.0)
        self._carried = self._fresh()

    @classmethod
    def traits(cls) -> dict[str, Any]:
        """Those of its part."""
        return dict.fromkeys(super().traits(), "of its part")

    def load(self, models: ModelProvider) -> None:
        """Load the drafter."""
        super().load(models)
        self._models = models

    def attach_verifier(self, verifier: Verifier) -> None:
        """Measure costs that were not given, on the model that will check; on the target if the verifier has none."""
        super().attach_verifier(verifier)
        if self._costs is None:
            config = self.config
            self._costs = measure(self._models, verifier, config.drafter, config.max_nodes, config.draft_cost)

    def describe(self) -> Description:
        """The costs that decide, whether anything is carried over, and what the drafter says."""
        costs = {} if self._costs is None else self._costs.describe()
        inner = describe_part(self.config.drafter)
        return Description(details={**costs, "carry_over": self.config.carry_over, "drafter": inner})

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return what the drafter proposes within each row's limit."""
        assert self._costs is not None, "costs are there from loading on"
        memories = context.scratch(self, lambda: [Memory(self._start()) for _ in context.rows])
        for memory, row, limit in zip(memories, context.rows, budget, strict=True):
            memory.schedule.learn(memory.asked, memory.nodes, row.token_ids[memory.length :])
            memory.length = len(row.token_ids)
            memory.asked = min(memory.schedule.ask(self._costs.at(memory.length)), limit)
        limits = [memory.asked for memory in memories]
        # Asked even for nothing: a drafter may learn from the last step, and may owe the distributions of an empty
        # draft.
        draft = self.config.drafter.propose(context, limits)
        rows = nodes_of(draft)
        if self.drafts_by == "point_mass":
            kept = [
                memory.schedule.keep(row, memory.asked, self._costs.at(memory.length))
                for memory, row in zip(memories, rows, strict=True)
            ]
            if sum(map(len, kept)) < sum(map(len, rows)):
                draft = subtrees(draft, kept)
                rows = nodes_of(draft)
        for memory, nodes in zip(memories, rows, strict=True):
            memory.nodes = nodes
        return draft

    def _start(self) -> Schedule:
        return self._carried if self.config.carry_over else self._fresh()

    def _fresh(self) -> Schedule:
        config = self.config
        if self.matched and self.drafts_by == "point_mass":
            return Evidence(config.max_nodes, config.decay, config.probe_share)
        return Estimate(config.max_nodes, config.decay, config.prior, config.probe_share)


def _tables(costs: Mapping[int, Any]) -> Mapping[int, Mapping[int, float]]:
    """Return tables by length of the text; one that was given for every length stands for all."""
    return costs if all(isinstance(each, dict) for each in costs.values()) else {1: costs}


def nodes_of(draft: Draft) -> list[list[Node]]:
    """Return the nodes of every row."""
    matched = draft.matched or [[0] * len(tokens) for tokens, _ in draft.rows]
    return [list(map(Node, *row, known)) for row, known in zip(draft.rows, matched, strict=True)]


def subtrees(draft: Draft, kept: Sequence[Sequence[int]]) -> Draft:
    """Return some nodes of a point-mass draft, every parent among them.

    Args:
        draft: the draft.
        kept: numbers of the nodes that stay, in order, for each row.
    """
    trees, distributions = list[list[tuple[int, int]]](), draft.next_distributions
    for (tokens, parents), numbers in zip(draft.rows, kept, strict=True):
        slots = {0: 0} | {number + 1: slot for slot, number in enumerate(numbers, start=1)}
        trees.append([(tokens[number], slots[parents[number]]) for number in numbers])
    matched = None
    if draft.matched is not None:
        matched = [[row[number] for number in numbers] for row, numbers in zip(draft.matched, kept, strict=True)]
    fewer = Draft.trees(trees, matched)
    if distributions is None:
        return fewer
    slots_kept = torch.tensor([[0, *(number + 1 for number in row), *[0] * (fewer.nodes - len(row))] for row in kept])
    index = slots_kept[..., None].expand(-1, -1, distributions.shape[-1]).to(distributions.device)
    return replace(fewer, next_distributions=distributions.gather(1, index))
