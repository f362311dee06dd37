"""W8A8 by torchao; the only file that imports it, and only when asked, because importing it prints."""

from __future__ import annotations

import functools
import logging
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from quasar.core.models import EditableModel
from quasar.models.int8_format import MAX_STEPS
from quasar.verifiers.quantization.replace_layers import LayerBackend
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
        compiled: hand the layer to ``torch.compile``, for any number of rows; it happens at the first forward.

    Raises:
        NotQuantizedError: torchao returned without having quantised the weight, as it does for shapes it cannot serve.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, compiled: bool = False) -> None:
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
        if compiled:
            self.compile(dynamic=True)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the integers, their scales and zero points."""
        parts: Any = self.weight
        return sum(part.nbytes for part in (parts.qdata, parts.scale, parts.zero_point) if part is not None)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[..., out]`` in the dtype of ``x`` ``[..., in]``."""
        return functional.linear(x, self.weight, self.bias)


class Torchao(LayerBackend):
    """W8A8 layers of torchao: meant for CUDA, and to be compiled."""

    name = "torchao"
    by_name_only = True
    layer = TorchaoLinear

    @classmethod
    def unusable(cls) -> str | None:
        """Return why torchao cannot be imported."""
        return _import_error()

    @classmethod
    def refuses(cls, model: EditableModel) -> str | None:
        """Return a reason for float64, which torchao's scales do not take."""
        return "torchao cannot quantise float64 activations" if model.dtype == torch.float64 else None


def gpu_obstacle(capability: tuple[int, int], what: str) -> str | None:
    """Return why torchao's kernels for ``what`` cannot run here, in one line; ``None`` if they can.

    Args:
        capability: the oldest CUDA architecture that has them.
        what: named in the reason.
    """
    needed = f"{what} needs an NVIDIA GPU of compute capability {capability[0]}.{capability[1]} or later"
    if not torch.cuda.is_available():
        return f"{needed}, and torch sees no CUDA device"
    found = torch.cuda.get_device_capability()
    if found < capability:
        return f"{needed}, and this one has {found[0]}.{found[1]}"
    return _import_error()


class _TorchaoGpuLinear(QuantizedLinear):
    """What torchao's layers for CUDA have in common: a weight that it packed, and a check that it really did."""

    def __init__(self, weight: Tensor, bias: Tensor | None, config: Any, kind: str) -> None:
        super().__init__(weight, bias)
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
        _torchao().quantize_(linear, config)
        if type(linear.weight.data).__name__ != kind and type(linear.weight).__name__ != kind:
            raise NotQuantizedError(f"torchao left the weight a {type(linear.weight.data).__name__}")
        self.weight = linear.weight

    @property
    def weight_bytes(self) -> int:
        """Bytes of every tensor that the packed weight consists of."""
        parts: Any = self.weight
        return sum(getattr(parts, name).nbytes for name in parts.__tensor_flatten__()[0])

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[..., out]`` in the dtype of ``x`` ``[..., in]``."""
        return functional.linear(x, self.weight, self.bias)


class TorchaoFp8Linear(_TorchaoGpuLinear):
    """A linear layer with float8 weights per output channel and float8 activations per row. Never run by its authors.

    Args:
        weight: ``[out, in]`` bfloat16.
        bias: ``[out]`` or ``None``.

    Raises:
        NotQuantizedError: torchao left the weight as it was, as it does where 16 does not divide its sides.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        library = _torchao()
        config = library.Float8DynamicActivationFloat8WeightConfig(
            granularity=library.PerRow(), set_inductor_config=False
        )
        super().__init__(weight, bias, config, "Float8Tensor")


class TorchaoInt4Linear(_TorchaoGpuLinear):
    """A linear layer with 4-bit weights in groups, in the layout of torch's own kernel. Never run by its authors.

    Args:
        weight: ``[out, in]`` bfloat16.
        bias: ``[out]`` or ``None``.
        group_size: inputs that share a scale.

    Raises:
        NotQuantizedError: torchao left the weight as it was, as it does where the groups are not whole.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, group_size: int) -> None:
        config = _torchao().Int4WeightOnlyConfig(
            group_size=group_size, int4_packing_format="tile_packed_to_4d", set_inductor_config=False
        )
        super().__init__(weight, bias, config, "Int4TilePackedTo4dTensor")


class _TorchaoGpu(LayerBackend):
    """What torchao's backends for CUDA have in common.

    Attributes:
        capability: the oldest CUDA architecture that has the kernels.
    """

    name = "torchao"
    by_name_only = True
    capability: ClassVar[tuple[int, int]]

    @classmethod
    def unusable(cls) -> str | None:
        """Return why the GPU or torchao cannot do it."""
        return gpu_obstacle(cls.capability, *cls.precisions)

    @classmethod
    def refuses(cls, model: EditableModel) -> str | None:
        """Return a reason for other devices than CUDA, and other dtypes than bfloat16."""
        if model.device.type != "cuda":
            return f"its kernels run on CUDA and the model is on {model.device}"
        return None if model.dtype == torch.bfloat16 else "its kernels take bfloat16 activations"


class TorchaoFp8(_TorchaoGpu):
    """Float8 layers of torchao."""

    precisions, capability, layer = ("fp8",), (8, 9), TorchaoFp8Linear


class TorchaoInt4(_TorchaoGpu):
    """Layers of torchao with 4-bit weights."""

    precisions, capability, layer = ("int4",), (8, 0), TorchaoInt4Linear
