"""What a loaded component says of itself, for reports: a type of its own, and one way to lay it out flat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, ClassVar, Protocol

from pydantic import TypeAdapter, ValidationError

from quasar.core.errors import ContractError


@dataclass(frozen=True, slots=True)
class Served:
    """What a routing policy that follows a rule says of itself.

    Attributes:
        served: requests by arm.
    """

    served: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ArmSpeed:
    """What a routing policy saw of one of its arms.

    Attributes:
        served: requests.
        tokens_per_second: tokens committed a second, prefill included.
    """

    served: int
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Speeds:
    """What a routing policy that learns says of itself.

    Attributes:
        arms_by_class: by class of prompts and arm, what was seen.
        regret_seconds: seconds beyond those that the fastest arm of each class would have taken.
        regret_share: the same as a share of all the time.
    """

    arms_by_class: Mapping[str, Mapping[str, ArmSpeed]]
    regret_seconds: float
    regret_share: float


Policy = Served | Speeds | Mapping[str, Any]
"""What a routing policy says; a mapping if it is not one of those that come with quasar."""


@dataclass(frozen=True, slots=True)
class Description(Mapping[str, Any]):
    """What reports say of a loaded component; what it has nothing to say about is ``None``.

    As a mapping it is its flat layout, for components that were written when ``describe`` returned a dict.

    Attributes:
        backend: what runs the model.
        dtype: what the model computes in, e.g. ``bfloat16``.
        device: what it computes on, e.g. ``cuda:0``.
        weight_bytes: bytes of its weights, each storage once.
        policy: what a routing policy did.
        details: what is particular to the component, ready for JSON.
    """

    backend: str | None = None
    dtype: str | None = None
    device: str | None = None
    weight_bytes: int | None = None
    policy: Policy | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Description:
        """Return the description whose flat layout is ``said``.

        Raises:
            TypeError: an attribute has a value of another type.
        """
        own = {name: value for name, value in said.items() if name in _KNOWN}
        for name, value in own.items():
            kinds, word = _KNOWN[name]
            if value is not None and not isinstance(value, kinds):
                raise TypeError(f"'{name}' is {value!r}, not {word}")
        if isinstance(own.get("policy"), Mapping):
            own["policy"] = _policy(own["policy"])
        return cls(**own, details={name: value for name, value in said.items() if name not in _KNOWN})

    def flat(self) -> dict[str, Any]:
        """Return one mapping of everything there is to say, with what is particular in the middle."""
        policy = self.policy if self.policy is None or isinstance(self.policy, Mapping) else asdict(self.policy)
        before = {"policy": policy, "backend": self.backend}
        after = {"dtype": self.dtype, "device": self.device, "weight_bytes": self.weight_bytes}
        return {**_there(before), **self.details, **_there(after)}

    def __iter__(self) -> Iterator[str]:
        return iter(self.flat())

    def __len__(self) -> int:
        return len(self.flat())

    def __getitem__(self, key: str) -> Any:
        return self.flat()[key]


_TEXT = (str, "a text")
_KNOWN: Mapping[str, tuple[Any, str]] = {
    "backend": _TEXT,
    "dtype": _TEXT,
    "device": _TEXT,
    "weight_bytes": (int, "a whole number"),
    "policy": (Served | Speeds | Mapping, "a mapping"),
}


class Described(Protocol):
    """A component, as far as its description is concerned."""

    name: ClassVar[str]
    kind: ClassVar[str]

    def describe(self) -> Description:
        """Return what reports should say."""
        ...


def description_of(component: Described) -> Description:
    """Return what a component says of itself; a plugin may return its flat layout as a mapping.

    Raises:
        ContractError: it returned something else; names the component.
    """
    said: Any = component.describe()
    if isinstance(said, Description):
        return said
    try:
        if not isinstance(said, Mapping):
            raise TypeError(f"it is of type {type(said).__name__}")
        return Description.of(said)
    except TypeError as error:
        raise ContractError(
            f"{component.kind} '{component.name}': describe() should return a Description or a mapping of its "
            f"attributes: {error}."
        ) from error


def describe_part(component: Described) -> dict[str, Any]:
    """Return name and flat description of a component inside another one, for the ``details`` of that."""
    return {"use": component.name, **description_of(component).flat()}


def _there(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@cache
def _policies() -> TypeAdapter[Served | Speeds]:
    return TypeAdapter(Served | Speeds)


def _policy(said: Mapping[str, Any]) -> Policy:
    """Return what a policy of ours says as what it is; another one's stays a mapping."""
    try:
        found = _policies().validate_python(said)
    except ValidationError:
        return said
    return found if asdict(found) == said else said
