"""What must be true of a built-in model, and of names; no torch is needed to say so."""

from __future__ import annotations

import inspect
from typing import Any


def label(item: object) -> str:
    """Return what to call ``item`` in a listing: its ``name`` if it has one, else the name of its class."""
    name = getattr(item, "name", None)
    return name if isinstance(name, str) and name.strip() else class_name(item)


def model_fault(model: object) -> str | None:
    """Say what is wrong with an object that a plugin returned as a model; ``None`` for a sound one."""
    if not is_name(getattr(model, "name", None)):
        return f"a built-in model needs a `name`, {class_name(model)} has none"
    if not isinstance(getattr(model, "summary", None), str):
        return f"a built-in model needs a `summary`, {class_name(model)} has none"
    fetch = getattr(model, "fetch", None)
    if not (callable(fetch) and takes(fetch, quiet=True)):
        return f"a built-in model needs a method fetch(quiet) that returns a folder, {class_name(model)} has none"
    return None


def takes(function: Any, *arguments: object, **options: object) -> bool:
    """Say whether ``function`` can be called like this; optional parameters beyond that are harmless."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # some compiled functions have no signature to read
    try:
        signature.bind(*arguments, **options)
    except TypeError:
        return False
    return True


def is_name(name: object) -> bool:
    """Say whether ``name`` is a text that can be called."""
    return isinstance(name, str) and bool(name.strip())


def class_name(item: object) -> str:
    """Return the name of a class, or of an object's class."""
    return item.__name__ if isinstance(item, type) else type(item).__name__
