"""The command line: a parser, sub-commands from hooks, and a ``QuasarError`` as one line and exit 2."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quasar.core.errors import QuasarError
from quasar.version import __version__

if TYPE_CHECKING:
    from quasar.plugins.registry import Registry

_EXAMPLES = """\
examples:
  quasar ls drafters
  quasar show ngram
  quasar compare --preset quickstart --limit 1
  quasar compare pipelines.yaml --set sampling.temperature=0.7 --output runs/warm
  quasar check pipelines.yaml
  quasar generate "Name three colours." --drafter ngram --verifier int8
  quasar profile --verifier '{use: int8}' --seconds 30
  quasar fidelity --verifier int8 --limit 2 --layers
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        from quasar.plugins.registry import load_registry

        registry = load_registry()
        arguments = _parser(registry).parse_args(argv, argparse.Namespace(registry=registry))
        return arguments.run(arguments) or 0
    except QuasarError as error:
        print(f"quasar: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("quasar: interrupted; a comparison continues with --resume and the same --output.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, `head` for example, has left
        sys.stderr.close()
        return 0


def _parser(registry: Registry) -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="quasar", description="Composable speculative decoding.", epilog=_EXAMPLES, formatter_class=raw
    )
    parser.add_argument("--version", action="version", version=f"quasar {__version__}")
    registry.add_commands(parser.add_subparsers(metavar="COMMAND", required=True))
    return parser


if __name__ == "__main__":
    sys.exit(main())
