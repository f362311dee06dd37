"""Best-first trees: the most valuable nodes, against all paths of a small model."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from drafting import context, nodes, verified

from quasar.core import trees
from quasar.core.cache import KVCache
from quasar.core.models import Block, LanguageModel
from quasar.core.types import Draft
from quasar.drafters.best_first import BestFirst, Growth
from quasar.drafters.draft_model import DraftModel
from quasar.drafters.pruned import Pruned
from quasar.testing import TinyModels, check_component

VOCAB, DEPTH = 5, 3
TABLE = 2 * torch.randn((VOCAB, VOCAB), generator=torch.Generator().manual_seed(4))


class Pairs(LanguageModel):
    """Logits after a token are a row of a table."""

    name, max_length, dtype, device, vocab_size = "pairs", None, torch.float32, torch.device("cpu"), VOCAB

    def __init__(self, max_length: int | None = None) -> None:
        self.max_length, self.columns = max_length, 0

    def forward(self, block: Block, cache: KVCache) -> torch.Tensor:
        self.columns += block.token_ids.shape[1]
        return TABLE[block.token_ids[:, -block.num_logits :]]


def drafter(model: LanguageModel | None = None, **options) -> BestFirst:
    made = BestFirst(BestFirst.Config(drafter=DraftModel(), **options))
    made.config.drafter.model = model or Pairs()
    return made


def running(*texts: list[int], vocab: int = VOCAB):
    found = context(*texts)
    found.verification = verified(Draft.empty(len(texts)), torch.zeros((len(texts), 1, vocab)))
    return found


def values_of_paths(last: int) -> dict[tuple[int, ...], float]:
    """Probabilities of all paths of up to ``DEPTH`` tokens."""
    laws, values = TABLE.double().softmax(dim=-1), {}
    for size in range(1, DEPTH + 1):
        for path in product(range(VOCAB), repeat=size):
            value = 1.0
            for before, token in zip((last, *path), path, strict=False):
                value *= float(laws[before, token])
            values[path] = value
    return values


@pytest.mark.parametrize("size", [1, 2, 7, 20, 60])
@pytest.mark.parametrize("last", range(VOCAB))
def test_a_wide_beam_finds_the_most_valuable_nodes(size, last):
    made = drafter(num_speculative_tokens=DEPTH, beam=VOCAB**DEPTH, max_nodes=size)
    draft = made.propose(running([0, last]), [9])
    found, values = [tuple(path) for path in trees.prefixes(draft, 0)[1:]], values_of_paths(last)
    assert len(set(found)) == size
    assert [values[path] for path in found] == pytest.approx(sorted(values.values(), reverse=True)[:size], rel=1e-4)


def test_a_beam_of_one_is_the_greedy_chain():
    draft = drafter(beam=1).propose(running([2]), [9])
    chain, token = [], 2
    for _ in range(4):
        token = int(TABLE[token].argmax())
        chain.append(token)
    assert nodes(draft) == [[(each, place) for place, each in enumerate(chain)]]


def test_rows_of_a_batch_are_drafted_as_alone_and_as_deeply_as_they_may():
    texts, budget = [[1, 2], [3], [0, 4, 1]], [3, 0, 1]
    together = nodes(drafter().propose(running(*texts), budget))
    alone = [nodes(drafter().propose(running(text), [limit]))[0] for text, limit in zip(texts, budget, strict=True)]
    assert together == alone
    assert [len(row) for row in together] == [12, 0, 4]


def test_the_draft_models_own_limits_are_kept():
    assert trees.longest_paths(drafter(Pairs(max_length=4)).propose(running([1, 2, 3]), [9])) == [1]
    draft = drafter(max_nodes=64).propose(running([1, 6], vocab=3), [9])  # token 6 is unknown, 3 and 4 cannot be said
    assert draft.nodes > 0
    assert int(draft.token_ids.max()) < 3


def test_a_child_comes_after_its_parent_where_both_are_certain():
    tree = Growth()
    tree.extend([[(0.0, 3), (-9.0, 1)]], 1)
    tree.extend([[(0.0, 4), (-9.0, 2)]], 1)
    assert tree.best(3) == [(3, 0), (4, 1), (1, 0)]


@pytest.mark.parametrize("source", [DraftModel, Pruned])
def test_the_contract_is_kept(source):
    check_component(BestFirst, models=TinyModels(), drafter=source(), max_nodes=6)
