"""What must be true of a class before a pipeline may name it; a fault is one line that says what to change.

The checks read signatures and traits. They run nothing of the component, so listing plugins stays quick and safe;
``quasar.testing.kit`` is the kit that runs a component.
"""

from __future__ import annotations

import inspect
from typing import Any, get_args

from quasar.core.backends import Backend
from quasar.core.component import Component
from quasar.core.components import Acceptor, Drafter, DraftsBy, Verifier
from quasar.plugins.model_checks import class_name, is_name, takes

BASES: dict[str, type[Component]] = {"drafter": Drafter, "verifier": Verifier, "acceptor": Acceptor}
"""The base class of each kind of component."""


def find_fault(kind: str, item: object) -> str | None:
    """Say what is wrong with something that a plugin returned for ``kind``.

    Args:
        kind: ``drafter``, ``verifier``, ``acceptor`` or ``backend``.
        item: the class.

    Returns:
        The first fault found, without the name of the plugin; ``None`` for a sound item.
    """
    base: type[Any] = Backend if kind == "backend" else BASES[kind]
    if not isinstance(item, type):
        return f"expected a {kind} class, got an object of class {class_name(item)}"
    if not issubclass(item, base):
        return f"class {item.__name__} is not a subclass of {base.__name__}"
    if not is_name(getattr(item, "name", None)):
        return f"class {item.__name__} needs a `name`: the text that YAML files call it by"
    if kind == "backend":
        missing = sorted(item.__abstractmethods__)  # type: ignore[attr-defined]
        return f"class {item.__name__} lacks {', '.join(missing)}" if missing else None
    return _method_fault(base, item) or _config_fault(item) or _trait_fault(item)


def _method_fault(base: type[Component], component: type[Component]) -> str | None:
    """Compare every method that ``component`` overrides with the contract, the abstract one first."""
    for name in sorted(component.__abstractmethods__):
        return f"class {component.__name__} lacks {_signature(name, getattr(component, name))}"
    for owner in (base, Component):
        for name, contract in vars(owner).items():
            if not inspect.isfunction(contract) or (name.startswith("_") and name != "__init__"):
                continue
            override = getattr(component, name)
            asked = f"the contract is {_signature(name, contract)}"
            if not callable(override):
                return f"class {component.__name__} has {name} = {override!r}; {asked}"
            if not takes(override, *[None] * _arguments(component, name, contract)):
                return f"class {component.__name__} has {_signature(name, override)}; {asked}"
    return None


def _config_fault(component: type[Component]) -> str | None:
    config: Any = component.Config
    if not (isinstance(config, type) and issubclass(config, Component.Config)):
        return f"{component.__name__}.Config must be a subclass of Component.Config (it is pydantic and refuses typos)"
    if config.model_config.get("extra") != "forbid":
        return f"{component.__name__}.Config must keep extra='forbid', so that misspelt options are refused"
    return None


def _trait_fault(component: type[Component]) -> str | None:
    known = get_args(DraftsBy)
    claimed: set[Any] = set()
    if issubclass(component, Drafter):
        claimed = {getattr(component, "drafts_by", None)}
    elif issubclass(component, Acceptor):
        if isinstance(component.takes, str):
            return f"class {component.__name__} has takes = {component.takes!r}; make it a frozenset of such words"
        claimed = set(component.takes)
    unknown = sorted(map(repr, claimed.difference(known)))
    if unknown:
        return f"class {component.__name__} drafts by or takes {', '.join(unknown)}; known are {', '.join(known)}"
    try:
        component.traits()
        component.summary()
    except Exception as error:
        return f"class {component.__name__} cannot state its traits: {type(error).__name__}: {error}"
    return None


def _arguments(component: type, name: str, contract: Any) -> int:
    """Count what a call passes to ``name`` as looked up on the class: ``self`` too, if it is a plain function."""
    count = len(inspect.signature(contract).parameters)
    is_plain = not isinstance(inspect.getattr_static(component, name), (classmethod, staticmethod))
    return count if is_plain else count - 1


def _signature(name: str, function: Any) -> str:
    """Return ``name(parameters)`` without annotations, which would drown the parameters."""
    parameters = inspect.signature(function).parameters.values()
    return f"{name}{inspect.Signature([item.replace(annotation=inspect.Parameter.empty) for item in parameters])}"
