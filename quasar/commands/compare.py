"""The sub-command ``quasar compare``, and how it and ``check`` are told what to run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quasar.core.errors import ConfigError

if TYPE_CHECKING:
    from quasar.compare.config import Run


def add_compare(commands: Any) -> None:
    """Add the sub-command to ``commands``, what ``add_subparsers`` returned."""
    parser = commands.add_parser("compare", help="run several pipelines on the same prompts and report")
    add_run_source(parser)
    parser.add_argument("--data", nargs="+", metavar="SOURCE", help="'bundled' or JSONL files, each then a task")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: runs/NAME-TIME")
    parser.add_argument("--resume", action="store_true", help="continue the run in --output")
    parser.add_argument("--quiet", action="store_true", help="write the files, print nothing")
    parser.set_defaults(run=_run)


def add_run_source(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that ``load`` reads."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.yaml", help="the comparison")
    parser.add_argument("--preset", help="a comparison that comes with quasar, for example quickstart")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, e.g. sampling.temperature=0.7"
    )
    parser.add_argument(
        "--limit", type=int, metavar="N",
        help="the first N prompts of each task, in the order of the file ('fidelity --limit' spreads them)",
    )  # fmt: skip


def load(arguments: argparse.Namespace, source: list[str] | None = None) -> Run:
    """Return the comparison that the arguments name, checked.

    Args:
        arguments: those of ``add_run_source``.
        source: data sources that beat the file's.

    Raises:
        QuasarError: the first mistake found, in one line.
    """
    from quasar.compare.config import load_run
    from quasar.compare.preset_files import preset_names

    if (arguments.file is None) == (arguments.preset is None):
        raise ConfigError(f"give either FILE.yaml or --preset NAME (one of {', '.join(preset_names())}).")
    return load_run(
        arguments.file, arguments.preset, arguments.set, arguments.limit, source, registry=arguments.registry
    )


def _run(arguments: argparse.Namespace) -> None:
    from quasar.compare.command import compare, default_output

    if arguments.resume and arguments.output is None:
        raise ConfigError("--resume: say which run with --output DIR.")
    run = load(arguments, arguments.data)
    compare(run, arguments.output or default_output(run), arguments.resume, arguments.quiet)
