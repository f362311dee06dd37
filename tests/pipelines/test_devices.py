"""Acceptors, laws and processors on a device: no tensor of the host meets one of the device, and nothing changes."""

from dataclasses import replace

import pytest
import torch
from elsewhere import DEVICE, Elsewhere, Watch

from quasar import Draft, SamplingParams, Verification
from quasar.acceptors.block import BlockVerification
from quasar.acceptors.coupled import Coupled
from quasar.acceptors.greedy import Greedy
from quasar.acceptors.k_seq import KSeq
from quasar.acceptors.relaxed import Relaxed
from quasar.acceptors.stochastic import Stochastic
from quasar.acceptors.top_k_ratio import TopKRatio
from quasar.acceptors.typical import Typical
from quasar.core.context import Context, Row, TokenView
from quasar.core.streams import Streams
from quasar.core.types import POINT_MASS, Trials
from quasar.drafters.bigram import Bigram
from quasar.drafters.ngram import Ngram
from quasar.hf.processors import build_processors

VOCAB, EOS = 11, (3,)
TEXTS = ((1, 2, 5, 1, 2), (4, 4, 4), (7, 1, 2, 9, 1))
CONTROLS = {
    "none": {},
    "all": {
        "top_k": 9, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2, "presence_penalty": 0.3,
        "frequency_penalty": 0.2, "logit_bias": {1: 0.5}, "suppress_tokens": [8], "bad_words_ids": [[1], [2, 5]],
        "no_repeat_ngram_size": 3, "min_new_tokens": 4,
    },
}  # fmt: skip

ACCEPTORS = {
    "stochastic": Stochastic(),
    "block": BlockVerification(),
    "k_seq": KSeq(),
    "coupled": Coupled(),
    "greedy": Greedy(),
    "relaxed": Relaxed(Relaxed.Config(weight=0.6, relax_temperature=0.8)),
    "typical": Typical(),
    "top_k_ratio": TopKRatio(TopKRatio.Config(ratio=0.1, relax_temperature=0.8)),
}


def context(temperature, controls):
    """Return a context; its processors are new, because some put a table where they are first used."""
    sampling = SamplingParams(temperature=temperature, **controls)
    rows = tuple(
        Row(TokenView(list(ids)), 2, str(i), 0, sampling, build_processors(sampling, 2, EOS))
        for i, ids in enumerate(TEXTS)
    )
    return Context(rows, Streams([(0, str(i), 0) for i in range(len(TEXTS))]), eos_ids=EOS)


def chains(laws):
    return Draft.chains([[5, 1, 2], [4], []])


def tree(laws):
    return Draft.trees([[(5, 0), (1, 0), (2, 1)], [(4, 0), (1, 0), (6, 2)], [(0, 0)]])


def sampled(laws):
    draft = Draft.chains([[5, 1], [4, 6], [2]], laws[:, :2])
    return replace(draft, next_distributions=laws[:, :3])


def mixed(laws):
    draft = tree(laws)
    trials = Trials(
        torch.tensor([[1, 2, 3], [1, 2, 3], [1, 0, 0]]), torch.tensor([[0, POINT_MASS, 1]] * 3), laws[:, :2]
    )
    return replace(draft, trials=trials)


def judge(acceptor, make, temperature, controls, device):
    generator = torch.Generator().manual_seed(3)
    laws = torch.randn((len(TEXTS), 3, VOCAB), generator=generator).softmax(dim=-1).to(device)
    logits = (3 * torch.randn((len(TEXTS), 4, VOCAB), generator=generator)).to(device)
    running, draft = context(temperature, controls), make(laws)
    logits = logits[:, : draft.nodes + 1]
    found = acceptor.accept(Verification(draft, running.distributions(logits, draft), logits), running)
    return found.path.tolist(), found.num_accepted.tolist(), found.next_token.tolist()


@pytest.mark.parametrize("controls", CONTROLS.values(), ids=CONTROLS)
@pytest.mark.parametrize("make", [chains, tree, sampled, mixed])
@pytest.mark.parametrize("name", ACCEPTORS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_acceptor_decides_on_a_device_as_on_the_host(name, make, temperature, controls):
    if name == "greedy" and temperature > 0:
        return
    here = judge(ACCEPTORS[name], make, temperature, controls, "cpu")
    with Watch():
        assert judge(ACCEPTORS[name], make, temperature, controls, DEVICE) == here


def propose(drafter, device):
    running = context(0.9, CONTROLS["all"])
    logits = torch.randn((len(TEXTS), 1, VOCAB), generator=torch.Generator().manual_seed(3)).to(device)
    nothing = Draft.empty(len(TEXTS))
    running.verification = Verification(nothing, running.distributions(logits, nothing), logits)
    draft = drafter.propose(running, [3, 2, 3])
    return draft.token_ids.tolist(), draft.num_nodes.tolist()


@pytest.mark.parametrize("drafter", [Ngram(Ngram.Config(preset="transformers")), Bigram()], ids=lambda d: d.name)
def test_a_drafter_that_uses_laws_or_processors_drafts_the_same(drafter):
    here = propose(drafter, "cpu")
    with Watch():
        assert propose(drafter, DEVICE) == here


@pytest.mark.parametrize(
    "mix",
    [
        lambda there, here: there + here,
        lambda there, here: (there > 0) & (here > 0),
        lambda there, here: torch.where(here > 0, there, 0.0),
        lambda there, here: there.gather(0, here.long()),
        lambda there, here: here[there.long()],
        lambda there, here: torch.cat([there, here]),
        lambda there, here: there.index_fill(0, here.long(), 1.0),
    ],
)
def test_the_double_refuses_what_a_device_refuses(mix):
    with Watch():
        there, here = torch.ones(2).to(DEVICE), torch.ones(2)
        assert isinstance(there, Elsewhere)
        with pytest.raises(RuntimeError, match="same device"):
            mix(there, here)


def test_the_double_takes_what_a_device_takes():
    with Watch():
        there = torch.arange(3.0, device=DEVICE)
        assert (there + torch.tensor(1.0)).cpu().tolist() == [1, 2, 3]
        assert there[torch.tensor([2, 0])].cpu().tolist() == [2, 0]
        there[torch.tensor([1])] = torch.tensor([7.0], device=DEVICE)
        assert there.cpu().tolist() == [0, 7, 2]
