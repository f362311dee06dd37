"""JSON schemas of what a run writes, made from the types: ``python -m quasar.compare.schema DIR``."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter

from quasar.compare.results import Results
from quasar.compare.store import SampleRecord

FILES: Mapping[str, type] = {"results.schema.json": Results, "samples.schema.json": SampleRecord}
"""Name of a schema, and the type of what it describes: ``results.json``, and a line of ``samples.jsonl``."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema of a dataclass as it is written, with the descriptions of its docstrings."""
    made = TypeAdapter(kind).json_schema(mode="serialization")
    for each in set(_dataclasses(kind)):
        here = made if each is kind else made["$defs"].get(each.__name__)
        if here is None:  # written out flat
            continue
        here["description"] = (inspect.getdoc(each) or "").partition("\n\nAttributes:")[0]
        described = _attributes(each)
        for name, values in here["properties"].items():
            values.pop("title", None)
            values["description"] = described[name]
    return {"$schema": _DIALECT, **made}


def _dataclasses(kind: Any) -> Iterator[type]:
    """Iterate over a dataclass and those among its attributes' types, at any depth."""
    if is_dataclass(kind):
        assert isinstance(kind, type)
        yield kind
    for inner in get_type_hints(kind).values() if is_dataclass(kind) else get_args(kind):
        yield from _dataclasses(inner)


def _attributes(kind: type) -> dict[str, str]:
    """Return what the docstrings of a dataclass and its bases say of each attribute."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__doc__ or "").partition("\nAttributes:\n")[2].partition("\n\n")[0]
        for name, said in re.findall(r"^    (\w+): (.*(?:\n     .*)*)", text, re.MULTILINE):
            found[name] = " ".join(said.split())
    return found


def write(folder: Path) -> None:
    """Write all schemas into a folder."""
    for name, kind in FILES.items():
        text = json.dumps(schema(kind), indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the JSON schemas of results.json and samples.jsonl.")
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
