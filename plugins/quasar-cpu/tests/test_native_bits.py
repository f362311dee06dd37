"""The promise of the backend: the logits of a position have the same bits in every block that holds it, and alone."""

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_models import CHUNK, DTYPES, FAMILIES, PRECISIONS, native, one_by_one, text_of, tree, words

from quasar.core.types import Draft
from quasar.models.session import Session

pytestmark = pytest.mark.usefixtures("isa")
every_family = pytest.mark.parametrize("family", FAMILIES)
arms = {"dtype": st.sampled_from(DTYPES), "precision": st.sampled_from(sorted(PRECISIONS))}

lengths = st.one_of(st.integers(2, 30), st.integers(CHUNK - 9, CHUNK + 4), st.integers(2 * CHUNK - 9, 2 * CHUNK + 4))
"""Committed tokens: short, or such that a block crosses the end of a chunk of keys."""

rows = st.fixed_dictionaries(
    {
        "length": lengths,
        "pending": st.integers(1, 12),
        "nodes": st.integers(0, 31),
        "shape": st.sampled_from(["chain", "tree", "star"]),
    }
)


def examples(count):
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


def assert_same_bits(block, alone):
    assert torch.equal(block, alone), f"they differ by {(block - alone).abs().max()} at most"


@every_family
@examples(20)
@given(
    **arms,
    batch=st.lists(rows, min_size=1, max_size=3),
    fresh=st.booleans(),
    capacity=st.sampled_from([0, 700]),
    prefill=st.sampled_from([1, 5, 64, 1000]),
    seed=st.integers(0, 2**32),
)
def test_a_row_of_a_block_equals_that_row_alone(family, dtype, precision, batch, fresh, capacity, prefill, seed):
    runner, rng = native(family, dtype, precision), random.Random(seed)
    texts = [words(rng, row["length"]) for row in batch]
    draft = Draft.trees([tree(rng, row["nodes"], row["shape"]) for row in batch])
    session = Session(runner, len(batch), capacity)
    if not fresh:  # otherwise the texts are prefilled in the block that holds the draft
        cached = [text[: max(1, len(text) - row["pending"])] for text, row in zip(texts, batch, strict=True)]
        session.forward(cached, Draft.empty(len(batch)))
    block = session.forward(texts, draft)
    for row, text in enumerate(texts):
        used = int(draft.num_nodes[row]) + 1
        assert_same_bits(block[row, :used], one_by_one(runner, text, draft, row, prefill))


@every_family
@examples(6)
@given(**arms, row=rows, threads=st.integers(2, 3), seed=st.integers(0, 2**32))
def test_threads_change_no_bit(family, dtype, precision, row, threads, seed):
    runner, rng = native(family, dtype, precision), random.Random(seed)
    text, draft = words(rng, row["length"]), Draft.trees([tree(rng, row["nodes"], row["shape"])])
    alone = Session(runner, 1).forward([text], draft)
    torch.set_num_threads(threads)
    try:
        together = Session(runner, 1).forward([text], draft)
    finally:
        torch.set_num_threads(1)
    assert_same_bits(together, alone)


@every_family
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_cache_that_grows_and_a_draft_that_was_accepted_change_no_bit(family, precision):
    runner, text = native(family, torch.bfloat16, precision), text_of(3, 300)
    roomy, tight = Session(runner, 1, 1000), Session(runner, 1)
    for end in range(100, 300, 25):
        drafted = text[end : end + 8]  # the next step finds these in the cache, and must not compute them again
        want = roomy.forward([text[:end]], Draft.empty(1))
        for more in range(1, 9):
            want = torch.cat([want, roomy.forward([text[: end + more]], Draft.empty(1))], dim=1)
        assert_same_bits(tight.forward([text[:end]], Draft.chains([drafted])), want)


def test_the_comparison_sees_a_single_bit():
    runner, text = native("llama-gqa", torch.float32, "full"), text_of(1, 20)
    draft = Draft.chains([text_of(2, 4)])
    block, alone = Session(runner, 1).forward([text], draft)[0].clone(), one_by_one(runner, text, draft, 0, 1)
    block[2, 5] = torch.nextafter(block[2, 5], torch.tensor(1e9))
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(block, alone)
