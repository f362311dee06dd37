"""A run's folder: ``run.json`` says whose it is, ``samples.jsonl`` grows line by line, and nothing is ever lost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from quasar.compare.counting import Sample
from quasar.compare.levels import LevelCounts
from quasar.compare.results import SCHEMA_VERSION, Results
from quasar.core.errors import ConfigError

Key = tuple[int | str, int, str, int]
"""question id, turn, arm, repeat: every one of them is in a finished run exactly once."""


@dataclass(frozen=True, slots=True)
class SampleRecord(Sample):
    """One line of ``samples.jsonl``: the counts of one answer, and the answer.

    Attributes:
        seed: seed of the random streams; the repeat is their sample index.
        prompt_hash: digest of the prompt's ids: in later turns the prompt depends on the arm's own earlier answers.
        num_prompt_tokens: length of the prompt, in tokens.
        token_ids: new tokens, the one that prefill yields first.
        text: the same, decoded.
        finish_reason: ``eos``, ``stop``, ``length`` or ``capacity``.
        committed: tokens committed by each decode step, in order.
        drafted: draft tokens of each decode step.
        rows_forwarded: verifier columns in decode, padding included.
        seconds_to_first_token: seconds from the request to the first committed token.
        cache_bytes: bytes of the key-value cache.
        levels: counts of each level inside the drafter, outermost first.
        layers_forwarded: decoder layers of the verifier's model in decode, summed over columns; drafting with them is
            included.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    seed: int
    prompt_hash: str
    num_prompt_tokens: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    committed: tuple[int, ...]
    drafted: tuple[int, ...]
    rows_forwarded: int
    seconds_to_first_token: float
    cache_bytes: int
    levels: tuple[LevelCounts, ...] = ()
    layers_forwarded: int = 0

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SampleRecord:
        """Return the sample of a parsed line; raises ``TypeError`` for keys of another version."""
        frozen: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        levels = tuple(LevelCounts(**counts) for counts in frozen.pop("levels", ()))
        return cls(**frozen, levels=levels)

    @property
    def key(self) -> Key:
        """What the sample is the only one of."""
        return (self.question_id, self.turn, self.arm, self.repeat)


@cache
def results_type() -> TypeAdapter[Results]:
    """Return what lays results out, reads them and describes their layout."""
    return TypeAdapter(Results)


def lay_out(results: Results) -> dict[str, Any]:
    """Return what ``results.json`` holds."""
    # Not pydantic's own JSON: that writes numbers that JSON does not know as nothing.
    laid_out: dict[str, Any] = json.loads(json.dumps(results_type().dump_python(results), allow_nan=False))
    return laid_out


class RunFolder:
    """The output folder of one run.

    Attributes:
        path: the folder.
        samples: what was answered so far.
        measurements: what was measured when the run began and decides in it; see ``ModelProvider``.

    Args:
        path: the folder; made if it is not there.
        resolved: the run's whole configuration, compared with the one that the folder was begun with.
        resume: continue what is there.

    Raises:
        ConfigError: the folder is in use, belongs to another run, or cannot be written.
    """

    def __init__(self, path: Path, resolved: dict[str, Any], resume: bool) -> None:
        self.path = path
        self._samples_file = path / "samples.jsonl"
        begun = path / "run.json"
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not any(path.iterdir()):
                _write(begun, {"schema_version": SCHEMA_VERSION, "configuration": resolved})
            elif not begun.is_file():
                raise ConfigError(f"--output {path}: the folder is not empty and holds no run; choose another one.")
            elif not resume:
                raise ConfigError(f"--output {path}: holds a run already; use --resume, or another folder.")
            else:
                _check_same(path, _read(begun)["configuration"], resolved)
        except OSError as error:
            raise ConfigError(f"--output {path}: cannot be written: {error.strerror}.") from error
        self._measurements_file = path / "measurements.json"
        self.measurements: dict[str, Any] = _read(self._measurements_file) if self._measurements_file.exists() else {}
        self.samples = {sample.key: sample for sample in self._read_samples()}

    def _read_samples(self) -> Iterator[SampleRecord]:
        """Read what is there; a line that was being written when the run was killed is cut off."""
        if not self._samples_file.exists():
            return
        raw = self._samples_file.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            with self._samples_file.open("r+b") as file:
                file.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                yield SampleRecord.from_json(json.loads(line))
            except (ValueError, TypeError) as error:
                raise ConfigError(
                    f"{self._samples_file}: line {number} is not a sample of this version; start a new folder."
                ) from error

    def add(self, sample: SampleRecord) -> None:
        """Append a sample; it is on disk when this returns."""
        with self._samples_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(sample), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.samples[sample.key] = sample

    def write_measurements(self) -> None:
        """Write ``measurements``, if there are any."""
        if self.measurements:
            _write(self._measurements_file, self.measurements)

    def write_results(self, results: Results, report: str) -> dict[str, Any]:
        """Write ``results.json`` and ``report.md``, each whole or not at all; returns what the former holds."""
        laid_out = lay_out(results)
        _write(self.path / "results.json", laid_out)
        _write_text(self.path / "report.md", report)
        return laid_out


def _check_same(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    before, after = _flatten(old), _flatten(json.loads(json.dumps(new)))
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            raise ConfigError(
                f"--resume {path}: this folder was begun with {key} = {before.get(key)!r}, and now it is "
                f"{after.get(key)!r}; give the same configuration, or another folder."
            )


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {k: v for key, inner in value.items() for k, v in _flatten(inner, f"{prefix}.{key}".strip(".")).items()}


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: not readable as JSON; choose another --output folder.") from error


def _write(path: Path, value: Any) -> None:
    _write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    temporary = path.with_suffix(path.suffix + ".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
