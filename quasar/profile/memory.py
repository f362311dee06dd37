"""The floor of a forward: the bytes that it has to read, and how fast this machine reads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import nn

from quasar.core.models import LanguageModel

BUFFER_BYTES = 2**29
"""Sixteen times the largest cache of most machines, so that every pass comes from memory."""

_PASSES = 8


def read_bandwidth(device: str, clock: Callable[[], float], nbytes: int = BUFFER_BYTES, passes: int = _PASSES) -> float:
    """Return the fastest read of a large buffer that was seen, bytes per second, with torch's number of threads.

    A sum and a matrix-vector product are both tried: which of them comes closer to the memory's own limit depends on
    the machine.
    """
    buffer = torch.ones(nbytes // 4, device=device)
    matrix, vector = buffer.view(-1, 1024), torch.ones(1024, device=device)
    ways: tuple[Callable[[], Any], ...] = (buffer.sum, lambda: matrix.mv(vector))
    seconds = []
    for _ in range(passes):
        for read in ways:
            started = clock()
            read()
            seconds.append(clock() - started)
    return buffer.nbytes / min(seconds)


def bytes_read(model: LanguageModel) -> int:
    """Return the weight bytes that every forward reads, each storage once.

    All of ``model.storages()`` but the tables of embeddings: a forward picks a few rows of those, unless the head
    multiplies by the same storage.
    """
    storages = model.storages()
    module = getattr(model, "module", None)
    if not isinstance(module, nn.Module):
        return sum(storages.values())
    tables: set[int] = set()
    multiplied: set[int] = set()
    for part in module.modules():
        # Layers on kernels of their own may keep their weights as plain attributes.
        plain = (value for value in vars(part).values() if isinstance(value, torch.Tensor))
        held = {tensor.untyped_storage().data_ptr() for tensor in chain(part.parameters(recurse=False), plain)}
        (tables if isinstance(part, nn.Embedding) else multiplied).update(held)
    return sum(size for key, size in storages.items() if key not in tables - multiplied)
