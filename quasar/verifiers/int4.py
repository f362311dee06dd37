"""The target model with 4-bit weights."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from quasar.verifiers.quantization.emulated import EmulatedInt4
from quasar.verifiers.quantization.layerwise import LayerwiseVerifier
from quasar.verifiers.quantization.torchao import TorchaoInt4


class Int4(LayerwiseVerifier):
    """Verify with a copy of the target whose weights are 4-bit integers in groups; activations stay as they are.

    The products run on torchao's kernels for NVIDIA GPUs, in bfloat16 models. ``emulated: true`` gives the same format
    on any device, for questions of fidelity, not of speed. Weights are rounded to the nearest: no calibration.
    """

    name = "int4"
    precision = "W4 int4"
    backends = (TorchaoInt4, EmulatedInt4)

    class Config(LayerwiseVerifier.Config):
        """Options."""

        group_size: Literal[32, 64, 128, 256] = Field(32, description="Inputs that share a scale and an offset.")

    config: Config

    def layer_options(self) -> dict[str, Any]:
        """Return the size of the groups."""
        return {"group_size": self.config.group_size}

    def reference(self) -> str:
        """The quantised model, with the size of its groups."""
        return super().reference().replace(self.precision, f"{self.precision}, groups of {self.config.group_size}")
