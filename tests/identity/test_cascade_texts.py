"""Cascades: whatever the inner levels say, the text is plain decoding's, and each level counts its own."""

import pytest
from doubles import Truth
from harness import DRAFTERS, PROMPTS, generate, ngram, params, plain, requests, texts, truth
from tiny_models import MAX_LENGTH, Models, tiny_model

from quasar.acceptors.coupled import Coupled
from quasar.acceptors.stochastic import Stochastic
from quasar.core.components import Acceptor, Drafter, Verifier
from quasar.core.engine import Engine
from quasar.core.records import Generation
from quasar.drafters.cascade import Cascade
from quasar.drafters.none import NoDraft
from quasar.verifiers.full import Full
from quasar.verifiers.int8 import Int8
from quasar.verifiers.pruned import Pruned

NAMES = tuple(PROMPTS)
families = pytest.mark.parametrize("family", ["llama-gqa", "gpt2", "gemma3-mixed"])


MODELS = {family: Models(tiny_model(family)) for family in ("llama-gqa", "gpt2", "gemma3-mixed")}


def verifier(kind: str, family: str) -> Verifier:
    made = {
        "full": lambda: Full(Full.Config(backend="torch")),
        "int8": lambda: Int8(Int8.Config(backend="reference", dtype="float64")),
        "pruned": lambda: Pruned(Pruned.Config(ratio=0.5, method="last")),
    }[kind]()
    made.load(MODELS[family])
    return made


def cascade(family: str, drafter: Drafter, kind: str, length: int = 6, acceptor: Acceptor | None = None, **doubt):
    return Cascade(
        Cascade.Config(
            drafter=drafter,
            verifier=verifier(kind, family),
            acceptor=acceptor or Stochastic(),
            num_speculative_tokens=length,
            **doubt,
        )
    )


SHAPES = {
    "chain": lambda family, known: cascade(family, ngram("last", "truncate"), "int8"),
    "tree": lambda family, known: cascade(family, DRAFTERS["tree"](known), "int8", 5),
    "tree, coupled": lambda family, known: cascade(family, DRAFTERS["tree"](known), "int8", 5, Coupled()),
    "three levels": lambda family, known: cascade(
        family, cascade(family, DRAFTERS["partial-1"](known), "pruned", 3), "int8", 7
    ),
    "doubt": lambda family, known: cascade(
        family, DRAFTERS["partial-3"](known), "int8", 9, min_margin=0.05, min_probability=0.1
    ),
    "the target itself": lambda family, known: cascade(family, DRAFTERS["partial-1"](known), "full"),
}


def drafted(
    family: str, shape: str, known: Truth, sampling, acceptor=None, names=NAMES, eos_ids=()
) -> list[Generation]:
    wanted = requests(names, sampling, eos_ids)
    return generate(family, SHAPES[shape](family, known), wanted, eos_ids, acceptor=acceptor)


def assert_same_as_plain(family, shape, sampling, acceptor) -> None:
    found = drafted(family, shape, truth(family, NAMES, sampling), sampling, acceptor)
    assert texts(found) == texts(plain(family, NAMES, sampling))
    assert sum(done.num_drafted for done in found) > 0


@families
@pytest.mark.parametrize("shape", SHAPES)
def test_at_temperature_0_the_text_is_plain_decodings(family, shape):
    assert_same_as_plain(family, shape, params(0.0, max_new_tokens=24), Stochastic())


@pytest.mark.parametrize("shape", SHAPES)
def test_under_coupled_acceptance_the_text_is_plain_decodings(shape):
    assert_same_as_plain("llama-gqa", shape, params(1.0, max_new_tokens=24), Coupled())


