"""``quasar datastore build``: read files, turn them into token ids, write them with their suffix array."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from quasar.core.errors import ConfigError
from quasar.core.providers import TextCodec
from quasar.drafters.datastore.store import write_datastore
from quasar.pipelines.open_model import open_model

_PIECE = 1 << 16
"""Characters of a text file that are tokenised at once; more takes no less time for each and more memory."""


def build(arguments: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        ConfigError: a file cannot be read, holds something else, or there is no such model.
    """
    started, name = time.perf_counter(), arguments.model
    codec = open_model(name, arguments.registry, "cpu", arguments.quiet).tokenizer
    documents = [
        torch.tensor(ids, dtype=torch.int32) for file in arguments.files for ids in read(file, codec, arguments.field)
    ]
    read_for = time.perf_counter() - started
    about = write_datastore(arguments.folder, documents, name, codec.tokens())
    if not arguments.quiet:
        print(
            f"{arguments.folder}: {about.tokens} tokens of {about.documents} documents; "
            f"tokenised in {read_for:.1f} s, sorted in {time.perf_counter() - started - read_for:.1f} s"
        )


def read(file: Path, codec: TextCodec, field: str) -> Iterator[list[int]]:
    """Yield the token ids of every document in a file: the whole of a text, or each line of a ``.jsonl``.

    Args:
        file: UTF-8.
        codec: the tokenizer.
        field: key of the text in lines that are objects.

    Raises:
        ConfigError: the file cannot be read, or a line is none of what is allowed.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"datastore build: {file} cannot be read as UTF-8 text: {error}.") from error
    if file.suffix != ".jsonl":
        yield [token for piece in _pieces(text) for token in codec.encode_part(piece)]
        return
    limit = max(codec.tokens().values()) + 1
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield _document(line, codec, field, limit, f"{file}, line {number}")


def _document(line: str, codec: TextCodec, field: str, limit: int, where: str) -> list[int]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"datastore build: {where} is not JSON: {error}.") from error
    if isinstance(value, dict):
        if field not in value:
            raise ConfigError(f"datastore build: {where} has no key '{field}'; name the text's key with --field.")
        value = value[field]
    if isinstance(value, str):
        return codec.encode_part(value)
    if isinstance(value, list) and all(type(token) is int and 0 <= token < limit for token in value):
        return value
    raise ConfigError(f"datastore build: {where} should be a string, or a list of token ids below {limit}.")


def _pieces(text: str) -> Iterator[str]:
    """Cut a text into pieces at ends of lines, so that a tokenizer need not see all of it at once."""
    piece: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        piece.append(line)
        size += len(line)
        if size >= _PIECE:
            yield "".join(piece)
            piece, size = [], 0
    yield "".join(piece)
