"""The layer that backends put in the place of a linear layer, one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from quasar.models.int8_format import MAX_STEPS


class NotQuantizedError(Exception):
    """A weight was left as it was; the text is the reason, ready for a report."""


class QuantizedLinear(nn.Module, ABC):
    """A linear layer with a quantised weight.

    Args:
        weight: ``[out, in]``, floating; shared with the full-precision model, read once and not kept.
        bias: ``[out]`` or ``None``; kept as it is, shared.
        steps: integers on either side of zero that the weights use.

    Raises:
        NotQuantizedError: this weight cannot be held in the layer's format.

    Attributes:
        in_features: length of an input row.
        out_features: length of an output row.
        steps: as above.
        bias: as above.
    """

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, steps: int = MAX_STEPS) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.steps = steps
        self.register_buffer("bias", None if bias is None else bias.detach())

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of the integers and their scales: what this layer needs beside the full-precision model."""

    def storage_bytes(self) -> int:
        """Return the bytes of everything the layer holds: ``weight_bytes`` and the bias, which may be shared."""
        return self.weight_bytes + (0 if self.bias is None else self.bias.nbytes)

    def extra_repr(self) -> str:
        """Return shape and steps for ``print(model)``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"steps=±{self.steps}"
        )
