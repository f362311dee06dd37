"""The backend ``native_cpu``: what it can serve, and how a model gets onto it."""

from __future__ import annotations

from collections.abc import Collection

import torch

from quasar.core.backends import Backend, Built, Precision
from quasar.core.decoders import Decoder
from quasar.core.errors import UnsupportedModelError
from quasar.core.models import LanguageModel
from quasar_cpu.library import library
from quasar_cpu.linear import NativeLinear
from quasar_cpu.model import NativeModel

_LARGEST_HEAD = 512
_LARGEST_GROUP = 24


class NativeCpu(Backend):
    """C++ kernels for a few rows: bfloat16, float32 and W8A8; a row's bits do not depend on the rows beside it."""

    name = "native_cpu"
    activation_bits = 12  # weights and activations are multiplied as int16 anyway

    @classmethod
    def unusable(cls) -> str | None:
        """Return why the library cannot be opened."""
        try:
            library()
        except OSError as error:
            return f"its kernels cannot be loaded ({str(error).partition(chr(10))[0]})"
        return None

    @classmethod
    def refuses(cls, model: LanguageModel) -> str | None:
        """Return a reason for devices other than the CPU, and for dtypes without kernels."""
        if model.device.type != "cpu":
            return f"its kernels run on the CPU and the model is on {model.device}"
        if model.dtype not in (torch.bfloat16, torch.float32):
            return f"it has kernels for bfloat16 and float32, not for {str(model.dtype).removeprefix('torch.')}"
        return None

    @classmethod
    def build(
        cls,
        model: LanguageModel,
        precision: Precision,
        *,
        quantize_lm_head: bool = False,
        keep: Collection[str] = (),
        activation_bits: int = 8,
    ) -> Built:
        """Return the whole decoder on native kernels; of a model of another family, the linear layers."""
        obstacle, decoder = None, None
        try:
            decoder = model.decoder()
            _refuse_shapes(decoder)
        except UnsupportedModelError as error:
            obstacle = str(error).rstrip(".")
        layers: dict[str, NativeLinear] = {}
        converted, skipped = [], []
        for layer in list(model.linear_layers()):
            reason = "head" if layer.is_head and not quantize_lm_head else "kept" if layer.name in keep else None
            int8 = precision == "int8" and reason is None
            layers[layer.name] = native = NativeLinear(layer, activation_bits if int8 else None)
            layer.replace(native)
            if int8:
                converted.append(layer.name)
            elif precision == "int8":
                skipped.append(f"{layer.name}: {reason}")
        if decoder is None or obstacle is not None:
            how = f"{cls.name} (linear layers only: {obstacle})"
            return Built(model, how, tuple(converted), tuple(skipped))
        return Built(NativeModel(model, decoder, layers), cls.name, tuple(converted), tuple(skipped))


def _refuse_shapes(decoder: Decoder) -> None:
    group = decoder.heads // decoder.kv_heads
    if decoder.head_dim % 8 or decoder.head_dim > _LARGEST_HEAD or group > _LARGEST_GROUP:
        raise UnsupportedModelError(f"heads of {decoder.head_dim} in groups of {group} have no kernel.")
