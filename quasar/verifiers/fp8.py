"""The target model with float8 weights and float8 activations."""

from __future__ import annotations

from quasar.verifiers.quantization.emulated import EmulatedFp8
from quasar.verifiers.quantization.layerwise import LayerwiseVerifier
from quasar.verifiers.quantization.torchao import TorchaoFp8


class Fp8(LayerwiseVerifier):
    """Verify with a W8A8 float8 (e4m3) copy of the target: weights per output channel, activations per row.

    The products run on torchao's kernels, on NVIDIA GPUs from Ada and Hopper on, in bfloat16 models. ``emulated: true``
    gives the same format on any device, for questions of fidelity, not of speed.

    Source: Micikevicius et al., "FP8 formats for deep learning", arXiv 2209.05433.
    """

    name = "fp8"
    precision = "W8A8 fp8"
    backends = (TorchaoFp8, EmulatedFp8)
