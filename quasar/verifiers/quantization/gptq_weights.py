"""Weights that GPTQ has put on the grid of int8: computed once for a model, and remembered beside the models."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from quasar.core.decoders import LinearLayer
from quasar.core.errors import UnsupportedModelError
from quasar.core.models import EditableModel
from quasar.core.providers import ModelProvider
from quasar.models.disk_cache import quasar_home, remember_tensors, remembered_tensors
from quasar.models.progress import progress_bar
from quasar.models.self_sampled import fingerprint, remembered_self_sampled_texts
from quasar.verifiers.quantization import calibration
from quasar.verifiers.quantization.gptq import InputOrder, gptq_steps, input_order
from quasar.verifiers.quantization.replace_layers import unsuitable

_VERSION = 1
"""Part of the key on disk; raise it when the same model and text would give other integers."""

_BYTES_AT_ONCE = 2**30
"""Moments held at a time; the text is read again for the layers beyond them."""


def round_by_gptq(
    models: ModelProvider, model: EditableModel, steps: int, file: str | None, skipped: Collection[str]
) -> None:
    """Put weights on the grid of whole steps that ``quantize_weight`` will find, chosen by GPTQ.

    Args:
        models: hands out the tokenizer, and texts.
        model: a ``sharing_copy``, smoothed if it is to be: its linear layers get new weights, in float32 at least, so
            that the integers can be read off them exactly. The shared tensors stay as they are.
        steps: integers on either side of zero.
        file: plain text to calibrate on instead of text that the model samples.
        skipped: names of the layers to leave alone.

    Raises:
        ConfigError: the file cannot be read, or holds no text.
    """
    layers = [layer for layer in model.linear_layers() if layer.name not in skipped and not unsuitable(layer.weight)]
    texts: Sequence[Sequence[int]] = (
        remembered_self_sampled_texts(models).texts
        if file is None
        else calibration.read_texts(file, models.target(), models.tokenizer())
    )
    words = f"{_VERSION} {fingerprint(model)} {steps} {[layer.name for layer in layers]} {texts}"
    place = quasar_home() / "gptq" / f"{hashlib.blake2b(words.encode(), digest_size=12).hexdigest()}.safetensors"
    integers = remembered_tensors(place)
    if {name: each.shape for name, each in integers.items()} != {layer.name: layer.weight.shape for layer in layers}:
        integers = _computed(model, layers, texts, steps)
        remember_tensors(place, integers)
    for layer in layers:
        layer.replace_weight(integers[layer.name].to(model.device) * _scale(layer.weight, steps))


def _computed(
    model: EditableModel, layers: Sequence[LinearLayer], texts: Sequence[Sequence[int]], steps: int
) -> dict[str, Tensor]:
    """Return the integers of every layer, ``[out, in]`` int8."""
    found: dict[str, Tensor] = {}
    by_name = {layer.name: layer for layer in layers}
    shared = _readers(model, list(by_name))
    with progress_bar(f"GPTQ of {model.name}", len(layers)) as bar:
        for some in _chunks(shared, by_name):
            moments = calibration.input_moments(model, some, texts)
            for first in some:
                second = moments.pop(first)
                inputs = input_order(second) if bool(second.isfinite().all()) else None
                for name in shared[first]:
                    found[name] = _integers(by_name[name].weight, inputs, steps)
                    bar.update()
    return found


def _integers(weight: Tensor, inputs: InputOrder | None, steps: int) -> Tensor:
    """Return the integers of a layer; the nearest where the inputs are not known."""
    scale = _scale(weight, steps)
    if inputs is None:
        return (weight / scale).round().to(torch.int8)
    whole, scale = weight.float(), scale.float()
    return (gptq_steps(whole, inputs, scale, -steps * scale, 2 * steps) - steps).to(torch.int8)


def _scale(weight: Tensor, steps: int) -> Tensor:
    """Return a step of every output channel, ``[out, 1]``, float32 at least."""
    largest = weight.abs().amax(dim=1, keepdim=True)
    largest = largest.to(torch.promote_types(weight.dtype, torch.float32))
    return (largest / steps).clamp_min(torch.finfo(largest.dtype).tiny)


def _readers(model: EditableModel, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the layers by the first one that reads what they read."""
    try:
        groups = [[name for name in group.readers if name in names] for group in model.channel_groups()]
    except UnsupportedModelError:
        groups = []
    together = {group[0]: group for group in groups if group}
    grouped = {name for group in groups for name in group}
    return together | {name: [name] for name in names if name not in grouped}


def _chunks(shared: Mapping[str, object], layers: Mapping[str, LinearLayer]) -> Iterator[list[str]]:
    """Yield first readers whose moments fit into memory together."""
    some: list[str] = []
    held = 0
    for name in shared:
        nbytes = 4 * layers[name].weight.shape[1] ** 2
        if some and held + nbytes > _BYTES_AT_ONCE:
            yield some
            some, held = [], 0
        some.append(name)
        held += nbytes
    if some:
        yield some
