"""Put three components together, and say what the result is exact with respect to, before any weight is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from quasar.core.component import Component
from quasar.core.components import Acceptor, Drafter, Verifier
from quasar.core.config import ComponentSpec, PipelineSpec, validate
from quasar.core.errors import CompositionError, ConfigError
from quasar.core.sampling import SamplingParams


class Finder(Protocol):
    """Finds component classes by name; the plugin registry is one."""

    def find(self, kind: str, name: str) -> type[Component]:
        """Return the class, or raise ``PluginError``."""
        ...


@dataclass(frozen=True, slots=True)
class Composition:
    """Three components that fit, and what can be promised of them.

    Attributes:
        drafter: proposes.
        verifier: scores.
        acceptor: decides.
        exact_with_respect_to: the model whose distribution the output follows; a relaxed pipeline has ``None``, or a
            mixture.
        relaxed: the output does not follow the verifier's distribution, by design; every output says so.
        same_text: the text equals plain decoding's with the same verifier, token for token, at any temperature.
        reason: why, in a sentence.
    """

    drafter: Drafter
    verifier: Verifier
    acceptor: Acceptor
    exact_with_respect_to: str | None
    relaxed: bool
    same_text: bool
    reason: str

    @property
    def is_plain(self) -> bool:
        """Whether nothing is ever drafted."""
        return self.drafter.drafts_by == "none"

    def as_yaml(self) -> dict[str, Any]:
        """Every option with its value, defaults included."""
        parts: tuple[tuple[str, Component], ...] = (
            ("drafter", self.drafter),
            ("verifier", self.verifier),
            ("acceptor", self.acceptor),
        )
        return {kind: part.as_yaml() for kind, part in parts}


def build(kind: str, spec: ComponentSpec, finder: Finder, where: str) -> Component:
    """Find a component's class and make it from its options, and the components among these in the same way.

    Args:
        kind: ``drafter``, ``verifier`` or ``acceptor``.
        spec: name and options.
        finder: where names are looked up.
        where: file and key path of the component, for messages.

    Raises:
        PluginError: nobody registered that name.
        ConfigError: an option is wrong.
        CompositionError: the component's parts do not fit together.
    """

    def build_part(kind: str, value: Any, key: str) -> Component:
        place = f"{where}.{key}"
        return build(kind, validate(ComponentSpec, value, place), finder, place)

    component, backends = finder.find(kind, spec.use), getattr(finder, "backends", None)
    context = {"build": build_part, "backends": None if backends is None else [each.name for each in backends()]}
    options = validate(component.Config, spec.options, where, context)
    try:
        return component(options)
    except CompositionError as error:
        raise CompositionError(f"{where}: {error}") from error


def compose(spec: PipelineSpec, finder: Finder, sampling: SamplingParams, where: str) -> Composition:
    """Build the three components of ``spec`` and check that they fit.

    Args:
        spec: names and options.
        finder: where names are looked up.
        sampling: what the pipeline will be asked to do.
        where: file and key path, for messages.

    Raises:
        CompositionError: two traits clash, or ``exact: true`` cannot be had.
    """
    kinds = ("drafter", "verifier", "acceptor")
    parts = [build(kind, getattr(spec, kind), finder, f"{where}.{kind}") for kind in kinds]
    drafter, verifier, acceptor = parts
    assert isinstance(drafter, Drafter)
    assert isinstance(verifier, Verifier)
    assert isinstance(acceptor, Acceptor)
    try:
        return fit(drafter, verifier, acceptor, sampling, must_be_exact=spec.exact)
    except (CompositionError, ConfigError) as error:
        raise type(error)(f"{where}: {error}") from error


def fit(
    drafter: Drafter, verifier: Verifier, acceptor: Acceptor, sampling: SamplingParams, must_be_exact: bool = False
) -> Composition:
    """Check the traits of three components against each other.

    Raises:
        CompositionError: naming both components and the trait that clashes.
    """
    acceptor.check(sampling)
    acceptor.refuse_drafts(drafter)
    if not acceptor.is_exact():
        if must_be_exact:
            raise CompositionError(
                f"'exact: true' cannot be kept: acceptor '{acceptor.name}' is relaxed; use 'stochastic'."
            )
        reason = f"relaxed by acceptor '{acceptor.name}'"
        return Composition(drafter, verifier, acceptor, acceptor.follows(drafter), True, False, reason)
    reference = verifier.reference()
    if reference is None:
        if must_be_exact:
            raise CompositionError(
                f"'exact: true' cannot be kept: verifier '{verifier.name}' does not follow one model's distribution; "
                "use 'full' or 'int8'."
            )
        return Composition(drafter, verifier, acceptor, None, True, False, f"relaxed by verifier '{verifier.name}'")
    point = drafter.drafts_by in ("none", "point_mass") or sampling.temperature == 0
    same_text = acceptor.target_stream and (point or acceptor.couples)
    how = (
        "every token is the target stream's own, so the text is plain decoding's"
        if same_text
        else f"drafts by '{drafter.drafts_by}' are accepted by their ratio to the target distribution"
    )
    return Composition(drafter, verifier, acceptor, reference, False, same_text, how)
