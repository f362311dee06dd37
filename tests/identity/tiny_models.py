"""Tiny random transformers models in float64, one of every kind of decoder that we claim to drive."""

from functools import cache

import torch
import transformers

from quasar.hf.adapter import HFModel
from quasar.testing.tiny_model import Letters

VOCAB = 97
MAX_LENGTH = 192
WINDOW = 8

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": MAX_LENGTH,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    # Large weights: with the usual 0.02 every law is nearly uniform and a wrong mask would go unnoticed.
    "initializer_range": 0.3,
}

CONFIGS = {
    "llama-gqa": lambda: transformers.LlamaConfig(**_COMMON),
    "llama-mqa": lambda: transformers.LlamaConfig(**_COMMON | {"num_key_value_heads": 1}),
    "qwen2": lambda: transformers.Qwen2Config(**_COMMON),
    "qwen3": lambda: transformers.Qwen3Config(**_COMMON),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=MAX_LENGTH, initializer_range=0.3,
        bos_token_id=None, eos_token_id=None,
    ),
    "gemma3-mixed": lambda: transformers.Gemma3TextConfig(
        **_COMMON, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"]
    ),
    "gemma3-sliding": lambda: transformers.Gemma3TextConfig(
        **_COMMON, sliding_window=WINDOW, layer_types=["sliding_attention"] * 2
    ),
    "mistral-sliding": lambda: transformers.MistralConfig(**_COMMON, sliding_window=WINDOW),
    "llama-eager": lambda: transformers.LlamaConfig(**_COMMON),
}  # fmt: skip

FAMILIES = tuple(CONFIGS)
SLIDING = ("gemma3-mixed", "gemma3-sliding", "mistral-sliding")


@cache
def tiny_model(family: str) -> HFModel:
    torch.manual_seed(20)
    attention = "eager" if family.endswith("eager") else "sdpa"
    module = transformers.AutoModelForCausalLM.from_config(
        CONFIGS[family](), dtype=torch.float64, attn_implementation=attention
    )
    return HFModel(module, family)


def rounding(family: str) -> float:
    """How far logits of one text may differ between two ways to compute them; eager attention has a float32 softmax."""
    return 1e-5 if family.endswith("eager") else 1e-9


class Models:
    """A model provider over one model; ``others`` are found by name."""

    device = "cpu"

    def __init__(self, model, **others):
        self.model, self.others, self.made, self.measurements = model, others, {}, {}

    def target(self, dtype="auto"):
        return self.model

    def backends(self):
        return ()

    def other(self, name, dtype="auto"):
        return self.others[name]

    def tokenizer(self, name=None):
        letters = "".join(map(chr, range(200, 200 + VOCAB)))
        return Letters(letters if name is None or name.startswith("same") else letters[::-1])

    def derived(self, key, make):
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]
