"""Plugins installed for real, by pip into a folder of their own, and looked at by a fresh interpreter."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEMPLATE = "quasar-template"

BROKEN = {
    "quasar-raises": ("quasar_raises", "raise ImportError('libmagic is missing')"),
    "quasar-nowhere": ("not_a_module", "# the entry point names another module"),
    "quasar-lacks": (
        "quasar_lacks",
        """
from quasar import Drafter, hookimpl


class Lacks(Drafter):
    name = "lacks"
    drafts_by = "point_mass"


class Whole(Drafter):
    name = "whole"
    drafts_by = "point_mass"

    def propose(self, context, budget):
        raise NotImplementedError


@hookimpl
def quasar_drafters():
    return [Lacks, Whole]
""",
    ),
}


def write_project(folder, distribution, points_to, code):
    folder.mkdir()
    module = distribution.replace("-", "_")
    (folder / f"{module}.py").write_text(code, encoding="utf-8")
    (folder / "pyproject.toml").write_text(
        f"""
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{distribution}"
version = "0.7"

[project.entry-points.quasar]
hooks = "{points_to}"

[tool.setuptools]
py-modules = ["{module}"]
""",
        encoding="utf-8",
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return a folder into which pip has installed the template and three broken plugins."""
    folder = tmp_path_factory.mktemp("plugins")
    leavings = shutil.ignore_patterns("build", "*.egg-info")
    shutil.copytree(ROOT / "plugins" / TEMPLATE, folder / TEMPLATE, ignore=leavings)  # a build leaves files beside it
    for name, (points_to, code) in BROKEN.items():
        write_project(folder / name, name, points_to, code)
    target = folder / "site"
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    projects = [str(folder / name) for name in (TEMPLATE, *BROKEN)]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), *projects]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def run_python(site, *arguments):
    """Run a fresh interpreter that finds the distributions in ``site``, from a folder that is not the checkout."""
    inherited = {name: value for name, value in os.environ.items() if name != "QUASAR_PLUGINS"}
    path = os.pathsep.join([str(site), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=site.parent,
        env={**inherited, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


LOOK = """
import dataclasses, json, os
from quasar.core.errors import PluginError
from quasar.plugins.registry import load_registry

def listing(registry):
    return [dataclasses.asdict(line) for line in registry.listing()]

seen = {"all": listing(load_registry())}
try:
    load_registry().find("drafter", "magic")
except PluginError as error:
    seen["unknown"] = str(error)
os.environ["QUASAR_PLUGINS"] = "quasar_template"
seen["allowed"] = listing(load_registry())
print(json.dumps(seen))
"""


def look(site):
    """Return what a fresh interpreter sees; it imports torch, so one has to do for several tests."""
    return json.loads(run_python(site, "-c", LOOK))


def by_name(lines):
    """Return a listing by distribution and name, built-ins left out."""
    assert sum(line["distribution"] == "quasar-spec" and line["error"] is None for line in lines) >= 6
    return {(line["distribution"], line["name"]): line for line in lines if line["distribution"] != "quasar-spec"}


@pytest.fixture(scope="module")
def seen(installed):
    return look(installed)


def test_the_template_is_listed_with_distribution_and_version(seen):
    assert by_name(seen["all"])["quasar-template", "echo"] == {
        "name": "echo",
        "kind": "drafter",
        "summary": "Proposes the tokens that followed the previous occurrence of the last token.",
        "traits": {"drafts_by": "point_mass", "next_distributions": False, "matched": False},
        "distribution": "quasar-template",
        "version": "0.1.0",
        "error": None,
    }


def test_each_broken_distribution_is_named_and_stops_nothing(seen):
    lines = by_name(seen["all"])
    errors = {key: line["error"] for key, line in lines.items() if line["error"] is not None}
    assert errors == {
        ("quasar-raises", "hooks"): (
            "entry point 'hooks = quasar_raises' of quasar-raises 0.7: ImportError: libmagic is missing"
        ),
        ("quasar-nowhere", "hooks"): (
            "entry point 'hooks = not_a_module' of quasar-nowhere 0.7: "
            "ModuleNotFoundError: No module named 'not_a_module'"
        ),
        ("quasar-lacks", "lacks"): (
            "drafter 'lacks' of entry point 'hooks = quasar_lacks' of quasar-lacks 0.7: "
            "class Lacks lacks propose(self, context, budget)"
        ),
    }
    assert lines["quasar-lacks", "whole"]["error"] is None


def test_an_unknown_name_shows_the_import_error_of_a_plugin_that_might_have_it(seen):
    assert seen["unknown"].startswith("unknown drafter 'magic'. Available: adaptive, ")
    assert "draft_model, echo, " in seen["unknown"]
    assert "of quasar-raises 0.7: ImportError: libmagic is missing" in seen["unknown"]


def test_the_allow_list_chooses_among_what_is_installed(seen):
    assert set(by_name(seen["allowed"])) == {("quasar-template", "echo")}


def test_a_distribution_whose_code_has_been_removed_is_listed(installed, tmp_path):
    site = tmp_path / "site"
    shutil.copytree(installed, site)
    shutil.rmtree(site / "quasar_template")
    lines = by_name(look(site)["all"])
    assert "ModuleNotFoundError: No module named 'quasar_template'" in lines["quasar-template", "template"]["error"]
    assert lines["quasar-lacks", "whole"]["error"] is None


def test_the_template_passes_its_own_tests_as_installed(installed):
    tests = str(installed.parent / TEMPLATE / "tests")
    printed = run_python(installed, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-c", os.devnull, tests)
    assert f"{TEMPLATE}/tests/" in printed
