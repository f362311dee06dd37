"""Find a model, look at it before its weights are read, and load it: safetensors only, no remote code."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from quasar.core.backends import Backend
from quasar.core.errors import ConfigError, UnsupportedModelError
from quasar.core.models import Dtype
from quasar.core.providers import Catalogue, Made
from quasar.hf.adapter import HFModel
from quasar.hf.tokenizer import Tokenizer

_REWINDABLE = {"full_attention", "sliding_attention"}
DTYPES: tuple[str, ...] = get_args(Dtype)
"""What ``dtype:`` may say; ``auto`` is the checkpoint's."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that was found and looked at, its weights still unread.

    Attributes:
        name: what the user called it.
        location: a folder or a hub id.
        config: the transformers configuration.
        max_length: positions that the model has, or ``None``.
    """

    name: str
    location: str
    config: Any
    max_length: int | None


def find_model(name: str, builtin: Any | None = None, quiet: bool = False) -> ModelSource:
    """Locate a model and refuse one that cannot be decoded speculatively, before a weight is read.

    Args:
        name: a built-in name, a folder, or a hub id.
        builtin: the built-in model of that name (it has ``fetch``), if there is one.
        quiet: no progress bar while a built-in is fetched.

    Raises:
        ConfigError: nothing is there under that name.
        UnsupportedModelError: the model is not a decoder, or its state cannot be rewound.
    """
    from transformers import AutoConfig

    _quieten()
    location = str(builtin.fetch(quiet=quiet)) if builtin is not None else name
    local = Path(location).expanduser()
    if local.exists() and not (local / "config.json").is_file():
        raise ConfigError(f"model: '{name}' is not a model folder (no config.json in it).")
    if not local.exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ConfigError(f"model: folder '{name}' does not exist.")
    try:
        config = AutoConfig.from_pretrained(str(local) if local.exists() else location, trust_remote_code=False)
    except Exception as error:  # a dozen kinds of network, hub and file errors; all mean the same to the user
        offline = " (HF_HUB_OFFLINE is set, so the hub was not asked)" if os.environ.get("HF_HUB_OFFLINE") else ""
        raise ConfigError(
            f"model: cannot read '{name}'{offline}: {_first_line(error)} "
            "Give a built-in name ('quasar ls models'), a folder with config.json, or a hub id that you can reach."
        ) from error
    _refuse_unsupported(name, config)
    text = config.get_text_config()
    return ModelSource(name, str(local) if local.exists() else location, config,
                       getattr(text, "max_position_embeddings", None))  # fmt: skip


def _refuse_unsupported(name: str, config: Any) -> None:
    from transformers import AutoModelForCausalLM

    mapping = AutoModelForCausalLM._model_mapping
    if type(config) not in mapping or config.is_encoder_decoder:
        raise UnsupportedModelError(f"model '{name}' ({type(config).__name__}) is not a causal decoder.")
    model_class = mapping[type(config)]
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if getattr(model_class, "_is_stateful", False) or kinds - _REWINDABLE:
        layers = f" (layers: {', '.join(sorted(kinds - _REWINDABLE))})" if kinds - _REWINDABLE else ""
        raise UnsupportedModelError(
            f"model '{name}' is a {model_class.__name__}{layers}: its state cannot be rewound after a rejected draft."
        )


def load_model(source: ModelSource, dtype: str, device: str) -> HFModel:
    """Load the weights of ``source``.

    Args:
        source: what ``find_model`` returned.
        dtype: one of ``DTYPES``.
        device: a torch device.

    Raises:
        ConfigError: weights are missing, are not safetensors, or do not fit the configuration.
    """
    from transformers import AutoModelForCausalLM

    _quieten()
    wanted = "auto" if dtype == "auto" else getattr(torch, dtype)
    try:
        module = AutoModelForCausalLM.from_pretrained(
            source.location, dtype=wanted, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"model: cannot load the weights of '{source.name}': {_first_line(error)}") from error
    return HFModel(module.to(device), source.name)


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """Load the tokenizer of ``source``.

    Raises:
        ConfigError: there is none, or it needs code of its own.
    """
    from transformers import AutoTokenizer

    try:
        inner = AutoTokenizer.from_pretrained(source.location, trust_remote_code=False)
    except Exception as error:  # as in find_model
        raise ConfigError(f"model: cannot load the tokenizer of '{source.name}': {_first_line(error)}") from error
    return Tokenizer(inner, source.name)


def eos_token_ids(source: ModelSource, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids that end a text, as ``generate`` would use them, the tokenizer's own included."""
    from transformers import GenerationConfig

    try:
        found = GenerationConfig.from_pretrained(source.location).eos_token_id
    except OSError:
        found = getattr(source.config.get_text_config(), "eos_token_id", None)
    ids = found if isinstance(found, list) else [found]
    own = getattr(tokenizer._inner, "eos_token_id", None)
    return tuple(sorted({token for token in [*ids, own] if token is not None}))


class LoadedModels:
    """Hands a pipeline its models; each is loaded once per dtype and shared by every arm of a run.

    Args:
        source: the target model.
        device: a torch device.
        registry: knows the built-in models by name, for draft models, and the installed backends.
        measurements: of the run that is resumed; new ones are added.
    """

    def __init__(
        self,
        source: ModelSource,
        device: str,
        registry: Catalogue | None = None,
        measurements: dict[str, Any] | None = None,
    ) -> None:
        self.source, self.device, self._registry = source, device, registry
        self.measurements = {} if measurements is None else measurements
        self._sources = {source.name: source}
        self._models: dict[tuple[str, str], HFModel] = {}
        self._derived: dict[str, Any] = {}

    def target(self, dtype: str = "auto") -> HFModel:
        """Return the target model in ``dtype``; the checkpoint's own dtype counts as ``auto``."""
        return self._loaded(self.source, dtype)

    def other(self, name: str, dtype: str = "auto") -> HFModel:
        """Return another model; the target itself if it has that name.

        Raises:
            QuasarError: as ``find_model`` and ``load_model``.
        """
        return self._loaded(self._source(name), dtype)

    def tokenizer(self, name: str | None = None) -> Tokenizer:
        """Return the tokenizer of the model ``name``, of the target for ``None``.

        Raises:
            QuasarError: as ``find_model`` and ``load_tokenizer``.
        """
        source = self.source if name is None else self._source(name)
        return self.derived(f"tokenizer/{source.name}", lambda: load_tokenizer(source))

    def backends(self) -> Sequence[type[Backend]]:
        """Return the backends that plugins provide."""
        return () if self._registry is None else self._registry.backends()

    def _source(self, name: str) -> ModelSource:
        if name not in self._sources:
            self._sources[name] = find_model(name, self._registry and self._registry.model(name))
        return self._sources[name]

    def _loaded(self, source: ModelSource, dtype: str) -> HFModel:
        own = str(getattr(source.config, "dtype", None)).removeprefix("torch.")
        key = (source.name, "auto" if dtype == own else dtype)
        if key not in self._models:
            self._models[key] = load_model(source, key[1], self.device)
        return self._models[key]

    def derived(self, key: str, make: Callable[[], Made]) -> Made:
        """Return what ``make`` made under ``key``; see ``ModelProvider.derived``."""
        if key not in self._derived:
            self._derived[key] = make()
        made: Made = self._derived[key]
        return made


def _first_line(error: BaseException) -> str:
    line = str(error).strip().partition("\n")[0]
    return line if line.endswith((".", "!", "?")) else f"{line or type(error).__name__}."


def _quieten() -> None:
    # Its progress bars and advice would drown ours; its errors come to the user through ours.
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
