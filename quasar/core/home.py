"""This machine: what its processor is, and where Quasar keeps what it made here once, models and measured choices."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any


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
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".part")
        temporary.write_text(json.dumps(value) + "\n")
        temporary.replace(file)
    except OSError:  # a home that cannot be written costs the same work the next time, nothing more
        return


def processor() -> str:
    """Return what the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
