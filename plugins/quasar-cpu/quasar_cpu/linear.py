"""A linear layer on the native kernels: the weight where it lies, or its int8 copy."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn

from quasar.core.decoders import LinearLayer
from quasar.core.errors import UnsupportedModelError
from quasar.models.int8_format import activation_steps, quantize_weight
from quasar_cpu.library import KINDS, Matrix, library

_BLOCK = 16


class NativeLinear(nn.Module):
    """Multiplies rows of float32; a row's result does not depend on the rows beside it.

    Args:
        layer: the layer to stand for; its weight is shared in full precision, and only read for int8.
        activation_bits: of the inputs beside int8 weights, both whole steps of one scale a row (8 is W8A8); ``None``
            leaves the layer in full precision.

    Raises:
        UnsupportedModelError: NaN or infinity in the weight or bias, or a dtype without kernels.
    """

    def __init__(self, layer: LinearLayer, activation_bits: int | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = layer.weight.shape
        self.name = layer.name
        refuse_unfit(layer.name, layer.weight)
        if layer.bias is not None:
            refuse_unfit(f"{layer.name} (bias)", layer.bias)
        self.bias = None if layer.bias is None else layer.bias.float().contiguous()
        self.scale: Tensor | None = None
        if activation_bits is not None:
            integers, self.scale = quantize_weight(layer.weight)
            padded = -(-self.in_features // _BLOCK) * _BLOCK
            self.weights = nn.functional.pad(integers, (0, padded - self.in_features)).contiguous()
        else:
            self.weights = layer.weight.contiguous()  # no copy, unless the model stores it transposed
        self.matrix = Matrix(
            self.weights.data_ptr(), address(self.scale), address(self.bias), self.out_features, self.in_features,
            self.weights.shape[1], KINDS[self.weights.dtype], activation_steps(activation_bits or 8, self.in_features),
        )  # fmt: skip

    def storages(self) -> dict[int, int]:
        """Return the bytes of every tensor by the identity of its storage."""
        held = [each.untyped_storage() for each in (self.weights, self.scale, self.bias) if each is not None]
        return {storage.data_ptr(): storage.nbytes() for storage in held}

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[..., out]`` in the dtype of ``x`` ``[..., in]``, computed in float32."""
        rows = x.reshape(-1, self.in_features).float().contiguous()
        y = torch.empty((len(rows), self.out_features))
        library().quasar_linear(
            ctypes.byref(self.matrix), rows.data_ptr(), y.data_ptr(), len(rows), torch.get_num_threads()
        )
        return y.view(*x.shape[:-1], self.out_features).to(x.dtype)


def address(tensor: Tensor | None) -> int | None:
    """Return where a tensor's data lies, ``None`` for none."""
    return None if tensor is None else tensor.data_ptr()


def refuse_unfit(name: str, weight: Tensor) -> None:
    """Refuse a weight that the kernels cannot read.

    Raises:
        UnsupportedModelError: naming it.
    """
    if weight.dtype not in (torch.float32, torch.bfloat16):
        raise UnsupportedModelError(f"backend 'native_cpu': {name} is {weight.dtype}; it takes bfloat16 and float32.")
    if not bool(weight.isfinite().all()):
        raise UnsupportedModelError(f"backend 'native_cpu': {name} holds NaN or infinity; the checkpoint is damaged.")
