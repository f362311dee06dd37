"""The sub-command ``quasar show``, and how a page looks on a terminal."""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quasar.plugins.describe_component import Option, Page

_WIDTH = 100


def add_show(commands: Any) -> None:
    """Add the sub-command to ``commands``, what ``add_subparsers`` returned."""
    parser = commands.add_parser("show", help="say all there is to say of a component, with an example")
    parser.add_argument("name", help="what YAML files call it; of several kinds with one name all are shown")
    parser.add_argument("--kind", choices=["drafter", "verifier", "acceptor", "backend", "model"])
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE.py", help="a local file with hooks")
    parser.add_argument("--json", action="store_true", help="a JSON list on standard output, nothing else")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from pathlib import Path

    from quasar.plugins.describe_component import describe_component

    registry = arguments.registry.with_files([Path(file) for file in arguments.plugin])
    pages = [describe_component(entry, registry) for entry in registry.named(arguments.name, arguments.kind)]
    if arguments.json:
        print(json.dumps([asdict(page) for page in pages], indent=2))
    else:
        print("\n\n".join(map(shown, pages)))


def shown(page: Page) -> str:
    """Return a page as text."""
    origin = f"{page.distribution} {page.version}".strip()
    parts = [f"{page.kind} {page.name}  [{origin}]\n{_wrapped(page.summary)}"]
    parts += [_wrapped(paragraph) for paragraph in page.text.split("\n\n") if paragraph]
    facts = [f"source: {page.source}"] if page.source else []
    facts += [f"earlier names: {', '.join(page.second_names)}"] if page.second_names else []
    facts += [f"{name}: {_word(value)}" for name, value in page.traits.items()]
    parts += ["\n".join(map(_wrapped, facts))] if facts else []
    if page.kind in ("drafter", "verifier", "acceptor"):
        parts.append("options:\n" + "\n".join(map(_option, page.options)) if page.options else "no options")
        parts.append(_example(page))
    return "\n\n".join(parts)


def _option(option: Option) -> str:
    default = "required" if option.default is None else f"default {option.default}"
    earlier = f" Earlier names: {', '.join(option.second_names)}." if option.second_names else ""
    return f"  {option.name}: {option.type} ({default})\n{_wrapped(option.description + earlier, '      ')}"


def _example(page: Page) -> str:
    if page.example is None:
        required = [option.name for option in page.options if option.default is None]
        return f"no example: its class gives none for {', '.join(required)}"
    return "example, for 'quasar compare FILE.yaml':\n" + textwrap.indent(page.example.rstrip("\n"), "  ")


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_word, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrapped(text: str, indent: str = "") -> str:
    wrapper = textwrap.TextWrapper(_WIDTH, indent, indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(text.replace("``", "`"))
