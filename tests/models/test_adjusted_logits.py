"""A verifier that changes logits: what it says counts wherever its distribution does, and its model stays as it is."""

from __future__ import annotations

import pytest
import torch

from quasar.acceptors.stochastic import Stochastic
from quasar.compare.replay import replay, uniform_steps
from quasar.core.context import Context
from quasar.core.engine import Engine, Request
from quasar.core.errors import ContractError
from quasar.core.rows import Row, TokenView
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams
from quasar.core.types import Draft
from quasar.drafters.ngram import Ngram
from quasar.drafters.none import NoDraft
from quasar.fidelity.measure import Continuation, teacher_forced, verifier_logits
from quasar.models import ModelVerifier, target_on_backend
from quasar.testing import TinyModels, check_component
from quasar.verifiers.quasar import Quasar

PROMPT = [1, 2, 3, 1, 2, 3, 1]
CHAINS = Draft.chains([[2, 3, 1], [], [5]])


class Reversed(ModelVerifier):
    """Turns what the target likes most into what it likes least; the last token before a slot is not repeated."""

    name = "reversed"
    precision = "full precision, reversed"

    def load_model(self, models):
        return target_on_backend(models, "float64").model

    def adjust(self, logits, context, draft):
        last = torch.tensor([[row.token_ids[-1]] for row in context.rows])
        before = torch.cat([last, draft.token_ids.where(torch.arange(draft.nodes) < draft.num_nodes[:, None], 0)], 1)
        return (-logits).scatter(2, before[..., None], -1e4)


class Plain(Reversed):
    """The target, named otherwise."""

    name = "plain"
    adjust = ModelVerifier.adjust


def loaded(verifier):
    verifier.load(TinyModels())
    return verifier


def context(*texts, temperature=1.0):
    rows = tuple(Row(TokenView(ids), len(ids), str(ids), 0, SamplingParams(temperature=temperature)) for ids in texts)
    return Context(rows, Streams([(0, row.prompt_id, 0) for row in rows]))


def verified(verifier, draft=CHAINS, temperature=1.0):
    place = context(PROMPT, [4, 5], [6], temperature=temperature)
    return place, loaded(verifier).verify(place, draft)


def test_the_class_keeps_the_contract():
    check_component(Reversed, models=TinyModels())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_verification_holds_adjusted_logits_and_the_distributions_that_they_make(temperature):
    place, found = verified(Reversed(), temperature=temperature)
    _, plain = verified(Plain(), temperature=temperature)
    expected = Reversed().adjust(plain.logits, place, CHAINS)
    assert torch.equal(found.logits, expected)
    assert torch.equal(found.probs, place.distributions(expected, CHAINS))
    assert not torch.equal(found.probs, plain.probs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_its_texts_do_not_depend_on_the_draft_and_are_replayed(temperature):
    sampling = SamplingParams(temperature=temperature, max_new_tokens=24)
    request = Request(PROMPT, sampling, "prompt")
    verifier = loaded(Reversed())
    texts = {
        name: Engine(drafter, verifier, Stochastic()).generate([request])[0].token_ids
        for name, drafter in (("plain", NoDraft()), ("ngram", Ngram()))
    }
    assert texts["plain"] == texts["ngram"]
    assert all(a != b for a, b in zip(texts["plain"], texts["plain"][1:], strict=False))
    for rows in (1, 4):
        scores = replay(verifier, request, texts["plain"], uniform_steps(len(texts["plain"]), rows))
        assert scores.argmax(dim=-1).tolist() == list(texts["plain"])


def test_the_two_models_of_a_mixed_verifier_are_adjusted_where_each_of_them_speaks():
    alone = {kind: verified(kind())[1].logits for kind in (Reversed, Plain)}
    _, found = verified(Quasar(Quasar.Config(mode="verify_only", int8=Reversed(), full=Plain())))
    for row, kind in enumerate((Reversed, Plain, Reversed)):  # the second row has no draft
        slots = int(CHAINS.num_nodes[row]) + 1
        assert torch.allclose(found.logits[row, :slots], alone[kind][row, :slots], rtol=0, atol=1e-9)


def test_fidelity_judges_what_the_verifier_says():
    verifier, text = loaded(Reversed()), Continuation("task", tuple(PROMPT), (2, 3, 4))
    whole = Draft.chains([list(text.token_ids[:-1])])
    expected = loaded(Reversed()).verify(context(PROMPT), whole).logits[0]
    assert torch.allclose(verifier_logits(verifier.model, verifier, text), expected, rtol=0, atol=1e-9)
    assert not torch.allclose(teacher_forced(verifier.model, text), expected)


def test_a_class_that_changes_logits_does_not_call_itself_the_target():
    with pytest.raises(ContractError, match=r"class Sly changes logits.* 'full'; name what it is by its `precision`"):

        class Sly(Reversed):
            precision = "full"


@pytest.mark.parametrize(("returned", "named"), [(None, "NoneType"), (torch.zeros(3, 1, 7), "[3, 1, 7]")])
def test_what_is_not_adjusted_logits_is_refused_in_one_line(returned, named):
    with pytest.raises(ContractError) as caught:
        verified(type("Wrong", (Reversed,), {"adjust": lambda *_: returned})())
    expected = f"verifier 'reversed': 'adjust' should return logits of shape [3, 4, 7], got {named}."
    assert str(caught.value) == expected
