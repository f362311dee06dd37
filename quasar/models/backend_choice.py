"""Which backend runs a model: the one that was named, or the fastest, measured once and remembered."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from quasar.core.backends import STOCK, Backend, Built, Precision, not_installed
from quasar.core.errors import ConfigError
from quasar.core.models import EditableModel, LanguageModel
from quasar.core.providers import ModelProvider
from quasar.core.types import Draft
from quasar.machine import processor
from quasar.models.disk_cache import quasar_home, remember, remembered
from quasar.models.session import Session

WIDTHS = (1, 6)
"""Rows of the forwards that are timed: a plain step, and the verification of five draft tokens."""

_PREFIX, _ROUNDS = 64, 5


class Stock(Backend):
    """The model as it was loaded, on torch's kernels."""

    name = STOCK
    precisions = ("full",)

    @classmethod
    def unusable(cls) -> None:
        """Return ``None``: it was loaded by torch."""

    @classmethod
    def refuses(cls, model: EditableModel) -> None:
        """Return ``None``, for the same reason."""

    @classmethod
    def build(
        cls,
        model: EditableModel,
        precision: Precision,
        *,
        quantize_lm_head: bool = False,
        keep: Collection[str] = (),
        activation_bits: int = 8,
    ) -> Built:
        """Return ``model``."""
        return Built(model, cls.name)


def choose_backend(
    models: ModelProvider,
    dtype: str,
    requested: str,
    precision: Precision = "full",
    *,
    activation_bits: int = 8,
    built_in: Sequence[type[Backend]] = (Stock,),
) -> type[Backend]:
    """Return the backend that builds the target model.

    ``auto`` is decided on the model in full precision, for every precision: arms that are compared then stand on equal
    engineering. The measurement is kept in ``backends.json`` in ``QUASAR_HOME``, by model shape, dtype, threads,
    processor and torch version; delete the file to measure again.

    Args:
        models: hands out the target, and knows the backends of plugins.
        dtype: of the target.
        requested: ``auto``, ``torch``, or a backend's name.
        precision: what is to be built.
        activation_bits: of the inputs of int8 layers.
        built_in: what builds this precision on torch's kernels, best first; ``torch`` is the first that can serve the
            model, and so is ``auto`` where torch is the fastest or the fastest does not serve what is asked for.

    Raises:
        ConfigError: no such backend, or it cannot serve this model here; the text says why.
    """
    known = {backend.name: backend for backend in (*models.backends(), *built_in)}
    if requested not in ("auto", STOCK):
        if requested not in known:
            raise ConfigError(not_installed(requested, {"auto", STOCK, *known}))
        refuse_unusable(known[requested], precision, activation_bits, lambda: models.target(dtype))
        return known[requested]
    if requested == "auto":
        fastest = _automatic(models, dtype, [backend for backend in models.backends() if not backend.by_name_only])
        if fastest is not Stock and _obstacle(fastest, precision, activation_bits) is None:
            return fastest
    offered, target = [backend for backend in built_in if not backend.by_name_only], models.target(dtype)
    fitting = (each for each in offered if not (_obstacle(each, precision, activation_bits) or each.refuses(target)))
    chosen = next(fitting, offered[-1])
    refuse_unusable(chosen, precision, activation_bits, lambda: target)
    return chosen


def refuse_unusable(
    backend: type[Backend],
    precision: Precision,
    activation_bits: int = 8,
    target: Callable[[], EditableModel] | None = None,
) -> None:
    """Refuse a backend that cannot build what is asked for, on this machine or for this model.

    Args:
        backend: that was named.
        precision: what is to be built.
        activation_bits: of the inputs of int8 layers.
        target: loads the model; called only if nothing else is in the way. ``None`` leaves the model out.

    Raises:
        ConfigError: naming the reason.
    """
    reason = _obstacle(backend, precision, activation_bits)
    if reason is None and target is not None:
        reason = backend.refuses(target())
    if reason is not None:
        raise ConfigError(f"backend '{backend.name}' cannot be used: {reason}.")


def _obstacle(backend: type[Backend], precision: Precision, activation_bits: int) -> str | None:
    if precision not in backend.precisions:
        return f"it serves {' and '.join(backend.precisions)}, not {precision}"
    if backend.activation_bits < activation_bits:
        return f"its activations have {backend.activation_bits} bits, not {activation_bits}"
    return backend.unusable()


