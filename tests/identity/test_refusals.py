"""Models that cannot be decoded speculatively are refused by name, and before their weights are read."""

import pytest
import torch
import transformers
from tiny_models import CONFIGS

from quasar.core.errors import ConfigError, UnsupportedModelError
from quasar.hf.loading import find_model, load_model

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 11}
STATEFUL = {
    "MambaForCausalLM": lambda: transformers.MambaConfig(**SMALL),
    "JambaForCausalLM": lambda: transformers.JambaConfig(**SMALL, num_attention_heads=2, num_key_value_heads=1),
}
ENCODER_DECODER = {
    "T5Config": lambda: transformers.T5Config(d_model=16, num_layers=1, vocab_size=11),
    "BartConfig": lambda: transformers.BartConfig(d_model=16, encoder_layers=1, decoder_layers=1, vocab_size=11),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_a_model_with_recurrent_state_is_refused_by_the_name_of_its_class(name, tmp_path):
    STATEFUL[name]().save_pretrained(tmp_path)  # no weights: a refusal that reads them would fail otherwise
    with pytest.raises(UnsupportedModelError, match=name):
        find_model(str(tmp_path))


@pytest.mark.parametrize("name", ENCODER_DECODER)
def test_an_encoder_decoder_is_refused(name, tmp_path):
    ENCODER_DECODER[name]().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=f"{name}.*not a causal decoder"):
        find_model(str(tmp_path))


def test_layers_that_cannot_be_rewound_are_named(tmp_path):
    config = CONFIGS["llama-gqa"]()
    config.layer_types = ["full_attention", "linear_attention"]
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="linear_attention"):
        find_model(str(tmp_path))


@pytest.mark.parametrize("family", ["llama-gqa", "gpt2", "gemma3-mixed", "mistral-sliding"])
def test_a_decoder_that_can_be_rewound_is_found_without_its_weights(family, tmp_path):
    CONFIGS[family]().save_pretrained(tmp_path)
    assert find_model(str(tmp_path)).max_length == 192


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        find_model(str(tmp_path))


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        find_model(str(tmp_path / "nowhere"))


def test_pickled_weights_are_refused(tmp_path):
    module = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama-gqa"]())
    module.config.save_pretrained(tmp_path)
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="cannot load the weights"):
        load_model(find_model(str(tmp_path)), "auto", "cpu")


def test_the_same_weights_as_safetensors_are_loaded(tmp_path):
    # guards the test above
    module = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama-gqa"]())
    module.save_pretrained(tmp_path)
    assert load_model(find_model(str(tmp_path)), "float64", "cpu").dtype == torch.float64


def test_missing_weights_are_refused_in_one_line(tmp_path):
    CONFIGS["llama-gqa"]().save_pretrained(tmp_path)
    with pytest.raises(ConfigError) as refused:
        load_model(find_model(str(tmp_path)), "auto", "cpu")
    assert "\n" not in str(refused.value)
