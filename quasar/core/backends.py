"""What multiplies: a backend runs a loaded model, as a whole or its linear layers one by one, in some precisions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ValidationInfo

from quasar.core.errors import did_you_mean
from quasar.core.models import EditableModel, LanguageModel

Precision = Literal["full", "int8", "fp8", "int4"]
"""``full``: the weights as they are. ``int8``: int8 weights per output channel, int8 activations per row. ``fp8``
and ``int4`` are the formats of the verifiers of these names."""

STOCK = "torch"
"""What ``backend:`` says for the model as transformers wrote it, on torch's kernels."""


@dataclass(frozen=True, slots=True)
class Built:
    """A model on a backend, and what was done to it; counted from what is in place, not from what was asked for.

    Attributes:
        model: runs blocks.
        backend: the backend's name, as users see it; with what it left to torch, if anything.
        converted: names of the layers that were quantised.
        skipped: ``name: reason`` of the linear layers that were not.
    """

    model: LanguageModel
    backend: str
    converted: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


def not_installed(name: str, known: Iterable[str]) -> str:
    """Return what to say of a backend that nobody provides, given the names that would have been right."""
    hint = did_you_mean(name, sorted(known))
    return f"backend '{name}' is not installed.{hint} More come with plugins, for example plugins/quasar-cpu."


def check_name(name: str, info: ValidationInfo, others: Iterable[str] = ()) -> str:
    """Validate the option ``backend`` where a pipeline is composed, which knows what is installed.

    Args:
        name: ``auto``, ``torch``, a backend's name, or one of ``others``.
        info: of the pydantic validator.
        others: names that the component takes besides.
    """
    installed = (info.context or {}).get("backends")
    known = {"auto", STOCK, *others, *(installed or ())}
    if installed is not None and name not in known:
        raise ValueError(not_installed(name, known).rstrip("."))
    return name


class Backend(ABC):
    """A family of kernels; plugins add theirs through the hook ``quasar_backends``.

    A backend of a plugin should serve full precision and int8, so that a comparison of the two stands on equal
    engineering; ``auto`` takes no other. It must not change the model it is given: weights are shared with other arms.

    Attributes:
        name: what ``backend:`` says in YAML.
        precisions: what it can build.
        activation_bits: most bits that activations may have beside int8 weights.
        weight_steps: integers on either side of zero that its int8 weights have.
        by_name_only: ``auto`` and ``torch`` never stand for it.
    """

    name: ClassVar[str]
    precisions: ClassVar[tuple[Precision, ...]] = ("full", "int8")
    activation_bits: ClassVar[int] = 8
    weight_steps: ClassVar[int] = 127
    by_name_only: ClassVar[bool] = False

    @classmethod
    def summary(cls) -> str:
        """First line of the docstring."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    @classmethod
    @abstractmethod
    def unusable(cls) -> str | None:
        """Return why this machine cannot run the backend, in one line; ``None`` if it can."""

    @classmethod
    @abstractmethod
    def refuses(cls, model: EditableModel) -> str | None:
        """Return why the backend cannot serve ``model`` (device, dtype), in one line; ``None`` if it can."""

    @classmethod
    @abstractmethod
    def build(
        cls,
        model: EditableModel,
        precision: Precision,
        *,
        quantize_lm_head: bool = False,
        keep: Collection[str] = (),
        activation_bits: int = 8,
    ) -> Built:
        """Return ``model`` on this backend.

        Args:
            model: of its own modules (a ``sharing_copy``): its layers may be replaced, its tensors may not be changed.
            precision: what the linear layers compute in, one of ``precisions``.
            quantize_lm_head: int8 for the projection to the vocabulary too.
            keep: names of layers that stay in full precision.
            activation_bits: of the inputs of int8 layers, at most the attribute of that name.

        Raises:
            QuasarError: a weight that the kernels cannot take, named.
        """
