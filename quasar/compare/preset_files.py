"""The comparisons that come with quasar."""

from __future__ import annotations

from importlib import resources
from typing import Any

from quasar.core.config import parse_yaml
from quasar.core.errors import ConfigError, did_you_mean

_PRESETS = resources.files("quasar.compare") / "presets"


def preset_names() -> list[str]:
    """Names for ``--preset``."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _PRESETS.iterdir() if entry.name.endswith(".yaml"))


def read_preset(name: str) -> dict[str, Any]:
    """Return a preset's raw configuration.

    Raises:
        ConfigError: there is no such preset.
    """
    if name not in preset_names():
        raise ConfigError(f"unknown preset '{name}'.{did_you_mean(name, preset_names())}")
    data: dict[str, Any] = parse_yaml((_PRESETS / f"{name}.yaml").read_text(encoding="utf-8"), f"preset '{name}'")
    return data
