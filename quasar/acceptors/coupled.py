"""Coupled acceptance: the draft is drawn with the target's own noise, so equal distributions agree with certainty."""

from __future__ import annotations

from quasar.acceptors.rules.exact import sample_and_compare
from quasar.core.components import Acceptor
from quasar.core.context import Context
from quasar.core.types import Acceptance, Verification


class Coupled(Acceptor):
    """Draw draft and target with one Gumbel noise and compare: lossless, and the text does not depend on the drafter.

    Every committed token is the target stream's own, whatever the draft was; a drafter that samples through
    ``context.draft_keys`` draws with the same noise at the same position, so it agrees with probability at least
    (1 − TV) ÷ (1 + TV), where the ratio test accepts with 1 − TV. What is lost there buys a text that is identical to
    plain decoding's at any temperature, with any drafter.

    Source: Daliri, Musco and Suresh, "Coupling without communication and drafter-invariant speculative decoding",
    arXiv 2408.07978.
    """

    name = "coupled"
    exact = True
    target_stream = True
    couples = True

    def accept(self, verification: Verification, context: Context) -> Acceptance:
        """Return the drafts that equal the target's own sample, and the sample after them."""
        return sample_and_compare(verification, context)
