"""What an editor sees of the package: no ``Any``, mistakes underlined, and the same names when the code runs."""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quasar import SamplingOptions, SamplingParams
from quasar.testing import TinyModels, check_component
from tests.shared.tiny_folder import save_tiny_model

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
FACES = ("quasar", "quasar.core", "quasar.models")
AUTHORS = (*FACES, "quasar.core.trees", "quasar.acceptors.rules", "quasar.testing")


def load(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(request):
    """Errors that mypy finds in the scripts, as (file, line, code, text); none is silenced by a configuration."""
    pytest.importorskip("mypy", reason="mypy is not installed; it comes with quasar-spec[test]")
    strict = ("--strict", "--disallow-any-expr", "--config-file=", "--follow-imports=silent")
    shown = ("--show-error-codes", "--no-pretty", "--no-error-summary")
    cache = f"--cache-dir={request.config.cache.mkdir('mypy')}"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *strict, *shown, cache, *sorted(each.name for each in SCRIPTS.glob("*.py"))],
        cwd=SCRIPTS, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr  # mistakes.py has mistakes
    lines = re.findall(r"^(\w+\.py):(\d+): error: (.*?)(?:  \[([\w-]+)\])?$", done.stdout, re.MULTILINE)
    return [(file, int(line), code, text) for file, line, text, code in lines]


@pytest.mark.parametrize("script", ["user.py", "author.py"])
def test_a_script_is_clean_under_strict_rules_and_nothing_in_it_is_any(script, found):
    assert [each for each in found if each[0] == script] == []


def test_every_mistake_is_found_where_it_is_made(found):
    made = {}
    for number, line in enumerate((SCRIPTS / "mistakes.py").read_text("utf-8").splitlines(), start=1):
        if comment := re.search(r"  # ([\w, -]+)$", line):
            made[number] = set(comment[1].split(", "))
    seen = {}
    for file, line, code, _ in found:
        if file == "mistakes.py":
            seen.setdefault(line, set()).add(code)
    assert seen == made


def test_a_users_script_runs(tmp_path):
    load("user").main(str(save_tiny_model(tmp_path / "model", max_length=512)))


@pytest.mark.parametrize("name", ["Uniform", "Sharper", "OneByOne", "AtLeast"])
def test_what_a_plugins_author_wrote_keeps_the_contract(name):
    check_component(getattr(load("author"), name), models=TinyModels())


def test_keywords_are_the_fields_of_the_parameters():
    assert SamplingOptions.__annotations__.keys() == SamplingParams.model_fields.keys()


@pytest.mark.parametrize("face", FACES)
def test_every_name_that_a_package_offers_is_there(face):
    module = importlib.import_module(face)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


def test_torch_is_not_imported_before_it_is_needed():
    program = "import sys, quasar, quasar.core, quasar.models; quasar.QuasarError; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


EXAMPLES = [
    SCRIPTS / "author.py",
    *(ROOT / "plugins/quasar-template").rglob("*.py"),
]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_is_written_with_what_authors_may_import(file):
    statements = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in statements if node.module.partition(".")[0] == "quasar"]
    assert all(node.module in AUTHORS for node in ours), [node.module for node in ours]
    assert all(not alias.name.startswith("_") for node in ours for alias in node.names)
