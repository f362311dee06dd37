"""Finding plugins and what they provide. The only module that imports pluggy; all others see ``Registry``.

A broken plugin is listed with its error and stops nothing but a pipeline that names it. Classes are collected a kind at
a time, when asked for, so that ``quasar --help`` does not import what components import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from quasar.core.errors import PluginError, did_you_mean
from quasar.plugins import hooks as hookspecs
from quasar.plugins.listing import HOOK_OF, KINDS, Entry, Listed, entries_of, error_text, one_line, settle
from quasar.plugins.sources import ALLOW_LIST, GROUP, Source, allowed_sources, file_sources, installed_sources

if TYPE_CHECKING:
    import argparse

    from quasar.core.backends import Backend
    from quasar.core.component import Component
    from quasar.core.records import StepRecord

__all__ = ["HOOKS", "KINDS", "Listed", "Registry", "Source", "hookimpl", "load_registry"]

hookimpl = pluggy.HookimplMarker(GROUP)
"""Marks a function of a plugin as the implementation of the hook whose name it has."""

HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("quasar_"))
"""Names of all hooks."""


class Registry:
    """What is installed: components and models by name, and the hooks of a run. Made by ``load_registry``.

    Args:
        sources: the plugins to load, in order.
        left_out: distributions that the allow-list keeps out, for the error message of an unknown name.

    Raises:
        PluginError: a plugin that the user named by its path does not load.
    """

    def __init__(self, sources: Iterable[Source], left_out: Sequence[str] = ()) -> None:
        for name in HOOKS:
            pluggy.HookspecMarker(GROUP)(getattr(hookspecs, name))
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        self._left_out = left_out
        self._sources: dict[str, Source] = {}
        self._failed: list[Entry] = []
        self._entries: dict[str, list[Entry]] = {}
        for source in sources:
            self._register(source)

    def find(self, kind: str, name: str) -> type[Component]:
        """Return a component class.

        Args:
            kind: ``drafter``, ``verifier`` or ``acceptor``.
            name: what YAML files call it.

        Raises:
            PluginError: nobody provides the name, two plugins do, or its class or plugin is broken.
        """
        found: type[Component] | None = self._sound(kind, name)
        if found is not None:
            return found
        names = [entry.name for entry in self._collect(kind) if entry.error is None]
        message = f"unknown {kind} {name!r}.{did_you_mean(name, names)}"
        if self._left_out:
            message += f" {ALLOW_LIST} leaves out: {', '.join(self._left_out)}."
        if self._failed:
            message += f" Plugins that did not load: {'; '.join(str(entry.error) for entry in self._failed)}"
        raise PluginError(message)

    def model(self, name: str) -> Any | None:
        """Return a built-in model, ``None`` if nobody has one of that name; raise ``PluginError`` if two have."""
        return self._sound("model", name)

    def backends(self) -> tuple[type[Backend], ...]:
        """Return the backends that plugins provide, sound ones only."""
        return tuple(entry.value for entry in self._collect("backend") if entry.error is None)

    def listing(self, kind: str | None = None) -> list[Listed]:
        """Return what there is, broken things included, in the order kind, name, distribution.

        Args:
            kind: list this kind only, one of ``KINDS``; ``None`` lists everything.

        Raises:
            PluginError: ``kind`` is none of ``KINDS``.
        """
        if kind is not None and kind not in KINDS:
            raise PluginError(f"unknown kind {kind!r}.{did_you_mean(kind, KINDS)}")
        # A hook that fails when called is listed as kind `plugin`: that kind has to look at all others.
        wanted = [each for each in HOOK_OF if kind in (None, "plugin", each)]
        collected = [entry for each in wanted for entry in self._collect(each)]
        lines = [entry.listed() for entry in (*collected, *self._failed) if kind in (None, entry.kind)]
        return sorted(lines, key=lambda line: (KINDS.index(line.kind), line.name, line.distribution))

    def add_commands(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Let plugins add sub-commands; a plugin that fails is listed with its error, like one that does not load.

        Args:
            subparsers: what ``ArgumentParser.add_subparsers`` returned; our own commands come first, to keep their
                names.
        """
        for source, error in self._call_all("quasar_commands", subparsers=subparsers):
            self._fail(source, f"quasar_commands: {error_text(error)}", error)

    def run_started(self, resolved: Mapping[str, Any]) -> None:
        """Tell plugins that a comparison begins.

        Args:
            resolved: its whole configuration.

        Raises:
            PluginError: a plugin failed; all others were told nevertheless.
        """
        self._tell("quasar_run_started", resolved=resolved)

    def run_finished(self, results: Mapping[str, Any]) -> None:
        """Tell plugins that a comparison ended.

        Args:
            results: what ``results.json`` holds.

        Raises:
            PluginError: a plugin failed; all others were told nevertheless.
        """
        self._tell("quasar_run_finished", results=results)

    def step_subscriber(self) -> Callable[[str, StepRecord], None] | None:
        """Return a function of (arm, record) for the end of a step; ``None``, and no cost, if no plugin asks for it."""
        hook = self._manager.hook.quasar_step_finished
        if not hook.get_hookimpls():
            return None
        return lambda arm, record: hook(arm=arm, record=record)

    def _register(self, source: Source) -> None:
        key = f"{source.distribution}:{source.name}"
        try:
            plugin = source.load()
        except (Exception, SystemExit) as error:  # a plugin may do anything at import; none may stop the others
            return self._fail(source, error_text(error), error)
        holder = key if self._manager.has_plugin(key) else self._manager.get_name(plugin)
        if holder is not None:
            return self._fail(source, f"it is already loaded, as {self._sources[holder]}")
        self._sources[key] = source
        try:
            self._manager.register(plugin, key)
            self._check_hooks(plugin)
        except Exception as error:
            self._manager.unregister(name=key)
            self._fail(source, error_text(error), error)

    def _check_hooks(self, plugin: object) -> None:
        """Refuse a plugin with hooks that would never be called, or that would change what others provide."""
        callers = self._manager.get_hookcallers(plugin) or []
        mine = [(caller, each) for caller in callers for each in caller.get_hookimpls() if each.plugin is plugin]
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            name = next(caller.name for caller, each in mine if not (caller.has_spec() or each.optionalhook))
            raise PluginError(f"{name} is not a hook.{did_you_mean(name, HOOKS)}") from error
        for name in dir(plugin):
            is_function = inspect.isroutine(inspect.getattr_static(plugin, name, None))
            if name.startswith("quasar_") and is_function and not self._manager.parse_hookimpl_opts(plugin, name):
                hint = " without the mark @quasar.hookimpl." if name in HOOKS else f".{did_you_mean(name, HOOKS)}"
                raise PluginError(f"{name} is not a hook{hint}")
        if not mine:
            raise PluginError(f"{plugin!r} has no hooks; there are {', '.join(HOOKS)}")
        if any(each.wrapper or each.hookwrapper for _, each in mine):
            raise PluginError("hook wrappers are refused: a plugin must not change what others provide")

    def _fail(self, source: Source, text: str, cause: BaseException | None = None) -> None:
        """List ``source`` as broken; raise if it is a file, because the user named it."""
        line = one_line(f"{source}: {text}")
        if source.is_file:
            raise PluginError(line) from cause
        self._failed.append(Entry(source.name, "plugin", source, error=line))

    def _calls(self, hook: str, **values: object) -> Iterator[tuple[Source, Callable[[], Any]]]:
        """Yield the implementations of ``hook``, ready to be called: one by one, so that an error has an owner."""
        for each in reversed(getattr(self._manager.hook, hook).get_hookimpls()):
            yield self._sources[each.plugin_name], partial(each.function, *[values[name] for name in each.argnames])

    def _call_all(self, hook: str, **values: object) -> list[tuple[Source, BaseException]]:
        """Call every implementation of ``hook``; return the exceptions with the plugins that raised them."""
        errors: list[tuple[Source, BaseException]] = []
        for source, call in self._calls(hook, **values):
            try:
                call()
            except (Exception, SystemExit) as error:
                errors.append((source, error))
        return errors

    def _tell(self, hook: str, **values: object) -> None:
        errors = self._call_all(hook, **values)
        if errors:
            text = "; ".join(f"{source}: {hook}: {error_text(error)}" for source, error in errors)
            raise PluginError(one_line(text)) from errors[0][1]

    def _collect(self, kind: str) -> list[Entry]:
        """Return what all plugins provide of ``kind``; each hook is called once."""
        if kind not in self._entries:
            entries: list[Entry] = []
            for source, call in self._calls(HOOK_OF[kind]):
                try:
                    entries += entries_of(kind, source, call())
                except (Exception, SystemExit) as error:
                    self._fail(source, f"{HOOK_OF[kind]}: {error_text(error)}", error)
            self._entries[kind] = settle(entries)
        return self._entries[kind]

    def _sound(self, kind: str, name: str) -> Any | None:
        """Return what ``name`` stands for, ``None`` if nobody provides it."""
        entries = self._collect(kind)
        named = [entry for entry in entries if entry.name == name]
        named = named or [entry for entry in entries if name in getattr(entry.value, "second_names", ())]
        for entry in named:
            if entry.error is None:
                return entry.value
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
    registry = Registry([*allowed, *file_sources(files)], left_out)
    if files:
        registry.listing()  # looks at every class, so that an error in a file shows now
    return registry