@pytest.mark.parametrize("shape", ["chain", "three levels", "doubt"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_a_batch_is_the_same_request_alone(shape, temperature):
    sampling = params(temperature, max_new_tokens=20)
    known = truth("llama-gqa", NAMES, sampling)
    alone = [drafted("llama-gqa", shape, known, sampling, names=(name,))[0] for name in NAMES]
    together = drafted("llama-gqa", shape, known, sampling)
    assert texts(together) == texts(alone)
    assert [[s.committed for s in done.inner_steps] for done in together] == [
        [s.committed for s in done.inner_steps] for done in alone
    ]


@pytest.mark.parametrize("shape", ["tree", "three levels"])
def test_eos_at_every_place_of_a_block_ends_the_text_there(shape):
    sampling = params(0.0, max_new_tokens=20)
    whole = truth("llama-gqa", NAMES, sampling)
    for place in range(0, 12, 3):
        eos = (whole["long"][place],)
        found = drafted("llama-gqa", shape, whole, sampling, eos_ids=eos)
        assert texts(found) == texts(plain("llama-gqa", NAMES, sampling, eos))


def test_processors_see_the_prefix_of_their_own_place_on_both_levels():
    sampling = params(0.0, max_new_tokens=24, repetition_penalty=1.5, no_repeat_ngram_size=2, min_new_tokens=9)
    found = drafted("llama-gqa", "tree", truth("llama-gqa", NAMES, params(0.0)), sampling, eos_ids=(5, 6))
    assert texts(found) == texts(plain("llama-gqa", NAMES, sampling, (5, 6)))


def test_a_text_goes_on_to_the_end_of_the_model():
    sampling = params(0.0, max_new_tokens=4 * MAX_LENGTH)
    found = drafted("llama-gqa", "chain", {}, sampling, names=("long",))
    assert texts(found) == texts(plain("llama-gqa", ("long",), sampling))
    assert {done.finish_reason for done in found} == {"capacity"}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_blocks_of_the_target_itself_are_accepted_whole(temperature):
    sampling = params(temperature, max_new_tokens=1 + 3 * 7)
    found = generate("llama-gqa", cascade("llama-gqa", NoDraft(), "full", 6), requests(NAMES, sampling))
    assert [(done.acceptance_length, done.acceptance_rate) for done in found] == [(7.0, 1.0)] * len(NAMES)


# --- counts -----------------------------------------------------------------------------------------------------------


def test_every_level_counts_its_own_steps():
    sampling = params(0.0, max_new_tokens=24)
    found = drafted("llama-gqa", "three levels", truth("llama-gqa", NAMES, sampling), sampling)
    for done in found:
        assert {step.level for step in done.steps} == {0}
        assert {step.level for step in done.inner_steps} == {1, 2}
        # what a level emits is what the level around it drafts
        for level in (0, 1):
            steps = [s for s in (*done.steps, *done.inner_steps) if s.level == level]
            inner = [s for s in done.inner_steps if s.level == level + 1]
            assert sum(s.committed for s in inner) == sum(s.drafted for s in steps)
        assert done.acceptance_length == sum(s.committed for s in done.decode_steps) / len(done.decode_steps)
        assert not any(step.is_prefill for step in done.inner_steps)  # the prompt is read with the outer level


def test_subscribers_get_the_records_of_inner_levels_first():
    seen = []
    drafter = SHAPES["chain"]("llama-gqa", {})
    engine = Engine(drafter, verifier("full", "llama-gqa"), Stochastic(), on_step=seen.append)
    [done] = engine.generate(requests(("long",), params(0.0)))
    assert [step for step in seen if step.level == 0] == list(done.steps)
    assert [step for step in seen if step.level] == list(done.inner_steps)
    assert [step.level for step in seen[:2]] == [0, 1]


def test_the_inner_cache_keeps_what_still_counts():
    # each inner forward after the prompt's holds few pending tokens: nothing is forwarded twice
    sampling = params(0.0, max_new_tokens=40)
    found = drafted("llama-gqa", "tree", truth("llama-gqa", ("long",), sampling), sampling, names=("long",))[0]
    later = [step for step in found.inner_steps if not step.is_prefill]
    assert max(step.positions_forwarded - step.drafted for step in later) <= 2


def test_two_levels_hold_each_weight_once():
    models = Models(tiny_model("llama-gqa"))
    inner, outer, other = (Int8(Int8.Config(backend="reference", dtype="float64")) for _ in range(3))
    full = Full(Full.Config(backend="torch"))
    for part in (inner, outer, other, full):
        part.load(models)
    assert inner.model is outer.model is other.model
    shared = inner.model.storages().keys() & full.model.storages().keys()
    assert shared  # embeddings, norms and head
    both = inner.model.storages() | full.model.storages()
    own = sum(inner.model.storages().values()) + sum(full.model.storages().values())
    assert sum(both.values()) == own - sum(full.model.storages()[key] for key in shared)


def test_a_sampled_row_and_a_cold_one_share_a_batch():
    choices = [params(0.0), params(1.0, seed=3), params(0.7, top_k=5)]
    wanted = [requests((name,), sampling)[0] for name, sampling in zip(NAMES, choices, strict=True)]
    alone = [generate("gpt2", SHAPES["chain"]("gpt2", {}), [each])[0].token_ids for each in wanted]
    assert texts(generate("gpt2", SHAPES["chain"]("gpt2", {}), wanted)) == alone
    assert alone[0] == plain("gpt2", NAMES[:1], choices[0])[0].token_ids
