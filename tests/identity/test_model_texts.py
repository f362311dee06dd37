"""Drafts from models: a model that drafts for itself is always right, and any other leaves the text as it is."""

from functools import cache

import pytest
import torch
from doubles import WatchedVerifier
from harness import PROMPTS, adaptive, generate, params, plain, requests, texts, union
from tiny_models import FAMILIES, MAX_LENGTH, SLIDING, VOCAB, WINDOW, Models, tiny_model

from quasar.acceptors.coupled import Coupled
from quasar.acceptors.relaxed import Relaxed
from quasar.acceptors.stochastic import Stochastic
from quasar.core.engine import Engine
from quasar.drafters.draft_model import DraftModel
from quasar.drafters.none import NoDraft
from quasar.drafters.pruned import Pruned
from quasar.drafters.recycling import Recycling
from quasar.drafters.suffix import Suffix
from quasar.drafters.universal import Universal
from quasar.models.session import Session
from quasar.verifiers.int8 import Int8
from quasar.verifiers.pruned import Pruned as PrunedVerifier

NAMES = tuple(PROMPTS)
SHAPES = {
    "chain": {"num_speculative_tokens": 4},
    "two chains": {"num_speculative_tokens": 4, "num_drafts": 2},
    "tree": {"expansion": (2, 1, 2, 1)},
}
FULL_BLOCKS = 1 + 3 * 5
every_family = pytest.mark.parametrize("family", FAMILIES)
every_shape = pytest.mark.parametrize("shape", SHAPES)
chains_everywhere_and_trees = pytest.mark.parametrize(
    ("family", "shape"),
    [(family, "chain") for family in FAMILIES]
    + [(family, shape) for family in ("llama-gqa", "gpt2", "gemma3-mixed") for shape in ("two chains", "tree")],
)
any_temperature = pytest.mark.parametrize("temperature", [0.0, 1.0])
cold_or_coupled = pytest.mark.parametrize(
    ("temperature", "acceptor"), [(0.0, Stochastic()), (1.0, Coupled())], ids=["cold", "coupled"]
)


@cache
def models_of(family):
    """The same models for all tests of a family, so that block influence is measured once."""
    return Models(tiny_model(family))


def loaded(component, models):
    component.load(models)
    return component


def draft_model(family, draft_family=None, **options):
    """A draft model of another family; the target itself if none is named."""
    other = {} if draft_family is None else {"same": tiny_model(draft_family)}
    config = DraftModel.Config(model="same" if other else None, **options)
    return loaded(DraftModel(config), Models(tiny_model(family), **other))


# --- a model that drafts for itself -----------------------------------------------------------------------------------


@chains_everywhere_and_trees
@any_temperature
def test_a_model_that_drafts_for_itself_is_accepted_to_the_end(family, temperature, shape):
    sampling = params(temperature, max_new_tokens=FULL_BLOCKS)
    drafted = generate(family, draft_model(family, **SHAPES[shape]), requests(NAMES, sampling))
    assert [done.acceptance_length for done in drafted] == [5.0] * len(NAMES)
    if temperature == 0:
        assert texts(drafted) == texts(plain(family, NAMES, sampling))


@every_shape
@pytest.mark.parametrize("acceptor", [Stochastic(), Coupled()])
def test_a_model_that_drafts_for_itself_under_processors_is_accepted_to_the_end(shape, acceptor):
    sampling = params(
        0.8, max_new_tokens=FULL_BLOCKS, repetition_penalty=1.5, presence_penalty=0.5, no_repeat_ngram_size=2,
        min_new_tokens=9, top_k=20, top_p=0.9,
    )  # fmt: skip
    wanted = requests(NAMES, sampling, eos_ids=(5, 6))
    drafted = generate("llama-gqa", draft_model("llama-gqa", **SHAPES[shape]), wanted, acceptor=acceptor)
    assert [done.acceptance_length for done in drafted] == [5.0] * len(NAMES)


def test_a_copy_of_the_target_needs_no_other_model():
    sampling = params(0.0, max_new_tokens=FULL_BLOCKS)
    int8 = Int8(Int8.Config(backend="reference", dtype="float64"))
    drafter = loaded(DraftModel(DraftModel.Config(target_copy=int8)), Models(tiny_model("llama-gqa")))
    drafted = generate("llama-gqa", drafter, requests(NAMES, sampling))
    assert texts(drafted) == texts(plain("llama-gqa", NAMES, sampling))
    assert drafter.model is int8.model
    assert drafter.describe()["backend"] == "reference"
    on_int8 = Engine(drafter, int8, Stochastic()).generate(requests(NAMES, sampling))
    assert [done.acceptance_rate for done in on_int8] == [1.0] * len(NAMES)


# --- any other model --------------------------------------------------------------------------------------------------


