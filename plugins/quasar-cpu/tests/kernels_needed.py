"""Skips the module of tests that imports it, with the reason, where the kernels were not built."""

import pytest


def obstacle():
    try:
        from quasar_cpu.backend import NativeCpu
    except ImportError as error:
        return f"quasar-cpu is not installed ({error})"
    reason = NativeCpu.unusable()
    return reason and f"quasar-cpu was not built here: {reason}"


REASON = obstacle()
if REASON:
    pytest.skip(REASON, allow_module_level=True)
