"""Where Quasar keeps what it made once: converted models, and measured choices."""

from __future__ import annotations

import os
from pathlib import Path


def quasar_home() -> Path:
    """Return the folder for cached files: ``$QUASAR_HOME``, else ``quasar`` in the user's cache folder."""
    if home := os.environ.get("QUASAR_HOME"):
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "quasar"
