"""A forward in ranges of layers has the bits of the whole one, and drafting through an exit changes no token."""

import random

import pytest
import torch
from native_models import CHUNK, DTYPES, FAMILIES, PRECISIONS, native, one_by_one, text_of, tree

from quasar.acceptors.coupled import Coupled
from quasar.core.engine import Engine, Request
from quasar.core.sampling import SamplingParams
from quasar.core.types import Draft
from quasar.drafters.layer_skip import LayerSkip
from quasar.drafters.none import NoDraft
from quasar.drafters.pld_plus import PldPlus
from quasar.models.session import Session
from quasar.models.stages import StagedSession
from quasar.verifiers.full import Full

pytestmark = pytest.mark.usefixtures("isa")
every_family = pytest.mark.parametrize("family", FAMILIES)
every_precision = pytest.mark.parametrize("precision", PRECISIONS)


@every_family
@every_precision
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_two_ranges_have_the_bits_of_the_whole(family, precision, dtype, shape):
    runner, rng = native(family, dtype, precision), random.Random(5)
    texts = [text_of(1, CHUNK + 3), text_of(2, 9), text_of(3, 40)]
    draft = Draft.trees([tree(rng, nodes, shape) for nodes in (9, 0, 4)])
    parts, whole = StagedSession(runner, 3, 0, [1]), Session(runner, 3)
    for session in (parts, whole):
        session.forward([text[:-2] for text in texts], Draft.empty(3))
    found, want = parts.forward(texts, draft), whole.forward(texts, draft)
    for row, count in enumerate(draft.num_nodes.tolist()):
        assert torch.equal(found[row, : count + 1], want[row, : count + 1])


@every_precision
def test_what_drafting_ran_has_the_bits_of_the_block(precision):
    runner, text, chain = native("llama-gqa", torch.bfloat16, precision), text_of(4, CHUNK - 2), text_of(5, 4)
    session, draft = StagedSession(runner, 1, 0, [1]), Draft.chains([chain])
    for place in range(4):
        session.exit_logits(1, [[*text, *chain[:place]]])
    assert torch.equal(session.forward([text], draft)[0], one_by_one(runner, text, draft, 0, 1000))


def test_states_are_those_before_the_next_layer():
    runner, text = native("llama-gqa", torch.float32, "full"), text_of(6, 12)
    states = StagedSession(runner, 1, 0, [1]).states(1, [text])[0, : len(text)]
    want = runner.layer_states(torch.tensor([text]))[1][0]
    assert torch.allclose(states, want, rtol=0, atol=1e-4 * float(want.abs().max()))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", [LayerSkip, PldPlus])
@pytest.mark.parametrize("family", ["llama-gqa", "gemma3-mixed"])
def test_texts_are_plain_decodings(family, drafter, temperature):
    sampling = SamplingParams(temperature=temperature, max_new_tokens=24)
    requests = [Request(text_of(seed, length), sampling, str(seed)) for seed, length in ((1, 20), (2, 1), (3, 7))]
    found = []
    for made in (NoDraft(), drafter()):
        verifier = Full()
        verifier.model = native(family, torch.bfloat16, "full")
        made.attach_verifier(verifier)
        found.append(Engine(made, verifier, Coupled()).generate(requests))
    assert [done.token_ids for done in found[0]] == [done.token_ids for done in found[1]]
    assert sum(done.num_drafted for done in found[1]) > 0
