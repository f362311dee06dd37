"""The likeliest tree of a draft model under a budget of nodes, chosen instead of sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import Field

from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.description import Description, describe_part
from quasar.core.types import Draft
from quasar.models.drafter import ModelDrafter
from quasar.models.session import Session


@dataclass(slots=True)
class Growth:
    """What is known of one row's tree while the draft model looks at it level by level.

    Attributes:
        nodes: (token, parent slot) of what the draft model reads, in slot order.
        values: log-probability of the path to every slot.
        tips: slots whose continuations are not known yet.
        found: (value, token, parent slot, own slot) of every continuation; the slot is 0 where it is not read.
    """

    nodes: list[tuple[int, int]] = field(default_factory=list)
    values: list[float] = field(default_factory=lambda: [0.0])
    tips: list[int] = field(default_factory=lambda: [0])
    found: list[tuple[float, int, int, int]] = field(default_factory=list)

    def extend(self, continuations: Sequence[Sequence[tuple[float, int]]], beam: int) -> None:
        """Take the continuations of all tips, and read on after the most valuable of them.

        Args:
            continuations: (log-probability, token) pairs of every tip.
            beam: how many to read on after.
        """
        grown = [
            (self.values[tip] + score, token, tip)
            for tip, pairs in zip(self.tips, continuations, strict=True)
            for score, token in pairs
        ]
        grown.sort(key=lambda each: -each[0])
        self.tips = []
        for rank, (value, token, parent) in enumerate(grown):
            slot = 0
            if rank < beam:
                self.nodes.append((token, parent))
                self.values.append(value)
                slot = len(self.nodes)
                self.tips.append(slot)
            self.found.append((value, token, parent, slot))

    def best(self, size: int) -> list[tuple[int, int]]:
        """Return the most valuable nodes as (token, parent slot); a node is never worth more than its parent."""
        slots, nodes = {0: 0}, list[tuple[int, int]]()
        for _, token, parent, slot in sorted(self.found, key=lambda each: -each[0])[:size]:
            nodes.append((token, slots[parent]))
            if slot:
                slots[slot] = len(nodes)
        return nodes


class BestFirst(Drafter):
    """The nodes of a draft model's tree with the largest product of probabilities along their paths.

    Level by level the draft model reads the ``beam`` most valuable nodes, and of everything that it said the
    ``max_nodes`` most valuable are drafted. Values are taken at temperature 1 and before the processors, so a request
    at temperature 0 gets a tree too. The tokens are chosen, not drawn: they are point masses.

    Source: the dynamic tree of EAGLE-2 (Li et al., arXiv 2406.16858), over any draft model; with a large beam it is the
    tree of SpecExec (Svirschevski et al., arXiv 2406.02532), whose cache of target distributions is not built.
    """

    name = "best_first"
    drafts_by = "point_mass"

    class Config(Drafter.Config):
        """Options."""

        drafter: ModelDrafter = Field(
            examples=["pruned"], description="Whose model drafts; its options for the shape of a draft are not used."
        )
        num_speculative_tokens: int = Field(4, ge=1, le=64, description="Levels, each a forward of the draft model.")
        beam: int = Field(4, ge=1, le=256, description="Nodes that are read on after at each level, children of each.")
        max_nodes: int = Field(12, ge=1, le=1024, description="Nodes of the tree.")

    config: Config

    def describe(self) -> Description:
        """What the drafter with the model says."""
        return Description(details={"drafter": describe_part(self.config.drafter)})

    def prefill(self, context: Context) -> None:
        """Forward the prompts, unless none of them leaves room in the model."""
        model = self.config.drafter.model
        texts = [[min(token, model.vocab_size - 1) for token in row.token_ids[:]] for row in context.rows]
        if model.max_length is None or min(map(len, texts)) < model.max_length:
            context.scratch(self, lambda: self._session(context)).forward(texts, Draft.empty(context.batch))

    def peak_bytes(self, context: Context) -> int:
        """Bytes of the model's cache."""
        return context.scratch(self, lambda: self._session(context)).nbytes

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return the most valuable tree of every row."""
        assert context.verification is not None  # the engine reads the prompt before it asks for drafts
        vocab, model = context.verification.vocab_size, self.config.drafter.model
        session = context.scratch(self, lambda: self._session(context))
        texts = [[min(token, model.vocab_size - 1) for token in row.token_ids[:]] for row in context.rows]
        room = [model.max_length or limit + len(text) for text, limit in zip(texts, budget, strict=True)]
        reach = [
            min(limit, most - len(text), self.config.num_speculative_tokens)
            for text, limit, most in zip(texts, budget, room, strict=True)
        ]
        grown = [Growth() for _ in context.rows]
        for level in range(max(reach)):
            logits = session.forward(texts, Draft.trees([tree.nodes for tree in grown]))[..., :vocab]
            for row, tree in enumerate(grown):
                if level < reach[row]:
                    scores = logits[row, tree.tips].float().log_softmax(dim=-1)
                    values, tokens = scores.topk(min(self.config.beam, scores.shape[-1]), dim=-1)
                    pairs = [
                        list(zip(*each, strict=True)) for each in zip(values.tolist(), tokens.tolist(), strict=True)
                    ]
                    tree.extend(pairs, self.config.beam)
        return Draft.trees([tree.best(self.config.max_nodes) for tree in grown])

    def _session(self, context: Context) -> Session:
        room = max(len(row.token_ids) + row.sampling.max_new_tokens for row in context.rows)
        nodes = self.config.beam * self.config.num_speculative_tokens
        return Session(self.config.drafter.model, context.batch, room + nodes)
