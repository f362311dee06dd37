"""The files of a datastore, and the search in them.

A datastore is a folder: ``tokens.i32`` holds the token ids of all documents, each followed by ``END``, ``suffixes.i32``
their suffix array, and ``datastore.json`` says what they are. Both arrays are int32 and mapped into memory.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from quasar.core.errors import ConfigError
from quasar.drafters.datastore.suffix_array import suffix_array

END = -1
"""Stands after every document."""

DEPTH = 16
"""Longest end of a text that can be looked up, in tokens."""

FORMAT = 1
MOST_TOKENS = 2**31 - 2


@dataclass(frozen=True, slots=True)
class Description:
    """What ``datastore.json`` says.

    Attributes:
        model: whose tokenizer made the ids, as the user called it.
        fingerprint: of that tokenizer.
        tokens: in all documents, their ends included.
        documents: how many.
        format: version of the files.
    """

    model: str
    fingerprint: str
    tokens: int
    documents: int
    format: int = FORMAT


def fingerprint(tokens: Mapping[str, int]) -> str:
    """Return a short name for a tokenizer: two with the same tokens under the same ids share it."""
    digest = hashlib.blake2b(digest_size=8)
    for token, number in sorted(tokens.items()):
        digest.update(f"{number}\x1f{token}\x1e".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def write_datastore(folder: Path, documents: Sequence[Tensor], model: str, tokens: Mapping[str, int]) -> Description:
    """Write a datastore.

    Args:
        folder: made if it is not there; files of an older datastore in it are replaced.
        documents: token ids of each. ``[tokens]`` int32
        model: whose tokenizer it was.
        tokens: that tokenizer's.

    Raises:
        ConfigError: there is nothing to write, or too much.
    """
    ends = torch.tensor([END], dtype=torch.int32)
    text = torch.cat([part for document in documents if len(document) for part in (document, ends)] or [ends])
    if not 1 < len(text) <= MOST_TOKENS:
        amount = "no tokens" if len(text) == 1 else f"{len(text)} tokens, and {MOST_TOKENS} are the most"
        raise ConfigError(f"datastore build: the files hold {amount}.")
    folder.mkdir(parents=True, exist_ok=True)
    text.numpy().tofile(folder / "tokens.i32")
    suffix_array(text, DEPTH).to(torch.int32).numpy().tofile(folder / "suffixes.i32")
    about = Description(model, fingerprint(tokens), len(text), sum(len(document) > 0 for document in documents))
    (folder / "datastore.json").write_text(json.dumps(asdict(about), indent=2) + "\n", encoding="utf-8")
    return about


class Datastore:
    """An open datastore.

    Attributes:
        description: what its own file says.

    Args:
        folder: where it is.

    Raises:
        ConfigError: there is no datastore, or its files do not belong together.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self.description = Description(**json.loads((folder / "datastore.json").read_text(encoding="utf-8")))
            self._tokens, self._suffixes = (_mapped(folder / name) for name in ("tokens.i32", "suffixes.i32"))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"datastore: {folder} cannot be opened: {error}; 'quasar datastore build {folder} FILE' makes one."
            ) from error
        counts = {self.description.tokens, len(self._tokens), len(self._suffixes)}
        if len(counts) > 1 or self.description.format != FORMAT:
            raise ConfigError(f"datastore: {folder} is incomplete or of another version; build it again.")

    def find(self, ids: Sequence[int], shortest: int) -> tuple[int, range]:
        """Return the length of the longest end of ``ids`` that occurs, and the suffixes that begin with it.

        Args:
            ids: a text; at most its last ``DEPTH`` tokens are looked up.
            shortest: a match of fewer tokens is none.

        Returns:
            Length, 0 for none, and places in the suffix array, for ``after``.
        """
        low, high, found = shortest, min(DEPTH, len(ids)), range(0)
        while low <= high:  # a text that occurs has ends that occur
            length = (low + high) // 2
            matches = self._range(list(ids[len(ids) - length :]))
            if matches:
                low, found = length + 1, matches
            else:
                high = length - 1
        return (low - 1, found) if found else (0, found)

    def after(self, place: int, skip: int, count: int) -> list[int]:
        """Return up to ``count`` tokens of a suffix after its first ``skip``, to the end of its document at most."""
        start = self._suffixes[place] + skip
        tokens = self._tokens[start : start + count].tolist()
        return tokens[: tokens.index(END)] if END in tokens else tokens

    def _range(self, wanted: list[int]) -> range:
        first = self._bisect(wanted, 0, past=False)
        return range(first, self._bisect(wanted, first, past=True))

    def _bisect(self, wanted: list[int], low: int, past: bool) -> int:
        """Return the first place from ``low`` on whose suffix comes after ``wanted``, or begins with it."""
        high, size = len(self._suffixes), len(wanted)
        while low < high:
            middle = (low + high) // 2
            start = self._suffixes[middle]
            head = self._tokens[start : start + size].tolist()
            if head < wanted or (past and head == wanted):
                low = middle + 1
            else:
                high = middle
        return low


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast("i")
