"""Write ``docs/api.md``: what users and plugin authors may import, from ``__all__`` and docstrings.

python docs/make_api.py            writes the page
python docs/make_api.py --check    fails if the page is not what would be written
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("api.md")

MODULES = {
    "quasar": "To load pipelines and generate, and the contracts of plugins.",
    "quasar.core": "What components are written with: values, mathematics, models, errors.",
    "quasar.core.trees": "The geometry of a draft. Slot 0 is the last committed token, slot i + 1 is draft node i.",
    "quasar.models": "For components that run a language model.",
    "quasar.acceptors.rules": "The ways down a tree of drafts, for acceptors.",
    "quasar.testing": "The conformance kit, for the tests of a plugin.",
}

HEAD = """# What you may import

Users need `quasar` alone; plugins are written with the names below. They keep their meaning, and an earlier name keeps
working when one changes. Whatever else the modules hold may change without notice. First the names with a line each,
then what they take, return and hold. This page is made from the code by `docs/make_api.py`.
"""


def page() -> str:
    """Return the text of the page: every module's names, then the details of functions and classes."""
    parts, told = [HEAD], dict[str, Any]()
    for name, purpose in MODULES.items():
        module = importlib.import_module(name)
        names = {each: getattr(module, each) for each in module.__all__ if not each.startswith("__")}
        parts += [f"## {name}\n\n{purpose}\n", *(_entry(each, names[each]) for each in names if each not in told)]
        again = [f"`{each}`" for each in names if each in told]
        parts.append(f"\nAlso here: {', '.join(again)}.\n" if again else "")
        told |= names
    parts.append("## Details\n")
    for name in sorted(told, key=str.lower):
        lines = list(_details(told[name]))
        parts += [f"### {name}\n", *lines, ""] if lines else []
    return "\n".join(parts).rstrip() + "\n"


def _entry(name: str, value: Any) -> str:
    text = inspect.getdoc(value) if inspect.isclass(value) or inspect.isfunction(value) else _below(name)
    if not text:
        raise SystemExit(f"docs/make_api.py: '{name}' has no docstring; write one beside it.")
    return f"- `{name}{_call(value) if inspect.isfunction(value) else ''}`: {_first(text)}"


def _below(name: str) -> str:
    """Return the text that stands below the assignment of a constant."""
    for file in sorted((PAGE.parents[1] / "quasar").rglob("*.py")):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        for statement, after in pairwise(body):
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if any(isinstance(each, ast.Name) and each.id == name for each in targets) and isinstance(after, ast.Expr):
                return str(ast.literal_eval(after.value))
    return ""


def _first(text: str) -> str:
    """Return the first paragraph of a docstring in one line, as Markdown."""
    return re.sub(r"``(.*?)``", r"`\1`", " ".join(text.strip().partition("\n\n")[0].split()))


def _call(function: Callable[..., Any]) -> str:
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return f"({', '.join(names)})"


def _section(text: str, title: str) -> str:
    found = re.search(rf"^{title}:\n((?: +.*\n?|\n)*)", text, re.MULTILINE)
    return inspect.cleandoc(found[1]) if found else ""


def _items(section: str) -> Iterator[str]:
    for found in re.finditer(r"^(\w+): (.*(?:\n +.*)*)", section, re.MULTILINE):
        yield f"- `{found[1]}`: {_first(found[2])}"


def _signature(text: str) -> Iterator[str]:
    """Yield what a function takes, returns and raises."""
    yield from _items(_section(text, "Args"))
    if returned := _section(text, "Returns"):
        yield f"- returns: {_first(returned)}"
    for found in _items(_section(text, "Raises")):
        yield f"- raises {found.removeprefix('- ')}"


def _details(value: Any) -> Iterator[str]:
    """Yield the arguments of a function, or the attributes, options and methods that a class itself has."""
    text = inspect.getdoc(value) or ""
    if inspect.isfunction(value):
        yield from _signature(text)
    if not inspect.isclass(value) or value.__module__.startswith("quasar.testing"):
        return
    yield from _items(_section(text, "Attributes"))
    for name, option in getattr(value, "model_fields", {}).items():
        yield f"- `{name}`, default {option.default!r}: {option.description}"
    for name, member in vars(value).items():
        own = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        said = inspect.getdoc(own)
        if name.startswith("_") or getattr(own, "__name__", name) != name or not said:
            continue  # private, or an earlier name of another method
        if inspect.isfunction(own):
            yield f"- `{name}{_call(own)}`: {_first(said)}"
            yield from (f"    {line}" for line in _signature(said))
        elif isinstance(own, property) or type(own).__name__ == "cached_property":
            yield f"- `{name}`: {_first(said)}"


def main(arguments: list[str]) -> None:
    """Write or check the page.

    Raises:
        SystemExit: with ``--check``, if the page is stale.
    """
    text = page()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        raise SystemExit("docs/api.md is not what the code says; run 'python docs/make_api.py'.")


if __name__ == "__main__":
    sys.path.insert(0, str(PAGE.parents[1]))
    main(sys.argv[1:])
