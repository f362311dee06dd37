"""The paper's verifier in its two readings: who forwards what, over which cache, and what the result may be called."""

from __future__ import annotations

import pytest
import torch

from quasar.acceptors.stochastic import Stochastic
from quasar.compare.config import load_run
from quasar.core.cache import KVCache
from quasar.core.config import PipelineSpec, validate
from quasar.core.context import Context, Row, TokenView
from quasar.core.engine import Engine, Request
from quasar.core.errors import CompositionError
from quasar.core.models import Block
from quasar.core.sampling import SamplingParams
from quasar.core.streams import Streams
from quasar.core.types import Draft
from quasar.drafters.ngram import Ngram
from quasar.drafters.none import NoDraft
from quasar.models.session import Session
from quasar.pipelines.composition import compose, fit
from quasar.plugins.registry import load_registry
from quasar.testing import TinyModels, check_component
from quasar.verifiers.full import Full
from quasar.verifiers.int8 import Int8
from quasar.verifiers.quasar import Quasar

PROMPTS = ([1, 2, 3, 1, 2, 3, 1], [4, 4, 5, 4, 4], [6])
NOTHING = Draft.empty(1)


def quasar(mode: str, models: TinyModels | None = None, **dtypes: str) -> Quasar:
    int8 = Int8(Int8.Config(backend="reference", dtype=dtypes.get("int8", "float64")))
    full = Full(Full.Config(backend="torch", dtype=dtypes.get("full", "float64")))
    made = Quasar(Quasar.Config(mode=mode, int8=int8, full=full))
    made.load(models or TinyModels())
    return made


def context(*texts: list[int]) -> Context:
    rows = tuple(Row(TokenView(ids), len(ids), str(ids), 0, SamplingParams(temperature=1.0)) for ids in texts)
    return Context(rows, Streams([(0, str(ids), 0) for ids in texts]))


def texts(verifier, prompts, drafter=None, size: int = 20) -> list[tuple[int, ...]]:
    sampling = SamplingParams(temperature=1.0, max_new_tokens=size)
    wanted = [Request(prompt, sampling, str(prompt)) for prompt in prompts]
    return [done.token_ids for done in Engine(drafter or Ngram(), verifier, Stochastic()).generate(wanted)]


# --- who forwards what ------------------------------------------------------------------------------------------------


def test_the_quantised_model_runs_only_where_a_draft_is_verified():
    verifier, ids = quasar("verify_only"), [1, 2, 3]
    full, int8 = verifier.config.full.model, verifier.config.int8.model
    running = context(ids)
    alone = Session(full, 1)
    assert torch.equal(verifier.verify(running, NOTHING).logits, alone.forward([ids], NOTHING))
    ids.append(4)
    assert torch.equal(verifier.verify(running, NOTHING).logits, alone.forward([ids], NOTHING))
    ids.append(5)
    draft = Draft.chains([[6, 0]])
    found = verifier.verify(running, draft).logits
    assert not torch.allclose(found, alone.forward([ids], draft), atol=1e-3)
    assert not torch.allclose(found, Session(int8, 1).forward([ids], draft), atol=1e-3)  # its cache is the full model's
    assert torch.equal(found, by_turns(full, int8, ids, [6, 0]))


def by_turns(full, int8, ids: list[int], draft: list[int]) -> torch.Tensor:
    """The full model over all tokens but the last, then the quantised one over the rest, on one cache."""
    cache, logits = KVCache(1, 16), torch.empty(0)
    for model, start, tokens in ((full, 0, ids[:-1]), (int8, len(ids) - 1, [ids[-1], *draft])):
        size = len(tokens)
        columns = torch.arange(size)[None]
        visible = torch.ones((1, size, size), dtype=torch.bool).tril()
        block = Block(torch.tensor([tokens]), start + columns, columns, visible, torch.tensor([start]), size)
        logits = model.forward(block, cache)
    return logits


def test_a_step_after_a_draft_reads_what_the_quantised_model_wrote():
    verifier, ids = quasar("verify_only"), [1, 2, 3]
    running = context(ids)
    verifier.verify(running, NOTHING)
    ids.append(4)
    verifier.verify(running, Draft.chains([[5]]))
    ids += [5, 6]
    found = verifier.verify(running, NOTHING).logits
    alone = Session(verifier.config.full.model, 1).forward([ids], NOTHING)
    assert not torch.allclose(found, alone, atol=1e-4)


