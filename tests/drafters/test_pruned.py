"""Which layers go, that the copy is the model without them, and that nothing is copied."""

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from quasar.core.cache import KVCache
from quasar.core.config import validate
from quasar.core.errors import ConfigError, UnsupportedModelError
from quasar.core.models import Block
from quasar.core.types import Draft
from quasar.drafters.pruned import Pruned
from quasar.hf.adapter import HFModel
from quasar.models.pruning import block_influences, layers_to_keep, pruned_copy
from quasar.models.session import Session
from quasar.testing import TinyModels, check_component
from quasar.verifiers.pruned import Pruned as PrunedVerifier

LAYERS, VOCAB = 6, 61
_COMMON = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
    "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**_COMMON),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=LAYERS, n_head=4, n_positions=128, initializer_range=0.2,
        bos_token_id=None, eos_token_id=None,
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_COMMON, sliding_window=5, layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2
    ),
}  # fmt: skip
every_family = pytest.mark.parametrize("family", CONFIGS)
TEXT = torch.randint(VOCAB, (1, 24), generator=torch.Generator().manual_seed(0))


def model(family) -> HFModel:
    torch.manual_seed(1)
    return HFModel(transformers.AutoModelForCausalLM.from_config(CONFIGS[family](), dtype=torch.float64), family)


def layers_of(found: HFModel):
    decoder = found.module.get_decoder()
    return decoder.h if hasattr(decoder, "h") else decoder.layers


class Models(TinyModels):
    def __init__(self, target):
        super().__init__()
        self._target = target

    def target(self, dtype="auto"):
        return self._target


# --- which layers stay ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "count"), [(0.9, 27), (0.75, 23), (0.5, 15)])
def test_the_ratios_of_the_paper_on_thirty_layers(ratio, count):
    class Thirty:
        num_layers, name = 30, "thirty"

        def without_layers(self, dropped):
            return 30 - len(dropped)

    found = pruned_copy(Models(Thirty()), "auto", ratio, "uniform")
    assert found.model == count == len(found.kept)


@given(st.integers(1, 40).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size))), st.data())
def test_layers_that_stay_are_as_many_as_asked_for_and_in_order(sizes, data):
    size, count = sizes
    influences = data.draw(st.lists(st.floats(0, 2), min_size=size, max_size=size))
    for method in ("block_influence", "last", "uniform"):
        kept = layers_to_keep(size, count, method, influences)
        assert len(set(kept)) == count
        assert list(kept) == sorted(kept)
        assert set(kept) <= set(range(size))
    assert layers_to_keep(size, count, "last") == tuple(range(count))
    kept = layers_to_keep(size, count, "block_influence", influences)
    gone = set(range(size)) - set(kept)
    assert min(influences[layer] for layer in kept) >= max((influences[layer] for layer in gone), default=0)


def test_uniform_keeps_the_ends_and_spreads_the_gaps():
    assert layers_to_keep(30, 15, "uniform")[:3] == (0, 2, 4)
    assert layers_to_keep(30, 15, "uniform")[-2:] == (27, 29)
    assert layers_to_keep(9, 5, "uniform") == (0, 2, 4, 6, 8)


@every_family
def test_a_layer_that_changes_nothing_has_no_influence_and_goes_first(family):
    found = model(family)
    with torch.no_grad():
        for name, parameter in layers_of(found)[2].named_parameters():
            # what is written to the residual stream: through the norms after the sub-layers, where there are any
            if "post_" in name and family == "gemma3":
                parameter.fill_(-1.0)
            elif any(part in name for part in ("o_proj", "down_proj", "c_proj")):
                parameter.zero_()
    influences = block_influences(found)
    assert len(influences) == LAYERS
    assert influences[2] == pytest.approx(0, abs=1e-12)
    assert min(influences[:2] + influences[3:]) > 1e-3
    kept = pruned_copy(Models(found), "auto", (LAYERS - 1) / LAYERS, "block_influence").kept
    assert kept == (0, 1, 3, 4, 5)


def test_the_calibration_text_is_the_models_own_and_always_the_same():
    seen = []

    class Spy(HFModel):
        def layer_states(self, token_ids):
            seen.append(token_ids)
            return super().layer_states(token_ids)

    torch.manual_seed(5)
    first = block_influences(Spy(model("llama").module, "spy"))
    torch.manual_seed(6)
    assert block_influences(Spy(model("llama").module, "spy")) == first
    assert torch.equal(*seen)
    assert seen[0].shape == (8, 32)
    with torch.inference_mode():
        laws = model("llama").module(seen[0]).logits.softmax(dim=-1)
    likely = laws[:, :-1].gather(2, seen[0][:, 1:, None])
    # the mean probability of a token drawn from a law is the law's own mean probability, and a uniform one's is less
    assert float(likely.mean()) == pytest.approx(float((laws**2).sum(dim=-1).mean()), rel=0.2)
    assert float(likely.mean()) > 2 / VOCAB


