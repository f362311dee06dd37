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


@pytest.fixture(scope="session", autouse=True)
def _calibrations_are_short_and_not_kept(tmp_path_factory):
    """Keep what int8 arms of the tests find out of the user's cache; the models there are still found."""
    from quasar.verifiers.quantization import calibration

    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "quasar_home", lambda: home)
        patch.setattr(calibration, "TEXTS", 4)
        patch.setattr(calibration, "TOKENS", 16)
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Folder of a tiny random model, for tests of what users call."""
    from tests.shared.tiny_folder import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture
def refused(capsys):
    """Return a function that runs a command that is refused, and returns the one line that the user sees."""
    from quasar.cli import main

    def run(*words):
        assert main([*map(str, words)]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        [line] = printed.err.splitlines()
        assert line.startswith("quasar: error: ")
        return line

    return run


@pytest.fixture(scope="session")
def smollm2():
    """Folder of the built-in 135M model, fetched on first use; for tests marked ``model``."""
    from quasar.zoo.builtin_models import builtin_models

    return next(model for model in builtin_models() if model.name == "smollm2-135m").fetch(quiet=True)
