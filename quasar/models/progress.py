"""A bar for work that a user waits for: on standard error, if that is a terminal, and gone when the work is done."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


def progress_bar(what: str, total: int) -> Any:
    """Return a bar; use it with ``with`` and call ``update`` for every part that is done."""
    return tqdm(desc=what, total=total, leave=False, disable=None, file=sys.stderr)
