"""Components, plugins and entry points for the tests of plugin loading."""

import types

import pytest

from quasar import hookimpl
from quasar.core.components import Acceptor, Drafter, Verifier
from quasar.core.errors import PluginError
from quasar.plugins.registry import Source, load_registry


class Good(Drafter):
    """Drafts well."""

    name = "good"
    drafts_by = "point_mass"

    def propose(self, context, budget):
        raise NotImplementedError


class Fine(Verifier):
    """Verifies well."""

    name = "fine"
    precision = "full"

    def verify(self, context, draft):
        raise NotImplementedError


class Fair(Acceptor):
    """Accepts well."""

    name = "fair"
    takes = frozenset({"none", "point_mass"})
    exact = True

    def accept(self, verification, context):
        raise NotImplementedError


class Tiny:
    """A built-in model."""

    name = "tiny"
    summary = "A tiny model."

    def fetch(self, quiet=False):
        raise NotImplementedError


def named(base, new_name, **members):
    """Return a subclass of ``base`` called ``new_name`` in YAML."""
    return type(new_name.title(), (base,), {"name": new_name, "__doc__": base.__doc__, **members})


def plugin(*functions, **values):
    """Return a module with these functions, marked as hooks, and for each keyword a hook that returns its value."""
    module = types.ModuleType("plugin")
    for hook, value in values.items():
        setattr(module, f"quasar_{hook}", hookimpl(lambda value=value: value))
    for function in functions:
        setattr(module, function.__name__, hookimpl(function))
    return module


def source(load, distribution="some-dist", version="1.0", name="entry", value="pkg.module"):
    """Return an entry point; ``load`` is the plugin, or an exception that loading it raises."""

    def loader():
        if isinstance(load, BaseException):
            raise load
        return load

    return Source(name, distribution, version, loader, value)


def registry_of(*plugins):
    sources = [each if isinstance(each, Source) else source(each, name=f"p{i}") for i, each in enumerate(plugins)]
    return load_registry(sources=sources)


def failure(call, *arguments):
    with pytest.raises(PluginError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message
