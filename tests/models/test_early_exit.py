"""A model that is run in stages says what it says as a whole, and nothing is computed in it twice.

The model is ``TokenModel``: its logits are a hash of what stands in the cache, and must be equal to the last bit.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_session import Edit, assert_right, edited, histories, quick

from quasar.core.errors import CompositionError, ConfigError
from quasar.core.types import Draft
from quasar.drafters.layer_skip import LayerSkip
from quasar.models import session
from quasar.models import stages as early_exit
from quasar.models.stages import StagedSession
from quasar.testing import TinyModels
from quasar.verifiers.full import Full
from quasar.verifiers.quasar import Quasar
from tests.shared.token_model import TokenModel, exit_logits_after, states_after

NOTHING = Draft.empty(1)


def staged(batch: int = 1) -> StagedSession:
    return StagedSession(TokenModel(), batch, 0, [1])


def assert_replay_is_right(history: list[list[Edit]]) -> None:
    """Between verifications a chain is drafted through the exit, or states are read, whatever is verified then."""
    texts, draft = [[row % 3] for row in range(len(history[0]))], None
    tested = staged(len(texts))
    for number, step in enumerate(history):
        texts = [edited(text, draft, row, edit) for row, (text, edit) in enumerate(zip(texts, step, strict=True))]
        if number % 3 == 1:
            longer = [[*text, *edit.extend] for text, edit in zip(texts, step, strict=True)]
            for found, text in zip(tested.exit_logits(1, longer), longer, strict=True):
                assert torch.equal(found, exit_logits_after(text))
        if number % 3 == 2:
            states = tested.states(1, [text[:-1] for text in texts])
            for row, text in enumerate(texts):
                assert states[row, : len(text) - 1].flatten().tolist() == states_after(text[:-1]).tolist()
        if number % 2:
            draft = Draft.chains([edit.extend for edit in step])
        else:
            draft = Draft.trees([edit.tree for edit in step])
        assert_right(tested.forward(texts, draft), texts, draft)


@quick
@given(history=histories)
def test_any_edits_and_exits_give_the_logits_of_the_text_itself(history: list[list[Edit]]):
    assert_replay_is_right(history)


@quick
@given(history=histories, chunk=st.integers(1, 5))
def test_prefill_in_chunks_gives_the_same(history: list[list[Edit]], chunk: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "PREFILL_CHUNK", chunk)
        assert_replay_is_right(history)


@pytest.mark.parametrize("drafted", range(5))
def test_the_layers_of_a_step_are_those_of_one_forward(drafted: int):
    tested, text, chain = staged(), [0, 1, 2, 2, 1], [1, 0, 2, 1][:drafted]
    tested.forward([text[:-1]], NOTHING)
    before = tested.layers_forwarded
    for place in range(drafted):
        tested.exit_logits(1, [[*text, *chain[:place]]])
    assert tested.layers_forwarded - before == drafted  # the first layer, once for each token that is drafted from
    tested.forward([text], Draft.chains([chain]))
    assert tested.layers_forwarded - before == 2 * (drafted + 1)


def test_a_place_where_nothing_is_drafted_after_all_is_not_run_again():
    tested, text = staged(), [0, 1, 2]
    tested.forward([text[:-1]], NOTHING)
    before = tested.layers_forwarded
    tested.exit_logits(1, [text])
    tested.forward([text], NOTHING)
    assert tested.layers_forwarded - before == 2


def test_a_tree_runs_through_all_layers_anew():
    tested, text, tree = staged(), [0, 1, 2], Draft.trees([[(1, 0), (2, 0), (0, 1)]])
    tested.forward([text[:-1]], NOTHING)
    before = tested.layers_forwarded
    tested.exit_logits(1, [text])
    tested.exit_logits(1, [[*text, 1]])
    assert_right(tested.forward([text], tree), [text], tree)
    assert tested.layers_forwarded - before == 2 * 4 + 1  # the chain's token once for nothing


def test_states_follow_the_path_that_was_accepted():
    tested, text, tree = staged(), [0, 1, 2], Draft.trees([[(1, 0), (2, 0), (0, 2), (1, 3)]])
    tested.forward([text], tree)
    before, longer = tested.layers_forwarded, [*text, 2, 0, 1]
    assert tested.states(1, [longer])[0, : len(longer), 0].tolist() == states_after(longer).tolist()
    assert tested.layers_forwarded == before


def test_states_of_texts_without_a_second_token_are_empty():
    assert staged(2).states(1, [[], []]).shape[-1] == 0


def test_a_stage_that_reads_its_neighbours_states_is_caught(monkeypatch: pytest.MonkeyPatch):
    read = early_exit.KVCache.states
    monkeypatch.setattr(early_exit.KVCache, "states", lambda cache: read(cache).roll(1, dims=1))
    with pytest.raises(AssertionError, match="slot 0"):
        assert_right(staged().forward([[0, 1]], NOTHING), [[0, 1]], NOTHING)


# --- who may leave early ----------------------------------------------------------------------------------------------


def loaded(verifier):
    verifier.load(TinyModels())
    return verifier


@pytest.mark.parametrize("layer", [3, 4, 99])
def test_a_layer_that_is_not_there_is_refused(layer: int):
    message = rf"^drafter 'layer_skip': exit_layer {layer} is not within 1\.\.2: model 'tiny' has 3 layers\.$"
    with pytest.raises(ConfigError, match=message):
        LayerSkip(LayerSkip.Config(exit_layer=layer)).attach_verifier(loaded(Full()))


def test_a_verifier_without_one_model_is_refused():
    message = "^drafter 'layer_skip' works with the layers of the verifier's own model, and verifier 'quasar' does not"
    with pytest.raises(CompositionError, match=message):
        LayerSkip().attach_verifier(loaded(Quasar(Quasar.Config(int8=Full(), full=Full()))))


def test_a_backend_that_runs_whole_forwards_only_is_refused():
    verifier = loaded(Full())
    verifier.model = TokenModelWithoutStages()
    with pytest.raises(CompositionError, match=r"backend of verifier 'full' cannot; set its 'backend' to 'torch'\.$"):
        LayerSkip().attach_verifier(verifier)


class TokenModelWithoutStages:
    """A backend's model that does not know ``forward_layers``, but passes what it does not know on."""

    def __getattr__(self, name: str):
        return getattr(TokenModel(), name)


def test_two_drafters_may_leave_at_two_layers():
    verifier = loaded(Full())
    for layer in (2, 1, 2):
        LayerSkip(LayerSkip.Config(exit_layer=layer)).attach_verifier(verifier)
    whole = StagedSession(verifier.model, 1, 0, [])
    parts = StagedSession(verifier.model, 1, 0, sorted(verifier._exits))
    draft = Draft.chains([[1, 2, 3]])
    assert torch.equal(parts.forward([[4, 5, 6]], draft), whole.forward([[4, 5, 6]], draft))
    assert parts.layers_forwarded == whole.layers_forwarded == 3 * 6
