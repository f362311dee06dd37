"""W8A8 by torchao; the only file that imports it, and only when asked, because importing it prints."""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from quasar.core.quantization import MAX_STEPS
from quasar.verifiers.quantization.scheme import NotQuantizedError, QuantizedLinear


@functools.cache
def _torchao() -> Any:
    """Return ``torchao.quantization``, imported without its log lines about extensions it could not load."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        import torchao.quantization
    finally:
        logging.disable(before)
    return torchao.quantization


@functools.cache
def _import_error() -> str | None:
    try:
        _torchao()
    except (ImportError, OSError, RuntimeError) as error:  # not installed, or built for another torch
        return str(error).partition("\n")[0]
    return None


def _check(weight: Tensor) -> None:
    """Raise ``NotQuantizedError`` unless ``weight`` is int8 with activation scales per row."""
    if not isinstance(weight, _torchao().Int8Tensor):
        raise NotQuantizedError(f"torchao left the weight a {type(weight.data).__name__}")
    parts: Any = weight
    if parts.qdata.dtype != torch.int8:
        raise NotQuantizedError(f"torchao stores the weight as {parts.qdata.dtype}")
    per_row = _torchao().PerRow
    if parts.act_quant_kwargs is None or not isinstance(parts.act_quant_kwargs.granularity, per_row):
        raise NotQuantizedError("torchao does not quantise activations per row")


class TorchaoLinear(QuantizedLinear):
    """A W8A8 linear layer whose weight is a torchao tensor.

    Its integers reach from -128 to 127 in steps of the largest magnitude ÷ 127.5, and its scales stay above 1.2e-7, so
    it differs from ``ReferenceLinear`` by rounding. It is meant to be compiled, which is left to the user. Eager, it is
    slower than bfloat16 on processors without VNNI, and on CUDA torchao multiplies in float32, without saying so,
    where the int8 product refuses a shape (its ``kernel/intmm.py``; 16 rows or fewer are said to be such a case).

    Args:
        weight: ``[out, in]``, floating.
        bias: ``[out]`` or ``None``.

    Raises:
        NotQuantizedError: torchao returned without having quantised the weight, as it does for shapes it cannot serve.
    """

    backend = "torchao"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias, MAX_STEPS)
        library = _torchao()
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        # Contiguous here, because torchao would otherwise copy a transposed weight on every call.
        linear.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
        config = library.Int8DynamicActivationInt8WeightConfig(
            granularity=library.PerRow(),
            set_inductor_config=False,  # compiler settings of the whole process are not ours to change
        )
        library.quantize_(linear, config)
        _check(linear.weight)
        self.weight = linear.weight

    @classmethod
    def unusable(cls) -> str | None:
        """Return why torchao cannot be imported."""
        return _import_error()

    @classmethod
    def refuses(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return a reason for float64, which torchao's scales do not take."""
        return "torchao cannot quantise float64 activations" if dtype == torch.float64 else None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the integers, their scales and zero points."""
        parts: Any = self.weight
        return sum(part.nbytes for part in (parts.qdata, parts.scale, parts.zero_point) if part is not None)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[..., out]`` in the dtype of ``x`` ``[..., in]``."""
        return functional.linear(x, self.weight, self.bias)
