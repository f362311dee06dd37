"""Speculative sampling, lossless at every temperature."""

from __future__ import annotations

from quasar.acceptors.rules.exact import accept_exactly
from quasar.core.components import Acceptor
from quasar.core.context import Context
from quasar.core.types import Acceptance, Verification


class Stochastic(Acceptor):
    """Lossless acceptance: sample and compare for point-mass drafts, the ratio test for sampled ones.

    Source: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318; siblings as in arXiv 2305.09781.
    """

    name = "stochastic"
    exact = True
    target_stream = True

    def accept(self, verification: Verification, context: Context) -> Acceptance:
        """Return the accepted path; committed tokens follow the verifier's distribution."""
        return accept_exactly(verification, context)
