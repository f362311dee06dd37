"""Quasar backend ``native_cpu``: whole forwards of Llama-like decoders in C++."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quasar import hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quasar.core.backends import Backend


@hookimpl
def quasar_backends() -> Iterable[type[Backend]]:
    """Return the backend."""
    from quasar_cpu.backend import NativeCpu  # imported here, so that `quasar --help` does not wait for torch

    return [NativeCpu]
