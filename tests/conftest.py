"""One thread, no network for the model hub, and the marks ``gpu`` and ``model``."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


@pytest.fixture(scope="session")
def smollm2():
    """Folder of the built-in 135M model, fetched on first use; for tests marked ``model``."""
    from quasar.core.hf.zoo import builtin_models

    return next(model for model in builtin_models() if model.name == "smollm2-135m").fetch(quiet=True)
