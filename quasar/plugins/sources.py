"""Where plugins come from: the entry points of installed distributions, and local files that a user names."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from packaging.utils import canonicalize_name

from quasar.core.errors import PluginError, did_you_mean
from quasar.version import __version__

GROUP = "quasar"
"""Entry-point group, and the project name that hooks are marked with."""

BUILTIN = "quasar-spec"
"""Distribution of the built-ins, whose names are reserved."""

ALLOW_LIST = "QUASAR_PLUGINS"
"""Environment variable: the distributions to load, separated by commas. Built-ins always load."""


@dataclass(frozen=True, slots=True)
class Source:
    """A plugin that has not been loaded yet.

    Attributes:
        name: name of the entry point, or the path of a file.
        distribution: installed distribution, or the path of a file.
        version: version of the distribution; empty for a file.
        load: imports the plugin and returns it: a module, or any object with hooks.
        value: what the entry point points to, e.g. ``package.module``.
        is_file: the user named it by its path, so an error in it is an error at once.
    """

    name: str
    distribution: str
    version: str
    load: Callable[[], object] = field(repr=False)
    value: str = ""
    is_file: bool = False

    @property
    def is_builtin(self) -> bool:
        """Whether it comes with quasar."""
        return not self.is_file and canonicalize_name(self.distribution) == BUILTIN

    def __str__(self) -> str:
        if self.is_file:
            return f"file {self.name}"
        points_to = f" = {self.value}" if self.value else ""
        return f"entry point '{self.name}{points_to}' of {self.distribution} {self.version}"


def installed_sources() -> list[Source]:
    """Return the entry points of group ``quasar``, none of them imported yet."""
    found: dict[str, list[Source]] = {}
    for distribution in importlib.metadata.distributions():
        try:
            points = distribution.entry_points.select(group=GROUP)
        except Exception as error:  # anybody's damaged entry_points.txt; it matters here only if it names our group
            if f"[{GROUP}]" not in (distribution.read_text("entry_points.txt") or ""):
                continue
            points = importlib.metadata.EntryPoints()
            broken = [Source("entry_points.txt", distribution.name, distribution.version, partial(_fail, error))]
        else:
            broken = []
        sources = broken + [
            Source(point.name, distribution.name, distribution.version, point.load, point.value) for point in points
        ]
        if sources:
            # A distribution can be found twice (an editable install seen from its own folder): the first one wins,
            # as it does for import.
            found.setdefault(canonicalize_name(distribution.name), sources)
    if BUILTIN not in found:  # a checkout that is on the path without being installed
        builtins = importlib.metadata.EntryPoint("builtins", "quasar.builtins", GROUP)
        found[BUILTIN] = [Source(builtins.name, BUILTIN, __version__, builtins.load, builtins.value)]
    return [source for sources in found.values() for source in sources]


def allowed_sources(sources: Sequence[Source]) -> tuple[list[Source], list[str]]:
    """Apply the allow-list in ``QUASAR_PLUGINS``.

    Returns:
        The sources to load, and the names of the distributions that are left out. A name on the list that is not
        installed becomes a source that does not load, so that it is listed with this error.
    """
    text = os.environ.get(ALLOW_LIST)
    if text is None:
        return list(sources), []
    wanted = {canonicalize_name(name.strip()) for name in text.split(",") if name.strip()}
    installed = {canonicalize_name(source.distribution): source.distribution for source in sources}
    kept = [source for source in sources if source.is_builtin or canonicalize_name(source.distribution) in wanted]
    for name in sorted(wanted.difference(installed)):
        error = PluginError(f"no installed distribution of that name has plugins.{did_you_mean(name, installed)}")
        kept.append(Source(name, name, "", partial(_fail, error), ALLOW_LIST))
    left_out = sorted(installed[name] for name in installed if name not in wanted and name != BUILTIN)
    return kept, left_out


def file_sources(files: Iterable[Path]) -> list[Source]:
    """Return a source for each local Python file; a file named twice is loaded once."""
    paths = {Path(file).resolve(): str(file) for file in files}
    return [Source(name, name, "", partial(_load_file, path), is_file=True) for path, name in paths.items()]


def _load_file(path: Path) -> ModuleType:
    """Import ``path`` under a name that no other module can have."""
    name = f"_quasar_file_{hashlib.blake2b(os.fsencode(path), digest_size=6).hexdigest()}"
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pydantic look their module up while it is being executed
    try:
        # Compiled here rather than by the loader, whose bytecode cache misses an edit within a second.
        exec(loader.source_to_code(loader.get_data(str(path)), str(path)), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _fail(error: Exception) -> NoReturn:
    raise error
