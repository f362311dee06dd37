"""What a plugin's author writes, with the names of ``docs/api.md`` only; nothing may be ``Any``.

A drafter that draws, a verifier that changes logits, an exact and a relaxed acceptor.
"""

from collections.abc import Iterable, Sequence
from typing import assert_type

import torch
from pydantic import Field
from torch import Tensor

from quasar import Acceptance, Acceptor, Context, Draft, Drafter, Verification, hookimpl
from quasar.acceptors.rules import Walk, accept_exactly, drawn_from, longest_accepted
from quasar.core import LanguageModel, ModelProvider, Row, draw, residual, trees
from quasar.models import ModelVerifier, target_on_backend


class Uniform(Drafter):
    """Draws every token from all tokens alike."""

    name = "uniform"
    drafts_by = "sampled"

    class Config(Drafter.Config):
        """Options."""

        num_speculative_tokens: int = Field(3, ge=1, description="Draft tokens a step.")

    config: Config

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return chains with the distributions that they were drawn from."""
        assert_type(context.rows[0], Row)
        size = min(self.config.num_speculative_tokens, max(budget))
        assert_type(size, int)
        if context.verification is None or not size:
            return Draft.empty(context.batch)
        vocab = context.verification.vocab_size
        rows: list[list[int]] = [[] for _ in context.rows]
        logits = torch.zeros((context.batch, 1, vocab))
        tables: list[Tensor] = []
        for depth in range(size):
            tables.append(context.distributions(logits.expand(-1, depth + 1, -1), Draft.chains(rows))[:, -1:])
            keys = context.draft_keys(torch.full((context.batch, 1), depth), torch.tensor(depth))
            tokens: list[list[int]] = draw(tables[-1], keys).tolist()
            for row, drawn in zip(rows, tokens, strict=True):
                row += drawn
        chains = [row[:limit] for row, limit in zip(rows, budget, strict=True)]
        return Draft.chains(chains, torch.cat(tables, dim=1)[:, : max(map(len, chains))])


class Sharper(ModelVerifier):
    """Doubles the logits of the target."""

    name = "sharper"
    precision = "full precision, logits doubled"

    def load_model(self, models: ModelProvider) -> LanguageModel:
        """Return the target on the fastest backend."""
        return target_on_backend(models).model

    def adjust(self, logits: Tensor, context: Context, draft: Draft) -> Tensor:
        """Return doubled logits."""
        return 2 * logits


class OneByOne(Acceptor):
    """Exact: tests every draft by its ratio, written by a stranger."""

    name = "one_by_one"
    exact = True
    target_stream = True

    def accept(self, verification: Verification, context: Context) -> Acceptance:
        """Return the accepted path."""
        return accept_exactly(verification, context, by_ratio)


def by_ratio(verification: Verification, context: Context) -> Acceptance:
    draft, probs = verification.draft, verification.probs
    trials, rows = draft.explicit_trials(), torch.arange(draft.batch)
    walk, wanted = Walk(draft.batch, draft.nodes), probs[:, 0]
    numbers = context.accept_uniforms(trials.nodes.shape[1])
    for trial in range(trials.nodes.shape[1]):
        slot = trials.nodes[:, trial]
        node = (slot - 1).clamp_min(0)
        token = draft.token_ids[rows, node].where(slot > 0, 0)[:, None]
        drafted = drawn_from(draft, trials, trial, wanted)
        tried = (slot > 0) & (draft.parents[rows, node] == walk.slot)
        passed = numbers[:, trial, None] * drafted.gather(1, token) < wanted.gather(1, token)
        accepted = tried & passed[:, 0]
        wanted = torch.where((tried & ~accepted)[:, None], residual(wanted, drafted), wanted)
        walk.descend(accepted, slot)
        wanted = torch.where(accepted[:, None], probs[rows, walk.slot], wanted)
    return Acceptance(walk.path, walk.count, context.draw_next(wanted, walk.slot))


class AtLeast(Acceptor):
    """Relaxed: keeps drafts that the target finds likely enough."""

    name = "at_least"
    exact = False

    class Config(Acceptor.Config):
        """Options."""

        probability: float = Field(0.2, gt=0, le=1, description="What a draft must reach.")

    config: Config

    def accept(self, verification: Verification, context: Context) -> Acceptance:
        """Return the longest path of likely drafts."""
        draft, probs = verification.draft, verification.probs
        used, rows = trees.used(draft), torch.arange(draft.batch)[:, None]
        likelihood = probs[rows, draft.parents.where(used, 0), draft.token_ids.where(used, 0)]
        assert_type(self.config.probability, float)
        return longest_accepted(verification, likelihood >= self.config.probability, likelihood, context)


@hookimpl
def quasar_drafters() -> Iterable[type[Drafter]]:
    return [Uniform]


@hookimpl
def quasar_verifiers() -> Iterable[type[ModelVerifier]]:
    return [Sharper]


@hookimpl
def quasar_acceptors() -> Iterable[type[Acceptor]]:
    return [OneByOne, AtLeast]
