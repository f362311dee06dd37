"""Drafters that know, or are known to miss, what plain decoding emits; and a verifier that watches its own cache."""

import random
from collections.abc import Mapping, Sequence

import torch

from quasar.core.components import Drafter
from quasar.core.context import Context, Row
from quasar.core.streams import draw
from quasar.core.types import Draft, Verification
from quasar.hf.adapter import HFModel
from quasar.models.session import Session
from quasar.models.verifier import ModelVerifier

Truth = Mapping[str, Sequence[int]]
"""By prompt id, the new tokens that plain decoding emits."""

VOCAB = 97


class Partial(Drafter):
    """Proposes ``right`` tokens of the truth, then tokens that are never right."""

    name = "partial"
    drafts_by = "point_mass"

    def __init__(self, truth: Truth, gamma: int, right: int) -> None:
        super().__init__()
        self.truth, self.gamma, self.right = truth, gamma, right

    def chain(self, row: Row, limit: int) -> list[int]:
        done = len(row.token_ids) - row.prompt_length
        coming = self.truth[row.prompt_id][done : done + min(self.gamma, limit)]
        return [*coming[: self.right], *((token + 1) % VOCAB for token in coming[self.right :])]

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        return Draft.chains([self.chain(row, limit) for row, limit in zip(context.rows, budget, strict=True)])


class Oracle(Partial):
    """Proposes exactly what plain decoding emits."""

    def __init__(self, truth: Truth, gamma: int) -> None:
        super().__init__(truth, gamma, right=gamma)


class Wrong(Partial):
    """Never proposes what plain decoding emits."""

    def __init__(self, truth: Truth, gamma: int) -> None:
        super().__init__(truth, gamma, right=0)


class Flaky(Oracle):
    """An oracle that is silent in every other step, in odd steps for some rows and in even ones for the others."""

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        steps = context.scratch(self, list)
        steps.append(None)
        rows = zip(context.rows, budget, strict=True)
        return Draft.chains(
            [self.chain(row, limit) if (len(steps) + index) % 2 else [] for index, (row, limit) in enumerate(rows)]
        )


class Empty(Drafter):
    """Claims to draft and never does."""

    name = "empty"
    drafts_by = "point_mass"

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        return Draft.empty(context.batch)


class RandomTree(Drafter):
    """A tree of random shape in which some branches, wherever they stand, follow the truth."""

    name = "random_tree"
    drafts_by = "point_mass"

    def __init__(self, truth: Truth, size: int) -> None:
        super().__init__()
        self.truth, self.size = truth, size

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        return Draft.trees([self.tree(row, limit) for row, limit in zip(context.rows, budget, strict=True)])

    def tree(self, row: Row, limit: int) -> list[tuple[int, int]]:
        chance = random.Random(f"{row.prompt_id} {len(row.token_ids)}")
        coming = self.truth[row.prompt_id][len(row.token_ids) - row.prompt_length :]
        depths, right = [0], [True]  # by slot: depth, and whether the path to it is the truth
        nodes: list[tuple[int, int]] = []
        for _ in range(chance.randrange(self.size + 1)):
            parent = max(chance.randrange(len(depths)), chance.randrange(len(depths)))
            depth = depths[parent]
            if depth >= min(limit, len(coming)):
                continue
            token = coming[depth] if chance.random() < 0.6 else chance.randrange(VOCAB)
            nodes.append((token, parent))
            depths.append(depth + 1)
            right.append(right[parent] and token == coming[depth])
        return nodes


class SelfDraft(Drafter):
    """Samples from the target model itself, through a session of its own: the ratio is 1 and nothing is rejected."""

    name = "self_draft"
    drafts_by = "sampled"

    def __init__(self, model: HFModel, gamma: int) -> None:
        super().__init__()
        self.model, self.gamma = model, gamma

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        session = context.scratch(self, lambda: Session(self.model, context.batch))
        texts = [row.token_ids for row in context.rows]
        sizes = [min(self.gamma, limit) for limit in budget]
        tokens: list[list[int]] = [[] for _ in texts]
        laws = []
        for node in range(max(sizes)):
            so_far = Draft.chains(tokens)
            slots = so_far.num_nodes  # each row's last slot
            law = context.distributions(session.forward(texts, so_far), so_far)[torch.arange(len(texts)), slots]
            keys = context.draft_keys(torch.full((len(texts), 1), node), torch.tensor(node))
            drawn = draw(law, keys[:, 0]).tolist()
            laws.append(law)
            for row, token in enumerate(drawn):
                if node < sizes[row]:
                    tokens[row].append(token)
        return Draft.chains(tokens, torch.stack(laws, dim=1)) if laws else Draft.empty(len(texts))


class _Watched:
    """A model that remembers the blocks it ran."""

    def __init__(self, inner: HFModel) -> None:
        self._inner = inner
        self.blocks = []

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def forward(self, block, cache):
        self.blocks.append(block)
        return self._inner.forward(block, cache)


class WatchedVerifier(ModelVerifier):
    """Scores with a model, and asserts at every step that the cache holds the committed text but its last token."""

    name = "watched"
    precision = "full"

    def __init__(self, model: HFModel) -> None:
        super().__init__()
        self.model = _Watched(model)

    def load_model(self, models):
        return self.model

    def verify(self, context: Context, draft: Draft) -> Verification:
        seen = len(self.model.blocks)
        verification = super().verify(context, draft)
        committed = [len(row.token_ids) for row in context.rows]
        if context.verification is not None:
            (block,) = self.model.blocks[seen:]
            assert block.lengths.tolist() == [length - 1 for length in committed]
            assert block.token_ids.shape[1] == draft.nodes + 1
        return verification
