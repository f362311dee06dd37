"""Drafts from the verifier's own first layers: the law of whole texts is the target's, and both kinds of fault are seen.

Here the drafter meets the very verifier that judges, over a model of two layers that is run in stages: after the first
it says what a table of the last token says, after the second what the target's table of the last two says. The null
hypothesis, the test and the bound are stated in ``ring.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from ring import FEWER, World, follows_the_target, p_value, refutes
from torch import Tensor
from toys import Text, random_table, requests, texts
from worlds import TARGET, WORLD

from quasar.core.cache import KVCache
from quasar.core.components import Drafter
from quasar.core.models import Block, LanguageModel
from quasar.drafters.layer_skip import LayerSkip
from quasar.drafters.pld_plus import PldPlus
from quasar.drafters.union import Union
from quasar.models import stages as early_exit
from quasar.verifiers.full import Full

FEW = 2000  # for faults
EXIT = random_table(3, seed=2)[0]


class TwoTables(LanguageModel):
    """The state of a column is its token; the second layer looks for the token before it among the entries it sees."""

    name, max_length, dtype, device, num_layers = "two tables", None, torch.float32, torch.device("cpu"), 2
    vocab_size = 3

    def forward(self, block: Block, cache: KVCache) -> Tensor:
        return self.forward_layers(block, cache, range(2))[1]

    def forward_layers(
        self, block: Block, cache: KVCache, layers: range, states: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        query = block.token_ids.shape[1]
        states = block.token_ids[..., None].float() if states is None else states
        tokens = states[..., 0].long()
        logits = EXIT[tokens]
        if 1 in layers:
            end = int(block.lengths.max()) + query
            lengths, places = block.lengths[:, None], block.positions[:, None, :, None].float()
            stored, positions = cache.write(1, states[:, None], places, lengths + block.offsets, end)
            new = torch.arange(end) - lengths  # [batch, end] place among the new entries
            visible = block.visible.gather(2, new.clamp(0, query - 1)[:, None].expand(-1, query, end))
            seen = (new < 0)[:, None] | (visible & ((new >= 0) & (new < query))[:, None])  # [batch, query, end]
            just_before = seen & (positions[:, 0, None, :, 0] == block.positions[..., None] - 1)
            before = stored[:, 0, :, 0].gather(1, just_before.byte().argmax(dim=-1)).long()
            logits = TARGET[before, tokens]
        return states, logits[:, query - block.num_logits :]


class StagedWorld(World):
    """A world whose target is judged by a verifier that the drafter has met."""

    def sample(self, drafter: Drafter, samples: int) -> list[Text]:
        verifier, found = Full(), list[Text]()
        verifier.model = TwoTables()
        drafter.attach_verifier(verifier)
        for start in range(0, samples, 1000):
            batch = requests(range(start, start + 1000), self.sampling, self.processors)
            found += texts(drafter, verifier, self.acceptor, batch, self.eos)
        return found


STAGED = StagedWorld(WORLD.table, eos=WORLD.eos)


def exits(**options) -> LayerSkip:
    return LayerSkip(LayerSkip.Config(num_speculative_tokens=3, **options))


test_layer_skip = follows_the_target(exits(), STAGED, FEWER)
test_layer_skip_that_ends_before_doubtful_places = follows_the_target(exits(min_confidence=0.55), STAGED, FEWER, seed=1)
test_layer_skip_and_lookup_in_a_tree = follows_the_target(
    Union(Union.Config(drafters=[PldPlus(), exits()], max_nodes=6)), STAGED, FEWER, seed=2
)


class StatesAnotherLaw(LayerSkip):
    """Draws from the exit's law and states another."""

    def propose(self, context, budget: Sequence[int]):
        draft = super().propose(context, budget)
        if draft.trials is not None:
            draft.trials.table.copy_(draft.trials.table.roll(1, dims=-1))
        return draft


def test_a_law_that_was_not_drawn_from_is_caught():
    assert refutes(p_value(StatesAnotherLaw(exits().config), STAGED, FEW))


def test_states_of_another_token_are_caught(monkeypatch: pytest.MonkeyPatch):
    read = early_exit.KVCache.states
    monkeypatch.setattr(early_exit.KVCache, "states", lambda cache: read(cache).roll(1, dims=1))
    assert refutes(p_value(exits(), STAGED, FEW))
