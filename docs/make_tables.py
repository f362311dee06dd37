"""Fill the option tables of the documentation from the code: ``python docs/make_tables.py``, ``--check`` to only look.

A page says where a table belongs, and what stands between the two marks is made here::

    <!-- options: drafter ngram -->
    <!-- /options -->
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from quasar.core.errors import PluginError, QuasarError
from quasar.plugins.describe_component import Option, describe_component
from quasar.plugins.registry import Registry, load_registry
from quasar.plugins.sources import installed_sources

DOCS = Path(__file__).parent
KINDS = ("drafter", "verifier", "acceptor")

_MARK = re.compile(r"<!-- options: *(.*?) *-->\n(.*?)<!-- /options -->", re.DOTALL)


def builtins() -> Registry:
    """Return what comes with quasar: what else is installed must not change a page."""
    return load_registry(sources=[source for source in installed_sources() if source.is_builtin])


def fill(text: str, registry: Registry, where: str) -> str:
    """Return a page with its tables made anew.

    Args:
        text: the page.
        registry: where components are looked up.
        where: the page's name, for messages.

    Raises:
        PluginError: a mark names no component, or has no end.
    """
    whole = len(_MARK.findall(text))
    if (text.count("<!-- options:"), text.count("<!-- /options -->")) != (whole, whole):
        raise PluginError(f"{where}: every '<!-- options: KIND NAME -->' needs a '<!-- /options -->' on a later line.")
    return _MARK.sub(lambda found: _section(found[1], registry, where), text)


def marked(text: str) -> set[tuple[str, ...]]:
    """Return the kinds and names that a page has marks for."""
    return {tuple(found[1].split()) for found in _MARK.finditer(text)}


def _section(words: str, registry: Registry, where: str) -> str:
    kind, _, name = words.partition(" ")
    if kind not in KINDS:
        raise PluginError(
            f"{where}: '<!-- options: {words} -->' should say KIND NAME, the kind one of {', '.join(KINDS)}."
        )
    try:
        [entry] = registry.named(name, kind)
    except PluginError as error:
        raise PluginError(f"{where}: '<!-- options: {words} -->': {error}") from error
    table = _table(describe_component(entry, registry).options)
    return f"<!-- options: {words} -->\n\n{table}\n\n<!-- /options -->"


def _table(options: Sequence[Option]) -> str:
    if not options:
        return "It has no options."
    rows = [("option", "type", "default", "meaning"), ("---", "---", "---", "---")]
    for option in options:
        default = "required" if option.default is None else f"`{option.default}`"
        earlier = f" Earlier name: {', '.join(f'`{name}`' for name in option.second_names)}."
        meaning = option.description + (earlier if option.second_names else "")
        rows.append((f"`{option.name}`", option.type, default, meaning))
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def main(argv: Sequence[str] | None = None, pages: Sequence[Path] | None = None) -> int:
    """Write the pages whose tables are stale, or with ``--check`` only name them; 1 if there were any to name."""
    parser = argparse.ArgumentParser(description="Fill the option tables of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a table is stale")
    check = parser.parse_args(argv).check
    registry, stale = builtins(), []
    try:
        for page in sorted(DOCS.glob("*.md")) if pages is None else pages:
            text = page.read_text(encoding="utf-8")
            filled = fill(text, registry, page.name)
            if filled != text:
                stale.append(page)
                if not check:
                    page.write_text(filled, encoding="utf-8")
    except QuasarError as error:
        print(f"make_tables: error: {error}", file=sys.stderr)
        return 2
    for page in stale:
        print(f"{page.name}: {'stale; run docs/make_tables.py' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
