"""The sub-command ``quasar fidelity``; nothing heavy is imported before it runs."""

from __future__ import annotations

import argparse
from typing import Any


def add_fidelity(commands: Any) -> None:
    """Add the sub-command to ``commands``, what ``add_subparsers`` returned."""
    parser = commands.add_parser(
        "fidelity", help="compare a verifier's distributions with those of the model in full precision"
    )
    parser.add_argument("--model", default="smollm2-135m", help="a built-in name, a folder, or a hub id")
    parser.add_argument(
        "--verifier", default="int8", metavar="SPEC", help="a name, or '{use: NAME, KEY: VALUE}' (int8)"
    )
    parser.add_argument(
        "--reference", default="{use: full, dtype: float32}", metavar="SPEC",
        help="what it is compared with, and whose greedy text is read ('{use: full, dtype: float32}')",
    )  # fmt: skip
    parser.add_argument(
        "--data", nargs="+", default=["bundled"], metavar="SOURCE",
        help="'bundled' or JSONL files; with several files a task is a file",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=int, metavar="N",
        help="N prompts of each task, evenly spread over it ('compare --limit' takes the first N)",
    )  # fmt: skip
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="length of a continuation (64)")
    parser.add_argument("--no-chat", action="store_true", help="do not use the model's chat template")
    parser.add_argument("--layers", action="store_true", help="the error that each decoder layer adds, with a plot")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE.py", help="a local file with hooks")
    parser.add_argument("--json", action="store_true", help="JSON on standard output, nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from quasar.fidelity.command import run

    run(arguments)
