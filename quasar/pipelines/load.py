"""From names to a pipeline that is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from quasar.core.config import PipelineSpec, validate
from quasar.core.errors import ConfigError
from quasar.core.sampling import SamplingParams
from quasar.pipelines.composition import compose
from quasar.pipelines.pipeline import Pipeline


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


def load_pipeline(
    model: str = "smollm2-135m",
    *,
    drafter: str | Mapping[str, object] = "ngram",
    verifier: str | Mapping[str, object] = "full",
    acceptor: str | Mapping[str, object] = "stochastic",
    exact: bool = False,
    sampling: SamplingParams | None = None,
    device: str = "auto",
    plugins: Sequence[str | Path] = (),
    quiet: bool = False,
) -> Pipeline:
    """Compose and load a pipeline.

    Args:
        model: a built-in name (fetched on first use), a folder, or a hub id.
        drafter: a name, or a mapping with ``use`` and options, as in YAML.
        verifier: the same.
        acceptor: the same.
        exact: refuse a pipeline whose output does not follow its verifier's distribution exactly.
        sampling: checked against the components now instead of at the first ``generate``.
        device: ``auto``, ``cpu`` or ``cuda``.
        plugins: local Python files with hooks.
        quiet: no progress bars.

    Example:
        >>> pipeline = load_pipeline(drafter={"use": "ngram", "num_speculative_tokens": 8})
        >>> print(pipeline.generate("Name three colours.", max_new_tokens=32).text)

    Raises:
        QuasarError: one of its kinds, in one line.
    """
    from quasar.hf import loading
    from quasar.plugins.registry import load_registry

    registry = load_registry([Path(file) for file in plugins])
    raw = {"drafter": drafter, "verifier": verifier, "acceptor": acceptor, "exact": exact}
    spec = validate(PipelineSpec, raw, "load_pipeline")
    composition = compose(spec, registry, sampling or SamplingParams(), "load_pipeline")
    source = loading.find_model(model, registry.model(model), quiet)
    models = loading.LoadedModels(source, choose_device(device), registry)
    tokenizer = loading.load_tokenizer(source)
    return Pipeline(composition, models, tokenizer, loading.eos_token_ids(source, tokenizer))
