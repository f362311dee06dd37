"""Greedy matching: the one-hot distribution under its usual name."""

from __future__ import annotations

from quasar.acceptors.rules.exact import sample_and_compare
from quasar.core.components import Acceptor
from quasar.core.context import Context
from quasar.core.errors import CompositionError
from quasar.core.sampling import SamplingParams
from quasar.core.types import Acceptance, Verification


class Greedy(Acceptor):
    """Keep drafts while they are the target's most likely token; temperature 0 only.

    At temperature 0 a distribution is one-hot, so this is ``stochastic``; it exists because people look for the name.
    """

    name = "greedy"
    exact = True
    greedy_only = True
    target_stream = True

    def check(self, sampling: SamplingParams) -> None:
        """Refuse a temperature above 0."""
        if sampling.temperature > 0:
            raise CompositionError(
                f"acceptor 'greedy' works at temperature 0 only, and the temperature is {sampling.temperature:g}; "
                "use 'stochastic'."
            )

    def accept(self, verification: Verification, context: Context) -> Acceptance:
        """Return the longest path of most likely tokens, and the most likely token after it."""
        return sample_and_compare(verification, context)