def full_precision(models: ModelProvider, dtype: str, backend: type[Backend]) -> Built:
    """Return the target in full precision, made once for all that ask for it.

    Args:
        models: hands out the target.
        dtype: of the target.
        backend: what builds it; torch does in place of one that serves quantised models only.
    """
    if backend is Stock or "full" not in backend.precisions:
        return Built(models.target(dtype), STOCK)
    return models.derived(
        f"full/{backend.name}/{dtype}", lambda: backend.build(models.target(dtype).sharing_copy(), "full")
    )


def target_on_backend(models: ModelProvider, dtype: str = "auto", backend: str = "auto") -> Built:
    """Return the target model in full precision on a backend: what ``load_model`` of a verifier needs, in one call.

    Args:
        models: what ``load`` was given.
        dtype: ``auto`` for the checkpoint's, or ``bfloat16``, ``float16``, ``float32``, ``float64``.
        backend: ``auto`` for the fastest by measurement, ``torch``, or a backend's name.

    Raises:
        ConfigError: no such backend, or it cannot serve this model here; the text says why.
    """
    return full_precision(models, dtype, choose_backend(models, dtype, backend))


def _automatic(models: ModelProvider, dtype: str, backends: Sequence[type[Backend]]) -> type[Backend]:
    """Return the fastest in full precision, ``Stock`` included; measured only where there is a choice."""
    usable = [backend for backend in backends if _obstacle(backend, "full", 8) is None]
    if not usable:
        return Stock
    target = models.target(dtype)
    fitting = {backend.name: backend for backend in usable if backend.refuses(target) is None}
    if not fitting:
        return Stock
    name = models.derived(f"fastest backend/{dtype}", lambda: _fastest(target, fitting))
    return fitting.get(name, Stock)


def _fastest(target: EditableModel, backends: Mapping[str, type[Backend]]) -> str:
    """Return the name of the fastest, from the file of earlier measurements or by measuring."""
    file, key = quasar_home() / "backends.json", _key(target, sorted(backends))
    found = _measured(remembered(file))
    if key not in found:
        candidates: dict[str, LanguageModel] = {STOCK: target}
        for name, backend in backends.items():
            candidates[name] = backend.build(target.sharing_copy(), "full").model
        found[key] = {name: round(1e3 * seconds, 3) for name, seconds in _measure(candidates).items()}
        remember(file, found)
    return min(found[key], key=found[key].__getitem__)


def _key(target: EditableModel, backends: Sequence[str]) -> str:
    shapes = sorted({tuple(layer.weight.shape) for layer in target.linear_layers()})
    machine = f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    model = f"{target.num_layers} layers of {' '.join(f'{rows}x{columns}' for rows, columns in shapes)}, {target.dtype}"
    return f"milliseconds of forwards of {WIDTHS} rows; {model}; {machine}; {' '.join(backends)}"


def _measure(candidates: Mapping[str, LanguageModel]) -> dict[str, float]:
    """Return seconds for one forward of each width, summed; medians, the candidates by turns."""
    text = [token % min(model.vocab_size for model in candidates.values()) for token in range(_PREFIX)]
    seconds: dict[str, dict[int, list[float]]] = {name: {width: [] for width in WIDTHS} for name in candidates}
    sessions = {name: Session(model, 1, 2 * _PREFIX) for name, model in candidates.items()}
    for session in sessions.values():
        session.forward([text], Draft.empty(1))
    for _ in range(_ROUNDS):
        for width in WIDTHS:
            draft = Draft.chains([text[: width - 1]])
            for name, session in sessions.items():
                start = time.perf_counter()
                session.forward([text], draft)
                seconds[name][width].append(time.perf_counter() - start)
    return {name: sum(map(statistics.median, widths.values())) for name, widths in seconds.items()}


def _measured(found: Any) -> dict[str, dict[str, float]]:
    """Return the measurements that can be read; what is missing or damaged is measured again."""
    pairs = found.items() if isinstance(found, dict) else ()
    return {key: times for key, times in pairs if _are_times(times)}


def _are_times(value: object) -> bool:
    numbers = value.values() if isinstance(value, dict) else ()
    return bool(numbers) and all(isinstance(number, float | int) for number in numbers)
