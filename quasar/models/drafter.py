"""What drafters that sample from a language model share: a session per batch, and trees drawn level by level."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Annotated, Any

import torch
from pydantic import Field, model_validator
from torch import Tensor

from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.description import Description
from quasar.core.distributions import slot_distributions
from quasar.core.models import LanguageModel, describe
from quasar.core.providers import ModelProvider
from quasar.core.rows import Row, TokenView
from quasar.core.streams import draw
from quasar.core.types import Draft
from quasar.models.sampled_trees import SampledTree, distributions_at_slots, draft_of
from quasar.models.session import Session

_MOST_DRAWS = 256


class SamplingDrafter(Drafter):
    """A drafter that samples chains from what some model says of a text; a subclass says how to ask it.

    Its distributions are over the target's vocabulary and after the request's own temperature and processors.

    Source: Leviathan et al., arXiv 2211.17192.
    """

    drafts_by = "sampled"

    class Config(Drafter.Config):
        """Options."""

        num_speculative_tokens: int = Field(4, ge=1, le=64, description="Draft tokens a step, in every chain.")
        min_confidence: float = Field(
            0.0, ge=0, le=1, description="A path ends where the model's most likely token is less likely than this."
        )

        def shape(self) -> tuple[int, ...]:
            """Return how many children are drawn at every node of a level."""
            return (1,) * self.num_speculative_tokens

    config: Config

    @abstractmethod
    def max_length(self) -> int | None:
        """Return how many tokens the model takes, ``None`` for no limit."""

    @abstractmethod
    def next_logits(self, context: Context, texts: Sequence[list[int]]) -> Tensor:
        """Return the model's logits at the end of every text, ``[batch, 1, vocab]``."""

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return sampled trees with their distributions."""
        assert context.verification is not None  # the engine reads the prompt before it asks for drafts
        reach = [self._reach(row, limit) for row, limit in zip(context.rows, budget, strict=True)]
        grown, tables = [SampledTree() for _ in context.rows], []
        first_distribution = 0
        for level, count in enumerate(self.config.shape()):
            for tree, depth in zip(grown, reach, strict=True):
                tree.tips = tree.tips if level < depth else []
            if not any(tree.tips for tree in grown):
                break
            table, usable = self._distributions(context, grown)
            sources = [[spot for tip in tree.tips for spot in [tree.spots().index(tip)] * count] for tree in grown]
            tokens = _draw(context, table, sources, level)
            for tree, chosen, drawn, good in zip(grown, sources, tokens, usable, strict=True):
                spots, pairs = tree.spots(), zip(chosen, drawn, strict=False)
                tree.note_distributions(first_distribution)
                tree.tips = [tree.add(token, spots[s], first_distribution + s) for s, token in pairs if good[s]]
            tables.append(table)
            first_distribution += table.shape[1]
        draft = draft_of(grown, tables)
        if not self.next_distributions:
            return draft
        for tree in grown:
            tree.turn_to_unknown()
            tree.note_distributions(first_distribution)
        tables.append(self._distributions(context, grown)[0])
        return replace(draft, next_distributions=distributions_at_slots(grown, tables))

    def _reach(self, row: Row, limit: int) -> int:
        """Return how deeply a row can be drafted: the draft model may be shorter than the target."""
        longest = self.max_length()
        return max(0, limit if longest is None else min(limit, longest - len(row.token_ids)))

    def _distributions(self, context: Context, grown: Sequence[SampledTree]) -> tuple[Tensor, list[list[bool]]]:
        """Return the distributions at the tips of every row, and whether to draw there.

        Returns:
            ``[batch, spots, vocab]``, and as many truth values; rows with fewer tips are padded with anything.
        """
        assert context.verification is not None
        vocab = context.verification.vocab_size
        slots = [tree.spots() or [0] for tree in grown]
        width = max(map(len, slots))
        index = torch.tensor([[*row, *[0] * (width - len(row))] for row in slots])
        # Finite where distributions are told: there has to be one even if the processors leave nothing that the model
        # can say.
        least = -1e4 if self.next_distributions else -torch.inf
        logits = _over(self._logits(context, grown, index), vocab, least)
        scores = logits.flatten(0, 1)
        views = [
            replace(row, token_ids=TokenView([*row.token_ids, *tree.paths[slot]]))
            for row, tree, chosen in zip(context.rows, grown, index.tolist(), strict=True)
            for slot in chosen
        ]
        found = slot_distributions(scores[:, None], Draft.empty(len(views)), views).reshape(len(grown), width, vocab)
        # A distribution is not a number where the processors leave nothing that the draft model can say.
        usable = found.amax(dim=-1) > 0
        if self.config.min_confidence:
            usable &= logits.float().softmax(dim=-1).amax(dim=-1) >= self.config.min_confidence
        return found, usable.tolist()

    def _logits(self, context: Context, grown: Sequence[SampledTree], index: Tensor) -> Tensor:
        """Return the model's logits at the slots ``index`` ``[batch, spots]``: of a chain, at its end."""
        rows = zip(context.rows, grown, strict=True)
        return self.next_logits(context, [[*row.token_ids, *tree.paths[-1]] for row, tree in rows])


