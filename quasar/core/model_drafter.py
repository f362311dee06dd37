"""What drafters that sample from a language model share: a session per batch, and trees drawn level by level."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import mul
from typing import Annotated

import torch
from pydantic import Field, model_validator
from torch import Tensor

from quasar.core import laws
from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.models import LanguageModel, ModelProvider, describe
from quasar.core.rows import Row, TokenView
from quasar.core.session import Session
from quasar.core.streams import draw
from quasar.core.types import Draft, Trials

_MOST_DRAWS = 256


@dataclass(slots=True)
class _Tree:
    """The draft of one row while it is drawn.

    Attributes:
        nodes: (token, parent slot) in slot order.
        paths: draft tokens on the path to every slot.
        trials: (slot, row of the table of laws) of every draw.
        tips: slots that the next level grows from; a slot counts once for every draw that led to it.
    """

    nodes: list[tuple[int, int]] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=lambda: [[]])
    trials: list[tuple[int, int]] = field(default_factory=list)
    tips: list[int] = field(default_factory=lambda: [0])

    def add(self, token: int, parent: int, law: int) -> int:
        """Note a draw and return its slot; equal siblings share one, and keep their trials."""
        if (token, parent) not in self.nodes:
            self.nodes.append((token, parent))
            self.paths.append([*self.paths[parent], token])
        slot = self.nodes.index((token, parent)) + 1
        self.trials.append((slot, law))
        return slot


class ModelDrafter(Drafter):
    """A drafter that samples from a language model; a subclass says how to get it.

    Its laws are over the target's vocabulary and after the request's own temperature and processors.

    Attributes:
        model: the loaded model.

    Source: chains as in Leviathan et al., arXiv 2211.17192; several independent chains as in SpecTr, Sun et al., arXiv
    2310.15141; children drawn at every node as in SpecInfer, Miao et al., arXiv 2305.09781. Siblings are tried by
    SpecInfer's rule in all cases, SpecTr's k-SEQ is not built.
    """

    law = "sampled"
    model: LanguageModel

    class Config(Drafter.Config):
        """Options."""

        num_speculative_tokens: int = Field(4, ge=1, le=64, description="Draft tokens a step, in every chain.")
        num_drafts: int = Field(1, ge=1, le=16, description="Chains a step, drawn independently of each other.")
        expansion: tuple[Annotated[int, Field(ge=1, le=16)], ...] = Field(
            (), description="A tree instead of chains: how many children are drawn at every node, level by level."
        )
        min_confidence: float = Field(
            0.0, ge=0, le=1, description="A path ends where the model's most likely token is less likely than this."
        )

        @model_validator(mode="after")
        def _one_shape(self) -> ModelDrafter.Config:
            if self.expansion and self.num_drafts > 1:
                raise ValueError("num_drafts and expansion are two shapes of a draft; give one of them")
            if sum(accumulate(self.shape(), mul)) > _MOST_DRAWS:
                raise ValueError(f"a draft should have at most {_MOST_DRAWS} nodes")
            return self

        def shape(self) -> tuple[int, ...]:
            """Return how many children are drawn at every node of a level."""
            return self.expansion or (self.num_drafts, *[1] * (self.num_speculative_tokens - 1))

    @abstractmethod
    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return the model that drafts."""

    def load(self, models: ModelProvider) -> None:
        """Load the model."""
        self.model = self.load_model(models)

    def describe(self) -> dict[str, object]:
        """Dtype, device and bytes of weights."""
        return describe(self.model)

    def storages(self) -> dict[int, int]:
        """Those of the model."""
        return self.model.storages()

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return sampled trees with their laws."""
        assert context.verification is not None  # the engine reads the prompt before it asks for drafts
        reach = [self._reach(row, limit) for row, limit in zip(context.rows, budget, strict=True)]
        grown, tables = [_Tree() for _ in context.rows], []
        first_law = 0
        for level, count in enumerate(self.config.shape()):
            for tree, depth in zip(grown, reach, strict=True):
                tree.tips = tree.tips if level < depth else []
            if not any(tree.tips for tree in grown):
                break
            table, usable = self._laws(context, grown)
            sources = [[spot for tip in tree.tips for spot in [_spots(tree).index(tip)] * count] for tree in grown]
            tokens = _draw(context, table, sources, level)
            for tree, chosen, drawn, good in zip(grown, sources, tokens, usable, strict=True):
                spots, pairs = _spots(tree), zip(chosen, drawn, strict=False)
                tree.tips = [tree.add(token, spots[s], first_law + s) for s, token in pairs if good[s]]
            tables.append(table)
            first_law += table.shape[1]
        return _draft(grown, tables)

    def _reach(self, row: Row, limit: int) -> int:
        """Return how deeply a row can be drafted: the draft model may be shorter than the target."""
        room = limit if self.model.max_length is None else self.model.max_length - len(row.token_ids)
        return max(0, min(limit, room))

    def _laws(self, context: Context, grown: Sequence[_Tree]) -> tuple[Tensor, list[list[bool]]]:
        """Return the laws at the tips of every row, and whether to draw there.

        Returns:
            ``[batch, spots, vocab]``, and as many truth values; rows with fewer tips are padded with anything.
        """
        assert context.verification is not None
        vocab = context.verification.probs.shape[-1]
        slots = [_spots(tree) or [0] for tree in grown]
        width = max(map(len, slots))
        index = torch.tensor([[*row, *[0] * (width - len(row))] for row in slots])
        logits = _over(self._logits(context, grown, index, vocab), vocab)
        scores = logits.flatten(0, 1)
        views = [
            replace(row, token_ids=TokenView([*row.token_ids, *tree.paths[slot]]))
            for row, tree, chosen in zip(context.rows, grown, index.tolist(), strict=True)
            for slot in chosen
        ]
        found = laws.law(scores[:, None], Draft.empty(len(views)), views).reshape(len(grown), width, vocab)
        # A law is not a number where the processors leave nothing that the draft model can say.
        usable = (found.amax(dim=-1) > 0) & (logits.float().softmax(dim=-1).amax(dim=-1) >= self.config.min_confidence)
        return found, usable.tolist()

    def _logits(self, context: Context, grown: Sequence[_Tree], index: Tensor, vocab: int) -> Tensor:
        """Return the model's logits at the slots ``index`` ``[batch, spots]``."""

        def make() -> Session:
            room = max(len(row.token_ids) + row.sampling.max_new_tokens for row in context.rows)
            return Session(self.model, context.batch, room + sum(self.config.shape()))

        session, own = context.scratch(self, make), self.model.vocab_size
        texts = [row.token_ids[:] for row in context.rows]
        if own < vocab:  # the model reads its last token for those that it does not have
            texts = [[min(token, own - 1) for token in text] for text in texts]
        if max(self.config.shape()) == 1:
            # A chain is text that may be taken back: each forward is the newest token only.
            return session.forward(
                [text + tree.paths[-1] for text, tree in zip(texts, grown, strict=True)], Draft.empty(context.batch)
            )
        logits = session.forward(texts, Draft.trees([tree.nodes for tree in grown]))
        return logits[torch.arange(context.batch)[:, None], index]


