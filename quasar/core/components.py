"""The three contracts. A component is a class with a name, a ``Config``, its traits, and one method.

A new drafter is one file::

    class Parrot(Drafter):
        '''Repeats the last token.'''

        name = "parrot"
        law = "point_mass"

        class Config(Drafter.Config):
            num_speculative_tokens: int = Field(3, ge=1, description="Draft tokens a step.")

        def propose(self, context, budget):
            return Draft.chains([[row.token_ids[-1]] * min(self.config.num_speculative_tokens, limit)
                                 for row, limit in zip(context.rows, budget)])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, PlainSerializer, PlainValidator, ValidationInfo

from quasar.core.context import Context
from quasar.core.sampling import SamplingParams
from quasar.core.types import Acceptance, Draft, Verification

if TYPE_CHECKING:
    from quasar.core.providers import ModelProvider

Law = Literal["none", "point_mass", "sampled"]
"""How a drafter chooses tokens: it never drafts, it chooses without sampling, or it samples from laws it returns."""

FULL = "full"
"""The precision of a verifier that is the target model itself."""


class Component(ABC):
    """Base of drafters, verifiers and acceptors.

    A component that contains others declares them as options, e.g. ``drafter: Drafter`` or ``drafters: list[Drafter]``.
    In YAML they are a name or a mapping with ``use``, in Python objects. They are loaded with it.

    Attributes:
        name: what YAML files call it.
        kind: ``drafter``, ``verifier`` or ``acceptor``; set by the three base classes.
        config: the validated options.
    """

    name: ClassVar[str]
    kind: ClassVar[str]

    class Config(BaseModel):
        """Options of the component; unknown keys are refused, every field is described and bounded."""

        model_config = ConfigDict(extra="forbid", frozen=True)

    def __init__(self, config: BaseModel | None = None) -> None:
        self.config: Any = config if config is not None else self.Config()

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
        written = PlainSerializer(lambda part: part.resolved())
        return handler.generate_schema(Annotated[Any, PlainValidator(cls._as_option), written])

    @classmethod
    def _as_option(cls, value: Any, info: ValidationInfo) -> Self:
        build = (info.context or {}).get("build")  # from `quasar.pipelines.composition.build`, which knows the names
        part = build(cls.kind, value, info.field_name) if build and not isinstance(value, Component) else value
        if isinstance(part, cls):
            return part
        raise ValueError(f"should be a {cls.kind}, as an object of class {cls.__name__}")

    def resolved(self) -> dict[str, Any]:
        """Return name and options as in YAML, defaults included."""
        return {"use": self.name, **self.config.model_dump(mode="json")}

    def load(self, models: ModelProvider) -> None:
        """Load weights, if the component has any; called once, after the whole pipeline was found to fit together."""
        for part in self.parts():
            part.load(models)

    def describe(self) -> dict[str, Any]:
        """Return what reports should say of the loaded component, e.g. backend, dtype and bytes of weights."""
        return {}

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


class Drafter(Component):
    """Proposes draft tokens.

    Attributes:
        law: how tokens are chosen. ``sampled`` obliges ``propose`` to return the laws it sampled from. A drafter of
            drafters sets it for the instance, from its parts.
        next_laws: every draft, an empty one too, carries ``Draft.next_laws``.
        matched: every draft carries ``Draft.matched``, and nodes cost little: a scheduler may draft first, then choose.
    """

    kind = "drafter"
    law: Law
    next_laws: bool = False
    matched: bool = False

    @classmethod
    def traits(cls) -> dict[str, Any]:
        """The law, and what a draft carries beside its tokens."""
        return {"law": cls.law, "next_laws": cls.next_laws, "matched": cls.matched}

    def meet(self, verifier: Verifier) -> None:
        """Take note of the loaded verifier that checks the drafts, once, after ``load``; e.g. to time its forwards.

        Drafters among the options meet the same one. A draft may depend on what a forward costs, never on its result.
        """
        for part in self._drafters():
            part.meet(verifier)

    def prefill(self, context: Context) -> None:
        """Read the prompts, before the verifier does; it counts as prefill. What is not read now is read later."""
        for part in self._drafters():
            part.prefill(context)

    def _drafters(self) -> Iterator[Drafter]:
        yield from (part for part in self.parts() if isinstance(part, Drafter))

    @abstractmethod
    def propose(self, context: Context, budget: Sequence[int]) -> Draft:
        """Return a draft for every row.

        Whether a node exists may depend on committed text, past steps, costs, the law at that node and the values of
        its ancestors; never on its own draw, a later one, or this step's target law. Draws come from
        ``context.streams.own("draft", ...)``, laws from ``context.law``.

        Args:
            context: committed ids per row, parameters, streams, the last verification. Read-only.
            budget: per row, the longest path that can still be used; 0 for a row that has finished.
        """


class Verifier(Component):
    """Scores a draft with the target model.

    Attributes:
        precision: what the forward computes in, e.g. ``full`` or ``W8A8 int8``; names the model that a pipeline is
            exact with respect to.
    """

    kind = "verifier"
    precision: ClassVar[str]

    @classmethod
    def traits(cls) -> dict[str, Any]:
        """The precision."""
        return {"precision": cls.precision}

    def reference(self) -> str | None:
        """Name the law that this verifier computes: a pipeline is exact with respect to that, or to nothing.

        ``None`` for a verifier whose law depends on what is drafted: nothing can be exact with respect to it.
        """
        return "the model in full precision" if self.precision == FULL else f"the model in {self.precision}"

    def max_length(self) -> int | None:
        """Longest sequence the loaded model takes, in tokens; ``None`` for no limit."""
        return None

    def vocab_size(self) -> int | None:
        """Token ids are below this; ``None`` if unknown before the first forward."""
        return None

    def rows_forwarded(self, context: Context) -> int:
        """Columns computed so far for these requests, padding included; 0 if not counted."""
        return 0

    def layers_forwarded(self, context: Context) -> int:
        """Decoder layers computed so far, summed over all columns; drafting with the verifier's own is included."""
        return 0

    @abstractmethod
    def verify(self, context: Context, draft: Draft) -> Verification:
        """Return the target laws at every slot of ``draft``, in one forward."""


