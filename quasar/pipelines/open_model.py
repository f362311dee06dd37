"""The way from a model's name to pipelines over it: what can be looked at comes first, weights come last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from quasar.core.errors import ConfigError
from quasar.core.providers import Catalogue
from quasar.pipelines.composition import Composition
from quasar.pipelines.pipeline import Pipeline

if TYPE_CHECKING:
    from quasar.hf.loading import LoadedModels
    from quasar.hf.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model that was found, with its tokenizer; weights are read when the first pipeline asks for them.

    Made by ``open_model``. Its pipelines share models: each is loaded once per dtype.

    Attributes:
        models: hands out weights. A run that is resumed puts its ``measurements`` here before it asks for a pipeline.
        tokenizer: text to ids and back.
        eos_ids: ids that end a text.
    """

    models: LoadedModels
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]

    @property
    def name(self) -> str:
        """What the user called the model."""
        return self.models.source.name

    @property
    def location(self) -> str:
        """Folder or hub id that it is read from."""
        return self.models.source.location

    @property
    def max_length(self) -> int | None:
        """Tokens that the model holds, ``None`` for no limit."""
        return self.models.source.max_length

    def pipeline(self, composition: Composition, eos_ids: Sequence[int] | None = None) -> Pipeline:
        """Load the components of a composition.

        Args:
            composition: what to run.
            eos_ids: ids that end a text; the model's own if left out.

        Raises:
            QuasarError: weights are missing, or a component refuses the model.
        """
        return Pipeline(composition, self.models, self.tokenizer, self.eos_ids if eos_ids is None else eos_ids)


def open_model(name: str, registry: Catalogue, device: str = "auto", quiet: bool = False) -> OpenModel:
    """Find a model and load its tokenizer, but no weight.

    Args:
        name: a built-in name (fetched on first use), a folder, or a hub id.
        registry: knows the built-in models by name, and the installed backends.
        device: ``auto``, ``cpu`` or ``cuda``.
        quiet: no progress bar while a built-in is fetched.

    Raises:
        ConfigError: there is no such model, tokenizer or device.
        UnsupportedModelError: the model is not a decoder, or its state cannot be rewound.
    """
    from quasar.hf import loading  # imports transformers, which an error before this does not have to wait for

    where = choose_device(device)
    models = loading.LoadedModels(loading.find_model(name, registry.model(name), quiet), where, registry)
    tokenizer = models.tokenizer()
    return OpenModel(models, tokenizer, loading.eos_token_ids(models.source, tokenizer))


def choose_device(device: str) -> str:
    """Resolve ``auto`` and refuse a device that is not there.

    Raises:
        ConfigError: naming the device.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device: 'cuda' was asked for, and torch sees no CUDA device; use 'cpu' or 'auto'.")
    return device
