"""What the kernels compute is what the model says: against torch in float32, of which only rounding is forgiven."""

import copy
import random

import pytest
import torch
from native_models import FAMILIES, model, module, native, text_of, tree, words

from quasar.core.cache import KVCache
from quasar.core.types import Draft
from quasar.hf.adapter import HFModel
from quasar.models.session import Session
from quasar.verifiers.quantization.reference import Reference

every_family = pytest.mark.parametrize("family", FAMILIES)


class RoundedCache(KVCache):
    """Keys and values as bfloat16 holds them, in float32: the one place where bfloat16 kernels round activations."""

    def write(self, layer, keys, values, entries, end):
        return super().write(layer, keys.bfloat16().float(), values.bfloat16().float(), entries, end)


def logits_of(runner, cache=KVCache):
    """Return the logits of a prompt of two chunks of keys, of a tree behind it, and of a ragged batch."""
    rng = random.Random(11)
    texts = [text_of(1, 140), text_of(2, 9), text_of(3, 31)]
    draft = Draft.trees([tree(rng, 7, "tree"), tree(rng, 12, "chain"), []])
    session = Session(runner, 3, 400)
    session._cache = cache(3, 400)
    first = session.forward([text[:-4] for text in texts], Draft.empty(3))
    block = session.forward(texts, draft)
    drafted = [block[row, : int(count) + 1] for row, count in enumerate(draft.num_nodes)]
    return torch.cat([first[:, 0], *drafted])


def errors(got, want):
    """Return each position's largest error, relative to the spread of the logits."""
    assert got.dtype == torch.float32
    return (got - want).abs().amax(dim=-1) / want.std()


def assert_close(got, want, worst):
    """Hold the best position to float32, and all of them to one step.

    A number that lies between two steps of rounding, to bfloat16 or to int8, may fall to either side, and everything
    after it sees the other step. Such a thing is rare enough to leave a position without it, and most of them small.
    """
    found = errors(got, want)
    assert found.min() < 1e-5, found
    assert found.median() < 5e-3, found
    assert found.max() < worst, found


@every_family
def test_float32_agrees_with_torch(family, isa):
    found = errors(logits_of(native(family, torch.float32, "full")), logits_of(model(family)))
    assert found.median() < 1e-5, found
    assert found.max() < 1e-4, found


@every_family
def test_int8_agrees_with_the_reference(family, isa):
    reference = model(family).sharing_copy()
    Reference.build(reference, "int8")
    assert_close(logits_of(native(family, torch.float32, "int8")), logits_of(reference), worst=0.1)


@every_family
def test_int8_with_activations_of_12_bits_agrees_with_the_reference(family, isa):
    reference = model(family).sharing_copy()
    Reference.build(reference, "int8", activation_bits=12, quantize_lm_head=True)
    found = errors(logits_of(native(family, torch.float32, "w8a12")), logits_of(reference))
    # Steps are 16 times smaller than those of 8 bits, and numbers between two of them so much the more frequent: one
    # may lie in the first position already, which all others see.
    assert found.max() < 0.1 / 16, found


@every_family
def test_activations_of_12_bits_are_nearer_to_full_precision(family, isa):
    full = logits_of(model(family))
    coarse, fine = (logits_of(native(family, torch.float32, precision)) for precision in ("int8", "w8a12"))
    assert errors(fine, full).median() < errors(coarse, full).median()


def widened(family):
    """Return the bfloat16 model's weights in a float32 model, with the constant that Gemma rounds to its dtype."""
    twin = copy.deepcopy(module(family))
    twin.load_state_dict(module(family, torch.bfloat16).state_dict())
    scale = getattr(twin.model.embed_tokens, "embed_scale", None)
    if scale is not None:
        scale.copy_(scale.bfloat16())
    return HFModel(twin, family)


@every_family
def test_bfloat16_rounds_nothing_but_keys_and_values(family, isa):
    got, twin = logits_of(native(family, torch.bfloat16, "full")), widened(family)
    assert_close(got, logits_of(twin, RoundedCache), worst=0.02)
    # Without that rounding every key and value differs by up to half a step, 2^-9 of itself; a sum of a few, by about
    # as much, and the logits of two layers of large weights by several times that.
    assert 2**-10 < errors(got, logits_of(twin)).median() < 2**-5


@every_family
def test_int8_of_bfloat16_weights_agrees_with_the_reference(family, isa):
    twin = widened(family)
    Reference.build(twin, "int8")
    assert_close(logits_of(native(family, torch.bfloat16, "int8")), logits_of(twin, RoundedCache), worst=0.1)


@every_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_portable_kernels_agree_with_the_best(family, dtype, use_isa):
    use_isa("best")
    best = logits_of(native(family, dtype, "full"))
    use_isa("portable")
    assert_close(logits_of(native(family, dtype, "full")), best, worst=0.02)


def test_positions_at_the_end_of_the_model_agree(isa):
    text = [words(random.Random(5), 1020)]
    runners = native("llama-gqa", torch.float32, "full"), model("llama-gqa")
    got, want = (Session(runner, 1).forward(text, Draft.empty(1))[0] for runner in runners)
    assert errors(got, want).max() < 1e-4
