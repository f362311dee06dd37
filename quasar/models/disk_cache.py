"""Where Quasar keeps what it made here once: models, measured choices, calibrations."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def quasar_home() -> Path:
    """Return the folder for cached files: ``$QUASAR_HOME``, else ``quasar`` in the user's cache folder."""
    if home := os.environ.get("QUASAR_HOME"):
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "quasar"


def remembered(file: Path) -> Any:
    """Return what ``remember`` wrote to ``file``; ``None`` if there is nothing, or it is damaged."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def remember(file: Path, value: Any) -> None:
    """Write a value as JSON, all of it or nothing: a process beside this one may read the file at any time."""
    _write(file, (json.dumps(value) + "\n").encode())


def remembered_tensors(file: Path) -> dict[str, Tensor]:
    """Return what ``remember_tensors`` wrote to ``file``; nothing if there is none, or it is damaged."""
    from safetensors import SafetensorError, torch

    try:
        found: dict[str, Tensor] = torch.load(file.read_bytes())
    except (OSError, SafetensorError):
        return {}
    return found


def remember_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors, all of them or nothing."""
    from safetensors import torch

    _write(file, torch.save(dict(tensors)))


def _write(file: Path, content: bytes) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".part")
        temporary.write_bytes(content)
        temporary.replace(file)
    except OSError:  # a home that cannot be written costs the same work the next time, nothing more
        return
