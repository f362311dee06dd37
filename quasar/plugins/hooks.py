"""The hooks of quasar, one sentence each. Implementations are marked with ``quasar.hookimpl``.

Register a module (or an object) with these functions under the entry-point group ``quasar``::

    [project.entry-points.quasar]
    my_plugin = "my_package.plugin"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from quasar.core.backends import Backend
    from quasar.core.components import Acceptor, Drafter, Verifier
    from quasar.core.records import StepRecord


def quasar_drafters() -> Iterable[type[Drafter]]:  # type: ignore[empty-body]
    """Return drafter classes."""


def quasar_verifiers() -> Iterable[type[Verifier]]:  # type: ignore[empty-body]
    """Return verifier classes."""


def quasar_acceptors() -> Iterable[type[Acceptor]]:  # type: ignore[empty-body]
    """Return acceptor classes."""


def quasar_backends() -> Iterable[type[Backend]]:  # type: ignore[empty-body]
    """Return backend classes (``quasar.core.backends.Backend``)."""


def quasar_models() -> Iterable[Any]:  # type: ignore[empty-body]
    """Return built-in models (objects with ``name``, ``summary`` and ``fetch(quiet) -> folder``)."""


def quasar_commands(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add sub-commands to the command line; each sets ``run`` to a function of the parsed arguments."""


def quasar_run_started(resolved: Mapping[str, Any]) -> None:
    """A comparison begins; ``resolved`` is its whole configuration."""


def quasar_step_finished(arm: str, record: StepRecord) -> None:
    """A step of an arm was committed, and this is its record; only called if someone subscribed."""


def quasar_run_finished(results: Mapping[str, Any]) -> None:
    """A comparison ended; ``results`` is what ``results.json`` holds."""
