"""The module that every backend for single quantised layers implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from quasar.models.int8_format import MAX_STEPS


class NotQuantizedError(Exception):
    """A backend left a weight as it was; the text is the reason, ready for a report."""


class QuantizedLinear(nn.Module, ABC):
    """A linear layer that multiplies 8-bit integers: weights per output channel, activations per token.

    Args:
        weight: ``[out, in]``, floating; shared with the full-precision model, read once and not kept.
        bias: ``[out]`` or ``None``; kept as it is, shared.
        steps: integers on either side of zero that the weights use.

    Raises:
        NotQuantizedError: the backend cannot hold this weight in int8.

    Attributes:
        backend: what users call it.
        activation_bits: most bits that its activations may have.
        weight_steps: integers on either side of zero that its weights have, if it is not told otherwise.
        in_features: length of an input row.
        out_features: length of an output row.
        steps: as above.
        bias: as above.
    """

    backend: ClassVar[str]
    activation_bits: ClassVar[int] = 8
    weight_steps: ClassVar[int] = MAX_STEPS
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, steps: int = MAX_STEPS) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.steps = steps
        self.register_buffer("bias", None if bias is None else bias.detach())

    @classmethod
    @abstractmethod
    def unusable(cls) -> str | None:
        """Return why this machine cannot run the backend, in one line; ``None`` if it can."""

    @classmethod
    @abstractmethod
    def refuses(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return why the backend cannot serve a model on ``device`` in ``dtype``, in one line; ``None`` if it can."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of the integers and their scales: what this layer needs beside the full-precision model."""

    def storage_bytes(self) -> int:
        """Return the bytes of everything the layer holds: ``weight_bytes`` and the bias, which may be shared."""
        return self.weight_bytes + (0 if self.bias is None else self.bias.nbytes)

    def extra_repr(self) -> str:
        """Return shape, steps and backend for ``print(model)``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"steps=±{self.steps}, backend={self.backend}"
        )
