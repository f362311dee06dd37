"""Lookahead decoding: guesses of places further ahead improve each other, and leave n-grams behind to draft from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import Field

from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.distributions import most_likely
from quasar.core.types import Draft, Verification


class Pool:
    """By token, the n-grams that were lately seen after it; the newest comes first.

    Args:
        size: how many are kept for a token.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._after: dict[int, list[tuple[int, ...]]] = {}

    def add(self, token: int, ngram: tuple[int, ...]) -> None:
        """Note an n-gram; the one that was seen longest ago gives way."""
        known = [each for each in self._after.get(token, ()) if each != ngram]
        self._after[token] = [ngram, *known][: self._size]

    def after(self, token: int) -> Sequence[tuple[int, ...]]:
        """Return what may follow ``token``."""
        return self._after.get(token, ())


class Tree:
    """Nodes as (token, parent slot); equal siblings are one node."""

    def __init__(self) -> None:
        self.slots: dict[tuple[int, int], int] = {}

    def add(self, path: Sequence[int]) -> None:
        """Add a path from slot 0 on."""
        slot = 0
        for token in path:
            slot = self.slots.setdefault((token, slot), len(self.slots) + 1)


@dataclass(slots=True)
class Guesses:
    """The window of one row: guesses at the places ahead, older ones at lower levels.

    The guess at level l and column i is for place i + l after the last token; that at (0, 0) is the last token.

    Attributes:
        levels: ``[levels][columns]`` token ids. There are fewer levels and more columns until the window is full.
        full: levels of a full window.
        length: tokens of the text when the window was last drafted; 0 before.
    """

    levels: list[list[int]]
    full: int
    length: int = field(default=0)

    def paths(self) -> list[list[int]]:
        """Return the path from slot 0 to the highest guess of every column: along level 0, then up the column."""
        base = self.levels[0]
        return [[*base[1 : column + 1], *[level[column] for level in self.levels[1:]]] for column in range(len(base))]

    def advance(self, last: int, new: list[int], pool: Pool) -> None:
        """Take the model's guesses above every column; what a column of a full window says becomes an n-gram.

        Args:
            last: the token that the window stood after.
            new: a token for every column.
            pool: gets the n-grams.
        """
        self.levels[0][0] = last
        self.levels.append(new)
        if len(self.levels) <= self.full:
            self.levels = [level[1:] for level in self.levels]
            return
        for token, *ngram in zip(*self.levels, strict=True):
            pool.add(token, tuple(ngram))
        del self.levels[0]


class Lookahead(Drafter):
    """N-grams that came out of guessing several places ahead at once, and the guesses for the next ones.

    The window is part of the draft: its mask is that of a tree, so its nodes are forwarded like any others, and the
    logits after them are read in the next step. They may be accepted too, where they happen to be right.

    Source: Fu et al., arXiv 2402.02057. Mask, positions and updates of the window are the published ones; equal nodes
    are forwarded once, and the first level starts with tokens that are spread evenly over the prompt, not random ones.
    """

    name = "lookahead"
    drafts_by = "point_mass"

    class Config(Drafter.Config):
        """Options."""

        window: int = Field(3, ge=1, le=64, description="Columns of the window, W.")
        level: int = Field(3, ge=2, le=16, description="Tokens of an n-gram, the one before it included, N.")
        guess_set: int = Field(3, ge=1, le=64, description="N-grams that are kept, and drafted, after a token, G.")
        pool_from_prompt: bool = Field(False, description="Begin with the n-grams of the prompt.")

    config: Config

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return a tree per row: the n-grams known after the last token, and the window if the budget is as deep."""
        memory = context.scratch(
            self, lambda: [self._begin(row.token_ids[: row.prompt_length]) for row in context.rows]
        )
        trees: list[list[tuple[int, int]]] = []
        for number, (row, limit, (guesses, pool)) in enumerate(zip(context.rows, budget, memory, strict=True)):
            tree, length = Tree(), len(row.token_ids)
            if context.verification is not None and 0 < guesses.length < length:
                new = _guesses(context.verification, number, guesses.paths())
                if new is not None:
                    guesses.advance(row.token_ids[guesses.length - 1], new, pool)
            guesses.length = length
            if limit > 0:
                for ngram in pool.after(row.token_ids[-1]):
                    tree.add(ngram[:limit])
                paths = guesses.paths()
                if max(map(len, paths)) <= limit:
                    for path in paths:
                        tree.add(path)
            trees.append(list(tree.slots))
        return Draft.trees(trees)

    def _begin(self, prompt: Sequence[int]) -> tuple[Guesses, Pool]:
        """Return a window of one level, and the pool."""
        config = self.config
        pool, columns = Pool(config.guess_set), config.window + config.level - 2
        if config.pool_from_prompt:
            for end in range(config.level, len(prompt) + 1):
                token, *ngram = prompt[end - config.level : end]
                pool.add(token, tuple(ngram))
        spread = [prompt[column * len(prompt) // columns] for column in range(columns)]
        return Guesses([spread], config.level - 1), pool


def _guesses(verification: Verification, row: int, paths: Sequence[Sequence[int]]) -> list[int] | None:
    """Return the likeliest token after every path, ``None`` if the draft that was verified lacks one of them."""
    draft, slots = verification.draft, dict[tuple[int, int], int]()
    count = int(draft.num_nodes[row])
    nodes = zip(draft.token_ids[row, :count].tolist(), draft.parents[row, :count].tolist(), strict=True)
    for slot, node in enumerate(nodes, start=1):
        slots.setdefault(node, slot)
    ends = []
    for path in paths:
        slot = 0
        for token in path:
            slot = slots.get((token, slot), -1)
        ends.append(slot)
    if min(ends) < 0:
        return None
    scores = verification.probs if verification.logits is None else verification.logits
    found: list[int] = most_likely(scores[row, ends]).tolist()
    return found