def test_without_drafts_it_is_the_full_model():
    verifier = quasar("verify_only")
    assert texts(verifier, PROMPTS, NoDraft()) == texts(verifier.config.full, PROMPTS, NoDraft())


def test_with_drafts_it_is_neither_model():
    verifier = quasar("verify_only")
    prompts = [[a, b, a, b, a] for a in range(7) for b in range(7)]
    found = texts(verifier, prompts)
    for model in (verifier.config.full, verifier.config.int8):
        assert found != texts(model, prompts)


def test_a_row_does_not_depend_on_the_drafts_of_others():
    verifier = quasar("verify_only")
    assert texts(verifier, PROMPTS) == [texts(verifier, [prompt])[0] for prompt in PROMPTS]


def test_there_is_one_cache():
    verifier, ids = quasar("verify_only"), [1, 2, 3]
    running, other = context(ids), context(ids)
    for draft in (NOTHING, Draft.chains([[6, 0]])):
        verifier.verify(running, draft)
        verifier.config.full.verify(other, draft)
        ids.append(4)
    assert verifier.peak_bytes(running) == verifier.config.full.peak_bytes(other) > 0
    assert verifier.positions_forwarded(running) == verifier.config.full.positions_forwarded(other) == 3 + 3


def test_mode_full_is_int8():
    models = TinyModels()
    verifier = quasar("full", models)
    assert texts(verifier, PROMPTS) == texts(verifier.config.int8, PROMPTS)
    assert not hasattr(verifier.config.full, "model")
    assert verifier.storages() == verifier.config.int8.storages()
    assert verifier.reference() == verifier.config.int8.reference()


def test_one_model_that_does_everything_is_the_verifiers_model():
    verifier = quasar("full")
    assert verifier.language_model() is verifier.config.int8.model
    assert quasar("verify_only").language_model() is None  # of two neither is


def test_a_verifier_has_the_model_that_it_has_loaded():
    verifier = Full(Full.Config(backend="torch"))
    assert verifier.language_model() is None
    verifier.load(TinyModels())
    assert verifier.language_model() is verifier.model


def test_mode_full_keeps_the_contract():
    config = Quasar.Config(int8=Int8(Int8.Config(backend="reference")), full=Full(Full.Config(backend="torch")))
    check_component(Quasar, config, models=TinyModels())


def test_memory_holds_both_weight_sets_and_what_they_share_once():
    verifier = quasar("verify_only")
    parts = [sum(part.storages().values()) for part in (verifier.config.full, verifier.config.int8)]
    assert max(parts) < verifier.describe()["weight_bytes"] < sum(parts)


def test_models_of_two_dtypes_cannot_share_a_cache():
    with pytest.raises(CompositionError, match="verify_only has one key-value cache"):
        quasar("verify_only", int8="float64", full="float32")


# --- what it may be called --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", [Ngram(), NoDraft()])
def test_verify_only_is_exact_with_respect_to_nothing(drafter):
    found = fit(drafter, quasar("verify_only"), Stochastic(), SamplingParams())
    assert (found.exact_with_respect_to, found.relaxed, found.same_text) == (None, True, False)
    assert found.reason == "relaxed by verifier 'quasar'"


def test_exact_refuses_it():
    raw = {"drafter": "ngram", "verifier": {"use": "quasar", "mode": "verify_only"}, "exact": True}
    spec = validate(PipelineSpec, raw, "file")
    with pytest.raises(CompositionError, match="file: arm: 'exact: true' cannot be kept: verifier 'quasar'"):
        compose(spec, load_registry(), SamplingParams(), "file: arm")
    faithful = validate(PipelineSpec, {**raw, "verifier": "quasar"}, "file")
    assert compose(faithful, load_registry(), SamplingParams(), "").exact_with_respect_to == "the model in W8A8 int8"


def test_a_comparison_marks_it_as_relaxed(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: smollm2-135m\npipelines: {arm: {drafter: ngram, verifier: {use: quasar, mode: verify_only}}}\n"
    )
    arm = load_run(file).arm("arm")
    assert arm.composition.relaxed
    assert arm.composition.as_yaml()["verifier"]["int8"]["use"] == "int8"
