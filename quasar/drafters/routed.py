"""A drafter for each kind of request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field

from quasar.core.components import Drafter, DraftsBy, joint_drafts_by
from quasar.core.context import Context
from quasar.core.description import Description, describe_part
from quasar.core.providers import ModelProvider
from quasar.core.types import POINT_MASS, Draft, Trials
from quasar.routing.policies import PolicyOptions
from quasar.routing.router import Policy, Router


class Routed(Drafter):
    """Choose a drafter for each request by a policy: SpecQuant's rule, the length of the prompt, or a bandit.

    Every arm drafts for one and the same verifier and its cache, so it is exact whatever the policy does. An arm may be
    a pipeline. ``describe`` says what was served by whom, and the bandit's regret.

    Source: SpecQuant's released code, which routes the draft model by prompt complexity.

    Args:
        config: options.
        policy: instead of the one that the options name.
    """

    name = "routed"
    drafts_by: DraftsBy = "sampled"  # at most; an instance's is that of its parts

    class Config(Drafter.Config):
        """Options."""

        arms: dict[str, Drafter] = Field(
            min_length=1,
            examples=[{"low": "ngram", "mid": "suffix", "high": "pruned"}],
            description="The drafters, by name; the rules want low, mid, high.",
        )
        policy: PolicyOptions = Field(examples=["specquant"], description="Who is asked: specquant, length or bandit.")

    config: Config

    def __init__(self, config: Config | None = None, policy: Policy | None = None) -> None:
        super().__init__(config)
        self._router = Router(policy or self.config.policy.make(), list(self.config.arms))
        self.drafts_by = joint_drafts_by(self.config.arms.values())

    @classmethod
    def traits(cls) -> dict[str, Any]:
        """It drafts by what its parts do."""
        return {**super().traits(), "drafts_by": "of its parts"}

    def load(self, models: ModelProvider) -> None:
        """Load the arms."""
        super().load(models)
        self._router.load(models)

    def describe(self) -> Description:
        """What the policy and the arms say."""
        arms = {name: describe_part(arm) for name, arm in self.config.arms.items()}
        return Description(policy=self._router.policy.describe(), details={"arms": arms})

    def prefill(self, context: Context) -> None:
        """Let the arms that will draft read the prompts."""
        for name in set(self._router.route(context)):
            self.config.arms[name].prefill(context)

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return the drafts of every row's own arm."""
        chosen = self._router.route(context)
        drafts = {
            name: arm.propose(context, [limit if own == name else 0 for own, limit in zip(chosen, budget, strict=True)])
            for name, arm in self.config.arms.items()
            if name in chosen
        }
        assert context.verification is not None  # the engine reads the prompt before it asks for drafts
        vocab = context.verification.vocab_size
        return next(iter(drafts.values())) if len(drafts) == 1 and self._alike() else self._merge(drafts, chosen, vocab)

    def _alike(self) -> bool:
        return len({arm.drafts_by for arm in self.config.arms.values()}) == 1

    def _merge(self, drafts: dict[str, Draft], chosen: Sequence[str], vocab: int) -> Draft:
        """Put drafts of different rows into one; no row has nodes in two of them."""
        batch, width = len(chosen), max(draft.nodes for draft in drafts.values())
        tokens, parents = torch.zeros((2, batch, width), dtype=torch.int64).unbind()
        num_nodes = torch.zeros(batch, dtype=torch.int64)
        trials = [draft.explicit_trials() for draft in drafts.values()]
        widest = max(each.nodes.shape[1] for each in trials)
        nodes, sources = torch.zeros((2, batch, widest), dtype=torch.int64).unbind()
        offset = 0
        for (name, draft), each in zip(drafts.items(), trials, strict=True):
            own = torch.tensor([arm == name for arm in chosen])
            tokens[own, : draft.nodes], parents[own, : draft.nodes] = draft.token_ids[own], draft.parents[own]
            num_nodes[own] = draft.num_nodes[own]
            nodes[own, : each.nodes.shape[1]] = each.nodes[own]
            shifted = torch.where(each.sources == POINT_MASS, POINT_MASS, each.sources + offset)
            sources[own, : each.nodes.shape[1]] = shifted[own]
            offset += each.table.shape[1]
        merged = Draft(tokens, parents, num_nodes)
        if self.drafts_by != "sampled":
            return merged
        tables = [each.table for each in trials if each.table.shape[1]]
        table = torch.cat(tables, dim=1) if tables else torch.empty((batch, 0, vocab))
        return replace(merged, trials=Trials(nodes, sources, table))
