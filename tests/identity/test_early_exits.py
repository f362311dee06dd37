"""Drafters that work with the verifier's own layers give plain decoding's text, on every kind of decoder."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers
from harness import GAMMA, PROMPTS, params, plain, requests, texts
from tiny_models import CONFIGS, FAMILIES, Models, tiny_model

from quasar.acceptors.coupled import Coupled
from quasar.acceptors.stochastic import Stochastic
from quasar.core.components import Acceptor, Drafter
from quasar.core.engine import Engine, Request
from quasar.core.records import Generation
from quasar.drafters.adaptive import Adaptive
from quasar.drafters.cascade import Cascade
from quasar.drafters.layer_skip import LayerSkip
from quasar.drafters.pld_plus import PldPlus
from quasar.drafters.suffix import Suffix
from quasar.drafters.union import Union
from quasar.hf import loading
from quasar.hf.adapter import HFModel
from quasar.verifiers.full import Full

BATCHES = {"one": ("looping",), "ragged": ("looping", "single", "long")}
every_family = pytest.mark.parametrize("family", FAMILIES)
any_temperature = pytest.mark.parametrize("temperature", [0.0, 1.0])
every_batch = pytest.mark.parametrize("names", BATCHES.values(), ids=BATCHES)


def exits(**options) -> LayerSkip:
    return LayerSkip(LayerSkip.Config(num_speculative_tokens=GAMMA, **options))


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "layer_skip": exits,
    "layer_skip, doubtful": lambda: exits(min_confidence=0.3),
    "pld_plus": PldPlus,
    "both and suffix in a tree": lambda: Union(Union.Config(drafters=[exits(), PldPlus(), Suffix()], max_nodes=9)),
    "adaptive": lambda: Adaptive(Adaptive.Config(drafter=exits(), costs={1: 1.0, 2: 1.2, 10: 1.6})),
    "cascade": lambda: Cascade(
        Cascade.Config(drafter=exits(), verifier=Full(), acceptor=Coupled(), num_speculative_tokens=GAMMA)
    ),
}


def generate(
    model: HFModel, drafter: Drafter, wanted: list[Request], acceptor: Acceptor | None = None
) -> list[Generation]:
    verifier, models = Full(), Models(model)
    for part in (drafter, verifier):
        part.load(models)
    drafter.attach_verifier(verifier)
    return Engine(drafter, verifier, acceptor or Coupled()).generate(wanted)


@every_family
@any_temperature
@every_batch
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_text_is_that_of_plain_decoding(family, drafter, temperature, names):
    sampling = params(temperature)
    drafted = generate(tiny_model(family), DRAFTERS[drafter](), requests(names, sampling))
    assert texts(drafted) == texts(plain(family, names, sampling))


@pytest.mark.parametrize("drafter", ["layer_skip", "layer_skip, doubtful", "both and suffix in a tree", "adaptive"])
def test_something_is_accepted_in_these_prompts_and_something_is_not(drafter):
    # else the identities above would say nothing
    done = generate(tiny_model("llama-gqa"), DRAFTERS[drafter](), requests(BATCHES["ragged"], params(0.0)))
    assert sum(one.num_accepted for one in done) > 0
    assert sum(one.num_accepted for one in done) < sum(one.num_drafted for one in done)


def test_lookup_is_accepted_in_these_prompts():
    done = generate(tiny_model("qwen3"), PldPlus(), requests(("looping", "long"), params(0.0, max_new_tokens=48)))
    assert sum(one.num_accepted for one in done) > 0


def test_an_exit_drafts_inside_a_pipeline():
    [done] = generate(tiny_model("llama-gqa"), DRAFTERS["cascade"](), requests(("looping",), params(0.0)))
    inner = [step for step in done.inner_steps if step.drafted]
    assert 0 < sum(step.accepted for step in inner) < sum(step.drafted for step in inner)


@every_family
def test_a_step_runs_the_layers_of_one_forward(family):
    [done] = generate(tiny_model(family), exits(), requests(("looping",), params(0.0, max_new_tokens=24)))
    assert [step.layers_forwarded for step in done.decode_steps] == [2 * (n.drafted + 1) for n in done.decode_steps]
    assert done.steps[0].layers_forwarded == 2 * len(PROMPTS["looping"])
    assert done.num_drafted > 0


def test_what_is_looked_up_costs_no_layer():
    [done] = generate(tiny_model("qwen3"), PldPlus(), requests(("long",), params(0.0, max_new_tokens=48)))
    assert [step.layers_forwarded for step in done.decode_steps] == [2 * (n.drafted + 1) for n in done.decode_steps]
    assert done.num_drafted > 0


# --- a model whose exit says what the whole model says, as training aims at --------------------------------------------


def trained(family: str) -> HFModel:
    """A model whose second layer does nothing."""
    torch.manual_seed(20)
    module = transformers.AutoModelForCausalLM.from_config(CONFIGS[family](), dtype=torch.float64)
    for name, parameter in module.model.layers[1].named_parameters():
        if "o_proj" in name or "down_proj" in name:
            torch.nn.init.zeros_(parameter)
    return HFModel(module, family)


@pytest.mark.parametrize("family", ["llama-gqa", "qwen3", "mistral-sliding"])
@pytest.mark.parametrize("acceptor", [Stochastic, Coupled])
@any_temperature
@every_batch
def test_all_drafts_of_an_exit_that_is_right_are_accepted(family, acceptor, temperature, names):
    sampling = params(temperature, max_new_tokens=1 + 3 * (GAMMA + 1))
    done = generate(trained(family), exits(exit_layer=1), requests(names, sampling), acceptor())
    assert [(one.acceptance_length, one.acceptance_rate) for one in done] == [(GAMMA + 1, 1.0)] * len(names)


def test_a_checkpoint_in_the_published_layout_loads(tmp_path):
    """The published checkpoints are plain Llama folders: the exit has the model's own norm and head."""
    trained("llama-gqa").module.save_pretrained(tmp_path)
    model = loading.load_model(loading.find_model(str(tmp_path)), "auto", "cpu")
    assert model.config.architectures == ["LlamaForCausalLM"]
    [done] = generate(model, exits(exit_layer=1), requests(("looping",), params(0.0)), Stochastic())
    assert done.acceptance_rate == 1.0


# --- faults -----------------------------------------------------------------------------------------------------------


def test_states_of_another_token_are_caught(monkeypatch):
    run = HFModel.forward_layers

    def late(model, block, cache, layers, states=None):
        return run(model, block, cache, layers, None if states is None else states.roll(1, dims=1))

    monkeypatch.setattr(HFModel, "forward_layers", late)
    sampling = params(0.0)
    drafted = generate(tiny_model("llama-gqa"), exits(), requests(("long",), sampling))
    assert texts(drafted) != texts(plain("llama-gqa", ("long",), sampling))