@chains_everywhere_and_trees
@cold_or_coupled
def test_text_is_that_of_plain_decoding(family, shape, temperature, acceptor):
    length = 5 * WINDOW + 4 if family in SLIDING else 16
    sampling = params(temperature, max_new_tokens=length)
    drafter = draft_model(family, "qwen3" if family != "qwen3" else "gemma3-mixed", **SHAPES[shape])
    drafted = generate(family, drafter, requests(NAMES, sampling), acceptor=acceptor)
    assert texts(drafted) == texts(plain(family, NAMES, sampling))
    assert sum(done.num_drafted for done in drafted) > 0


@every_shape
@cold_or_coupled
def test_doubtful_drafts_leave_the_text_as_it_is(shape, temperature, acceptor):
    drafter = draft_model("gemma3-mixed", "qwen3", **SHAPES[shape], min_confidence=0.3)
    drafted = generate("gemma3-mixed", drafter, requests(NAMES, params(temperature)), acceptor=acceptor)
    assert texts(drafted) == texts(plain("gemma3-mixed", NAMES, params(temperature)))
    assert len({step.drafted for done in drafted for step in done.steps}) > 2


def test_doubt_shortens_drafts():
    sampling = params(0.0)
    drafted = [
        sum(done.num_drafted for done in generate("gpt2", draft_model("gpt2", "qwen3", **options), requests(NAMES, sampling)))
        for options in ({}, {"min_confidence": 0.3}, {"min_confidence": 1.0})
    ]  # fmt: skip
    assert drafted[0] > drafted[1] > drafted[2] == 0


def test_a_chain_forwards_every_token_once():
    sampling, gamma = params(0.0, max_new_tokens=FULL_BLOCKS), 4
    drafter, sessions = draft_model("llama-gqa", "gpt2", num_speculative_tokens=gamma), []

    def noted(*args):
        sessions.append(Session(*args))
        return sessions[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quasar.models.drafter.Session", noted)
        (done,) = generate("llama-gqa", drafter, requests(("long",), sampling))
    (session,) = sessions
    # a step forwards what it missed of the last one, two tokens at most, and its own tokens but the last
    assert session.columns_forwarded <= len(PROMPTS["long"]) + done.num_steps * (gamma + 1)


def narrow(size, max_length=MAX_LENGTH):
    """A draft model with another number of token ids, and of positions."""
    import transformers

    from quasar.hf.adapter import HFModel

    torch.manual_seed(4)
    config = transformers.GPT2Config(
        vocab_size=size, n_embd=32, n_layer=2, n_head=4, n_positions=max_length, initializer_range=0.3,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return HFModel(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64), "narrow")


@pytest.mark.parametrize("size", [VOCAB - 40, VOCAB + 31])
@every_shape
@any_temperature
def test_a_vocabulary_that_is_padded_or_cut_leaves_the_text_as_it_is(size, shape, temperature):
    models, sampling = Models(tiny_model("llama-gqa"), same=narrow(size)), params(temperature)
    drafter = loaded(DraftModel(DraftModel.Config(model="same", **SHAPES[shape])), models)
    drafted = generate("llama-gqa", drafter, requests(NAMES, sampling), acceptor=Coupled())
    assert texts(drafted) == texts(plain("llama-gqa", NAMES, sampling))
    assert sum(done.num_drafted for done in drafted) > 0


def test_a_row_that_may_say_nothing_of_what_the_draft_model_knows_is_not_drafted():
    sampling = params(1.0, suppress_tokens=tuple(range(VOCAB - 40)))
    drafter = loaded(
        DraftModel(DraftModel.Config(model="same")), Models(tiny_model("llama-gqa"), same=narrow(VOCAB - 40))
    )
    drafted = generate("llama-gqa", drafter, requests(NAMES, sampling))
    assert [done.num_drafted for done in drafted] == [0] * len(NAMES)


def test_a_mixture_has_a_law_even_there_and_keeps_to_what_is_allowed():
    allowed = range(VOCAB - 40, VOCAB)
    sampling = params(1.0, suppress_tokens=tuple(range(VOCAB - 40)))
    models = Models(tiny_model("llama-gqa"), same=narrow(VOCAB - 40))
    drafter = loaded(DraftModel(DraftModel.Config(model="same", next_distributions=True)), models)
    relaxed = Relaxed(Relaxed.Config(weight=0.5))
    drafted = generate("llama-gqa", drafter, requests(NAMES, sampling), acceptor=relaxed)
    assert {token for done in drafted for token in done.token_ids} <= set(allowed)
    assert texts(drafted) != texts(plain("llama-gqa", NAMES, sampling))


@every_shape
def test_a_draft_model_with_fewer_positions_drafts_as_far_as_it_can(shape):
    sampling = params(0.0, max_new_tokens=24)
    drafter = loaded(
        DraftModel(DraftModel.Config(model="same", **SHAPES[shape])), Models(tiny_model("gpt2"), same=narrow(VOCAB, 20))
    )
    drafted = generate("gpt2", drafter, requests(NAMES, sampling))
    assert texts(drafted) == texts(plain("gpt2", NAMES, sampling))
    long, single = drafted[NAMES.index("long")], drafted[NAMES.index("single")]
    assert 0 < long.num_drafted < single.num_drafted
    assert [step.drafted for step in long.steps[-3:]] == [0] * 3


# --- pruned copies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "method"),
    [(family, "last") for family in FAMILIES] + [("gemma3-mixed", "block_influence"), ("gemma3-mixed", "uniform")],
)
@cold_or_coupled
def test_a_pruned_copy_that_drafts_leaves_the_text_as_it_is(family, method, temperature, acceptor):
    length = 5 * WINDOW + 4 if family in SLIDING else 16
    sampling = params(temperature, max_new_tokens=length)
    drafter = loaded(Pruned(Pruned.Config(ratio=0.5, method=method)), models_of(family))
    drafted = generate(family, drafter, requests(NAMES, sampling), acceptor=acceptor)
    assert texts(drafted) == texts(plain(family, NAMES, sampling))
    assert drafter.model.num_layers == 1


