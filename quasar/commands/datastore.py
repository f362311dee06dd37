"""The sub-command ``quasar datastore``; nothing heavy is imported before it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_datastore(commands: Any) -> None:
    """Add the sub-command to ``commands``, what ``add_subparsers`` returned."""
    parser = commands.add_parser("datastore", help="make a datastore for the drafter 'retrieval'")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    build = actions.add_parser("build", help="tokenise files and sort their suffixes")
    build.add_argument("folder", type=Path, metavar="OUT", help="the folder to write")
    build.add_argument(
        "files", nargs="+", type=Path, metavar="FILE",
        help="text, or .jsonl with a string, a list of token ids, or an object with --field on each line",
    )  # fmt: skip
    build.add_argument(
        "--model", default="smollm2-135m", help="whose tokenizer: a built-in name, a folder, or a hub id"
    )
    build.add_argument("--field", default="text", metavar="KEY", help="where a JSONL object has its text (text)")
    build.add_argument("--quiet", action="store_true", help="print nothing")
    build.set_defaults(run=_build)


def _build(arguments: argparse.Namespace) -> None:
    from quasar.commands.datastore_build import build

    build(arguments)
