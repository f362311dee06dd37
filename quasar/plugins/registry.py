"""What is installed: components and models by name, commands, and whoever listens to a run.

A broken plugin is listed with its error and stops nothing but a pipeline that names it. Classes are collected a kind at
a time, when asked for, so that ``quasar --help`` does not import what components import.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quasar.core.errors import PluginError, did_you_mean
from quasar.plugins.listing import HOOK_OF, KINDS, Entry, Listed, entries_of, error_text, settle
from quasar.plugins.manager import HOOKS, PluginManager, hookimpl
from quasar.plugins.sources import ALLOW_LIST, Source, allowed_sources, file_sources, installed_sources

if TYPE_CHECKING:
    from quasar.core.backends import Backend
    from quasar.core.component import Component
    from quasar.core.records import StepRecord

__all__ = ["HOOKS", "KINDS", "Listed", "Registry", "Source", "hookimpl", "load_registry"]


class Registry:
    """What is installed: components and models by name, and the hooks of a run. Made by ``load_registry``.

    Args:
        sources: the plugins to load, in order.
        left_out: distributions that the allow-list keeps out, for the error message of an unknown name.

    Raises:
        PluginError: a plugin that the user named by its path does not load.
    """

    def __init__(self, sources: Iterable[Source], left_out: Sequence[str] = ()) -> None:
        self._given, self._left_out = tuple(sources), left_out
        self._plugins = PluginManager(self._given)
        self._entries: dict[str, list[Entry]] = {}

    def with_files(self, files: Sequence[Path]) -> Registry:
        """Return a registry with the plugins of local files as well; this one stays as it is.

        Args:
            files: Python files with hooks, as in the YAML key ``plugins``.

        Raises:
            PluginError: a file does not load, or something in it is broken or has a name that is taken.
        """
        if not files:
            return self
        registry = Registry([*self._given, *file_sources(files)], self._left_out)
        registry.listing()  # looks at every class, so that an error in a file shows now
        return registry

    def find(self, kind: str, name: str) -> type[Component]:
        """Return a component class.

        Args:
            kind: ``drafter``, ``verifier`` or ``acceptor``.
            name: what YAML files call it.

        Raises:
            PluginError: nobody provides the name, two plugins do, or its class or plugin is broken.
        """
        [entry] = self.named(name, kind)
        found: type[Component] = entry.value
        return found

    def named(self, name: str, kind: str | None = None) -> list[Entry]:
        """Return what has a name and works: one of ``kind``, or one of each kind that has the name.

        Args:
            name: what YAML files call it, or an earlier name.
            kind: one of those that plugins provide; ``None`` looks through all.

        Raises:
            PluginError: nobody provides the name, two plugins do, or what has it is broken.
        """
        kinds = list(HOOK_OF) if kind is None else [kind]
        found, errors = [], []
        for each in kinds:
            try:
                found += [entry for entry in [self._sound(each, name)] if entry is not None]
            except PluginError as error:
                errors.append(error)
        if found:
            return found
        if errors:
            raise errors[0]
        names = {entry.name for each in kinds for entry in self._collect(each) if entry.error is None}
        message = f"unknown {kind or 'name'} {name!r}.{did_you_mean(name, names)}"
        if self._left_out:
            message += f" {ALLOW_LIST} leaves out: {', '.join(self._left_out)}."
        if self._plugins.failed:
            failed = "; ".join(str(entry.error) for entry in self._plugins.failed)
            message += f" Plugins that did not load: {failed}"
        raise PluginError(message)

    def model(self, name: str) -> Any | None:
        """Return a built-in model, ``None`` if nobody has one of that name; raise ``PluginError`` if two have."""
        entry = self._sound("model", name)
        return None if entry is None else entry.value

    def backends(self) -> tuple[type[Backend], ...]:
        """Return the backends that plugins provide, sound ones only."""
        return tuple(entry.value for entry in self._collect("backend") if entry.error is None)

    def entries(self, kind: str | None = None) -> list[Entry]:
        """Return what there is, broken things included, in the order kind, name, distribution.

        Args:
            kind: this kind only, one of ``KINDS``; ``None`` for everything.

        Raises:
            PluginError: ``kind`` is none of ``KINDS``.
        """
        if kind is not None and kind not in KINDS:
            raise PluginError(f"unknown kind {kind!r}.{did_you_mean(kind, KINDS)}")
        # A hook that fails when called is listed as kind `plugin`: that kind has to look at all others.
        wanted = [each for each in HOOK_OF if kind in (None, "plugin", each)]
        collected = [entry for each in wanted for entry in self._collect(each)]
        found = [entry for entry in (*collected, *self._plugins.failed) if kind in (None, entry.kind)]
        return sorted(found, key=lambda entry: (KINDS.index(entry.kind), entry.name, entry.source.distribution))

    def listing(self, kind: str | None = None) -> list[Listed]:
        """Return the lines of ``quasar ls``; arguments, order and errors as for ``entries``."""
        return [entry.listed() for entry in self.entries(kind)]

    def add_commands(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Add sub-commands: ours first, which keeps their names, then those of plugins.

        A plugin that fails, or that adds a name that is taken, is listed with its error, like one that does not load.

        Args:
            subparsers: what ``ArgumentParser.add_subparsers`` returned.
        """
        calls = list(self._plugins.calls("quasar_commands", subparsers=subparsers))
        for source, call in sorted(calls, key=lambda each: not each[0].is_builtin):
            if source.is_builtin:
                call()  # an error of ours is a bug, and keeps its traceback
                continue
            try:
                call()
            except argparse.ArgumentError as error:
                text = f"quasar_commands: a command of that name is there already ({error.message})"
                self._plugins.fail(source, f"{text}; give it another name", error)
            except (Exception, SystemExit) as error:
                self._plugins.fail(source, f"quasar_commands: {error_text(error)}", error)

    def run_started(self, resolved: Mapping[str, Any]) -> None:
        """Tell plugins that a comparison begins.

        Args:
            resolved: its whole configuration.

        Raises:
            PluginError: a plugin failed; all others were told nevertheless.
        """
        self._plugins.tell("quasar_run_started", resolved=resolved)

    def run_finished(self, results: Mapping[str, Any]) -> None:
        """Tell plugins that a comparison ended.

        Args:
            results: what ``results.json`` holds.

        Raises:
            PluginError: a plugin failed; all others were told nevertheless.
        """
        self._plugins.tell("quasar_run_finished", results=results)

    def step_subscriber(self) -> Callable[[str, StepRecord], None] | None:
        """Return a function of (arm, record) for the end of a step; ``None``, and no cost, if no plugin asks for it."""
        hook = self._plugins.subscriber("quasar_step_finished")
        return None if hook is None else lambda arm, record: hook(arm=arm, record=record)

    def _collect(self, kind: str) -> list[Entry]:
        """Return what all plugins provide of ``kind``; each hook is called once."""
        if kind not in self._entries:
            entries: list[Entry] = []
            for source, call in self._plugins.calls(HOOK_OF[kind]):
                try:
                    entries += entries_of(kind, source, call())
                except (Exception, SystemExit) as error:
                    self._plugins.fail(source, f"{HOOK_OF[kind]}: {error_text(error)}", error)
            self._entries[kind] = settle(entries)
        return self._entries[kind]

    def _sound(self, kind: str, name: str) -> Entry | None:
        """Return what ``name`` stands for, ``None`` if nobody provides it."""
        entries = self._collect(kind)
        named = [entry for entry in entries if entry.name == name]
        named = named or [entry for entry in entries if name in getattr(entry.value, "second_names", ())]
        for entry in named:
            if entry.error is None:
                return entry
        if named:
            raise PluginError("; ".join(dict.fromkeys(str(entry.error) for entry in named)))
        return None


def load_registry(files: Sequence[Path] = (), *, sources: Sequence[Source] | None = None) -> Registry:
    """Load plugins: the built-ins, what is installed under the entry-point group ``quasar``, and local files.

    Args:
        files: local Python files with hooks, as in the YAML key ``plugins``.
        sources: what to load in place of what is installed; for tests.

    Returns:
        The registry. A plugin that does not load is listed in it with its error.

    Raises:
        PluginError: one of ``files`` does not load, or something in it is broken or has a name that is taken.
    """
    allowed, left_out = allowed_sources(installed_sources() if sources is None else sources)
    return Registry(allowed, left_out).with_files(files)
