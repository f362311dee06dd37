"""A Llama small enough to play a pipeline in seconds, with random weights."""

from __future__ import annotations

from typing import Any

import torch


def tiny_llama(vocab_size: int, seed: int) -> Any:
    """Return a random Llama of two layers, float32; the same one for the same seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocab_size, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
            )
        )  # fmt: skip