class Acceptor(Component):
    """Decides which path of a draft is kept, and draws the token after it.

    Attributes:
        laws: the draft laws that it handles.
        exact: whether committed tokens then follow the verifier's law; ``False`` makes the word "relaxed" appear in
            every output of the pipeline.
        greedy_only: refuses any temperature above 0.
        target_stream: with point-mass drafts every committed token is drawn from the target stream, so the text
            equals plain decoding's at any temperature.
        couples: drafts that are sampled through ``context.draft_keys`` are drawn with the target's noise; with
            ``target_stream`` the text then equals plain decoding's for sampled drafts as well.
    """

    kind = "acceptor"
    laws: ClassVar[frozenset[str]]
    exact: ClassVar[bool]
    greedy_only: ClassVar[bool] = False
    target_stream: ClassVar[bool] = False
    couples: ClassVar[bool] = False

    @classmethod
    def traits(cls) -> dict[str, Any]:
        """Laws, exactness, temperatures."""
        return {"laws": sorted(cls.laws), "exact": cls.exact, "greedy_only": cls.greedy_only}

    def is_exact(self) -> bool:
        """Whether this instance is exact; a relaxed rule may have options that make it so."""
        return self.exact

    def follows(self, drafter: Drafter) -> str | None:
        """Name the law that a relaxed rule is exact with respect to, given the drafter; ``None`` for no law at all."""
        return None

    def check(self, sampling: SamplingParams) -> None:
        """Raise ``CompositionError`` for sampling parameters that this rule cannot serve."""

    @abstractmethod
    def accept(self, verification: Verification, context: Context) -> Acceptance:
        """Return the accepted path and the next token of every row."""


def joint_law(parts: Iterable[Drafter]) -> Law:
    """Return the law of a drafter that drafts with any of ``parts``: sampled if one of them samples."""
    laws = {part.law for part in parts}
    return "sampled" if "sampled" in laws else "point_mass" if "point_mass" in laws else "none"
