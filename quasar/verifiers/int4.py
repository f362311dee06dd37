"""The target model with 4-bit weights."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from quasar.verifiers.quantization.emulated import EmulatedInt4Linear
from quasar.verifiers.quantization.layerwise import LayerwiseVerifier
from quasar.verifiers.quantization.scheme import QuantizedLinear
from quasar.verifiers.quantization.torchao import TorchaoInt4Linear


class Int4(LayerwiseVerifier):
    """Verify with a copy of the target whose weights are 4-bit integers in groups; activations stay as they are.

    The products run on torchao's kernels for NVIDIA GPUs, in bfloat16 models. ``emulated: true`` gives the same format
    on any device, for questions of fidelity, not of speed. Weights are rounded to the nearest: no calibration.
    """

    name = "int4"
    precision = "W4 int4"
    layers = (TorchaoInt4Linear, EmulatedInt4Linear)

    class Config(LayerwiseVerifier.Config):
        """Options."""

        group_size: Literal[32, 64, 128, 256] = Field(32, description="Inputs that share a scale and an offset.")

    config: Config

    def make_layer(self, kind: Any, weight: Tensor, bias: Tensor | None) -> QuantizedLinear:
        """Return a layer."""
        layer: QuantizedLinear = kind(weight, bias, self.config.group_size)
        return layer

    def reference(self) -> str:
        """The quantised model, with the size of its groups."""
        return super().reference().replace(self.precision, f"{self.precision}, groups of {self.config.group_size}")
