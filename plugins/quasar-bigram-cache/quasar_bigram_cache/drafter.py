"""The bigram cache: a table of the latest successor of each pair of tokens, one table per request."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from quasar import Draft, Drafter
from quasar.core.context import Context


class SuccessorTable:
    """What came after each pair of tokens, and after each token, when it was last seen in a growing text."""

    def __init__(self) -> None:
        self._after_pair: dict[tuple[int, int], int] = {}
        self._after_token: dict[int, int] = {}
        self._indexed = 0  # tokens of the text that are in the table

    def extend(self, ids: Sequence[int]) -> None:
        """Index the tokens that are new since the last call.

        Args:
            ids: the whole text; it begins with what it was at the last call.
        """
        start = max(self._indexed - 2, 0)
        recent = ids[start:]  # the new tokens and the pair before them
        for position in range(self._indexed - start, len(recent)):
            token = recent[position]
            if position >= 1:
                self._after_token[recent[position - 1]] = token
            if position >= 2:
                self._after_pair[recent[position - 2], recent[position - 1]] = token
        self._indexed = len(ids)

    def follow(self, ids: Sequence[int], size: int, fallback: bool) -> list[int]:
        """Walk the table from the end of ``ids``.

        Args:
            ids: the text.
            size: most tokens to return.
            fallback: look up the last token alone where the last pair is unknown.

        Returns:
            Token ids; fewer than ``size`` where the table knows no successor.
        """
        path = list(ids[-2:])
        given = len(path)
        while len(path) - given < size:
            successor = self._after_pair.get((path[-2], path[-1])) if len(path) > 1 else None
            if successor is None and fallback:
                successor = self._after_token.get(path[-1])
            if successor is None:
                break
            path.append(successor)
        return path[given:]


class BigramCache(Drafter):
    """Follows a table of the latest successor of each token pair in prompt and output."""

    name = "bigram-cache"
    drafts_by = "point_mass"

    class Config(Drafter.Config):
        """Options."""

        num_speculative_tokens: int = Field(5, ge=1, le=256, description="Draft tokens a step.")
        fallback: bool = Field(True, description="Look up the last token alone where the last pair is unknown.")

    config: Config

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return a chain per row, empty where the table knows no successor."""
        # The tables belong to the context, hence to this batch: the next prompt starts with empty ones.
        tables = context.scratch(self, lambda: [SuccessorTable() for _ in context.rows])
        drafts: list[list[int]] = []
        for row, table, limit in zip(context.rows, tables, budget, strict=True):
            size = min(self.config.num_speculative_tokens, limit)
            table.extend(row.token_ids)
            drafts.append(table.follow(row.token_ids, size, self.config.fallback))
        return Draft.chains(drafts)