@every_family
@any_temperature
def test_drafts_on_a_pruned_verifier_give_the_text_of_plain_decoding_on_it(family, temperature):
    models, sampling = models_of(family), params(temperature, max_new_tokens=24)
    verifier = loaded(PrunedVerifier(PrunedVerifier.Config(ratio=0.5, method="last")), models)
    alone = Engine(NoDraft(), verifier, Stochastic()).generate(requests(NAMES, sampling))
    drafter = loaded(DraftModel(), models)
    drafted = Engine(drafter, verifier, Coupled()).generate(requests(NAMES, sampling))
    assert texts(drafted) == texts(alone)
    assert texts(alone) != texts(plain(family, NAMES, sampling))
    # the same copy as drafter is always right, and the target itself is as it was
    own = loaded(Pruned(Pruned.Config(ratio=0.5, method="last")), models)
    mirrored = Engine(own, verifier, Stochastic()).generate(requests(NAMES, params(temperature, max_new_tokens=16)))
    assert [done.acceptance_length for done in mirrored] == [5.0] * len(NAMES)
    watched = Engine(NoDraft(), WatchedVerifier(tiny_model(family)), Stochastic())
    assert texts(watched.generate(requests(NAMES, sampling))) == texts(plain(family, NAMES, sampling))


# --- models inside drafters of drafters -------------------------------------------------------------------------------

COMPOSITES = {
    "union with a model": lambda family: union(Suffix(), draft_model(family, "qwen2", num_drafts=2), Recycling()),
    "union of two models": lambda family: union(
        draft_model(family, "qwen2", expansion=(2, 1)), loaded(Pruned(Pruned.Config(ratio=0.5)), models_of(family))
    ),
    "adaptive model": lambda family: adaptive(draft_model(family, "qwen2", num_speculative_tokens=6)),
    "adaptive pruned": lambda family: adaptive(
        loaded(Pruned(Pruned.Config(ratio=0.5, method="last", num_drafts=2)), models_of(family))
    ),
    "adaptive union": lambda family: adaptive(
        union(draft_model(family, "qwen2", min_confidence=0.2), Suffix(), draft_model(family))
    ),
}


@pytest.mark.parametrize("family", ["llama-gqa", "gpt2", "gemma3-mixed"])
@pytest.mark.parametrize("name", COMPOSITES)
@cold_or_coupled
def test_models_in_unions_and_under_a_schedule_leave_the_text_as_it_is(family, name, temperature, acceptor):
    sampling = params(temperature, max_new_tokens=5 * WINDOW + 4 if family in SLIDING else 16)
    drafted = generate(family, COMPOSITES[name](family), requests(NAMES, sampling), acceptor=acceptor)
    assert texts(drafted) == texts(plain(family, NAMES, sampling))
    assert sum(done.num_drafted for done in drafted) > 0


# --- another tokenizer ------------------------------------------------------------------------------------------------


@every_family
@any_temperature
def test_a_model_with_another_tokenizer_leaves_the_text_as_it_is(family, temperature):
    sampling, draft_family = params(temperature, max_new_tokens=24), "gpt2" if family != "gpt2" else "gemma3-sliding"
    drafter = loaded(
        Universal(Universal.Config(model="other")), Models(tiny_model(family), other=tiny_model(draft_family))
    )
    drafted = generate(family, drafter, requests(NAMES, sampling))
    assert texts(drafted) == texts(plain(family, NAMES, sampling))
    assert sum(done.num_drafted for done in drafted) > 0


def test_the_target_itself_through_text_is_accepted_to_the_end():
    sampling = params(0.0, max_new_tokens=FULL_BLOCKS)
    drafter = loaded(
        Universal(Universal.Config(model="same")), Models(tiny_model("llama-gqa"), same=tiny_model("llama-gqa"))
    )
    drafted = generate("llama-gqa", drafter, requests(NAMES, sampling))
    assert [done.acceptance_length for done in drafted] == [5.0] * len(NAMES)
