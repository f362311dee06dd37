"""Texts that a model samples once, what it considered meanwhile, and what drafters make of them."""

from __future__ import annotations

import json

import pytest
from drafting import chains, context, logits_of, nodes, verified

from quasar.core.types import Draft
from quasar.drafters.recycling import Recycling
from quasar.drafters.suffix import Suffix
from quasar.models import self_sampled as module
from quasar.models.self_sampled import SelfSampledTexts, remembered_self_sampled_texts
from quasar.models.session import Session
from quasar.testing import TinyModels, check_component


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("QUASAR_HOME", str(tmp_path))
    monkeypatch.setattr(module, "TEXTS", 3)
    monkeypatch.setattr(module, "TOKENS", 12)
    return tmp_path / "own_texts"


def test_successors_are_what_the_model_found_likeliest_over_all_places_of_a_token():
    found = remembered_self_sampled_texts(TinyModels())
    model = TinyModels().target()
    assert [len(text) for text in found.texts] == [12] * 3
    sums = {}
    for text in found.texts:
        for end in range(1, len(text)):
            law = Session(model, 1, end).forward([text[:end]], Draft.empty(1))[0, 0].double().softmax(dim=-1)
            sums[text[end - 1]] = sums.get(text[end - 1], 0) + law
    assert found.successors == {
        token: law.argsort(descending=True, stable=True).tolist() for token, law in sums.items()
    }


def test_texts_are_sampled_once_for_each_model(home, monkeypatch):
    first = remembered_self_sampled_texts(TinyModels())
    [file] = home.iterdir()

    class Other(TinyModels):
        def target(self, dtype="auto"):
            return self.other("another one", dtype)

    assert remembered_self_sampled_texts(Other()).texts != first.texts
    assert len(list(home.iterdir())) == 2
    monkeypatch.setattr(module, "self_sampled_texts", lambda *_: pytest.fail("sampled again"))
    assert remembered_self_sampled_texts(TinyModels()) == first
    assert json.loads(file.read_text())["texts"] == first.texts


@pytest.mark.parametrize(
    "damage", ["", "[]", '{"texts": [[7]], "successors": []}', '{"texts": [["a"]], "successors": []}']
)
def test_a_damaged_file_is_sampled_again(home, damage):
    first = remembered_self_sampled_texts(TinyModels())
    [file] = home.iterdir()
    file.write_text(damage)
    assert remembered_self_sampled_texts(TinyModels()) == first
    assert json.loads(file.read_text())["texts"] == first.texts


def test_progress_is_shown_for_every_place(monkeypatch):
    shown = []

    class Bar:
        def __init__(self, what, total):
            shown.append((what, total))

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda *_: None  # noqa: E731

        def update(self):
            shown.append("update")

    monkeypatch.setattr(module, "progress_bar", Bar)
    remembered_self_sampled_texts(TinyModels())
    assert shown == [("sampling texts from tiny", 12), *["update"] * 12]


KNOWN = SelfSampledTexts([[1, 2, 3, 4, 5], [6, 2, 6]], {2: [3, 6, 1], 3: [4, 5, 0]})


@pytest.fixture
def known(monkeypatch):
    for drafter in ("recycling", "suffix"):
        monkeypatch.setattr(f"quasar.drafters.{drafter}.remembered_self_sampled_texts", lambda models: KNOWN)


def loaded(drafter):
    drafter.load(TinyModels())
    return drafter


@pytest.mark.usefixtures("known")
def test_recycling_starts_each_prompt_with_the_same_matrix():
    made = loaded(Recycling(Recycling.Config(max_nodes=3, top_k=2, own_texts=True)))
    start = [(3, 0), (6, 0), (4, 1)]
    ids = [0, 2]
    running = context(ids)
    assert nodes(made.propose(running, [5])) == [start]
    running.verification = verified(Draft.empty(1), logits_of([1, 0], vocab=7))
    ids.append(2)
    assert nodes(made.propose(running, [5])) == [[(1, 0), (0, 0)]]  # learnt from the step
    assert nodes(made.propose(context([5, 2]), [5])) == [start]
    assert made.describe().flat() == {
        "carry_over": False, "own_texts": "8 tokens that the model sampled, with 2 different ones"
    }  # fmt: skip


@pytest.mark.usefixtures("known")
def test_recycling_that_carries_over_starts_with_the_matrix_once():
    made = loaded(Recycling(Recycling.Config(max_nodes=1, top_k=1, own_texts=True, carry_over=True)))
    running = context([0, 2, 2])
    running.verification = verified(Draft.empty(1), logits_of([1], vocab=7))
    assert nodes(made.propose(context([3]), [5])) == [[(4, 0)]]
    made.propose(running, [5])
    assert nodes(made.propose(context([3]), [5])) == [[(4, 0)]]
    assert nodes(made.propose(context([5, 2]), [5])) == [[(1, 0)]]
    assert KNOWN.successors[2] == [3, 6, 1]


@pytest.mark.usefixtures("known")
def test_suffix_copies_from_own_texts_and_from_a_corpus(tmp_path):
    file = tmp_path / "corpus.jsonl"
    file.write_text("[6, 0, 1]\n")
    made = loaded(Suffix(Suffix.Config(own_texts=True, corpus=file, factor=3)))
    assert chains(made.propose(context([3]), [5])) == [[4, 5]]
    assert chains(made.propose(context([6, 0]), [5])) == [[1]]
    assert made.describe().flat() == {
        "corpus": str(file), "own_texts": "8 tokens that the model sampled, with 2 different ones"
    }  # fmt: skip


@pytest.mark.parametrize("kind", [Recycling, Suffix])
def test_the_contract_is_kept(kind):
    check_component(kind, models=TinyModels(), own_texts=True)


def test_nothing_is_sampled_unless_it_is_asked_for(home):
    for kind in (Recycling, Suffix):
        loaded(kind())
    assert not home.exists()
