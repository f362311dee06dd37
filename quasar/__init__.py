"""Quasar: composable speculative decoding. See ``quasar.load_pipeline`` and ``quasar.generate``."""

from __future__ import annotations

import importlib
from typing import Any

from quasar.version import __version__

_EXPORTS = {
    "load_pipeline": "quasar.pipelines.load",
    "Pipeline": "quasar.pipelines.pipeline",
    "SamplingParams": "quasar.core.sampling",
    "Drafter": "quasar.core.components",
    "Verifier": "quasar.core.components",
    "Acceptor": "quasar.core.components",
    "Draft": "quasar.core.types",
    "Verification": "quasar.core.types",
    "Acceptance": "quasar.core.types",
    "QuasarError": "quasar.core.errors",
    "hookimpl": "quasar.plugins.registry",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    # Lazy, so that `quasar --help` and `quasar ls` do not wait for torch.
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'quasar' has no attribute {name!r}")
