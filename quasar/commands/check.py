"""The sub-command ``quasar check``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from quasar.commands.compare import add_run_source, load

if TYPE_CHECKING:
    from quasar.compare.config import Run


def add_check(commands: Any) -> None:
    """Add the sub-command to ``commands``, what ``add_subparsers`` returned."""
    parser = commands.add_parser("check", help="compose every arm without weights; say what is exact")
    add_run_source(parser)
    parser.add_argument("--run", dest="run_arms", action="store_true", help="play every arm; exit 1 on a fault")
    parser.add_argument("--model", action="store_true", help="with --run: on the file's model, not a tiny random one")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    run = load(arguments)
    if arguments.run_arms:
        return _audit(run, arguments.model)
    for arm in run.arms:
        parts = arm.composition
        claim = f"exact with respect to {parts.exact_with_respect_to or 'nothing'}"
        claim = f"relaxed, {claim}" if parts.relaxed else claim
        mark = " (added as a baseline)" if arm.name in run.added else ""
        print(f"{arm.name}{mark}: {parts.drafter.name} → {parts.verifier.name} → {parts.acceptor.name}")
        print(f"  {claim}: {parts.reason}.")
    print(f"{len(run.questions)} prompts, baseline '{run.baseline}'. Nothing was loaded.")
    return 0


def _audit(run: Run, on_real_model: bool) -> int:
    """Play every arm; 1 if a token has no innocent explanation."""
    from quasar.compare.audit import audit_real, audit_tiny
    from quasar.compare.command import prepare

    verdicts = audit_tiny(run) if not on_real_model else audit_real(run, *prepare(run, quiet=True))
    failed = False
    for verdict in verdicts:
        print(verdict.line(), flush=True)
        failed = failed or bool(verdict.faults)
    return 1 if failed else 0
