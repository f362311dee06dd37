"""One thread, no network for the model hub, and the choice of kernels."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def use_isa(monkeypatch):
    """Return a function that switches to the kernels of an instruction set; ``best`` is what this processor has."""
    from quasar_cpu.library import library

    def switch(name):
        monkeypatch.delenv("QUASAR_CPU_ISA", raising=False)
        if name != "best":
            monkeypatch.setenv("QUASAR_CPU_ISA", name)
        library.cache_clear()

    yield switch
    library.cache_clear()


@pytest.fixture(params=["best", "portable"])
def isa(request, use_isa):
    """Run a test on the best kernels of this processor, then on the portable ones."""
    use_isa(request.param)
    return request.param
