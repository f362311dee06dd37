"""Where a number comes from: versions, revision, machine. Stored beside every result."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import quasar
from quasar.core.home import processor

_BUSY = 0.7
"""Load average from which on something else runs."""

_PACKAGES = ("torch", "transformers", "torchao", "pluggy", "pydantic")


def environment(device: str) -> dict[str, Any]:
    """Return versions, git revision, device and threads of this process."""
    return {
        "quasar": quasar.__version__,
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "git_revision": _git_revision(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "platform": platform.platform(),
        "device": device,
        "device_name": torch.cuda.get_device_name() if device.startswith("cuda") else processor(),
        "threads": torch.get_num_threads(),
    }


def is_busy(load: float | None) -> bool:
    """Whether times are not to be trusted under ``load``: one other process on two cores can slow a forward tenfold."""
    return load is not None and load >= _BUSY


def load_average() -> float | None:
    """Return how many processes wanted a processor during the last minute; ``None`` where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _git_revision() -> str | None:
    """Revision of the checkout that this package runs from, ``+changes`` if its files differ from it."""
    folder = Path(quasar.__file__).parent
    try:
        head = _git(folder, "rev-parse", "HEAD")
        return head + ("+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
