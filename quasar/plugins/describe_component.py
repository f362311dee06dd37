"""What ``quasar show`` and the tables of the documentation say of a component; read off its class, nothing is run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from quasar.core.component import Component
from quasar.plugins.listing import Entry
from quasar.plugins.option_types import models_of, type_of

PARTNERS = {"drafter": "ngram", "verifier": "full", "acceptor": "stochastic"}
"""What stands beside a component in its example."""

_HEADINGS = ("Args:", "Attributes:", "Raises:", "Returns:", "Example:")


class Shelf(Protocol):
    """What is installed; the registry is one."""

    def entries(self, kind: str | None = None) -> list[Entry]:
        """Return what there is of a kind, broken things included."""
        ...


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a component.

    Attributes:
        name: its key; of a mapping inside an option, the path to the key.
        type: what may stand there, bounds included.
        default: in YAML; ``None`` for an option that has to be given.
        description: what it does.
        second_names: earlier names, which files may still use.
    """

    name: str
    type: str
    default: str | None
    description: str
    second_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """Everything there is to say of a component, backend or model before it is loaded.

    Attributes:
        name: what YAML files call it.
        kind: one of those that plugins provide.
        second_names: earlier names, which files may still use.
        summary: one sentence.
        text: the paragraphs after it; empty if there are none.
        traits: what it claims of itself.
        options: in the order of its class.
        example: a YAML file that uses it; ``None`` where a required option has no example, and for a backend or model.
        source: where the method comes from; empty if it does not say.
        distribution: the installed distribution that it comes from, or the path of a local file.
        version: version of the distribution; empty for a file.
    """

    name: str
    kind: str
    second_names: tuple[str, ...]
    summary: str
    text: str
    traits: dict[str, Any]
    options: tuple[Option, ...]
    example: str | None
    source: str
    distribution: str
    version: str


def describe_component(entry: Entry, shelf: Shelf) -> Page:
    """Return what there is to say of something that a plugin provides and that works.

    Args:
        entry: it.
        shelf: what else is installed: an option that takes some components only names them.
    """
    line, thing = entry.listed(), entry.value
    text, source = _paragraphs(thing if isinstance(thing, type) else type(thing))
    is_component = isinstance(thing, type) and issubclass(thing, Component)
    return Page(
        name=line.name,
        kind=line.kind,
        second_names=tuple(getattr(thing, "second_names", ())),
        summary=line.summary,
        text="" if line.kind == "model" else text,
        traits=line.traits,
        options=tuple(_options(thing.Config, shelf)) if is_component else (),
        example=_example(thing) if is_component else None,
        source=source,
        distribution=line.distribution,
        version=line.version,
    )


def _paragraphs(documented: type) -> tuple[str, str]:
    """Return the paragraphs of a docstring after its first line, without lists of arguments, and its source."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(documented.__dict__.get("__doc__") or ""))
    told = [" ".join(line.strip() for line in part.splitlines()) for part in paragraphs[1:]]
    source = next((part.removeprefix("Source:").strip() for part in told if part.startswith("Source:")), "")
    return "\n\n".join(part for part in told if not part.startswith(("Source:", *_HEADINGS))), source


def _options(config: type[BaseModel], shelf: Shelf, path: str = "", before: str = "") -> Iterator[Option]:
    """Yield the options of a model, those of mappings inside them right behind."""
    earlier: Mapping[str, str] = getattr(config, "second_names", {})
    for name, field in config.model_fields.items():
        second = tuple(old for old, new in earlier.items() if new == name)
        description = before + (_in_a_sentence(field.description or "") if before else field.description or "")
        yield Option(path + name, type_of(field, shelf), _default(field), description, second)
        key, variants = models_of(field)
        for value, model in variants.items():
            inner = f"With {name} {value}: " if key else ""
            yield from (
                each for each in _options(model, shelf, f"{path}{name}.", inner) if each.name != f"{path}{name}.{key}"
            )


def _in_a_sentence(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _default(field: FieldInfo) -> str | None:
    """Return the default as a user would write it, ``None`` if the option has to be given."""
    return None if field.is_required() else _in_yaml(field.get_default(call_default_factory=True))


def _in_yaml(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Component):
        value = value.as_yaml()
    if isinstance(value, tuple | set | frozenset):
        value = list(value)
    plain = value if isinstance(value, str | int | float | bool | list | dict | None) else str(value)
    return yaml.safe_dump(plain, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")


def _example(component: type[Component]) -> str | None:
    """Return a whole YAML file: the component with the options that have an example, among usual partners."""
    options: dict[str, Any] = {}
    for name, field in component.Config.model_fields.items():
        if field.examples:
            options[name] = field.examples[0]
        elif field.is_required():
            return None
    parts = {**PARTNERS, component.kind: {"use": component.name, **options} if options else component.name}
    data = {"model": "smollm2-135m", "pipelines": {component.name: parts}}
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
