"""What plugins provide, sound or broken, as ``quasar ls`` shows it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from quasar.core.errors import PluginError
from quasar.plugins.model_checks import label, model_fault
from quasar.plugins.sources import ALLOW_LIST, Source

HOOK_OF = {
    "drafter": "quasar_drafters",
    "verifier": "quasar_verifiers",
    "acceptor": "quasar_acceptors",
    "backend": "quasar_backends",
    "model": "quasar_models",
}
"""The hook that provides each kind."""

KINDS = (*HOOK_OF, "plugin")
"""Kinds of things in a listing; ``plugin`` is a plugin that did not load, or that failed when it was called."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of ``quasar ls``.

    Attributes:
        name: what YAML files call it; for a plugin, the name of its entry point.
        kind: one of ``KINDS``; ``plugin`` is a plugin that did not load.
        summary: one sentence; empty where there is an error.
        traits: what a component claims of itself; empty where there is an error.
        distribution: the installed distribution that it comes from, or the path of a local file.
        version: version of the distribution; empty for a file.
        error: why it cannot be used, in one line; ``None`` for what works.
    """

    name: str
    kind: str
    summary: str
    traits: dict[str, Any]
    distribution: str
    version: str
    error: str | None


@dataclass(slots=True)
class Entry:
    """Something that a plugin returned (a class, for ``model`` an object), or for ``plugin`` the plugin itself."""

    name: str
    kind: str
    source: Source
    value: Any = field(default=None, repr=False)
    error: str | None = None

    def listed(self) -> Listed:
        """Return the line that shows it."""
        summary, traits = "", {}
        if self.error is None and self.kind == "model":
            summary = self.value.summary
        elif self.error is None and self.kind == "backend":
            summary, traits = self.value.summary(), {"usable": self.value.unusable() or True}
        elif self.error is None:
            summary, traits = self.value.summary(), self.value.traits()
        origin = self.source
        return Listed(self.name, self.kind, summary, traits, origin.distribution, origin.version, self.error)


def entries_of(kind: str, source: Source, items: Any) -> list[Entry]:
    """Return an entry for each thing that a hook returned, with the fault that it has, if any.

    Args:
        kind: what the hook provides.
        source: the plugin.
        items: what the hook returned; an iterator is run here.

    Raises:
        PluginError: the hook returned a single thing, or nothing at all.
    """
    if not isinstance(items, Iterable):
        raise PluginError(f"it returned {items!r}, not a list")
    return [_checked(kind, source, item) for item in items]


def _checked(kind: str, source: Source, item: Any) -> Entry:
    entry = Entry(label(item), kind, source, item)
    try:
        fault = model_fault(item) if kind == "model" else _class_fault(kind, item)
    except Exception as error:  # e.g. a class whose attributes cannot be read
        fault = error_text(error)
    if fault is not None:
        entry.error = one_line(f"{kind} {entry.name!r} of {source}: {fault}")
    return entry


def _class_fault(kind: str, item: Any) -> str | None:
    from quasar.plugins.checks import find_fault  # imports torch, which `quasar ls models` does not need

    return find_fault(kind, item)


def settle(entries: list[Entry]) -> list[Entry]:
    """Mark sound entries that share a name as broken (of these, a built-in keeps its name); return all entries.

    Raises:
        PluginError: something in a file is broken.
    """
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.error is None:
            groups.setdefault(entry.name, []).append(entry)
    for group in groups.values():
        everyone = ", and by ".join(str(entry.source) for entry in group)
        reserved = any(entry.source.is_builtin for entry in group)
        for entry in group if len(group) > 1 else ():
            if not reserved:
                remedy = f"uninstall one, or choose with {ALLOW_LIST}"
                entry.error = f"{entry.kind} {entry.name!r} is provided by {everyone}; {remedy}"
            elif not entry.source.is_builtin:
                remedy = "give it another name"
                entry.error = f"{entry.kind} {entry.name!r} of {entry.source}: the name belongs to a built-in; {remedy}"
    for entry in entries:
        if entry.source.is_file and entry.error is not None:
            raise PluginError(entry.error)
    return entries


def error_text(error: BaseException) -> str:
    """Return the type and the text of an exception; the text alone of an error that was written for the user."""
    return str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"


def one_line(text: str) -> str:
    """Join the lines of ``text``; messages of others, e.g. pydantic's, have several."""
    return "; ".join(part.strip() for part in text.splitlines() if part.strip())
