"""Typical acceptance, Medusa's threshold on the target's probability."""

from __future__ import annotations

import torch
from pydantic import Field

from quasar.acceptors.rules.longest_path import longest_accepted
from quasar.core import trees
from quasar.core.components import Acceptor
from quasar.core.context import Context
from quasar.core.types import Acceptance, Verification


class Typical(Acceptor):
    """Relaxed: keep a draft whose target probability exceeds a threshold that falls with the distribution's entropy.

    A draft x is kept iff p(x) > min(epsilon, delta · exp(−H(p))); the longest such path wins and the token after it is
    drawn from the target. The rule looks at no draft distribution and no random number, so it favours likely tokens:
    exact with respect to nothing, except at temperature 0, where the distribution is one-hot and this is greedy
    matching.

    Source: Cai et al. (Medusa), arXiv 2401.10774, section 2.3.2; epsilon 0.09 and delta 0.3 are the released code's.
    """

    name = "typical"
    exact = False

    class Config(Acceptor.Config):
        """Options."""

        epsilon: float = Field(0.09, gt=0, le=1, description="No draft above this probability is rejected.")
        delta: float = Field(0.3, gt=0, le=1, description="Share of exp(−entropy) that a draft has to exceed.")

    config: Config

    def accept(self, verification: Verification, context: Context) -> Acceptance:
        """Return the longest path of typical drafts."""
        draft, probs = verification.draft, verification.probs
        used, rows = trees.used(draft), torch.arange(draft.batch)[:, None]
        parents, tokens = draft.parents.where(used, 0), draft.token_ids.where(used, 0)
        entropy = torch.special.entr(probs).sum(dim=-1)  # [batch, nodes + 1], natural logarithm
        bound = (self.config.delta * torch.exp(-entropy)).clamp_max(self.config.epsilon)
        likelihood = probs[rows, parents, tokens]  # [batch, nodes]
        return longest_accepted(verification, likelihood > bound[rows, parents], likelihood, context)