class ModelDrafter(SamplingDrafter):
    """A drafter that samples from a language model; a subclass says how to get it.

    Attributes:
        model: the loaded model.

    Source: chains as in Leviathan et al., arXiv 2211.17192; several independent chains as in SpecTr, Sun et al., arXiv
    2310.15141; children drawn at every node as in SpecInfer, Miao et al., arXiv 2305.09781. How siblings are
    tried is the acceptor's: SpecInfer's rule in ``stochastic``, SpecTr's in ``k_seq``.
    """

    model: LanguageModel

    class Config(SamplingDrafter.Config):
        """Options."""

        num_drafts: int = Field(1, ge=1, le=16, description="Chains a step, drawn independently of each other.")
        expansion: tuple[Annotated[int, Field(ge=1, le=16)], ...] = Field(
            (), description="A tree instead of chains: how many children are drawn at every node, level by level."
        )
        next_distributions: bool = Field(
            False,
            description="Tell the distribution after the last token too, for acceptor relaxed; one more forward.",
        )

        @model_validator(mode="after")
        def _one_shape(self) -> ModelDrafter.Config:
            if self.expansion and self.num_drafts > 1:
                raise ValueError("num_drafts and expansion are two shapes of a draft; give one of them")
            if sum(accumulate(self.shape(), mul)) > _MOST_DRAWS:
                raise ValueError(f"a draft should have at most {_MOST_DRAWS} nodes")
            return self

        second_names = {"next_laws": "next_distributions"}  # noqa: RUF012

        def shape(self) -> tuple[int, ...]:
            """Return how many children are drawn at every node of a level."""
            return self.expansion or (self.num_drafts, *[1] * (self.num_speculative_tokens - 1))

    config: Config

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config)
        self.next_distributions = self.config.next_distributions

    @classmethod
    def traits(cls) -> dict[str, Any]:
        """The distribution; whether it is told everywhere is an option."""
        return {**super().traits(), "next_distributions": "by option"}

    @abstractmethod
    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return the model that drafts."""

    def load(self, models: ModelProvider) -> None:
        """Load the model."""
        self.model = self.load_model(models)

    def describe(self) -> Description:
        """Dtype, device and bytes of weights."""
        return describe(self.model)

    def storages(self) -> dict[int, int]:
        """Those of the model."""
        return self.model.storages()

    def prefill(self, context: Context) -> None:
        """Forward the prompts, unless none of them leaves room in the model."""
        texts = [row.token_ids[:] for row in context.rows]
        if self.model.max_length is None or min(map(len, texts)) < self.model.max_length:
            self._session(context).forward(self._told(context, texts), Draft.empty(context.batch))

    def peak_bytes(self, context: Context) -> int:
        """Bytes of the model's cache."""
        return self._session(context).nbytes

    def max_length(self) -> int | None:
        """Positions of the model."""
        return self.model.max_length

    def next_logits(self, context: Context, texts: Sequence[list[int]]) -> Tensor:
        """Forward what is new: a chain is text that may be taken back."""
        return self._session(context).forward(self._told(context, texts), Draft.empty(context.batch))

    def _logits(self, context: Context, grown: Sequence[SampledTree], index: Tensor) -> Tensor:
        """Return the model's logits at the slots ``index`` ``[batch, spots]``; a tree is forwarded anew each level."""
        if max(self.config.shape()) == 1:
            return super()._logits(context, grown, index)
        texts = self._told(context, [row.token_ids[:] for row in context.rows])
        logits = self._session(context).forward(texts, Draft.trees([tree.nodes for tree in grown]))
        return logits[torch.arange(context.batch)[:, None], index]

    def _session(self, context: Context) -> Session:
        def make() -> Session:
            room = max(len(row.token_ids) + row.sampling.max_new_tokens for row in context.rows)
            return Session(self.model, context.batch, room + sum(self.config.shape()))

        return context.scratch(self, make)

    def _told(self, context: Context, texts: Sequence[list[int]]) -> Sequence[list[int]]:
        """Return texts in the model's vocabulary: it reads its last token for those that it does not have."""
        own = self.model.vocab_size
        known = context.verification is not None and own >= context.verification.vocab_size
        return texts if known else [[min(token, own - 1) for token in text] for text in texts]


def _over(logits: Tensor, vocab: int, least: float) -> Tensor:
    """Fit ``[batch, n, own vocab]`` to the target's vocabulary: padding is cut, what is missing gets ``least``."""
    missing = vocab - logits.shape[-1]
    return torch.nn.functional.pad(logits, (0, missing), value=least) if missing > 0 else logits[..., :vocab]


def _draw(context: Context, table: Tensor, sources: Sequence[Sequence[int]], level: int) -> list[list[int]]:
    """Draw a token from the distribution of every source; numbers of draws do not depend on what other rows do."""
    width = max(map(len, sources))
    index = torch.tensor([[*row, *[0] * (width - len(row))] for row in sources])
    numbers = (level * _MOST_DRAWS + torch.arange(width)).expand(context.batch, width)
    keys = context.draft_keys(numbers, torch.tensor(level))
    tokens: list[list[int]] = draw(table[torch.arange(context.batch)[:, None], index], keys).tolist()
    return tokens