# --- the copy ---------------------------------------------------------------------------------------------------------


@every_family
@pytest.mark.parametrize("dropped", [{0}, {5}, {1, 2}, {0, 1, 3, 4}, {2, 5}])
def test_a_copy_says_what_the_model_says_when_layers_pass_their_input_on(family, dropped):
    found = model(family)
    copy = found.without_layers(dropped)
    session = Session(copy, 1)
    ids = TEXT[0].tolist()
    session.forward([ids[:9]], Draft.empty(1))  # the rest is decoded over its cache
    logits = session.forward([ids[:10]], Draft.chains([ids[10:]]))[0]
    for number in dropped:
        layers_of(found)[number].forward = lambda states, *_, **__: states
    with torch.inference_mode():
        expected = found.module(TEXT).logits[0, 9:]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)
    assert copy.num_layers == LAYERS - len(dropped)


@every_family
def test_a_copy_shares_its_tensors_and_leaves_the_target_alone(family):
    found = model(family)
    before = found.module(TEXT).logits
    copy = found.without_layers({1, 4})
    assert set(copy.storages()) < set(found.storages())
    assert (copy.num_layers, found.num_layers) == (4, 6)
    assert found.config.num_hidden_layers == len(layers_of(found)) == 6
    assert torch.equal(found.module(TEXT).logits, before)
    kinds = getattr(found.config, "layer_types", None)
    assert kinds is None or len(kinds) == 6


def test_the_cache_holds_the_layers_that_stay():
    copy, layers = model("llama").without_layers({0, 3}), set()

    class Spy(KVCache):
        def write(self, layer, *others):
            layers.add(layer)
            return super().write(layer, *others)

    one = torch.zeros((1, 1), dtype=torch.int64)
    copy.forward(
        Block(one, one, one, torch.ones((1, 1, 1), dtype=torch.bool), torch.zeros(1, dtype=torch.int64), 1), Spy(1, 8)
    )
    assert layers == {0, 1, 2, 3}


def test_layers_that_depend_on_each_other_are_not_left_out():
    found = model("llama")
    found.config.num_kv_shared_layers = 2
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM cannot be left out"):
        found.without_layers({1})


# --- components -------------------------------------------------------------------------------------------------------


def test_a_ratio_that_keeps_no_layer_is_refused():
    with pytest.raises(ConfigError, match=r"ratio 0.05 keeps none of the 6 layers of 'llama'; take 0.17 or more"):
        Pruned(Pruned.Config(ratio=0.05)).load(Models(model("llama")))
    Pruned(Pruned.Config(ratio=0.17, method="last")).load(Models(model("llama")))


@pytest.mark.parametrize("ratio", [0, 1, 1.5, -0.5])
@pytest.mark.parametrize("component", [Pruned, PrunedVerifier])
def test_a_ratio_outside_of_0_to_1_is_refused(component, ratio):
    with pytest.raises(ConfigError, match="ratio"):
        validate(component.Config, {"ratio": ratio}, "here")


def test_drafter_and_verifier_share_one_copy_and_say_what_it_is():
    models = Models(model("gemma3"))
    drafter, verifier = Pruned(Pruned.Config(ratio=0.5)), PrunedVerifier(PrunedVerifier.Config(ratio=0.5))
    for part in (drafter, verifier):
        part.load(models)
        described = part.describe()
        assert len(described["layers_kept"]) == 3
        assert described["layers_of_target"] == 6
        assert 0 < described["weight_bytes"] < sum(models.target().storages().values())
    assert drafter.model is verifier.model
    assert verifier.reference() == "the model pruned 0.5 (block_influence)"
    named = PrunedVerifier(PrunedVerifier.Config(ratio=0.75, method="uniform", dtype="float32"))
    assert named.reference() == "the model pruned 0.75 (uniform, float32)"


@pytest.mark.parametrize("component", [Pruned, PrunedVerifier])
@pytest.mark.parametrize("options", [{"ratio": 0.4, "method": "last"}, {"ratio": 0.7, "method": "block_influence"}])
def test_the_conformance_kit_passes(component, options):
    check_component(component, models=TinyModels(), **options)
