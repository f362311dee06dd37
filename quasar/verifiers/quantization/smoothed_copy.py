"""A smoothed copy of the target model: calibrated once, and remembered beside the models."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from quasar.core.backends import Backend
from quasar.core.errors import UnsupportedModelError
from quasar.core.models import EditableModel
from quasar.core.providers import ModelProvider
from quasar.models.disk_cache import remember, remembered
from quasar.models.progress import progress_bar
from quasar.models.self_sampled import fingerprint
from quasar.verifiers.quantization import calibration
from quasar.verifiers.quantization.smoothquant import choose_factors, fold

_VERSION = 2
"""Part of the key on disk; raise it when the same model and text would give other factors."""


@dataclass(frozen=True, slots=True)
class Smoothed:
    """A copy whose norms and linear layers may have been scaled.

    Attributes:
        model: a ``sharing_copy``.
        how: what was done, in words for reports.
    """

    model: EditableModel
    how: str


def smoothed_copy(
    models: ModelProvider, dtype: str, backend: type[Backend], alpha: float | None, file: str | None
) -> Smoothed:
    """Return a copy of the target with SmoothQuant's factors folded in; the target stays as it is.

    Args:
        models: hands out the target and its tokenizer.
        dtype: of the target.
        backend: what will build the copy; where it serves full precision too, it samples the calibration text.
        alpha: the paper's alpha, 0 for no smoothing at all, ``None`` for the best one for each input.
        file: plain text to calibrate on instead of text that the model samples.

    Raises:
        ConfigError: the file cannot be read, or holds no text.
    """
    target = models.target(dtype)
    copy = target.sharing_copy()
    if alpha == 0:
        return Smoothed(copy, "none")
    try:
        copy.channel_groups()
    except UnsupportedModelError as error:
        return Smoothed(copy, f"none ({str(error).rstrip('.')})")
    text = calibration.calibration_text(models, dtype, backend, file)
    key = f"smoothing/{dtype}/{backend.name}/{alpha}/{file}"
    factors = models.derived(key, lambda: _factors(target, alpha, text))
    fold(copy, factors)
    texts = "own text" if file is None else f"text of {file}"
    return Smoothed(copy, f"SmoothQuant, {'alpha by search' if alpha is None else f'alpha {alpha:g}'}, {texts}")


def _factors(target: EditableModel, alpha: float | None, text: calibration.CalibrationText) -> dict[str, list[int]]:
    """Return factors from the disk, or by calibration."""
    words = f"{_VERSION} {fingerprint(target)} {alpha} {text.key}"
    key = hashlib.blake2b(words.encode(), digest_size=12).hexdigest()
    place = calibration.factors_file(key)
    known: dict[str, list[int]] | None = remembered(place)
    if known is not None:
        return known
    copy = target.sharing_copy()
    first = [group.readers[0] for group in copy.channel_groups()]
    with progress_bar(f"calibrating {target.name}", calibration.TOKENS + len(first)) as bar:
        rows = calibration.input_rows(target, first, text.ids(bar.update))
        found = choose_factors(copy, rows, alpha, bar.update)
    remember(place, found)
    return found
