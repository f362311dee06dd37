"""Which backend runs a model: the one that was named, or the fastest, measured once and remembered."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from quasar.core.backends import STOCK, Backend, Built, not_installed
from quasar.core.errors import ConfigError
from quasar.core.models import LanguageModel
from quasar.core.providers import ModelProvider
from quasar.core.types import Draft
from quasar.machine import processor
from quasar.models.disk_cache import quasar_home, remember, remembered
from quasar.models.session import Session

WIDTHS = (1, 6)
"""Rows of the forwards that are timed: a plain step, and the verification of five draft tokens."""

_PREFIX, _ROUNDS = 64, 5


def choose_backend(models: ModelProvider, dtype: str, requested: str) -> type[Backend] | None:
    """Return the backend for the target model; ``None`` stands for torch's own kernels.

    ``auto`` is decided on the model in full precision, for every precision: arms that are compared then stand on equal
    engineering. The measurement is kept in ``backends.json`` in ``QUASAR_HOME``, by model shape, dtype, threads,
    processor and torch version; delete the file to measure again.

    Args:
        models: hands out the target, and knows the backends.
        dtype: of the target.
        requested: ``auto``, ``torch``, or a backend's name.

    Raises:
        ConfigError: no such backend, or it cannot serve this model here; the text says why.
    """
    if requested == STOCK:
        return None
    known = {backend.name: backend for backend in models.backends()}
    if requested != "auto":
        return _named(models, dtype, requested, known)
    usable = [backend for backend in known.values() if backend.unusable() is None]
    if not usable:
        return None
    target = models.target(dtype)
    fitting = {backend.name: backend for backend in usable if backend.refuses(target) is None}
    if not fitting:
        return None
    fastest = models.derived(f"fastest backend/{dtype}", lambda: _fastest(target, fitting))
    return fitting.get(fastest)


def full_precision(models: ModelProvider, dtype: str, backend: type[Backend] | None) -> Built:
    """Return the target in full precision on a backend (``None`` for torch), made once for all that ask for it."""
    if backend is None:
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


def _named(
    models: ModelProvider, dtype: str, requested: str, known: Mapping[str, type[Backend]]
) -> type[Backend] | None:
    if requested not in known:
        raise ConfigError(not_installed(requested, {"auto", STOCK, *known}))
    backend = known[requested]
    reason = backend.unusable() or backend.refuses(models.target(dtype))
    if reason is not None:
        raise ConfigError(f"backend '{requested}' cannot be used: {reason}.")
    return backend


def _fastest(target: LanguageModel, backends: Mapping[str, type[Backend]]) -> str:
    """Return the name of the fastest, ``STOCK`` included, from the file of earlier measurements or by measuring."""
    file, key = quasar_home() / "backends.json", _key(target, sorted(backends))
    found = _measured(remembered(file))
    if key not in found:
        candidates = {STOCK: target}
        for name, backend in backends.items():
            candidates[name] = backend.build(target.sharing_copy(), "full").model
        found[key] = {name: round(1e3 * seconds, 3) for name, seconds in _measure(candidates).items()}
        remember(file, found)
    return min(found[key], key=found[key].__getitem__)


def _key(target: LanguageModel, backends: Sequence[str]) -> str:
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
