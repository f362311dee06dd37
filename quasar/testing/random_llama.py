"""A tiny random Llama, for playing a pipeline in seconds and without a download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from quasar.hf.adapter import HFModel
from quasar.hf.tiny_llama import tiny_llama
from quasar.testing.tiny_model import TinyModels

if TYPE_CHECKING:
    from quasar.core.backends import Backend

VOCAB = 101


def random_llamas(backends: Sequence[type[Backend]] = ()) -> TinyModels:
    """Return ``TinyModels`` that are Llamas of two layers: transformers' code, which backends know how to read.

    Args:
        backends: what a component finds installed.
    """
    return TinyModels(backends, _llama, "".join(map(chr, range(ord("0"), ord("0") + VOCAB))))


def _llama(dtype: torch.dtype, seed: int) -> HFModel:
    return HFModel(tiny_llama(VOCAB, seed).to(dtype), "a tiny random Llama")
