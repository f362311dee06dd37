"""A tiny random model, for playing a pipeline in seconds and without a download."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from quasar.core.providers import Made
from quasar.hf.adapter import HFModel
from quasar.hf.tiny_llama import tiny_llama
from quasar.testing.tiny_model import Letters

if TYPE_CHECKING:
    from quasar.core.backends import Backend

VOCAB = 101


class TinyModels:
    """Hands out a random Llama of two layers; see ``ModelProvider``.

    ``auto`` is float32: it is what every backend can multiply, and its rounding is small.

    Args:
        backends: what ``backends`` returns.
    """

    device = "cpu"

    def __init__(self, backends: Sequence[type[Backend]] = ()) -> None:
        self.measurements: dict[str, Any] = {}
        self._made: dict[str, Any] = {}
        self._backends = backends

    def backends(self) -> Sequence[type[Backend]]:
        """Return the backends that it was given."""
        return self._backends

    def target(self, dtype: str = "auto") -> HFModel:
        """Return the model in ``dtype``, the same weights in every one."""
        key = "float32" if dtype == "auto" else dtype
        if key not in self._made:
            self._made[key] = HFModel(tiny_llama(VOCAB, seed=0).to(getattr(torch, key)), "a tiny random Llama")
        model: HFModel = self._made[key]
        return model

    def other(self, name: str, dtype: str = "auto") -> HFModel:
        """Return another model of that kind, whatever its name."""
        key = "float32" if dtype == "auto" else dtype
        return self.derived(
            f"other/{key}",
            lambda: HFModel(tiny_llama(VOCAB, seed=1).to(getattr(torch, key)), "another tiny random Llama"),
        )

    def tokenizer(self, name: str | None = None) -> Letters:
        """Return a tokenizer of one character a token, the same for all models."""
        return Letters("".join(map(chr, range(ord("0"), ord("0") + VOCAB))))

    def derived(self, key: str, make: Callable[[], Made]) -> Made:
        """Return what ``make`` made under ``key``; see ``ModelProvider.derived``."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made
