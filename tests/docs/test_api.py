"""The page that lists what may be imported is what the code says."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "make_api.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("make_api", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(script):
    script.main(["--check"])
    assert script.PAGE.read_text(encoding="utf-8") == script.page()


def test_a_stale_page_is_refused(script, monkeypatch):
    monkeypatch.setattr(script, "HEAD", f"{script.HEAD} Said otherwise.")
    with pytest.raises(SystemExit, match=r"run 'python docs/make_api\.py'"):
        script.main(["--check"])


def test_the_page_can_be_made_again_and_again(script):
    assert script.page() == script.page()
