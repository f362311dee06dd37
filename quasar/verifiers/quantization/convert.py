"""Puts int8 layers in the place of a model's linear layers, and says which ones it really replaced."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import Tensor, nn

from quasar.core.errors import ConfigError, did_you_mean
from quasar.core.models import LanguageModel, LinearLayer
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


def choose_backend(requested: str, model: LanguageModel | None = None) -> str:
    """Return the backend to use.

    Args:
        requested: a backend's name, or ``auto`` for fbgemm where it is usable and the reference elsewhere.
        model: if given, its device and dtype count too: fbgemm serves neither a GPU nor float64.

    Raises:
        ConfigError: no such backend, or it cannot be used; the reason is in the text.
    """
    if requested == "auto":
        return next((name for name in _AUTOMATIC if _obstacle(name, model) is None), _AUTOMATIC[-1])
    if requested not in _BACKENDS:
        raise ConfigError(f"No int8 backend '{requested}'.{did_you_mean(requested, ['auto', *_BACKENDS])}")
    reason = _obstacle(requested, model)
    if reason is not None:
        raise ConfigError(f"int8 backend '{requested}' cannot be used: {reason}.")
    return requested


def _obstacle(name: str, model: LanguageModel | None) -> str | None:
    backend = _BACKENDS[name]
    return backend.unusable() or (None if model is None else backend.refuses(model.device, model.dtype))


def _unsuitable(weight: Tensor) -> str | None:
    """Return why no backend can quantise ``weight``, or ``None``."""
    if type(weight) not in (Tensor, nn.Parameter):
        return f"weight is a {type(weight).__name__} already"
    if weight.ndim != 2 or not weight.is_floating_point() or weight.element_size() == 1:
        return f"weight is {str(weight.dtype).removeprefix('torch.')} with {weight.ndim} dimensions"
    return None if bool(weight.isfinite().all()) else "weight is not finite"


def _quantized(layer: LinearLayer, backend: type[QuantizedLinear]) -> QuantizedLinear:
    """Return the int8 layer for ``layer``; ``NotQuantizedError`` says why there is none."""
    reason = _unsuitable(layer.weight)
    if reason is not None:
        raise NotQuantizedError(reason)
    return backend(layer.weight, layer.bias)


def convert(model: LanguageModel, backend: str, *, quantize_lm_head: bool = False) -> ConversionReport:
    """Replace the linear layers of ``model`` by W8A8 layers.

    No weight is changed: a head that is tied to the embedding gets integers of its own, and the embedding stays.

    Args:
        model: a ``sharing_copy`` of the full-precision model; its modules are replaced in place.
        backend: a backend's name, or ``auto``.
        quantize_lm_head: the projection to the vocabulary too. It decides between near-equal tokens, so it is left
            in full precision unless asked.

    Raises:
        ConfigError: the backend cannot be used for this model, or not one layer was quantised.
    """
    chosen = choose_backend(backend, model)
    converted: list[str] = []
    skipped: dict[str, str] = {}
    weight_bytes = 0
    for layer in list(model.linear_layers()):
        if layer.is_head and not quantize_lm_head:
            skipped[layer.name] = "head"
            continue
        try:
            module = _quantized(layer, _BACKENDS[chosen])
        except NotQuantizedError as error:
            skipped[layer.name] = str(error)
            continue
        layer.replace(module)
        converted.append(layer.name)
        weight_bytes += module.weight_bytes
    if not converted:
        seen = ", ".join(f"{count} × {reason}" for reason, count in Counter(skipped.values()).items())
        raise ConfigError(
            f"0 of {len(skipped)} layers quantised in {model.name} by '{chosen}' (seen: {seen or 'no linear layer'}): "
            "nothing to verify in int8."
        )
    reasons = tuple(f"{name}: {reason}" for name, reason in skipped.items())
    return ConversionReport(chosen, tuple(converted), reasons, weight_bytes)