def _spots(tree: _Tree) -> list[int]:
    """Return the tips, each once."""
    return sorted(set(tree.tips))


def _over(logits: Tensor, vocab: int) -> Tensor:
    """Fit ``[batch, n, own vocab]`` to the target's vocabulary: padding is cut, what is missing cannot be drawn."""
    missing = vocab - logits.shape[-1]
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf) if missing > 0 else logits[..., :vocab]


def _draw(context: Context, table: Tensor, sources: Sequence[Sequence[int]], level: int) -> list[list[int]]:
    """Draw a token from the law of every source; numbers of draws do not depend on what other rows do."""
    width = max(map(len, sources))
    index = torch.tensor([[*row, *[0] * (width - len(row))] for row in sources])
    numbers = (level * _MOST_DRAWS + torch.arange(width)).expand(context.batch, width)
    keys = context.draft_keys(numbers, torch.tensor(level))
    tokens: list[list[int]] = draw(table[torch.arange(context.batch)[:, None], index], keys).tolist()
    return tokens


def _draft(grown: Sequence[_Tree], tables: Sequence[Tensor]) -> Draft:
    shape = Draft.trees([tree.nodes for tree in grown])
    if not shape.nodes:
        return shape
    width = max(len(tree.trials) for tree in grown)
    padded = torch.tensor([[*tree.trials, *[(0, 0)] * (width - len(tree.trials))] for tree in grown])
    return replace(shape, trials=Trials(padded[..., 0], padded[..., 1], torch.cat(list(tables), dim=1)))
