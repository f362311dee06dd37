"""Where a forward's time goes: by the model's own clock if it has one, else by a clock around torch's operators."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from quasar.core.models import LanguageModel

GEMM, ATTENTION, REST = "gemm", "attention", "rest"

_GEMM = {"aten::linear", "aten::addmm", "aten::mm", "aten::_int_mm"}
_ATTENTION = {"aten::bmm", "aten::baddbmm", "aten::softmax", "aten::_softmax"}


def own_parts(model: LanguageModel) -> dict[str, float]:
    """Return seconds per part since the last call, from ``model.timings()``; empty for a model without it."""
    timings: Callable[[], dict[str, float]] | None = getattr(model, "timings", None)
    return {} if timings is None else dict(timings())


def operator_parts(forward: Callable[[], None], module: nn.Module | None = None, repeats: int = 3) -> dict[str, float]:
    """Return median seconds of matrix products and of attention in a forward on the CPU.

    Everything around them (norms, rotations, activations, quantising and scaling of rows, copies, dispatch) is left
    out: a clock around each slows thousands of small operators down far more than these few long ones.

    Args:
        forward: runs it.
        module: what it runs. Linear layers in which torch sees no product (kernels of their own) count as a whole.
        repeats: how often.
    """
    seen = []
    for _ in range(repeats):
        with _OperatorClock() as clock, clock.watching(module):
            forward()
        seen.append(clock.seconds)
    return {part: statistics.median(parts[part] for parts in seen) for part in (GEMM, ATTENTION)}


class _OperatorClock(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Times the operators that torch dispatches; unlike its profiler it prints nothing, and keeps no events."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds = {GEMM: 0.0, ATTENTION: 0.0}

    @contextmanager
    def watching(self, module: nn.Module | None) -> Iterator[None]:
        """Count the linear layers below ``module`` in which no product is seen."""
        entered: list[tuple[float, float]] = []

        def enter(*_: Any) -> None:
            entered.append((time.perf_counter(), self.seconds[GEMM]))

        def leave(*_: Any) -> None:
            started, before = entered.pop()
            if self.seconds[GEMM] == before:
                self.seconds[GEMM] += time.perf_counter() - started

        layers = [] if module is None else [layer for layer in module.modules() if hasattr(layer, "out_features")]
        hooks = [layer.register_forward_pre_hook(enter) for layer in layers]
        hooks += [layer.register_forward_hook(leave) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        part = kind(func.name().partition(".")[0], args)
        started = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        if part is not None:
            self.seconds[part] += time.perf_counter() - started
        return result


def kind(name: str, args: Any = ()) -> str | None:
    """Return the part that an operator belongs to, ``None`` for the rest.

    Batched products belong to attention: a linear layer multiplies all rows by one matrix.
    """
    if name == "aten::matmul":
        return GEMM if args[1].ndim == 2 else ATTENTION
    if name in _GEMM or name.startswith(("quantized::linear", "mkldnn::_linear", "aten::_weight_int")):
        return GEMM
    return ATTENTION if name in _ATTENTION or "scaled_dot_product" in name else None


def shares(parts: dict[str, float], total: float) -> dict[str, float]:
    """Return each part's share of ``total`` seconds, with what is left as the rest; they add up to 1."""
    rest = max(0.0, total - sum(parts.values())) + parts.get(REST, 0.0)
    whole = {**parts, REST: rest}
    return {part: seconds / sum(whole.values()) for part, seconds in whole.items()}
