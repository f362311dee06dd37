"""Types of options in the words of somebody who writes YAML, bounds included."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from quasar.core.component import Component
from quasar.core.components import Acceptor, Drafter, Verifier
from quasar.plugins.listing import Entry

_WORDS: dict[Any, tuple[str, str]] = {
    bool: ("true or false", "true or false"),
    int: ("integer", "integers"),
    float: ("number", "numbers"),
    str: ("text", "texts"),
    Path: ("path", "paths"),
    Any: ("anything", "anything"),
    type(None): ("null", "null"),
}
"""What a type is called, and several of it."""

_BOUNDS = ("ge", "gt", "le", "lt", "min_length", "max_length")
"""Attributes of the constraints that pydantic keeps with a field."""


class _Shelf(Protocol):
    def entries(self, kind: str | None = None) -> list[Entry]: ...


def type_of(field: FieldInfo, shelf: _Shelf) -> str:
    """Say what may stand at an option.

    Args:
        field: the option.
        shelf: what is installed: a narrower kind of component is described by the names that belong to it.
    """
    return _said(field.annotation, field.metadata, shelf)


def models_of(field: FieldInfo) -> tuple[str, dict[str, type[BaseModel]]]:
    """Return the mappings with keys of their own that may stand at an option.

    Returns:
        The key that tells them apart (empty if there is one at most), and each by the value of that key.
    """
    models = [
        each for each in _alternatives(field.annotation) if isinstance(each, type) and issubclass(each, BaseModel)
    ]
    key = field.discriminator if isinstance(field.discriminator, str) else ""
    if not key:
        return "", {model.__name__: model for model in models[:1]}
    return key, {str(value): model for model in models for value in get_args(model.model_fields[key].annotation)}


def _alternatives(annotation: Any) -> list[Any]:
    """Return the members of a union, ``None`` among them; of anything else, the one."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return [part for each in get_args(annotation) for part in _alternatives(each)]
    return [annotation]


def _said(annotation: Any, metadata: Sequence[Any], shelf: _Shelf) -> str:
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = [*metadata, *_constraints(more)]
    words: list[str] = []
    for each in _alternatives(annotation):
        if get_origin(each) is Literal:
            words += map(_literal, get_args(each))
        elif isinstance(each, type) and issubclass(each, BaseModel):
            words += _names(each)
        else:
            bounds = "" if each is type(None) else _bounds(each, metadata)
            words.append(_one(each, shelf) + bounds)
    return alternatives(words)


def alternatives(words: Sequence[str]) -> str:
    """Return words as in a sentence: ``a, b or c``."""
    words = list(dict.fromkeys(words))
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def _constraints(metadata: Iterable[Any]) -> list[Any]:
    return [part for each in metadata for part in (each.metadata if isinstance(each, FieldInfo) else [each])]


def _literal(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _names(model: type[BaseModel]) -> list[str]:
    """Return the names that stand for a mapping with ``use``; of any other mapping, that it is one."""
    use = model.model_fields.get("use")
    return [str(value) for value in get_args(use.annotation)] if use else ["mapping"]


def _one(annotation: Any, shelf: _Shelf) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (list, tuple, set, frozenset):
        return f"list of {_several(parts[0], shelf)}"
    if origin in (dict, Mapping) and parts[0] is str:
        return f"{_several(parts[1], shelf)} by name"
    if origin in (dict, Mapping):
        return f"mapping from {_several(parts[0], shelf)} to {_several(parts[1], shelf)}"
    if isinstance(annotation, type) and issubclass(annotation, Component):
        return _component(annotation, shelf, annotation.kind)
    return _WORDS[annotation][0] if annotation in _WORDS else str(getattr(annotation, "__name__", annotation))


def _several(annotation: Any, shelf: _Shelf) -> str:
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _several(inner, shelf) + _bounds(inner, _constraints(more))
    if get_origin(annotation) in (dict, Mapping):
        return _one(annotation, shelf).replace("mapping", "mappings", 1)
    if get_origin(annotation) in (list, tuple, set, frozenset):
        return _one(annotation, shelf).replace("list", "lists", 1)
    if isinstance(annotation, type) and issubclass(annotation, Component):
        return _component(annotation, shelf, f"{annotation.kind}s")
    if get_origin(annotation) is Literal or annotation not in _WORDS:
        return _said(annotation, (), shelf)
    return _WORDS[annotation][1]


def _component(base: type[Component], shelf: _Shelf, word: str) -> str:
    """Return the kind of a component; of a narrower class, the names that belong to it."""
    if base in (Drafter, Verifier, Acceptor):
        return word
    sound = [entry for entry in shelf.entries(base.kind) if entry.error is None]
    names = [entry.name for entry in sound if issubclass(entry.value, base)]
    return f"{word} ({alternatives(names)})" if names else word


def _bounds(annotation: Any, metadata: Sequence[Any]) -> str:
    """Return bounds, with a space before them; empty if there are none."""
    found = {name: getattr(each, name) for each in metadata for name in _BOUNDS if hasattr(each, name)}
    if annotation in (int, float):
        return _numbers(found)
    low, high = found.get("min_length"), found.get("max_length")
    if annotation is str and low is not None:
        return " (not empty)"
    if low is not None:
        return f" ({low} or more)" if high is None else f" ({low} to {high})"
    return "" if high is None else f" ({high} at most)"


def _numbers(found: Mapping[str, Any]) -> str:
    if {"ge", "le"} <= found.keys():
        return f" {found['ge']:g}..{found['le']:g}"
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    said = [f"{sign} {found[name]:g}" for name, sign in signs if name in found]
    return f" {' and '.join(said)}" if said else ""
