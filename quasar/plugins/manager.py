"""Plugins that were loaded, and their hooks, called one by one. The only module that imports pluggy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pluggy

from quasar.core.errors import PluginError, did_you_mean
from quasar.plugins import hooks as hookspecs
from quasar.plugins.listing import Entry, error_text, one_line
from quasar.plugins.sources import GROUP, Source

hookimpl = pluggy.HookimplMarker(GROUP)
"""Marks a function of a plugin as the implementation of the hook whose name it has."""

HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("quasar_"))
"""Names of all hooks."""


class PluginManager:
    """Loads plugins and calls their hooks; an error always has an owner.

    Attributes:
        failed: plugins that did not load, or that failed when they were called.

    Args:
        sources: the plugins to load, in order.

    Raises:
        PluginError: a plugin that the user named by its path does not load.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        for name in HOOKS:
            pluggy.HookspecMarker(GROUP)(getattr(hookspecs, name))
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        self._sources: dict[str, Source] = {}
        self.failed: list[Entry] = []
        for source in sources:
            self._register(source)

    def _register(self, source: Source) -> None:
        key = f"{source.distribution}:{source.name}"
        try:
            plugin = source.load()
        except (Exception, SystemExit) as error:  # a plugin may do anything at import; none may stop the others
            return self.fail(source, error_text(error), error)
        holder = key if self._manager.has_plugin(key) else self._manager.get_name(plugin)
        if holder is not None:
            return self.fail(source, f"it is already loaded, as {self._sources[holder]}")
        self._sources[key] = source
        try:
            self._manager.register(plugin, key)
            self._check_hooks(plugin)
        except Exception as error:
            self._manager.unregister(name=key)
            self.fail(source, error_text(error), error)

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

    def fail(self, source: Source, text: str, cause: BaseException | None = None) -> None:
        """List ``source`` as broken; raise ``PluginError`` if it is a file, because the user named it."""
        line = one_line(f"{source}: {text}")
        if source.is_file:
            raise PluginError(line) from cause
        self.failed.append(Entry(source.name, "plugin", source, error=line))

    def calls(self, hook: str, **values: object) -> Iterator[tuple[Source, Callable[[], Any]]]:
        """Yield the implementations of ``hook``, ready to be called: one by one, so that an error has an owner."""
        for each in reversed(getattr(self._manager.hook, hook).get_hookimpls()):
            yield self._sources[each.plugin_name], partial(each.function, *[values[name] for name in each.argnames])

    def tell(self, hook: str, **values: object) -> None:
        """Call every implementation of ``hook``.

        Raises:
            PluginError: a plugin failed; all others were told nevertheless.
        """
        errors: list[tuple[Source, BaseException]] = []
        for source, call in self.calls(hook, **values):
            try:
                call()
            except (Exception, SystemExit) as error:
                errors.append((source, error))
        if errors:
            text = "; ".join(f"{source}: {hook}: {error_text(error)}" for source, error in errors)
            raise PluginError(one_line(text)) from errors[0][1]

    def subscriber(self, hook: str) -> Callable[..., Any] | None:
        """Return a function that calls all implementations of ``hook``; ``None`` if there are none."""
        caller = getattr(self._manager.hook, hook)
        return caller if caller.get_hookimpls() else None
