"""Quasar backend ``native_cpu``: whole forwards of Llama-like decoders in C++."""

from collections.abc import Iterable

from quasar import hookimpl
from quasar.core.backends import Backend


@hookimpl
def quasar_backends() -> Iterable[type[Backend]]:
    """Return the backend."""
    from quasar_cpu.backend import NativeCpu

    return [NativeCpu]
