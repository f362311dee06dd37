"""A conformance kit for plugin authors: run a component as pipelines would, and name what it does wrong.

    from quasar.testing import check_component

    def test_my_drafter_keeps_the_contract():
        check_component(MyDrafter, num_speculative_tokens=3)

It needs no transformers, no weights and no network: the target is a table of seven tokens. What a class claims of
itself is taken seriously: a drafter that samples must follow the distributions that it returns, and an acceptor that
says that it is exact is run until a false claim would show. Results are the same on every run.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from quasar.core.component import Component
from quasar.core.components import Acceptor, Drafter, Verifier
from quasar.core.config import validate
from quasar.core.models import LanguageModel
from quasar.core.providers import ModelProvider
from quasar.models.verifier import ModelVerifier
from quasar.plugins.checks import BASES, find_fault
from quasar.testing.acceptors import check_acceptor
from quasar.testing.contexts import Fault, Findings, Make
from quasar.testing.drafters import check_drafter
from quasar.testing.verifiers import check_verifier

_CHECKS: dict[str, Callable[[Make, Findings], None]] = {
    "drafter": check_drafter,
    "verifier": check_verifier,
    "acceptor": check_acceptor,
}


class ConformanceError(AssertionError):
    """A component does not keep its contract; the text lists every fault found, one line each."""


def check_component(
    component_class: type[Component],
    config: Component.Config | None = None,
    /,
    *,
    models: ModelProvider | None = None,
    **options: Any,
) -> None:
    """Fail with a list of faults, unless the component keeps its contract.

    Args:
        component_class: a drafter, verifier or acceptor class.
        config: its options, already validated; instead of ``options``.
        models: what its ``load`` gets, for example ``TinyModels()``; see ``conformance_report``.
        options: fields of its ``Config``.

    Raises:
        ConformanceError: naming the faults.
        ConfigError: the options are wrong.
    """
    faults = conformance_report(component_class, config, models=models, **options)
    if faults:
        name = getattr(component_class, "__name__", repr(component_class))
        raise ConformanceError("\n".join([f"{name} does not keep its contract:", *faults]))


def conformance_report(
    component_class: type[Component],
    config: Component.Config | None = None,
    /,
    *,
    models: ModelProvider | None = None,
    **options: Any,
) -> list[str]:
    """Return the faults of a component, one line each, beginning with the name of the ``Fault``.

    A class with a ``load`` of its own is run only if ``models`` is given; without, only its traits, options and
    documentation are looked at.

    Args:
        component_class: a drafter, verifier or acceptor class.
        config: its options, already validated; instead of ``options``.
        models: hands out models over a vocabulary of ``VOCAB`` tokens, for example ``TinyModels()``.
        options: fields of its ``Config``.

    Raises:
        ConfigError: the options are wrong.
    """
    findings = Findings()
    kind = _kind(component_class)
    if kind is None:
        findings.add(Fault.TRAITS, "it should be a subclass of Drafter, Verifier or Acceptor.")
        return findings.lines()
    _check_claims(kind, component_class, findings)
    _check_docs(component_class, findings)
    if Fault.TRAITS in findings.details:
        return findings.lines()
    chosen = validate(component_class.Config, options, component_class.name) if config is None else config
    if component_class.load is Component.load or models is not None:
        _run(_CHECKS[kind], component_class, partial(_make, component_class, chosen, models), findings)
    return findings.lines()


def _kind(component_class: object) -> str | None:
    if not isinstance(component_class, type):
        return None
    return next((kind for kind, base in BASES.items() if issubclass(component_class, base)), None)


class _Target(ModelVerifier):
    """The verifier that drafters under test meet."""

    name, precision = "target", "full"

    def load_model(self, models: ModelProvider) -> LanguageModel:
        return models.target()


def _make(component_class: type[Component], config: Component.Config, models: ModelProvider | None) -> Component:
    component = component_class(config.model_copy(deep=True))  # components among its options are made afresh too
    if models is not None:
        component.load(models)
    if isinstance(component, Drafter) and models is not None:
        checker = _Target()
        checker.load(models)
        component.attach_verifier(checker)
    return component


def _run(check: Callable[[Make, Findings], None], component_class: type, make: Make, findings: Findings) -> None:
    """Run a check into findings of its own, so that a fault of the docs does not keep it from asking on."""
    found = Findings()
    try:
        check(make, found)
    except Exception as error:  # whatever a component raises on a valid request is its fault
        found.add(Fault.RAISES, f"{_place(error, component_class)}: {type(error).__name__}: {error}")
    for fault, detail in found.details.items():
        findings.add(fault, detail)


def _place(error: Exception, component_class: type) -> str:
    """Return the line that an exception came through, in the component's own file if it did."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == inspect.getsourcefile(component_class)]
    last = [*frames, *own][-1]
    return f"{Path(last.filename).name}, line {last.lineno}"


def _check_claims(kind: str, component_class: Any, findings: Findings) -> None:
    fault = find_fault(kind, component_class)
    if fault is not None:
        return findings.add(Fault.TRAITS, f"{fault}.")
    if issubclass(component_class, Acceptor):
        if not getattr(component_class, "takes", None):
            findings.add(Fault.TRAITS, "an acceptor needs `takes`: the kinds of drafts that it handles.")
        for name in ("exact", "greedy_only", "target_stream", "couples"):
            if not isinstance(getattr(component_class, name, None), bool):
                findings.add(Fault.TRAITS, f"an acceptor needs `{name}`: True or False.")
    elif issubclass(component_class, Verifier):
        precision = getattr(component_class, "precision", None)
        if not isinstance(precision, str) or not precision:
            findings.add(Fault.TRAITS, "a verifier needs a `precision`: what its forward computes in.")
    return None


def _check_docs(component_class: type[Component], findings: Findings) -> None:
    if not component_class.summary():
        findings.add(Fault.DOCS, "the class needs a docstring; its first line is shown by 'quasar ls'.")
    bare = [name for name, option in component_class.Config.model_fields.items() if not option.description]
    if bare:
        findings.add(Fault.DOCS, f"options without a description: {', '.join(bare)}.")
