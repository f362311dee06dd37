"""Seconds, on a device that may run ahead of the host."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def device_clock(device: str) -> Callable[[], float]:
    """Return a clock in seconds that waits for work queued on ``device``."""
    if not str(device).startswith("cuda"):
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock
