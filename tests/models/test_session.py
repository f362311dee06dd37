"""A session gives, whatever was forwarded before, the logits of the text that it is handed.

The model is ``TokenModel``: its logits are a hash of what stands in the cache, and must be equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quasar.acceptors.stochastic import Stochastic
from quasar.core.cache import KVCache
from quasar.core.components import Drafter
from quasar.core.context import Context
from quasar.core.engine import Engine, Request
from quasar.core.models import Block, LanguageModel
from quasar.core.providers import ModelProvider
from quasar.core.sampling import SamplingParams
from quasar.core.trees import prefixes
from quasar.core.types import Draft
from quasar.drafters.none import NoDraft
from quasar.models import session
from quasar.models import verifier as model_verifier
from quasar.models.session import Session
from quasar.models.verifier import ModelVerifier
from tests.shared.draft_strategies import Tree, padded, trees
from tests.shared.token_model import VOCAB, TokenModel, logits_after

quick = settings(deadline=None, max_examples=100)


def assert_right(logits: Tensor, texts: Sequence[Sequence[int]], draft: Draft) -> None:
    """Every slot in use has the logits of its own text."""
    assert logits.shape == (len(texts), draft.nodes + 1, VOCAB)
    for row, text in enumerate(texts):
        for slot, path in enumerate(prefixes(draft, row)):
            assert torch.equal(logits[row, slot], logits_after([*text, *path])), f"row {row}, slot {slot}"


# Edits.


@dataclass(frozen=True)
class Edit:
    """Between two forwards of a row: a path of the last draft is taken, then the text is cut and extended."""

    leaf: int
    cut: int
    extend: list[int]
    tree: Tree


tokens = st.lists(st.integers(0, VOCAB - 1), max_size=4)
cuts = st.one_of(st.just(0), st.integers(0, 12))
edits = st.builds(Edit, leaf=st.integers(0, 6), cut=cuts, extend=tokens, tree=trees(VOCAB, most=6))
histories = st.integers(1, 3).flatmap(
    lambda rows: st.lists(st.lists(edits, min_size=rows, max_size=rows), min_size=1, max_size=5)
)


def edited(text: list[int], draft: Draft | None, row: int, edit: Edit) -> list[int]:
    paths = [[]] if draft is None else prefixes(draft, row)
    longer = [*text, *paths[edit.leaf % len(paths)]]
    return longer[: max(1, len(longer) - edit.cut)] + edit.extend


def assert_replay_is_right(history: list[list[Edit]], model: TokenModel) -> None:
    texts, draft = [[row % VOCAB] for row in range(len(history[0]))], None
    tested = Session(model, len(texts))
    for step in history:
        texts = [edited(text, draft, row, edit) for row, (text, edit) in enumerate(zip(texts, step, strict=True))]
        draft = Draft.trees([edit.tree for edit in step])
        assert_right(tested.forward(texts, draft), texts, draft)


@quick
@given(history=histories)
def test_any_edits_give_the_logits_of_the_text_itself(history: list[list[Edit]]):
    assert_replay_is_right(history, TokenModel())


@quick
@given(history=histories, chunk=st.integers(1, 5))
def test_prefill_in_chunks_gives_the_same_logits(history: list[list[Edit]], chunk: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "PREFILL_CHUNK", chunk)
        model = TokenModel()
        assert_replay_is_right(history, model)
        assert all(block.token_ids.shape[1] - (block.num_logits - 1) <= chunk for block in model.blocks)


@quick
@given(history=histories)
def test_forwarding_twice_gives_the_same_and_computes_only_the_last_token_again(history: list[list[Edit]]):
    texts = [[row % VOCAB, *edit.extend] for row, edit in enumerate(history[0])]
    draft = Draft.trees([edit.tree for edit in history[0]])
    tested = Session(TokenModel(), len(texts))
    first = tested.forward(texts, draft)
    columns = tested.columns_forwarded
    second = tested.forward(texts, draft)
    for row in range(len(texts)):
        used = int(draft.num_nodes[row]) + 1
        assert torch.equal(first[row, :used], second[row, :used])
    tested.read(texts, Draft.empty(len(texts)))  # free, because all of it is there
    assert tested.columns_forwarded - columns == len(texts) * (1 + draft.nodes)


@quick
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_rows_of_any_lengths_share_a_batch(lengths: list[int]):
    texts = [[(row + place) % VOCAB for place in range(length)] for row, length in enumerate(lengths)]
    draft = Draft.chains([[1] * (row % 3) for row in range(len(lengths))])
    assert_right(Session(TokenModel(), len(texts)).forward(texts, draft), texts, draft)


# What is forwarded, and what is not.

TREE = [(0, 0), (1, 0), (2, 2), (0, 2), (1, 4), (2, 1)]


@pytest.mark.parametrize("leaf", range(len(TREE) + 1))
def test_of_an_accepted_path_nothing_is_computed_twice(leaf: int):
    draft = Draft.trees([TREE])
    tested, text = Session(TokenModel(), 1), [0, 1, 2]
    tested.forward([text], draft)
    before = tested.columns_forwarded
    text = [*text, *prefixes(draft, 0)[leaf], 1]  # the path and a bonus
    assert_right(tested.forward([text], draft), [text], draft)
    assert tested.columns_forwarded - before == 1 + len(TREE)


def test_a_long_text_is_forwarded_once_and_then_a_token_at_a_time():
    tested = Session(TokenModel(), 2)
    texts, nothing = [[0] * 30, [1] * 20], Draft.empty(2)
    tested.forward(texts, nothing)
    assert tested.columns_forwarded == 2 * 30  # the shorter row is padded
    for step in range(1, 6):
        texts = [[*text, step % VOCAB] for text in texts]
        assert_right(tested.forward(texts, nothing), texts, nothing)
        assert tested.columns_forwarded == 2 * (30 + step)


def test_a_row_that_fell_behind_is_brought_up_to_date():
    tested, nothing = Session(TokenModel(), 2), Draft.empty(2)
    tested.forward([[0, 1], [1, 2]], nothing)
    for texts in ([[0, 1, 2, 0], [1, 2]], [[0, 1, 2, 0, 1], [1, 2]], [[0, 1, 2, 0, 1, 2], [1, 2, 2, 1, 0, 0]]):
        assert_right(tested.forward(texts, nothing), texts, nothing)


def test_another_text_in_the_same_session_is_read_from_where_it_differs():
    model = TokenModel()
    tested, nothing = Session(model, 1), Draft.empty(1)
    tested.forward([[0, 1, 2, 0, 1]], nothing)
    other = [[0, 1, 0, 0, 1, 2]]
    assert_right(tested.forward(other, nothing), other, nothing)
    assert model.blocks[-1].lengths.tolist() == [2]


def test_a_session_survives_a_forward_that_fails(monkeypatch: pytest.MonkeyPatch):
    tested, draft = Session(TokenModel(), 1), Draft.chains([[1, 0]])
    tested.forward([[0]], draft)
    with monkeypatch.context() as patch:
        patch.setattr(TokenModel, "forward", lambda self, block, cache: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tested.forward([[0, 1, 2]], draft)
    for text in ([0, 1, 1, 2], [0, 1, 2]):
        assert_right(tested.forward([text], draft), [text], draft)


def test_the_cache_grows_when_a_text_outgrows_it():
    tested, text = Session(TokenModel(), 1, capacity=4), [0]
    for step in range(100):
        text = [*text, step % VOCAB]
        draft = Draft.chains([[step % VOCAB, 1, 2]])
        assert_right(tested.forward([text], draft), [text], draft)
    assert tested.nbytes >= 2 * 2 * 100 * 8


def test_positions_and_entries_are_those_of_the_text():
    model = TokenModel()
    draft = Draft.trees([TREE, [(0, 0)]])
    Session(model, 2).forward([[0, 1, 2], [1]], draft)
    block = model.blocks[-1]
    assert block.positions[0].tolist() == [0, 1, 2, 3, 3, 4, 4, 5, 4]
    assert block.positions[1, 2:4].tolist() == [0, 1]
    for row in range(2):
        assert sorted(block.offsets[row].tolist()) == list(range(9))
        assert bool(block.visible[row].any(dim=1).all()), "a column that sees nothing is not a number after softmax"


def test_nodes_beyond_the_models_last_position_do_no_harm():
    draft = Draft.chains([[1, 2, 0, 1]])
    model, text = TokenModel(max_length=5), [0, 1, 2]
    logits = Session(model, 1).forward([text], draft)
    assert model.blocks[-1].positions.max() == 4
    for slot in range(3):
        assert torch.equal(logits[0, slot], logits_after([*text, *[1, 2, 0, 1][:slot]]))


@pytest.mark.parametrize("rubbish", [1, -1, VOCAB, 10**6])
def test_what_the_padding_of_a_draft_holds_does_not_matter(rubbish: int):
    draft = padded([TREE, [(1, 0)], []], rubbish)
    texts = [[0, 1], [2, 1, 0], [1]]
    assert_right(Session(TokenModel(), 3).forward(texts, draft), texts, draft)


# Whole texts through the engine, and faults that must change them.


class TokenVerifier(ModelVerifier):
    """The real verifier over the token model."""

    name = "tokens"
    precision = "full"

    def load_model(self, models: ModelProvider) -> LanguageModel:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.model = TokenModel()


class Script(Drafter):
    """Drafts what is written, as a chain or behind wrong siblings; ``wrong_from`` spoils the chain there."""

    name = "script"
    drafts_by = "point_mass"

    def __init__(self, texts: Sequence[Sequence[int]], wrong_from: int | None = None, branches: bool = False) -> None:
        super().__init__()
        self.texts, self.wrong_from, self.branches = texts, wrong_from, branches

    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        rows: list[Tree] = []
        for row, text, limit in zip(context.rows, self.texts, budget, strict=True):
            start = len(row.token_ids) - row.prompt_length
            tree: Tree = []
            parent = 0
            for place, token in enumerate(text[start : start + min(3, limit)]):
                spoilt = (token + 1) % VOCAB if place == self.wrong_from else token
                if self.branches:
                    tree.append(((spoilt + 1) % VOCAB, parent))
                tree.append((spoilt, parent))
                parent = len(tree)
            rows.append(tree)
        return Draft.trees(rows)


PROMPTS = [[0, 1, 2], [1], [2, 2, 0, 1, 1, 0]]
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=25)


def generate(drafter: Drafter) -> tuple[list[tuple[int, ...]], list[float | None]]:
    requests = [Request(prompt, PARAMS, str(row)) for row, prompt in enumerate(PROMPTS)]
    done = Engine(drafter, TokenVerifier(), Stochastic()).generate(requests)
    return [one.token_ids for one in done], [one.acceptance_length for one in done]


@pytest.fixture(scope="module")
def plain() -> list[tuple[int, ...]]:
    return generate(NoDraft())[0]


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("wrong_from", [None, 0, 1, 2])
def test_drafts_leave_the_text_as_it_is(plain: list[tuple[int, ...]], wrong_from: int | None, branches: bool):
    texts, lengths = generate(Script(plain, wrong_from, branches))
    assert texts == plain
    assert lengths == pytest.approx([24 / 6 if wrong_from is None else min(24 / -(-24 // (wrong_from + 1)), 4)] * 3)


class OneEntryTooMany(Session):
    """Keeps one entry too many after a draft that was accepted as a whole: all that follows is shifted by one."""

    def __init__(self, model: LanguageModel, batch: int, capacity: int = 0) -> None:
        super().__init__(model, batch, capacity)
        self._extra = [0] * batch

    def _reconcile(self, row: int, text: Sequence[int], kept: int) -> None:
        before, tail = len(self._cached[row]), len(self._tails[row][0])
        super()._reconcile(row, text, kept)
        self._extra[row] += int(tail > 0 and len(self._cached[row]) == before + tail)

    def _block(self, texts: Sequence[Sequence[int]], draft: Draft, num_logits: int) -> Block:
        block = super()._block(texts, draft, num_logits)
        self._cache.reserve(int(block.lengths.max()) + block.token_ids.shape[1] + max(self._extra))
        return replace(block, lengths=block.lengths + torch.tensor(self._extra))


class KeepsByLength(Session):
    """Keeps as many draft entries as the text grew by, whatever tokens they hold.

    In a chain that is right: what was rejected is replaced by the last token, and that one is always forwarded.
    """

    def _reconcile(self, row: int, text: Sequence[int], kept: int) -> None:
        tokens, parents = self._tails[row]
        start = len(self._cached[row])
        claimed = list(text[start : start + len(tokens)])
        self._tails[row] = ([*claimed, *tokens[len(claimed) :]], parents)
        super()._reconcile(row, text, kept)


def test_one_entry_too_many_after_full_acceptance_is_caught(plain: list[tuple[int, ...]], monkeypatch):
    monkeypatch.setattr(model_verifier, "Session", OneEntryTooMany)
    assert generate(NoDraft())[0] == plain
    assert generate(Script(plain, wrong_from=2))[0] == plain  # nothing is accepted as a whole: the fault sleeps
    assert generate(Script(plain))[0] != plain


def test_entries_kept_without_comparing_tokens_are_caught(plain: list[tuple[int, ...]], monkeypatch):
    monkeypatch.setattr(model_verifier, "Session", KeepsByLength)
    assert generate(Script(plain))[0] == plain
    assert generate(Script(plain, wrong_from=1))[0] == plain
    assert generate(Script(plain, branches=True))[0] != plain


def test_entries_of_a_path_that_are_not_moved_are_caught(plain: list[tuple[int, ...]], monkeypatch):
    monkeypatch.setattr(KVCache, "move", lambda self, row, sources, start: None)
    assert generate(Script(plain))[0] == plain
    assert generate(Script(plain, branches=True))[0] != plain
