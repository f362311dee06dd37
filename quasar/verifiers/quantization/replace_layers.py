"""Puts int8 layers in the place of a model's linear layers, and says which ones it really replaced."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from quasar.core.errors import ConfigError, did_you_mean
from quasar.core.models import LanguageModel
from quasar.verifiers.quantization.fbgemm import FbgemmLinear
from quasar.verifiers.quantization.reference import ReferenceLinear
from quasar.verifiers.quantization.scheme import NotQuantizedError, QuantizedLinear
from quasar.verifiers.quantization.torchao import TorchaoLinear

_BACKENDS: dict[str, type[QuantizedLinear]] = {
    backend.backend: backend for backend in (FbgemmLinear, ReferenceLinear, TorchaoLinear)
}
_AUTOMATIC = (FbgemmLinear.backend, ReferenceLinear.backend)


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a conversion did; counted from the layers in place, not from what was asked for.

    Attributes:
        backend: the backend that was chosen.
        converted: names of the layers that multiply in int8 now.
        skipped: ``name: reason`` of the layers that were left as they were.
        weight_bytes: bytes of the integers and scales of the converted layers, beside the full-precision model's.
    """

    backend: str
    converted: tuple[str, ...]
    skipped: tuple[str, ...]
    weight_bytes: int


def available_backends() -> dict[str, str | None]:
    """Return every backend, with the reason in one line why this machine cannot run it, or ``None`` if it can."""
    return {name: backend.unusable() for name, backend in _BACKENDS.items()}


def choose_backend(requested: str, model: LanguageModel | None = None, activation_bits: int = 8) -> str:
    """Return the backend to use.

    Args:
        requested: a backend's name, or ``auto`` for fbgemm where it is usable and the reference elsewhere.
        model: if given, its device and dtype count too: fbgemm serves neither a GPU nor float64.
        activation_bits: that it has to serve.

    Raises:
        ConfigError: no such backend, or it cannot be used; the reason is in the text.
    """
    if requested == "auto":
        return next((name for name in _AUTOMATIC if _obstacle(name, model, activation_bits) is None), _AUTOMATIC[-1])
    if requested not in _BACKENDS:
        raise ConfigError(f"No int8 backend '{requested}'.{did_you_mean(requested, ['auto', *_BACKENDS])}")
    reason = _obstacle(requested, model, activation_bits)
    if reason is not None:
        raise ConfigError(f"int8 backend '{requested}' cannot be used: {reason}.")
    return requested


def weight_steps(name: str) -> int:
    """Return the steps on either side of zero that a backend's weights have."""
    return _BACKENDS[name].weight_steps


def _obstacle(name: str, model: LanguageModel | None, activation_bits: int) -> str | None:
    backend = _BACKENDS[name]
    if backend.activation_bits < activation_bits:
        return f"its activations have 8 bits, not {activation_bits}"
    return backend.unusable() or (None if model is None else backend.refuses(model.device, model.dtype))


def unsuitable(weight: Tensor) -> str | None:
    """Return why no backend can quantise ``weight``, or ``None``."""
    if type(weight) not in (Tensor, nn.Parameter):
        return f"weight is a {type(weight).__name__} already"
    if weight.ndim != 2 or not weight.is_floating_point() or weight.element_size() == 1:
        return f"weight is {str(weight.dtype).removeprefix('torch.')} with {weight.ndim} dimensions"
    return None if bool(weight.isfinite().all()) else "weight is not finite"


def convert(
    model: LanguageModel,
    backend: str,
    *,
    quantize_lm_head: bool = False,
    keep: Collection[str] = (),
    compiled: bool = False,
    activation_bits: int = 8,
) -> ConversionReport:
    """Replace the linear layers of ``model`` by W8A8 layers.

    No weight is changed: a head that is tied to the embedding gets integers of its own, and the embedding stays.

    Args:
        model: a ``sharing_copy`` of the full-precision model; its modules are replaced in place.
        backend: a backend's name, or ``auto``.
        quantize_lm_head: the projection to the vocabulary too. It decides between near-equal tokens, so it is left
            in full precision unless asked.
        keep: names of layers that stay in full precision.
        activation_bits: of the inputs of the new layers.
        compiled: hand every new layer to ``torch.compile``, for any number of rows; it happens at the first forward.

    Raises:
        ConfigError: the backend cannot be used for this model, or not one layer was quantised.
    """
    chosen = choose_backend(backend, model, activation_bits)
    more = {} if activation_bits == 8 else {"bits": activation_bits}

    def make(weight: Tensor, bias: Tensor | None) -> QuantizedLinear:
        layer = _BACKENDS[chosen](weight, bias, **more)
        if compiled:
            layer.compile(dynamic=True)
        return layer

    return replace_layers(model, make, chosen, "int8", quantize_lm_head=quantize_lm_head, keep=keep)


def matching_layers(model: LanguageModel, patterns: Sequence[str]) -> frozenset[str]:
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
    model: LanguageModel,
    make: Callable[[Tensor, Tensor | None], QuantizedLinear],
    backend: str,
    precision: str,
    *,
    quantize_lm_head: bool = False,
    keep: Collection[str] = (),
) -> ConversionReport:
    """Replace linear layers by what ``make`` returns for their weight and bias; otherwise as ``convert``.

    Args:
        model: see ``convert``.
        make: may raise ``NotQuantizedError``.
        backend: what reports and errors call it.
        precision: the same.
        quantize_lm_head: see ``convert``.
        keep: see ``convert``.

    Raises:
        ConfigError: not one layer was quantised.
    """
    converted: list[str] = []
    skipped: dict[str, str] = {}
    weight_bytes = 0
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
        weight_bytes += module.weight_bytes
    if not converted:
        seen = ", ".join(f"{count} × {reason}" for reason, count in Counter(skipped.values()).items())
        raise ConfigError(
            f"0 of {len(skipped)} layers quantised in {model.name} by '{backend}' (seen: {seen or 'no linear layer'}): "
            f"nothing to verify in {precision}."
        )
    reasons = tuple(f"{name}: {reason}" for name, reason in skipped.items())
    return ConversionReport(backend, tuple(converted), reasons, weight_bytes)
