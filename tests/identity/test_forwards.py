"""One forward over a block gives what separate forwards over its paths give, whatever the session did before."""

import random

import pytest
import torch
from harness import PROMPTS
from tiny_models import FAMILIES, VOCAB, WINDOW, rounding, tiny_model

from quasar.core import trees
from quasar.core.types import Draft
from quasar.models import session as session_module
from quasar.models.session import Session


def alone(model, ids) -> torch.Tensor:
    """Logits after ``ids``, from the module itself, without any cache of ours."""
    with torch.inference_mode():
        return model.module(torch.tensor([list(ids)])).logits[0, -1]


def random_tree(chance: random.Random, size: int) -> list[tuple[int, int]]:
    return [(chance.randrange(VOCAB), chance.randrange(node + 1)) for node in range(size)]


def assert_every_path_is_right(model, texts, draft, logits) -> None:
    for row, text in enumerate(texts):
        for slot, path in enumerate(trees.prefixes(draft, row)):
            expected = alone(model, [*text, *path])
            assert torch.allclose(logits[row, slot], expected, rtol=0, atol=rounding(model.name))


@pytest.mark.parametrize("family", FAMILIES)
def test_one_forward_over_a_tree_gives_the_logits_of_its_separate_paths(family):
    model, chance = tiny_model(family), random.Random(1)
    texts = [list(PROMPTS["long"]), list(PROMPTS["single"]), list(PROMPTS["looping"]) * 3]
    draft = Draft.trees([random_tree(chance, size) for size in (7, 4, 0)])
    logits = Session(model, 3).forward(texts, draft)
    assert_every_path_is_right(model, texts, draft, logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chain_deeper_than_the_window_is_right_at_every_place(family):
    model, chance = tiny_model(family), random.Random(2)
    text, chain = list(PROMPTS["looping"]), [chance.randrange(VOCAB) for _ in range(2 * WINDOW)]
    draft = Draft.chains([chain])
    assert_every_path_is_right(model, [text], draft, Session(model, 1).forward([text], draft))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_deeper_than_the_window_is_right_along_its_trunk(family):
    # every node of the trunk has a sibling before it, so that cache entries run ahead of positions
    model, chance, nodes, trunk = tiny_model(family), random.Random(4), [], 0
    for _ in range(WINDOW + 4):
        nodes += [(chance.randrange(VOCAB), trunk), (chance.randrange(VOCAB), trunk)]
        trunk = len(nodes)
    text, draft = list(PROMPTS["looping"]), Draft.trees([nodes])
    assert_every_path_is_right(model, [text], draft, Session(model, 1).forward([text], draft))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_session_is_right_after_any_history(family, batch):
    # accepted and rejected paths, texts that jump ahead, that shrink, and that are replaced
    model, chance = tiny_model(family), random.Random(3)
    session = Session(model, batch)
    texts = [[chance.randrange(VOCAB) for _ in range(2 + 4 * row)] for row in range(batch)]
    for _ in range(7):
        draft = Draft.trees([random_tree(chance, chance.randrange(6)) for _ in texts])
        logits = session.forward(texts, draft)
        assert_every_path_is_right(model, texts, draft, logits)
        for row, text in enumerate(texts):
            texts[row] = changed(chance, text, chance.choice(trees.prefixes(draft, row)))


def changed(chance: random.Random, text: list[int], path: list[int]) -> list[int]:
    kind = chance.choice(["step", "step", "step", "ahead", "shrink", "replace"])
    if kind == "step":
        return [*text, *path, chance.randrange(VOCAB)]
    if kind == "ahead":
        return [*text, *path, *(chance.randrange(VOCAB) for _ in range(4))]
    if kind == "shrink":
        return text[: max(1, len(text) - chance.randrange(1, 5))]
    return [chance.randrange(VOCAB) for _ in range(chance.randrange(1, 9))]


@pytest.mark.parametrize("family", ["llama-gqa", "gpt2", "gemma3-mixed"])
def test_a_prompt_read_in_chunks_gives_the_same_logits(family, monkeypatch):
    monkeypatch.setattr(session_module, "PREFILL_CHUNK", 5)
    model = tiny_model(family)
    texts, draft = [list(ids) for ids in PROMPTS.values()], Draft.chains([[4, 9], [], [1]])
    assert_every_path_is_right(model, texts, draft, Session(model, 3).forward(texts, draft))


def test_a_chunk_bounds_the_columns_of_one_forward(monkeypatch):
    monkeypatch.setattr(session_module, "PREFILL_CHUNK", 5)
    model = tiny_model("llama-gqa")
    widths = []
    forward = model.forward
    monkeypatch.setattr(
        model, "forward", lambda block, cache: widths.append(block.token_ids.shape[1]) or forward(block, cache)
    )
    Session(model, 1).forward([list(PROMPTS["long"])], Draft.empty(1))
    assert max(widths) <= 5


def test_a_cache_that_grows_keeps_what_it_holds():
    model, text = tiny_model("llama-gqa"), [(3 * place) % VOCAB for place in range(150)]
    session = Session(model, 1, capacity=4)
    for length in (3, 70, 150):
        logits = session.forward([text[:length]], Draft.empty(1))
        assert torch.allclose(logits[0, 0], alone(model, text[:length]), rtol=0, atol=1e-9)


def test_the_path_that_was_accepted_is_not_forwarded_again():
    model, session = tiny_model("llama-gqa"), Session(tiny_model("llama-gqa"), 1)
    text, draft = list(PROMPTS["looping"]), Draft.trees([[(1, 0), (2, 0), (3, 2), (4, 2), (5, 4)]])
    session.forward([text], draft)
    before = session.columns_forwarded
    logits = session.forward([[*text, 2, 4, 5, 60]], Draft.empty(1))
    assert session.columns_forwarded == before + 1
    assert torch.allclose(logits[0, 0], alone(model, [*text, 2, 4, 5, 60]), rtol=0, atol=1e-9)
