"""Random trees for Hypothesis, ragged, and with rubbish in the padding."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from quasar.core.types import Draft

Tree = list[tuple[int, int]]
"""(token id, parent slot) in slot order."""


def trees(vocab: int, most: int = 7) -> st.SearchStrategy[Tree]:
    """One row's nodes."""

    def grow(tokens: list[int]) -> st.SearchStrategy[Tree]:
        parents = [st.integers(0, slot) for slot in range(len(tokens))]
        return st.tuples(*parents).map(lambda found: list(zip(tokens, found, strict=True)))

    return st.lists(st.integers(0, vocab - 1), max_size=most).flatmap(grow)


def rows_of_trees(vocab: int, most_rows: int = 4, most: int = 7) -> st.SearchStrategy[list[Tree]]:
    """One tree a row; a row may be empty."""
    return st.lists(trees(vocab, most), min_size=1, max_size=most_rows)


def padded(rows: list[Tree], rubbish: int) -> Draft:
    """The draft of ``rows`` with ``rubbish`` in every place that does not count."""
    draft = Draft.trees(rows)
    unused = torch.arange(draft.nodes) >= draft.num_nodes[:, None]
    return Draft(
        draft.token_ids.masked_fill(unused, rubbish), draft.parents.masked_fill(unused, rubbish), draft.num_nodes
    )
