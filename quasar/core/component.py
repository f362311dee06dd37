"""What drafters, verifiers and acceptors have in common: a name, options, and what is asked of every loaded part."""

from __future__ import annotations

import warnings
from abc import ABC
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    model_validator,
)

from quasar.core.context import Context
from quasar.core.description import Description

if TYPE_CHECKING:
    from quasar.core.providers import ModelProvider


class Component(ABC):
    """Base of drafters, verifiers and acceptors.

    A component that contains others declares them as options, e.g. ``drafter: Drafter`` or ``drafters: list[Drafter]``.
    In YAML they are a name or a mapping with ``use``, in Python objects. They are loaded with it.

    Attributes:
        name: what YAML files call it.
        second_names: earlier names, which YAML files may still use.
        earlier_names: earlier names of traits and methods, which classes of plugins may still use, with today's.
        kind: ``drafter``, ``verifier`` or ``acceptor``; set by the three base classes.
        config: the validated options. A class with a ``Config`` of its own says ``config: Config``, for type checkers.
    """

    name: ClassVar[str]
    second_names: ClassVar[tuple[str, ...]] = ()
    earlier_names: ClassVar[Mapping[str, str]] = {"resolved": "as_yaml"}
    kind: ClassVar[str]

    def __init_subclass__(cls, **more: Any) -> None:
        """Take what a plugin calls by an earlier name for what it is called now."""
        super().__init_subclass__(**more)
        for old, new in cls.earlier_names.items():
            if old in vars(cls) and new not in vars(cls):
                setattr(cls, new, vars(cls)[old])
                warnings.warn(f"class {cls.__name__}: '{old}' is called '{new}' now.", DeprecationWarning, stacklevel=3)

    class Config(BaseModel):
        """Options of the component; unknown keys are refused, every field is described and bounded."""

        model_config = ConfigDict(extra="forbid", frozen=True)
        second_names: ClassVar[Mapping[str, str]] = {}
        """Earlier names of options, which files may still use, with the names that replaced them."""

        @model_validator(mode="before")
        @classmethod
        def _by_second_names(cls, options: Any) -> Any:
            if not isinstance(options, dict):
                return options
            for old, new in cls.second_names.items():
                if old in options and new in options:
                    raise ValueError(f"'{old}' is an earlier name of '{new}'; give one of them")
            return {cls.second_names.get(key, key): value for key, value in options.items()}

    config: Config

    def __init__(self, config: Config | None = None) -> None:
        self.config = config if config is not None else self.Config()

    @classmethod
    def summary(cls) -> str:
        """First line of the docstring."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    @classmethod
    def traits(cls) -> dict[str, Any]:
        """What the component claims, as shown by ``quasar ls``."""
        return {}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Make components options of other components: checked by their kind, written out as in YAML."""
        written = PlainSerializer(lambda part: part.as_yaml())
        return handler.generate_schema(Annotated[Any, PlainValidator(cls._as_option), written])

    @classmethod
    def _as_option(cls, value: Any, info: ValidationInfo) -> Self:
        build = (info.context or {}).get("build")  # from `quasar.pipelines.composition.build`, which knows the names
        part = build(cls.kind, value, info.field_name) if build and not isinstance(value, Component) else value
        if isinstance(part, cls):
            return part
        raise ValueError(f"should be a {cls.kind}, as an object of class {cls.__name__}")

    def as_yaml(self) -> dict[str, Any]:
        """Return name and options as in YAML, defaults included."""
        return {"use": self.name, **self.config.model_dump(mode="json")}

    def load(self, models: ModelProvider) -> None:
        """Load weights, if the component has any; called once, after the whole pipeline was found to fit together."""
        for part in self.parts():
            part.load(models)

    def describe(self) -> Description:
        """Return what reports should say of the loaded component, e.g. backend, dtype and bytes of weights.

        Read it with ``quasar.core.description.description_of``: a plugin may return the flat layout as a mapping.
        """
        return Description()

    def parts(self) -> Iterator[Component]:
        """Iterate over the components among the options."""
        for name in type(self.config).model_fields:
            value = getattr(self.config, name)
            parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            yield from (part for part in parts if isinstance(part, Component))

    def storages(self) -> dict[int, int]:
        """Return the bytes of every weight that the loaded component holds, by storage, so that sharing is seen."""
        return {storage: size for part in self.parts() for storage, size in part.storages().items()}

    def peak_bytes(self, context: Context) -> int:
        """Return the bytes held for these requests beside weights, e.g. in key-value caches."""
        return sum(part.peak_bytes(context) for part in self.parts())
