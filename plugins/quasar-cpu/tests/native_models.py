"""Tiny random models of every family that the backend runs whole; few of their sizes fit the blocks of the kernels."""

import random
from functools import cache

import kernels_needed  # noqa: F401  (skips whoever imports this module)
import torch
import transformers
from quasar_cpu.backend import NativeCpu

from quasar.core.trees import prefixes
from quasar.core.types import Draft
from quasar.hf.adapter import HFModel
from quasar.models.session import Session

VOCAB = 101
CHUNK = 128
"""Keys that ``csrc/attention.h`` sums together: lengths round its multiples are where a cut would show."""

_COMMON = {
    "vocab_size": VOCAB, "hidden_size": 44, "intermediate_size": 70, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 1024, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "initializer_range": 0.3,
}  # fmt: skip
_SCALED = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
_EVEN = {"hidden_size": 48, "intermediate_size": 96, "head_dim": 16}

CONFIGS = {
    "llama-gqa": lambda: transformers.LlamaConfig(**_COMMON),
    "llama-mqa-tied": lambda: transformers.LlamaConfig(
        # As many query heads to a key head as the kernels take; so many amplify rounding, hence smaller weights.
        **_COMMON
        | {"hidden_size": 72, "num_attention_heads": 24, "num_key_value_heads": 1, "tie_word_embeddings": True}
        | {"initializer_range": 0.15}
    ),
    "llama-scaled-even": lambda: transformers.LlamaConfig(**_COMMON | _EVEN, rope_parameters=_SCALED),
    "qwen2": lambda: transformers.Qwen2Config(**_COMMON),
    "qwen3": lambda: transformers.Qwen3Config(**_COMMON),
    "mistral-8": lambda: transformers.MistralConfig(**_COMMON, sliding_window=8),
    "mistral-150": lambda: transformers.MistralConfig(**_COMMON, sliding_window=150),
    "gemma3-mixed": lambda: transformers.Gemma3TextConfig(**_COMMON, sliding_window=8, **_MIXED),
    "gemma3-sliding": lambda: transformers.Gemma3TextConfig(
        **_COMMON, sliding_window=130, layer_types=["sliding_attention"] * 2
    ),
}
FAMILIES = tuple(CONFIGS)
DTYPES = (torch.float32, torch.bfloat16)
PRECISIONS = {
    "full": {"precision": "full"},
    "int8": {"precision": "int8"},
    "w8a12": {"precision": "int8", "activation_bits": 12, "quantize_lm_head": True},
}


@cache
def module(family, dtype=torch.float32):
    """Return a transformers model; norms and biases, which start as ones and zeros, are made random too."""
    torch.manual_seed(7)
    made = transformers.AutoModelForCausalLM.from_config(CONFIGS[family](), dtype=torch.float32)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
    if dtype == torch.float32:
        return made
    lesser = transformers.AutoModelForCausalLM.from_config(CONFIGS[family](), dtype=dtype)
    lesser.load_state_dict(made.state_dict())
    return lesser


@cache
def model(family, dtype=torch.float32):
    return HFModel(module(family, dtype), family)


@cache
def native(family, dtype, precision):
    return NativeCpu.build(model(family, dtype).sharing_copy(), **PRECISIONS[precision]).model


def words(rng, count):
    return [rng.randrange(VOCAB) for _ in range(count)]


def tree(rng, nodes, shape):
    """Return ``(token, parent slot)`` pairs; few different tokens, so that siblings may be equal."""
    parent = {"chain": lambda slot: slot, "tree": lambda slot: rng.randint(0, slot), "star": lambda _: 0}[shape]
    return [(rng.randrange(5), parent(slot)) for slot in range(nodes)]


def one_by_one(runner, text, draft, row, prefill):
    """Return the logits of every slot of a row, each forwarded alone after its ancestors were committed.

    Args:
        runner: a ``LanguageModel``.
        text: the committed ids.
        draft: the nodes after them.
        row: of the draft.
        prefill: how many tokens of ``text`` are forwarded at once before its last.
    """
    session, nothing, found = Session(runner, 1), Draft.empty(1), {}
    for end in [*range(prefill, len(text), prefill), len(text) - 1]:
        if end:
            session.forward([text[:end]], nothing)
    paths = [tuple(path) for path in prefixes(draft, row)]
    for path in sorted(set(paths)):  # ancestors first, and everything of one branch before the next
        before = session.columns_forwarded
        found[path] = session.forward([[*text, *path]], nothing)[0, 0]
        assert session.columns_forwarded == before + 1
    return torch.stack([found[path] for path in paths])


def text_of(seed, length):
    return words(random.Random(seed), length)
