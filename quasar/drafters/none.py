"""Plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.types import Draft


class NoDraft(Drafter):
    """Never drafts: plain decoding, one token a step."""

    name = "none"
    drafts_by = "none"

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return an empty draft."""
        return Draft.empty(context.batch)
