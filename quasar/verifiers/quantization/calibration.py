"""What the inputs of linear layers look like, on text that the model samples from itself or that a user names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from quasar.core.backends import Backend
from quasar.core.decoders import LinearLayer
from quasar.core.errors import ConfigError
from quasar.core.models import EditableModel, LanguageModel
from quasar.core.providers import ModelProvider, TextCodec
from quasar.core.types import Draft
from quasar.models.backend_choice import full_precision
from quasar.models.disk_cache import quasar_home
from quasar.models.self_sampled import self_sampled_texts
from quasar.models.session import Session

TEXTS, TOKENS = 8, 128
"""Size of the text that a model samples from itself."""

_LONGEST = 512
"""Tokens of a user's text that are run at once."""

_ROWS = 512
"""Input rows kept for each layer, evenly spread over the text."""


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """Text to calibrate on.

    Attributes:
        key: tells it from other texts, in names on disk.
        ids: reads or samples it; called with what to call after every sampled token.
    """

    key: str
    ids: Callable[[Callable[[], object]], list[list[int]]]


def calibration_text(models: ModelProvider, dtype: str, backend: type[Backend], file: str | None) -> CalibrationText:
    """Return a user's text, or what the target samples itself, which is not sampled before it is asked for.

    Args:
        models: hands out the target and its tokenizer.
        dtype: of the target.
        backend: samples, if it serves full precision; torch does otherwise.
        file: plain text of the user.

    Raises:
        ConfigError: the file cannot be read, or holds no text.
    """
    codec = models.tokenizer()
    if file is not None:
        given = read_texts(file, models.target(dtype), codec)
        return CalibrationText(str(given), lambda on_token: given)
    sampler = backend.name if "full" in backend.precisions else None
    return CalibrationText(
        str((sampler, TEXTS, TOKENS, codec.conversation_start())),
        lambda on_token: sample_texts(full_precision(models, dtype, backend).model, codec, on_token),
    )


def sample_texts(model: LanguageModel, codec: TextCodec, on_token: Callable[[], object]) -> list[list[int]]:
    """Return conversations that the model writes alone, both sides, from what precedes a user's first word.

    No data file is read and nothing is downloaded, so that no benchmark can leak in. A model without a chat template
    begins with its BOS, or without one with tokens drawn from its whole vocabulary.

    Source: Magpie, Xu et al., arXiv 2406.08464, section 2, with the answer not asked for apart.
    """
    return self_sampled_texts(model, TEXTS, TOKENS, codec.conversation_start(), on_token)


def read_texts(file: str, model: LanguageModel, codec: TextCodec) -> list[list[int]]:
    """Return a user's plain text as ids, cut into pieces that are run one by one.

    Raises:
        ConfigError: the file cannot be read, or holds no text.
    """
    try:
        ids = codec.encode(Path(file).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(
            f"verifier.calibration: cannot read '{file}' ({reason}); name a file of plain text."
        ) from error
    if not ids:
        raise ConfigError(f"verifier.calibration: '{file}' holds no text; leave the key out to calibrate without one.")
    longest = min(_LONGEST, model.max_length or _LONGEST)
    return [ids[start : start + longest] for start in range(0, len(ids), longest)]


class _Observed(nn.Module):
    """A linear layer whose inputs are seen."""

    def __init__(self, layer: LinearLayer, see: Callable[[Tensor], object]) -> None:
        super().__init__()
        self._layer, self._see = layer, see

    def forward(self, x: Tensor) -> Tensor:
        self._see(x.flatten(0, -2))
        return functional.linear(x, self._layer.weight, self._layer.bias)


def observe(
    model: EditableModel, texts: Sequence[Sequence[int]], see: Mapping[str, Callable[[Tensor], object]]
) -> None:
    """Show what linear layers read while the model reads texts, one text after the other.

    Args:
        model: in full precision; it stays as it is.
        texts: ids.
        see: called with ``[tokens, in_features]`` in the model's dtype, by name of the layer.
    """
    observed = model.sharing_copy()
    for layer in list(observed.linear_layers()):
        if layer.name in see:
            layer.replace(_Observed(layer, see[layer.name]))
    for text in texts:
        Session(observed, 1, len(text)).forward([text], Draft.empty(1))


def input_rows(
    model: EditableModel, names: Sequence[str], texts: Sequence[Sequence[int]], limit: int = _ROWS
) -> dict[str, Tensor]:
    """Return what linear layers read while the model reads texts.

    Args:
        model: as in ``observe``.
        names: layers to observe.
        texts: ids.
        limit: most rows that are kept of each layer.

    Returns:
        Rows by name of the layer, ``[rows, in_features]`` in the model's dtype; ``limit`` of them at the most.
    """
    stride = max(1, sum(map(len, texts)) // limit)
    found: dict[str, list[Tensor]] = {name: [] for name in names}

    def keep(rows: list[Tensor]) -> Callable[[Tensor], object]:
        return lambda x: rows.append(x[::stride].clone())

    observe(model, texts, {name: keep(rows) for name, rows in found.items()})
    return {name: torch.cat(rows)[:limit] for name, rows in found.items()}


def input_moments(model: EditableModel, names: Sequence[str], texts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Return the mean outer product of what linear layers read, by name of the layer, ``[in, in]`` float32.

    Args:
        model: as in ``observe``.
        names: layers to observe.
        texts: ids.
    """
    found: dict[str, Tensor] = {}
    tokens = sum(map(len, texts))

    def add(name: str) -> Callable[[Tensor], object]:
        def see(x: Tensor) -> None:
            x = x.float()
            found[name] = found[name].addmm_(x.T, x) if name in found else x.T @ x

        return see

    observe(model, texts, {name: add(name) for name in names})
    return {name: found.pop(name) / tokens for name in names}


def factors_file(key: str) -> Path:
    """Return where the factors of one model and text are kept."""
    return quasar_home() / "calibration" / f"{key}.json"
