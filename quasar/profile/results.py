"""What a profile is, as types, and how ``--json`` lays it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from quasar.core.description import Description
from quasar.machine import Environment

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Forward:
    """Forwards of one width after a prefix of one length.

    Attributes:
        context: committed tokens before and in slot 0.
        rows: slot 0 and draft nodes.
        ms: median milliseconds.
        ms_quartiles: first and third quartile, milliseconds.
        num_forwards: how many were timed.
        times_one_row: ``ms`` ÷ that of one row; ``None`` if that was not timed.
        times_floor: ``ms`` ÷ the floor.
        shares: shares of the parts of the model; ``None`` where nobody can tell.
    """

    context: int
    rows: int
    ms: float
    ms_quartiles: tuple[float, float]
    num_forwards: int
    times_one_row: float | None
    times_floor: float
    shares: Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class Profile:
    """What a verifier's forwards cost.

    Attributes:
        model: name of the model.
        options: the verifier's, as in YAML.
        verifier: what the verifier says of itself.
        bytes_read_per_forward: weight bytes that no forward can do without.
        read_bandwidth_bytes_per_second: how fast this machine reads.
        floor_ms: milliseconds that reading those bytes takes.
        cache_bytes: bytes of keys and values by length of the prefix.
        parts_from: whose clock the shares are from.
        forwards: by prefix and width.
        environment: where it was measured.
    """

    model: str
    options: Mapping[str, Any]
    verifier: Description
    bytes_read_per_forward: int
    read_bandwidth_bytes_per_second: float
    floor_ms: float
    cache_bytes: Mapping[int, int]
    parts_from: str
    forwards: tuple[Forward, ...]
    environment: Environment


def lay_out(found: Profile, busy_processors_at_start: float | None) -> dict[str, Any]:
    """Return what ``--json`` prints.

    Args:
        found: the profile.
        busy_processors_at_start: processors that others kept busy; ``None`` where the system does not say.
    """
    values = asdict(found)
    del values["options"]
    values["verifier"] = {**found.options, **found.verifier.flat()}
    values["environment"]["busy_processors_at_start"] = busy_processors_at_start
    return {"schema_version": SCHEMA_VERSION, **values}
