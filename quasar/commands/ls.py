"""The sub-command ``quasar ls``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any


def add_ls(commands: Any) -> None:
    """Add the sub-command to ``commands``, what ``add_subparsers`` returned."""
    parser = commands.add_parser("ls", help="list components and models, with the plugin each came from")
    parser.add_argument("kind", nargs="?", choices=["drafters", "verifiers", "acceptors", "backends", "models"])
    parser.add_argument("-v", "--verbose", action="store_true", help="all that 'show' says, of everything that works")
    parser.add_argument("--json", action="store_true", help="a JSON list on standard output, nothing else")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    kind = arguments.kind.removesuffix("s") if arguments.kind else None
    entries = arguments.registry.entries(kind)
    listed = [entry.listed() for entry in entries]
    if arguments.verbose:
        from quasar.commands.show import shown
        from quasar.plugins.describe_component import describe_component

        pages = [describe_component(entry, arguments.registry) for entry in entries if entry.error is None]
        if arguments.json:
            print(json.dumps([asdict(page) for page in pages], indent=2))
            return
        print("\n\n".join(map(shown, pages)))
        listed = [item for item in listed if item.error]
    if arguments.json:
        print(json.dumps([asdict(item) for item in listed], indent=2))
        return
    for item in listed:
        origin = f"{item.distribution} {item.version}".strip()
        text = f"BROKEN: {item.error}" if item.error else item.summary
        print(f"{item.kind:<9} {item.name:<16} {text}  [{origin}]")
