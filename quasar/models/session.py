"""A model, a cache, and the rule that keeps them honest: compare tokens, keep what matches, forward the rest.

No component commits or rolls back anything. A session is handed the ids that count now and a draft; it finds out by
itself which of its cache entries are still those of that text. This covers full acceptance, rejection, a drafter that
fell behind, and a text that was replaced, without a case for any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from quasar.core import trees
from quasar.core.cache import KVCache
from quasar.core.models import Block, LanguageModel
from quasar.core.types import Draft

PREFILL_CHUNK = 512
"""Longest stretch of pending tokens in one forward, so that the mask of a long prompt stays small."""


class Session:
    """One model over a batch of texts.

    Attributes:
        columns_forwarded: query columns computed so far, padding included, summed over the batch.

    Args:
        model: runs the blocks.
        batch: rows.
        capacity: cache entries per row to begin with.
    """

    def __init__(self, model: LanguageModel, batch: int, capacity: int = 0) -> None:
        self._model = model
        self._cache = KVCache(batch, capacity)
        self._cached: list[list[int]] = [[] for _ in range(batch)]  # texts whose entries are contiguous from 0
        self._tails: list[tuple[list[int], list[int]]] = [([], [])] * batch  # draft nodes after them: tokens, parents
        self.columns_forwarded = 0

    @property
    def cache(self) -> KVCache:
        """The model's cache, for whoever reads what it holds of a text."""
        return self._cache

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""
        return self._cache.nbytes

    @property
    def layers_forwarded(self) -> int:
        """Decoder layers computed so far, summed over all columns."""
        return self.columns_forwarded * self._model.num_layers

    def forward(self, texts: Sequence[Sequence[int]], draft: Draft) -> Tensor:
        """Return logits at every slot of ``draft``.

        Args:
            texts: committed ids per row, at least one each; the last one is slot 0.
            draft: the nodes after it.

        Returns:
            ``[batch, nodes + 1, vocab]`` in the model's dtype.
        """
        self._prefill(texts, kept=1)  # at least the last token is forwarded: its logits are wanted
        return self._run(texts, draft, draft.nodes + 1)

    def read(self, texts: Sequence[Sequence[int]], draft: Draft) -> None:
        """Put ``texts`` and the nodes of ``draft`` into the cache, without logits; free for what is there already."""
        self._prefill(texts, kept=0)
        if draft.nodes or any(len(text) > len(done) for text, done in zip(texts, self._cached, strict=True)):
            self._run(texts, draft, 0)

    def _prefill(self, texts: Sequence[Sequence[int]], kept: int) -> None:
        """Reconcile every row, and forward long texts up to a last chunk; ``kept`` tokens at the end stay pending."""
        for row, text in enumerate(texts):
            self._reconcile(row, text, kept)
        nothing = Draft.empty(len(texts))
        while max(len(text) - len(done) for text, done in zip(texts, self._cached, strict=True)) > PREFILL_CHUNK:
            ends = [min(len(text), len(done) + PREFILL_CHUNK) for text, done in zip(texts, self._cached, strict=True)]
            self._run([text[:end] for text, end in zip(texts, ends, strict=True)], nothing, min(kept, 1))
            for row, text in enumerate(texts):
                self._reconcile(row, text, kept)

    def _reconcile(self, row: int, text: Sequence[int], kept: int) -> None:
        """Cut a row's cached text to what ``text`` begins with, after taking the matching path of its tail over.

        At least ``kept`` tokens at the end of ``text`` stay to be forwarded.
        """
        cached, (tokens, parents) = self._cached[row], self._tails[row]
        self._tails[row] = ([], [])
        limit = len(text) - kept
        common = min(len(cached), limit)
        if cached[:common] != list(text[:common]):
            common = next(i for i, (old, new) in enumerate(zip(cached, text, strict=False)) if old != new)
        if common < len(cached):
            del cached[common:]
            return
        # Depth of every slot whose path is the text's; equal siblings may both match, and go on differently.
        matched = {0: 0}
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            depth = matched.get(parent)
            if depth is not None and common + depth < limit and token == text[common + depth]:
                matched[node + 1] = depth + 1
        slot = max(matched, key=lambda candidate: matched[candidate])
        path: list[int] = []
        while slot:
            path.insert(0, common + slot - 1)
            slot = parents[slot - 1]
        self._cache.move(row, path, common)
        cached.extend(text[common : common + len(path)])

    def _run(self, texts: Sequence[Sequence[int]], draft: Draft, num_logits: int) -> Tensor:
        block = self._block(texts, draft, num_logits)
        self._cache.reserve(max(map(len, self._cached)) + block.token_ids.shape[1])
        self.columns_forwarded += block.token_ids.numel()
        logits = self._model.forward(block, self._cache)
        for row, text in enumerate(texts):
            self._cached[row].extend(text[len(self._cached[row]) :])
            self._tails[row] = draft.rows[row]
        return logits

    def _chain(self, rows: Sequence[Sequence[int]], lengths: Sequence[int], num_logits: int) -> Block:
        """Return the block of rows without branches: nearly every step, and a tenth of the work of any layout."""
        batch, query = len(rows), len(rows[0])
        columns, visible = _columns(query)
        last = torch.iinfo(torch.int64).max if self._model.max_length is None else self._model.max_length - 1
        positions = [[min(length + column, last) for column in range(query)] for length in lengths]
        tokens, places, starts = (torch.tensor(each, dtype=torch.int64) for each in (rows, positions, lengths))
        return Block(
            tokens, places, columns.expand(batch, query), visible.expand(batch, query, query), starts, num_logits
        )

    def _block(self, texts: Sequence[Sequence[int]], draft: Draft, num_logits: int) -> Block:
        """Lay pending tokens and draft nodes out in columns, slot 0 of all rows in the same one.

        Rows with fewer pending tokens are padded on the left; padding is written behind the row's own new entries,
        where nothing looks at it and the next block overwrites it.
        """
        lengths = [len(done) for done in self._cached]
        pending = [list(text[length:]) for text, length in zip(texts, lengths, strict=True)]
        width = max(map(len, pending))
        batch, query = len(texts), width + draft.nodes
        if trees.is_chain(draft) and all(len(own) == width for own in pending):
            rows = zip(pending, draft.rows, strict=True)
            chains = [[*own, *tokens, *[0] * (draft.nodes - len(tokens))] for own, (tokens, _) in rows]
            return self._chain(chains, lengths, num_logits)
        nodes = draft.token_ids.where(trees.used(draft), 0)  # padding may hold anything
        tokens = torch.tensor([[*[0] * (width - len(own)), *own] for own in pending], dtype=torch.int64)
        tokens = tokens.reshape(batch, width)
        start, column = torch.tensor(lengths)[:, None], torch.arange(query)
        pad = torch.tensor([[width - len(own)] for own in pending])  # [batch, 1]
        positions = torch.where(column >= pad, start + column - pad, 0)
        positions[:, width:] = start + width - pad - 1 + trees.depths(draft)[:, 1:]
        seen = torch.zeros((batch, query, query), dtype=torch.bool)  # which column sees which
        seen[:, :width, :width] = torch.ones((width, width), dtype=torch.bool).tril_()
        seen[:, width:, :width] = True
        seen[:, width:, width:] = trees.visibility(draft)
        seen &= (column >= pad)[:, None]
        seen |= torch.eye(query, dtype=torch.bool)
        offsets = (column - pad) % query
        visible = torch.empty_like(seen).scatter_(2, offsets[:, None].expand_as(seen), seen)
        if self._model.max_length is not None:
            # Nodes past the model's end are padding of a ragged batch or will be cut; they must not index out of range.
            positions.clamp_(max=self._model.max_length - 1)
        token_ids = torch.cat([tokens, nodes], dim=1)
        return Block(token_ids, positions, offsets, visible, start[:, 0], num_logits)


@cache
def _columns(size: int) -> tuple[Tensor, Tensor]:
    """Return the numbers of ``size`` columns in a row, and which sees which: itself and those before it.

    Shared, never written.
    """
    return torch.arange(size), torch.ones((size, size), dtype=torch.bool).tril_()
