"""W8A8 in exact integer arithmetic: what the other backends are checked against, and what runs where they do not."""

from __future__ import annotations

from torch import Tensor

from quasar.core.models import EditableModel
from quasar.models.int8_format import MAX_STEPS, activation_steps, quantize_rows, quantize_weight
from quasar.verifiers.quantization.replace_layers import LayerBackend
from quasar.verifiers.quantization.scheme import QuantizedLinear


class ReferenceLinear(QuantizedLinear):
    """A W8A8 linear layer whose integer product is exact, so that a row's output never depends on the rows beside it.

    The product runs in float64, where sums of integers are exact below 2^53 in whatever order they are added. In
    float32 they are exact below 2^24, and 127 · 127 · 1041 already exceeds that: a row of a wider layer could then
    differ between one row alone and six rows together. Integer matrix products would be exact too, but torch has no
    general one for CUDA. Only speed is given up: each call widens the weights.

    Args:
        weight: ``[out, in]``, floating.
        bias: ``[out]`` or ``None``.
        steps: integers on either side of zero that the weights use; fewer than 127 mimics a backend that does so.
        bits: of the activations.
    """

    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None, steps: int = MAX_STEPS, bits: int = 8) -> None:
        super().__init__(weight, bias, steps)
        self.input_steps = activation_steps(bits, self.in_features)
        integers, scale = quantize_weight(weight, steps)
        self.register_buffer("weight", integers)  # [out, in] int8
        self.register_buffer("scale", scale)  # [out]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the integers and their scales."""
        return self.weight.nbytes + self.scale.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[..., out]`` in the dtype of ``x`` ``[..., in]``; 16-bit dtypes are rounded once, at the end."""
        integers, scale = quantize_rows(x, self.input_steps)
        product = integers.double() @ self.weight.double().T  # [..., out], whole numbers
        y = product.to(scale.dtype) * scale * self.scale.to(scale.dtype)
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype)


class Reference(LayerBackend):
    """W8A8 layers in exact integer arithmetic, slow: what others are checked against, on every device with float64."""

    name = "reference"
    activation_bits = 12
    layer = ReferenceLinear

    @classmethod
    def unusable(cls) -> str | None:
        """Return ``None``: nothing but torch is needed."""
        return None

    @classmethod
    def refuses(cls, model: EditableModel) -> str | None:
        """Return a reason for devices without float64."""
        return "it multiplies in float64, which Apple's GPUs lack" if model.device.type == "mps" else None
