"""The two files of a race: every id and every step in ``runs/peers``, and what may be published in ``results``.

Ids of prompts and answers stay out of the repository, as the benchmark prompts do; so do folders of the machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from quasar.core.errors import ConfigError

RESULTS = Path(__file__).parent / "results"
RAW = Path("runs") / "peers"
_LINE = 300
"""Characters that a value may take on one line: an answer does."""


class Store:
    """Where a race is written.

    Args:
        out: a name in ``benchmarks/results``, or a path with a folder in it.
    """

    def __init__(self, out: str) -> None:
        self.path = Path(out) if os.sep in out else RESULTS / out
        self._raw = RAW / self.path.name

    def earlier(self, settings: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the good answers of an earlier race with the same settings.

        Raises:
            ConfigError: the settings differ.
        """
        if not self._raw.is_file():
            return []
        earlier = json.loads(self._raw.read_text(encoding="utf-8"))
        if earlier["settings"] != settings:
            raise ConfigError(f"{self._raw}: holds a race with other settings; take another --out, or omit --resume.")
        return [answer for answer in earlier["answers"] if "error" not in answer]

    def write(self, results: dict[str, Any]) -> None:
        """Write both files, each as a whole, so that a kill leaves the one before."""
        _replace(self._raw, json.dumps(results))
        _replace(self.path, lines(published(results)))


def published(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results with counts and seconds instead of ids and single steps."""
    answers = []
    for answer in results["answers"]:
        kept = {key: value for key, value in answer.items() if key not in ("token_ids", "steps")}
        if "error" not in answer:
            steps = answer["steps"]
            kept |= {
                "tokens": len(answer["token_ids"]), "tokens_of_first_step": steps[0][1], "decode_steps": len(steps) - 1,
                "seconds_prefill": round(steps[0][0], 6), "seconds_decode": round(steps[-1][0] - steps[0][0], 6),
                "ids_hash": hashed(answer["token_ids"]),
            }  # fmt: skip
        answers.append(kept)
    return {**results, "answers": answers}


def lines(value: Any, indent: str = "") -> str:
    """Return ``value`` as JSON that a diff can show: on one line what fits, the rest an entry a line."""
    text = json.dumps(value)
    if len(text) <= _LINE or not isinstance(value, dict | list):
        return text
    deeper = indent + " "
    keys = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    entries = value.values() if isinstance(value, dict) else value
    inside = [f"{deeper}{key}{lines(entry, deeper)}" for key, entry in zip(keys, entries, strict=True)]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([first, ",\n".join(inside), indent + last])


def hashed(ids: list[int]) -> str:
    """Return a short digest of ids: equal texts have equal ones."""
    return hashlib.blake2b(str(ids).encode(), digest_size=8).hexdigest()


def command() -> str:
    """Return the command line without folders."""
    return " ".join(Path(word).name or word for word in sys.argv)


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".partial")
    scratch.write_text(text + "\n", encoding="utf-8")
    os.replace(scratch, path)
