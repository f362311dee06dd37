"""Copy what mostly followed the longest end of the text in a corpus on disk."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field

from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.description import Description
from quasar.core.errors import ConfigError
from quasar.core.providers import ModelProvider
from quasar.core.types import Draft
from quasar.drafters.datastore.store import DEPTH, Datastore, fingerprint


class Retrieval(Drafter):
    """A tree of what mostly followed the longest end of the text that occurs in a datastore.

    ``quasar datastore build`` makes one. Where nothing matches, nothing is drafted.

    Source: REST (He et al., arXiv 2311.08252). The published code drafts a dummy token where nothing matches, and takes
    a random part of many matches where this takes an even one.
    """

    name = "retrieval"
    drafts_by = "point_mass"

    class Config(Drafter.Config):
        """Options."""

        datastore: Path = Field(examples=["my-datastore"], description="Folder that 'quasar datastore build' wrote.")
        num_speculative_tokens: int = Field(10, ge=1, le=64, description="Longest path of the tree.")
        max_nodes: int = Field(16, ge=1, le=256, description="Nodes of the tree.")
        min_match: int = Field(2, ge=1, le=DEPTH, description="Shortest match that is continued, in tokens.")
        max_occurrences: int = Field(128, ge=1, le=10_000, description="Matches that are looked at, evenly spread.")

    config: Config
    datastore: Datastore

    def load(self, models: ModelProvider) -> None:
        """Open the datastore.

        Raises:
            ConfigError: it is not there, or it was made with another tokenizer.
        """
        folder = self.config.datastore
        self.datastore = Datastore(folder)
        about = self.datastore.description
        if about.fingerprint != fingerprint(models.tokenizer().tokens()):
            raise ConfigError(
                f"drafter 'retrieval': datastore {folder} holds tokens of '{about.model}', and this model has another "
                "tokenizer; build one with 'quasar datastore build OUT --model MODEL FILE'."
            )

    def describe(self) -> Description:
        """The datastore and its size."""
        size = self.datastore.description.tokens
        return Description(details={"datastore": str(self.config.datastore), "datastore_tokens": size})

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return a tree per row, empty where nothing matches."""
        config, rows = self.config, []
        for row, limit in zip(context.rows, budget, strict=True):
            depth = min(limit, config.num_speculative_tokens)
            rows.append(frequent(self._continuations(row.token_ids[-DEPTH:], depth), config.max_nodes))
        return Draft.trees(rows)

    def _continuations(self, end: Sequence[int], depth: int) -> list[list[int]]:
        if depth <= 0:
            return []
        length, found = self.datastore.find(end, self.config.min_match)
        step = -(-len(found) // self.config.max_occurrences) or 1
        return [self.datastore.after(place, length, depth) for place in found[::step]]


def frequent(continuations: Iterable[Sequence[int]], size: int) -> list[tuple[int, int]]:
    """Return the ``size`` most frequent beginnings of ``continuations`` as a tree of (token, parent slot).

    Of equally frequent ones the shorter comes first, then what came first in ``continuations``.
    """
    nodes: list[tuple[int, int]] = []
    waiting: list[tuple[int, int, int, int, int, list[Sequence[int]]]] = []
    serial = 0

    def grow(slot: int, depth: int, through: Iterable[Sequence[int]]) -> None:
        nonlocal serial
        branches: dict[int, list[Sequence[int]]] = {}
        for each in through:
            if len(each) > depth:
                branches.setdefault(each[depth], []).append(each)
        for token, those in branches.items():
            serial += 1
            heapq.heappush(waiting, (-len(those), depth, serial, slot, token, those))

    grow(0, 0, continuations)
    while waiting and len(nodes) < size:
        _, depth, _, parent, token, through = heapq.heappop(waiting)
        nodes.append((token, parent))
        grow(len(nodes), depth + 1, through)
    return nodes
