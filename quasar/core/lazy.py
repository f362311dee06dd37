"""What a package offers is written once, for type checkers, and imported when somebody asks for it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache


def lazy_names(package: str) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package whose names stand in its ``if TYPE_CHECKING:`` block.

    ``import quasar`` then takes no longer than Python does: torch comes with the first name that needs it.

    Args:
        package: ``__name__`` of the package.
    """

    @cache
    def homes() -> Mapping[str, str]:
        import ast
        import inspect

        blocks = [node for node in ast.parse(inspect.getsource(sys.modules[package])).body if isinstance(node, ast.If)]
        imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> object:
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(homes()[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return get
