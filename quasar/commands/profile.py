"""The sub-command ``quasar profile``; nothing heavy is imported before it runs."""

from __future__ import annotations

import argparse
from typing import Any


def add_profile(commands: Any) -> None:
    """Add the sub-command to ``commands``, what ``add_subparsers`` returned."""
    parser = commands.add_parser("profile", help="time a verifier's forwards of several rows, and say where time goes")
    parser.add_argument("--model", default="smollm2-135m", help="a built-in name, a folder, or a hub id")
    parser.add_argument(
        "--verifier", default="full", metavar="SPEC", help="a name, or '{use: NAME, KEY: VALUE}' (full)"
    )
    parser.add_argument("--rows", type=int, nargs="+", metavar="N", help="rows of a forward (1 2 4 6 8 12 16 32)")
    parser.add_argument("--contexts", type=int, nargs="+", metavar="N", help="tokens before them (128 512 1536)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure (60; 3 rounds at least)")
    parser.add_argument("--rounds", type=int, help="how often every forward is timed; beats --seconds")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE.py", help="a local file with hooks")
    parser.add_argument("--json", action="store_true", help="JSON on standard output, nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from quasar.profile.command import run

    run(arguments)
