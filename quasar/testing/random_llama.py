"""A tiny random Llama, for playing a pipeline in seconds and without a download."""

from __future__ import annotations

import torch

from quasar.hf.adapter import HFModel
from quasar.hf.tiny_llama import tiny_llama
from quasar.testing.tiny_model import TinyModels

VOCAB = 101


class RandomLlamas(TinyModels):
    """Hands out Llamas of two layers: transformers' code, which backends know how to read."""

    letters = "".join(map(chr, range(ord("0"), ord("0") + VOCAB)))

    def make(self, dtype: torch.dtype, seed: int) -> HFModel:
        """Return a new model with random weights."""
        return HFModel(tiny_llama(VOCAB, seed).to(dtype), "a tiny random Llama")
