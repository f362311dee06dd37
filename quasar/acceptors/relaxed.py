"""The static ensemble: verify against a mixture of target and draft."""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from quasar.acceptors.rules.exact import accept_exactly, drawn_from
from quasar.core.components import Acceptor, Drafter
from quasar.core.context import Context
from quasar.core.distributions import soft_distributions, softmax_or_one_hot
from quasar.core.types import POINT_MASS, Acceptance, Draft, Verification


class Relaxed(Acceptor):
    """Relaxed: accept losslessly with respect to a mixture, weight · target + (1 − weight) · draft.

    Acceptance rises from 1 − TV to 1 − weight · TV at the price of a bias of (1 − weight) · TV at every drafted place.
    With weight 1 this is ``stochastic``, token for token. A point-mass draft is mixed in only where the target gives it
    at least ``floor`` times its largest probability; without that floor any copied token would pass with probability
    1 − weight. At temperature 0 the mixture is taken of the target at ``relax_temperature`` and its most likely token
    is the distribution. Siblings share the mean of their distributions.

    The output follows the mixture only if the drafter's distribution is known at every committed place, the one after
    the last draft included (``Draft.next_distributions``); otherwise those places follow the target, and the whole
    follows nothing. The first token, which reading the prompt yields, always follows the target.

    Source: the probability mixture of DIVERSED, arXiv 2604.07622, with a constant weight.
    """

    name = "relaxed"
    exact = False

    class Config(Acceptor.Config):
        """Options."""

        weight: float = Field(0.7, ge=0, le=1, description="Share of the target in the mixture; 1 is lossless.")
        floor: float = Field(
            0.1, ge=0, le=1, description="Share of the largest target probability that a point-mass draft must reach."
        )
        relax_temperature: float = Field(
            1.0, gt=0, description="Temperature of the target's distribution for greedy requests."
        )

    config: Config

    def is_exact(self) -> bool:
        """Whether the mixture is the target."""
        return self.config.weight == 1

    def follows(self, drafter: Drafter) -> str | None:
        """Name the mixture, if the drafter's distribution is known everywhere."""
        weight = self.config.weight
        mixture = f"the mixture {weight:g} · target + {1 - weight:g} · draft, after the first token"
        return mixture if drafter.next_distributions else None

    def accept(self, verification: Verification, context: Context) -> Acceptance:
        """Return what the lossless rule accepts with respect to the mixture."""
        if self.is_exact():
            return accept_exactly(verification, context)
        target = soft_distributions(verification, context.rows, self.config.relax_temperature)
        drafted, share = self._draft_distributions(verification.draft, target)
        mixture = target + share[..., None] * (drafted - target)
        cold = torch.tensor([row.sampling.temperature == 0 for row in context.rows], device=mixture.device)
        hard = softmax_or_one_hot(mixture, 0.0)
        return accept_exactly(
            replace(verification, distributions=torch.where(cold[:, None, None], hard, mixture)), context
        )

    def _draft_distributions(self, draft: Draft, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the draft's distribution at every slot ``[batch, nodes + 1, vocab]``, and its share there."""
        distributions, count = torch.zeros_like(target), torch.zeros_like(target[..., 0])
        rows = torch.arange(draft.batch)
        trials = draft.explicit_trials()
        for trial in range(trials.nodes.shape[1] if draft.nodes else 0):
            slot, distribution = trials.nodes[:, trial], drawn_from(draft, trials, trial, target)
            node = (slot - 1).clamp_min(0)
            token = draft.token_ids[rows, node].where(slot > 0, 0)
            parent = draft.parents[rows, node].where(slot > 0, 0)
            likely = target[rows, parent, token] >= self.config.floor * target[rows, parent].amax(dim=-1)
            used = (slot > 0).to(likely.device) & (likely | (trials.sources[:, trial] != POINT_MASS).to(likely.device))
            distributions[rows, parent] += distribution * used[:, None]
            count[rows, parent] += used.to(count.dtype)
        if draft.next_distributions is not None:
            bare = count == 0
            distributions = torch.where(bare[..., None], draft.next_distributions.to(distributions), distributions)
            count = torch.where(bare, 1, count)
        return distributions / count.clamp_min(1)[..., None], (1 - self.config.weight) * (count > 0)
