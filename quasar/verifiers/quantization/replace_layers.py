"""Backends that put layers of their own in the place of a model's linear layers, and say which they really replaced."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from quasar.core.backends import Backend, Built, Precision
from quasar.core.errors import ConfigError
from quasar.core.models import EditableModel
from quasar.verifiers.quantization.scheme import NotQuantizedError, QuantizedLinear


class LayerBackend(Backend):
    """A backend that builds layer by layer; whatever stands between the layers is left to torch.

    Attributes:
        layer: makes a layer of a weight ``[out, in]``, a bias ``[out]`` or ``None``, and options of its own.
    """

    precisions: ClassVar[tuple[Precision, ...]] = ("int8",)
    layer: ClassVar[Callable[..., QuantizedLinear]]

    @classmethod
    def build(
        cls,
        model: EditableModel,
        precision: Precision,
        *,
        quantize_lm_head: bool = False,
        keep: Collection[str] = (),
        activation_bits: int = 8,
        **options: Any,
    ) -> Built:
        """Return ``model`` with its linear layers replaced; see ``Backend.build``.

        No weight is changed: a head that is tied to the embedding gets integers of its own, and the embedding stays.

        Args:
            model: see ``Backend.build``.
            precision: see ``Backend.build``.
            quantize_lm_head: the projection to the vocabulary too. It decides between near-equal tokens, so it is left
                in full precision unless asked.
            keep: see ``Backend.build``.
            activation_bits: see ``Backend.build``.
            options: of the layers.

        Raises:
            ConfigError: not one layer was quantised.
        """
        more = options if activation_bits == 8 else {"bits": activation_bits, **options}

        def make(weight: Tensor, bias: Tensor | None) -> QuantizedLinear:
            return cls.layer(weight, bias, **more)

        return replace_layers(model, make, cls.name, precision, quantize_lm_head=quantize_lm_head, keep=keep)


def unsuitable(weight: Tensor) -> str | None:
    """Return why no backend can quantise ``weight``, or ``None``."""
    if type(weight) not in (Tensor, nn.Parameter):
        return f"weight is a {type(weight).__name__} already"
    if weight.ndim != 2 or not weight.is_floating_point() or weight.element_size() == 1:
        return f"weight is {str(weight.dtype).removeprefix('torch.')} with {weight.ndim} dimensions"
    return None if bool(weight.isfinite().all()) else "weight is not finite"


def matching_layers(model: EditableModel, patterns: Sequence[str]) -> frozenset[str]:
    """Return the names of the linear layers that match.

    Args:
        model: whose layers.
        patterns: names, in which ``*`` stands for anything.

    Raises:
        ConfigError: a pattern matches none.
    """
    names = [layer.name for layer in model.linear_layers()]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ConfigError(
                f"verifier.keep: no linear layer of '{model.name}' matches '{pattern}'; there are for example "
                f"{', '.join(names[:3])}."
            )
    return frozenset(name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def replace_layers(
    model: EditableModel,
    make: Callable[[Tensor, Tensor | None], QuantizedLinear],
    backend: str,
    precision: str,
    *,
    quantize_lm_head: bool = False,
    keep: Collection[str] = (),
) -> Built:
    """Replace linear layers by what ``make`` returns for their weight and bias; otherwise as ``LayerBackend.build``.

    Args:
        model: a ``sharing_copy``; its modules are replaced in place.
        make: may raise ``NotQuantizedError``.
        backend: what reports and errors call the layers.
        precision: the same.
        quantize_lm_head: see ``LayerBackend.build``.
        keep: see ``LayerBackend.build``.

    Raises:
        ConfigError: not one layer was quantised.
    """
    converted: list[str] = []
    skipped: dict[str, str] = {}
    for layer in list(model.linear_layers()):
        if layer.is_head and not quantize_lm_head:
            skipped[layer.name] = "head"
            continue
        if layer.name in keep:
            skipped[layer.name] = "kept"
            continue
        try:
            if reason := unsuitable(layer.weight):
                raise NotQuantizedError(reason)
            module = make(layer.weight, layer.bias)
        except NotQuantizedError as error:
            skipped[layer.name] = str(error)
            continue
        layer.replace(module)
        converted.append(layer.name)
    if not converted:
        seen = ", ".join(f"{count} × {reason}" for reason, count in Counter(skipped.values()).items())
        raise ConfigError(
            f"0 of {len(skipped)} layers quantised in {model.name} by '{backend}' (seen: {seen or 'no linear layer'}): "
            f"nothing to verify in {precision}."
        )
    reasons = tuple(f"{name}: {reason}" for name, reason in skipped.items())
    return Built(model, backend, tuple(converted), reasons)
