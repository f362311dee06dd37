"""What a verifier or an acceptor returns is refused in one line before anything is committed."""

from dataclasses import replace

import pytest
import torch

from quasar.acceptors.stochastic import Stochastic
from quasar.core.engine import Engine, Request
from quasar.core.errors import ContractError
from quasar.core.sampling import SamplingParams
from quasar.core.step_contract import check_acceptance, check_verification
from quasar.core.types import Acceptance, Draft, OneHot, Verification
from quasar.drafters.none import NoDraft
from quasar.testing import TinyModels
from quasar.verifiers.full import Full

VOCAB = 5
DRAFT = Draft.trees([[(1, 0), (2, 0), (3, 1)], []])
PROBS = torch.full((2, 4, VOCAB), 1 / VOCAB)
GOOD = Verification(DRAFT, PROBS, PROBS.log())
KEPT = Acceptance(torch.tensor([[1, 3], [0, 0]]), torch.tensor([2, 0]), torch.tensor([4, 0]))


def test_what_fits_passes():
    check_verification(GOOD, DRAFT, VOCAB, "v")
    check_verification(GOOD, DRAFT, None, "v")
    check_verification(Verification(DRAFT, OneHot(torch.zeros(2, 4).long(), VOCAB, torch.float32)), DRAFT, VOCAB, "v")
    check_acceptance(KEPT, GOOD, "a")
    check_acceptance(Acceptance(torch.zeros(2, 0).long(), torch.zeros(2).long(), torch.ones(2).long()), GOOD, "a")


@pytest.mark.parametrize(
    ("verification", "message"),
    [
        (PROBS, "the value should be a Verification, got Tensor"),
        (replace(GOOD, draft=Draft.empty(2)), "draft should be the draft that was to be verified, got another one"),
        (replace(GOOD, distributions=PROBS[:, :1]), r"distributions should be of shape [2, 4, 5], got [2, 1, 5]"),
        (replace(GOOD, distributions=PROBS[..., :3]), r"distributions should be of shape [2, 4, 5], got [2, 4, 3]"),
        (replace(GOOD, distributions=PROBS.half()), "distributions should be float32 or float64, got torch.float16"),
        (replace(GOOD, logits=PROBS[0]), r"logits should be of shape [2, 4, 5], got [4, 5]"),
    ],
)
def test_a_bad_verification_is_refused(verification, message):
    with pytest.raises(ContractError) as caught:
        check_verification(verification, DRAFT, VOCAB, "mine")
    assert str(caught.value) == f"verifier 'mine' returned a bad verification: {message}."


@pytest.mark.parametrize(
    ("acceptance", "message"),
    [
        (None, "the value should be an Acceptance, got NoneType"),
        (
            replace(KEPT, next_token=torch.tensor([[4], [0]])),
            "next_token should be int64 of shape [2] on cpu, got torch.int64 of shape [2, 1] on cpu",
        ),
        (
            replace(KEPT, num_accepted=torch.tensor([2.0, 0.0])),
            "num_accepted should be int64 of shape [2] on cpu, got torch.float32 of shape [2] on cpu",
        ),
        (replace(KEPT, path=[[1, 3], [0, 0]]), "path should be a tensor, got list"),
        (replace(KEPT, next_token=torch.tensor([4, 5])), "next_token should be within 0..4, got [4, 5]"),
        (
            replace(KEPT, path=torch.tensor([[2, 3], [0, 0]])),
            "path should be slots that each follow the one before, from slot 0 on, got [2, 3] in row 0",
        ),
        (
            replace(KEPT, num_accepted=torch.tensor([2, 1])),
            "path should be slots that each follow the one before, from slot 0 on, got [0] in row 1",
        ),
    ],
)
def test_a_bad_acceptance_is_refused(acceptance, message):
    with pytest.raises(ContractError) as caught:
        check_acceptance(acceptance, GOOD, "mine")
    assert str(caught.value) == f"acceptor 'mine' returned a bad acceptance: {message}."


class Narrow(Full):
    """Says nothing of the last token of the vocabulary."""

    def verify(self, context, draft):
        found = super().verify(context, draft)
        return context.verification_of(draft, found.logits[..., :-1])


class Silent(Stochastic):
    """Returns nothing."""

    def accept(self, verification, context):
        return None


@pytest.mark.parametrize(
    ("verifier", "acceptor", "named"),
    [(Narrow, Stochastic, "verifier 'full'"), (Full, Silent, "acceptor 'stochastic'")],
)
def test_the_engine_looks_at_both(verifier, acceptor, named):
    checker = verifier()
    checker.load(TinyModels())
    with pytest.raises(ContractError, match=f"^{named} returned a bad "):
        Engine(NoDraft(), checker, acceptor()).generate([Request((1, 2), SamplingParams())])
