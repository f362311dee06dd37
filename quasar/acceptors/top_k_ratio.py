"""Accept what is nearly the most likely token."""

from __future__ import annotations

import torch
from pydantic import Field

from quasar.acceptors.rules.longest_path import longest_accepted
from quasar.core import trees
from quasar.core.components import Acceptor
from quasar.core.context import Context
from quasar.core.distributions import soft_distributions
from quasar.core.types import Acceptance, Verification


class TopKRatio(Acceptor):
    """Relaxed: keep a draft that is among the target's k most likely tokens and not much less likely than the first.

    A draft x is kept iff it ranks within ``top_k`` and p(x) ≥ ratio · max p. With ``top_k: 1`` or ``ratio: 1`` only the
    most likely token passes, which at temperature 0 is greedy matching, token for token; with ``ratio: 0`` and a
    ``top_k`` as large as the vocabulary everything passes.

    Source: relaxed acceptance as in TensorRT-LLM (``relaxed_topk``, ``relaxed_delta``, there a difference of
    probabilities), with a ratio so that the bound does not depend on how sharp the distribution is.
    """

    name = "top_k_ratio"
    exact = False

    class Config(Acceptor.Config):
        """Options."""

        top_k: int = Field(3, ge=1, description="Rank up to which a draft may be kept.")
        ratio: float = Field(0.5, ge=0, le=1, description="Share of the largest probability that it has to reach.")
        relax_temperature: float = Field(
            1.0, gt=0, description="Temperature of the distribution that judges greedy requests."
        )

    config: Config

    def accept(self, verification: Verification, context: Context) -> Acceptance:
        """Return the longest path of drafts that pass."""
        draft, probs = verification.draft, soft_distributions(verification, context.rows, self.config.relax_temperature)
        used, rows = trees.used(draft), torch.arange(draft.batch)[:, None]
        parents, tokens = draft.parents.where(used, 0), draft.token_ids.where(used, 0)
        likelihood = probs[rows, parents, tokens]  # [batch, nodes]
        behind = probs[rows, parents]  # [batch, nodes, vocab]
        better = (behind > likelihood[..., None]).sum(dim=-1)
        # Ties go to the lowest id, as everywhere: the most likely token has rank 0 and no other does.
        lower = torch.arange(behind.shape[-1]) < tokens[..., None]
        tied = (behind == likelihood[..., None]) & lower.to(behind.device)
        rank = better + tied.sum(dim=-1)
        near = likelihood >= self.config.ratio * behind.amax(dim=-1)
        if self.config.ratio == 1:
            near = near & (rank == 0)
        return longest_accepted(verification, near & (rank < self.config.top_k), likelihood, context)
