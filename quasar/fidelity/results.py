"""What a comparison of distributions is, as types, and how ``--json`` lays it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quasar.core.description import Description
from quasar.machine import Environment

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Summary:
    """Means over places; their standard errors are over prompts, ``None`` for a single one.

    Attributes:
        top1_agreement: share of places with the same most likely token.
        top1_agreement_standard_error: its standard error.
        kl: KL(reference, model), nats.
        kl_standard_error: its standard error.
        tv: total variation distance.
        tv_standard_error: its standard error.
        positions: number of places.
        prompts: number of prompts.
    """

    top1_agreement: float
    top1_agreement_standard_error: float | None
    kl: float
    kl_standard_error: float | None
    tv: float
    tv_standard_error: float | None
    positions: int
    prompts: int


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two verifiers.

    Attributes:
        options: as in YAML.
        said: what it says of itself.
        judges_by: name of the distribution that it computes; ``None`` if that depends on what is drafted.
    """

    options: Mapping[str, Any]
    said: Description
    judges_by: str | None

    def flat(self) -> dict[str, Any]:
        """Return all of it as one mapping."""
        return {**self.options, **self.said.flat(), "judges_by": self.judges_by}


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How far a verifier's distributions are from the reference's.

    Attributes:
        verifier: what was measured.
        reference: what it was measured against.
        summary: over all places.
        tasks: the same by task.
        layers: error of each decoder layer, if it was asked for.
    """

    verifier: Side
    reference: Side
    summary: Summary
    tasks: Mapping[str, Summary]
    layers: tuple[float, ...] | None = None


def lay_out(found: Fidelity, model: str, data: Sequence[str], environment: Environment) -> dict[str, Any]:
    """Return what ``--json`` prints.

    Args:
        found: what was measured.
        model: name of the model as it was given.
        data: sources of the prompts.
        environment: where it was measured.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "verifier": found.verifier.flat(),
        "reference": found.reference.flat(),
        **asdict(found.summary),
        "tasks": {task: asdict(each) for task, each in found.tasks.items()},
        **({} if found.layers is None else {"layers": found.layers}),
        "model": model,
        "data": list(data),
        "environment": asdict(environment),
    }
