"""The exit drafts what the model's head says after the first layers; the rest is in tests/identity and tests/exactness."""

from __future__ import annotations

import pytest
import torch
from drafting import chains, context

from quasar.core.config import ComponentSpec
from quasar.core.errors import ConfigError
from quasar.core.sampling import SamplingParams
from quasar.core.types import Draft, Verification
from quasar.drafters.layer_skip import LayerSkip
from quasar.pipelines.composition import build
from quasar.plugins.registry import load_registry
from quasar.testing import TinyModels, check_component
from quasar.verifiers.full import Full

VOCAB = 7


def met(**options) -> LayerSkip:
    verifier, made = Full(), LayerSkip(LayerSkip.Config(**options))
    verifier.load(TinyModels())
    made.attach_verifier(verifier)
    return made


def running(*texts: list[int], temperature: float = 0.0):
    found = context(*texts)
    sampling = SamplingParams(temperature=temperature)
    found.rows = tuple(type(row)(row.token_ids, 1, row.prompt_id, 0, sampling) for row in found.rows)
    laws = torch.full((len(texts), 1, VOCAB), 1 / VOCAB)
    found.verification = Verification(Draft.empty(len(texts)), laws, laws)
    return found


@pytest.mark.parametrize("exit_layer", [1, 2])
def test_a_chain_is_what_the_head_says_after_the_exit(exit_layer):
    model, text = TinyModels().target(), [3, 1, 4]
    want = []
    for _ in range(4):
        states = model.layer_states(torch.tensor([[*text, *want]]))[exit_layer]
        want.append(int(model.layers["head"](states)[0, -1].argmax()))
    draft = met(exit_layer=exit_layer).propose(running(text), [9])
    assert chains(draft) == [want]


def test_half_of_the_layers_draft_if_none_are_named():
    assert met().describe().flat() == {"exit_layer": 1, "num_layers": 3}


def test_no_weight_is_its_own():
    assert met().storages() == {}


def test_a_chain_ends_where_the_exit_is_in_doubt():
    sure, doubtful = (met(min_confidence=level).propose(running([3, 1, 4]), [9]) for level in (0.0, 1.0))
    assert (sure.nodes, doubtful.nodes) == (4, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_drafts": 2}, "num_drafts: unknown key"),
        ({"expansion": [2, 2]}, "expansion: unknown key"),
        ({"exit_layer": 0}, r"exit_layer: input should be greater than or equal to 1 \(got 0\)"),
        ({"exit_layer": "five"}, "exit_layer: input should be a valid integer"),
    ],
)
def test_trees_and_layers_that_cannot_be_are_refused_where_the_pipeline_is_composed(options, message):
    with pytest.raises(ConfigError, match=f"^here.drafter.{message}"):
        build("drafter", ComponentSpec(use="layer_skip", **options), load_registry(), "here.drafter")


def test_best_first_does_not_take_it_for_a_whole_draft_model():
    spec = ComponentSpec(use="best_first", drafter="layer_skip")
    with pytest.raises(ConfigError, match="should be a drafter, as an object of class ModelDrafter"):
        build("drafter", spec, load_registry(), "here.drafter")


@pytest.mark.parametrize("options", [{"exit_layer": 2, "num_speculative_tokens": 3}, {"min_confidence": 0.4}])
def test_the_contract_is_kept(options):
    check_component(LayerSkip, models=TinyModels(), **options)
