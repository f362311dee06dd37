"""YAML in, validated values out; every mistake is answered with one line that names file, key and remedy.

Options are validated twice: the outer models here read ``use:`` and leave the rest raw, and the component's own
``Config`` reads the rest. Defaults live in the ``Config`` classes only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from quasar.core.errors import ConfigError, did_you_mean

Model = TypeVar("Model", bound=BaseModel)

_SYNONYMS = {
    "max_length": "max_new_tokens",
    "stop_strings": "stop",
    "do_sample": "temperature",
    "prompt_lookup_num_tokens": "num_speculative_tokens",
    "max_draft_len": "num_speculative_tokens",
    "gamma": "num_speculative_tokens",
    "k": "num_speculative_tokens",
    "max_matching_ngram_size": "prompt_lookup_max",
    "arms": "pipelines",
}
"""What other tools call our keys, where the spelling alone does not lead there."""


class ComponentSpec(BaseModel):
    """A component as written in YAML: a name, or a mapping with ``use`` and the component's own options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    use: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"use": value}
        if isinstance(value, Mapping) and "use" not in value:
            raise ValueError("a component needs 'use: NAME'")
        return value

    @property
    def options(self) -> dict[str, Any]:
        """The keys that the component itself reads."""
        return dict(self.model_extra or {})


class PipelineSpec(BaseModel):
    """One arm: drafter, verifier, acceptor."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drafter: ComponentSpec = Field(ComponentSpec(use="none"), description="What proposes.")
    verifier: ComponentSpec = Field(ComponentSpec(use="full"), description="What scores.")
    acceptor: ComponentSpec = Field(ComponentSpec(use="stochastic"), description="What decides.")
    exact: bool = Field(
        False, description="Refuse this arm unless its output follows its verifier's distribution exactly."
    )


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML that refuses a key given twice; the parser would silently take the last one."""


def _unique_mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key '{key}' is given twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML.

    Raises:
        ConfigError: with line and column.
    """
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{where}: {place}{error.problem or 'not valid YAML'}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML: {str(error).partition(chr(10))[0]}.") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file whose root is a mapping.

    Raises:
        ConfigError: the file is missing, unreadable, broken, empty or not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        near = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        hint = did_you_mean(path.name, near) if near else ""
        raise ConfigError(f"{path}: no such file.{hint}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text: {error}.") from error
    data = parse_yaml(text, str(path))
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: should hold a mapping of keys, holds {_kind(data)}.")
    return data


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return ``data`` with ``KEY=VALUE`` overrides applied; keys are dotted paths, values are YAML.

    Raises:
        ConfigError: an override has no ``=``, or goes through something that is not a mapping.
    """
    result: dict[str, Any] = _unshared(data)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text}: should be KEY=VALUE, for example sampling.temperature=0.7.")
        *parents, last = key.strip().split(".")
        place = result
        for parent in parents:
            inner = place.setdefault(parent, {})
            if isinstance(inner, str) and parent in ("drafter", "verifier", "acceptor"):
                inner = place[parent] = {"use": inner}
            if not isinstance(inner, dict):
                raise ConfigError(f"--set {text}: '{parent}' is {_kind(inner)}, not a mapping.")
            place = inner
        place[last] = parse_yaml(value, f"--set {key}")
    return result


def _unshared(value: Any) -> Any:
    """Copy nested mappings and lists, so that an override of one YAML alias leaves the others alone."""
    if isinstance(value, dict):
        return {key: _unshared(inner) for key, inner in value.items()}
    return [_unshared(inner) for inner in value] if isinstance(value, list) else value


def validate(model: type[Model], data: Any, where: str, context: Mapping[str, Any] | None = None) -> Model:
    """Validate ``data`` as ``model``.

    Args:
        model: a pydantic model.
        data: raw values.
        where: file and key path, for the message.
        context: what validators get beside the values.

    Raises:
        ConfigError: the first mistake, in one line.
    """
    try:
        return model.model_validate(data, context=context)
    except ValidationError as error:
        # An unknown key is usually the cause of whatever else is wrong beside it.
        problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
        raise ConfigError(_explain(model, dict(problems[0]), where)) from error


def _explain(model: type[BaseModel], problem: dict[str, Any], where: str) -> str:
    # Of an option with two types pydantic names the one that it tried as if it were a key.
    path = [str(part) for part in problem["loc"] if not str(part).startswith("dict[")]
    key = ".".join([where, *path]) if path else where
    if problem["type"] == "extra_forbidden":
        owner = _model_at(model, problem["loc"][:-1])
        names = list(owner.model_fields)
        known = _SYNONYMS.get(path[-1])
        hint = f" Did you mean '{known}'? Available: {', '.join(sorted(names))}." if known in names else (
            did_you_mean(path[-1], names)
        )  # fmt: skip
        return f"{key}: unknown key.{hint}"
    if problem["type"] == "missing":
        return f"{key}: missing; this key is required."
    message = str(problem["msg"]).removeprefix("Value error, ")
    given = problem.get("input")
    shown = "" if isinstance(given, (dict, list)) else f" (got {given!r})"
    return f"{key}: {message[:1].lower()}{message[1:]}{shown}."


def _model_at(model: type[BaseModel], path: Sequence[Any]) -> type[BaseModel]:
    """Follow a location down the fields to the model that it lies in."""
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None:
            continue  # a key of a mapping
        candidates = [field.annotation, *get_args(field.annotation)]
        candidates += [inner for outer in list(candidates) for inner in get_args(outer)]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return model


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "a text", int: "a number", float: "a number", bool: "true/false"}
    return "nothing" if value is None else names.get(type(value), type(value).__name__)
