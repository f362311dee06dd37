"""W8A8 on the packed FBGEMM kernels of x86 builds of torch, by far the fastest int8 product there for 1 to 8 rows.

The kernels take tensors that torch has deprecated (pytorch issue 184982), so everything that depends on them is in this
file, and the backend counts as unusable where one tiny product does not come out right.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from quasar.core.errors import ConfigError
from quasar.core.models import EditableModel
from quasar.models.int8_format import MAX_STEPS, quantize_weight
from quasar.verifiers.quantization.replace_layers import LayerBackend
from quasar.verifiers.quantization.scheme import QuantizedLinear

_ZERO_POINT, _WEIGHT_STEPS = 128, 90
_FLOAT64 = "it computes in float32; use the 'reference' backend for float64"


@contextmanager
def _packing() -> Iterator[None]:
    """Select FBGEMM among torch's quantised engines and silence the one deprecation warning of its tensors."""
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"torch\.quantize_per_tensor, torch\.quantize_per_channel", UserWarning)
            yield
    finally:
        torch.backends.quantized.engine = engine


class FbgemmLinear(QuantizedLinear):
    """A W8A8 linear layer on FBGEMM's kernel for static scales, made dynamic per row by scaling rows to ±1 before it.

    The kernel shifts activations by 128 to be unsigned and, on processors without VNNI, adds the products of two
    neighbouring inputs in int16. Such a pair saturates from 32767 on, and 2 · 255 · 127 is far beyond. Weights of ±90
    steps leave only pairs of two large positive activations (above 54 of 127 steps on average) under two weights close
    to the channel's largest; anything else equals ``ReferenceLinear`` with 90 steps up to float32 rounding. A row's
    result does not depend on the rows beside it in either case: pairs lie within a row.

    Args:
        weight: ``[out, in]``, floating, on the CPU.
        bias: ``[out]`` or ``None``.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias, _WEIGHT_STEPS)
        integers, scale = quantize_weight(weight, _WEIGHT_STEPS)
        zeros = torch.zeros(self.out_features, dtype=torch.int64)
        with _packing():
            # Not ``quantize_per_channel``, which would round anew, and from a float32 copy of the weight.
            tensor = torch._make_per_channel_quantized_tensor(integers, scale.double(), zeros, 0)
            self._packed = torch.ops.quantized.linear_prepack(tensor, None)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed integers, in whole blocks of 512 inputs and 8 outputs, and of their float32 scales."""
        outputs, inputs = -(-self.out_features // 8) * 8, -(-self.in_features // 512) * 512
        return outputs * inputs + self.out_features * 4

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[..., out]`` in the dtype of ``x`` ``[..., in]``, computed in float32.

        Raises:
            ConfigError: ``x`` is float64, whose precision would be lost unseen.
        """
        if x.dtype == torch.float64:
            raise ConfigError(f"backend 'fbgemm' of the int8 layers got float64 activations: {_FLOAT64}.")
        rows = x.reshape(-1, self.in_features).float()
        # The floor spares the kernel 0 ÷ 0, which it would convert to some integer.
        top = rows.abs().amax(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)  # [rows, 1]
        y: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            rows / top, 1 / MAX_STEPS, _ZERO_POINT, self._packed
        )
        y = y.mul_(top)
        if self.bias is not None:
            y = y.add_(self.bias)
        return y.view(*x.shape[:-1], self.out_features).to(x.dtype)


@functools.cache
def _trial() -> str | None:
    """Multiply once; return why that failed, in one line, or ``None``."""
    try:
        y = FbgemmLinear(torch.tensor([[1.0, -0.5], [0.0, 2.0]]), None)(torch.tensor([[-3.0, 3.0]]))
    except (RuntimeError, AttributeError) as error:  # no such engine, or no such operator any more
        return str(error).partition("\n")[0]
    expected = torch.tensor([[-4.5, 6.0]])
    close = torch.allclose(y, expected, rtol=1 / _WEIGHT_STEPS)
    return None if close else "its kernel multiplies wrongly here"


class Fbgemm(LayerBackend):
    """W8A8 layers on the packed kernels of torch for x86: by far its fastest int8 product for 1 to 8 rows."""

    name = "fbgemm"
    weight_steps = _WEIGHT_STEPS
    layer = FbgemmLinear

    @classmethod
    def unusable(cls) -> str | None:
        """Return what a tiny product said; it is tried once a process."""
        return _trial()

    @classmethod
    def refuses(cls, model: EditableModel) -> str | None:
        """Return a reason for other devices than the CPU, and for float64."""
        if model.device.type != "cpu":
            return f"its kernels run on the CPU and the model is on {model.device}"
        return _FLOAT64 if model.dtype == torch.float64 else None
