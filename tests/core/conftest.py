"""A tiny model in a folder, for tests of what users call."""

from pathlib import Path

import pytest

from tests.compare.conftest import save_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny-model"))
