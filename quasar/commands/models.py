"""The sub-command ``quasar models``."""

from __future__ import annotations

import argparse
from typing import Any

from quasar.core.errors import ConfigError, did_you_mean


def add_models(commands: Any) -> None:
    """Add the sub-command to ``commands``, what ``add_subparsers`` returned."""
    parser = commands.add_parser("models", help="fetch built-in models")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    pull = actions.add_parser("pull", help="fetch and convert a built-in model into QUASAR_HOME")
    pull.add_argument("name")
    pull.add_argument("--quiet", action="store_true")
    pull.set_defaults(run=_pull)


def _pull(arguments: argparse.Namespace) -> None:
    registry = arguments.registry
    model = registry.model(arguments.name)
    if model is None:
        names = [item.name for item in registry.listing("model")]
        raise ConfigError(f"models pull: no built-in model '{arguments.name}'.{did_you_mean(arguments.name, names)}")
    print(model.fetch(quiet=arguments.quiet))
