"""The Makefile builds the plugin where there is a C++ compiler, and everything works where there is none."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[1]
ROOT = PLUGIN.parents[1]
STAMP = ".venv/.installed-native"
COMPILER = shutil.which("c++") or shutil.which("g++")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def checkout(tmp_path):
    """Return a copy of the Makefile and the plugin, with an environment of its own that borrows what is installed."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    ignored = shutil.ignore_patterns("*.so", "build", "*.egg-info", "__pycache__")
    shutil.copytree(PLUGIN, tmp_path / "plugins" / "quasar-cpu", ignore=ignored)
    venv.create(tmp_path / ".venv", symlinks=True)
    base = {"base": str(tmp_path / ".venv"), "platbase": str(tmp_path / ".venv")}
    site = Path(sysconfig.get_path("purelib", vars=base))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    (tmp_path / ".venv" / ".installed").touch()
    return tmp_path


def run(folder, *command, **variables):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "CXX"))}
    environment = {**inherited, "PIP_NO_INDEX": "1", **variables}  # nothing may be downloaded
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def kernels(folder):
    return sorted(path.name for path in (folder / "plugins" / "quasar-cpu" / "quasar_cpu").glob("*.so"))


def script(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def refused(folder, compiler):
    done = run(folder, "make", STAMP, f"CXX={compiler}")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert not (folder / STAMP).exists()
    assert kernels(folder) == []
    return done.stdout.splitlines()


def test_without_a_compiler_one_line_says_so_and_the_build_goes_on(checkout):
    old = checkout / "plugins" / "quasar-cpu" / "quasar_cpu" / "kernels_avx2.so"
    old.touch()  # of other sources: it must not stay
    assert refused(checkout, "/nowhere/c++") == [
        "The native CPU backend was not built: there is no C++ compiler (/nowhere/c++). Everything else works."
    ]


def test_with_a_compiler_that_fails_one_line_says_so_and_the_build_goes_on(checkout):
    broken = script(checkout, "broken-c++", "echo 'error: no such thing' >&2; exit 1")
    assert refused(checkout, broken) == [
        "Compiling the native CPU backend.",
        f"The native CPU backend was not built: {broken} failed, see .venv/native.log. Everything else works.",
    ]
    assert "broken-c++" in (checkout / ".venv" / "native.log").read_text(encoding="utf-8")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
def test_with_a_compiler_it_is_built_once_and_again_when_a_source_changes(checkout):
    quick = script(checkout, "quick-c++", f'exec {COMPILER} "$@" -O0')  # the last -O counts: a build of seconds
    done = run(checkout, "make", STAMP, f"CXX={quick}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Compiling the native CPU backend.\n", "")
    assert "kernels_portable.so" in kernels(checkout)
    look = "from quasar_cpu import backend; print(backend.__file__, backend.NativeCpu.unusable())"
    seen = run(checkout.parent, str(checkout / ".venv" / "bin" / "python"), "-c", look, PYTHONPATH=str(ROOT))
    assert seen.stdout == f"{checkout}/plugins/quasar-cpu/quasar_cpu/backend.py None\n", seen.stderr
    assert run(checkout, "make", "-q", STAMP).returncode == 0
    later = (checkout / STAMP).stat().st_mtime + 5
    os.utime(checkout / "plugins" / "quasar-cpu" / "csrc" / "linear.h", (later, later))
    assert run(checkout, "make", "-q", STAMP).returncode == 1


@pytest.mark.parametrize("target", ["test", "compare"])
def test_both_commands_try_to_build_it(target):
    plan = run(ROOT, "make", "-n", target, "VENV=not-there")
    assert re.search(r"--editable plugins/quasar-cpu\b", plan.stdout)


@pytest.fixture(scope="module")
def unbuilt(tmp_path_factory):
    """Return a folder with the plugin's modules and no kernels."""
    folder = tmp_path_factory.mktemp("unbuilt")
    shutil.copytree(PLUGIN / "quasar_cpu", folder / "quasar_cpu", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return folder


def without_kernels(folder, *arguments):
    path = os.pathsep.join([str(folder), str(ROOT)])
    return run(folder, sys.executable, *arguments, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1")


def test_without_kernels_the_tests_of_the_kernels_are_skipped_with_the_reason(unbuilt):
    needing = [PLUGIN / "tests" / f"test_native_{name}.py" for name in ("agreement", "backend", "bits", "linear")]
    options = ["-rs", "-p", "no:cacheprovider", "-c", os.devnull]
    done = without_kernels(unbuilt, "-m", "pytest", *options, *map(str, needing))
    assert f"{len(needing)} skipped" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("quasar-cpu was not built here: its kernels cannot be loaded (") >= 1


AUTO = """
from quasar.core.errors import ConfigError
from quasar.testing.random_llama import RandomLlamas
from quasar.verifiers.full import Full
from quasar_cpu.backend import NativeCpu

verifier = Full(Full.Config())
verifier.load(RandomLlamas([NativeCpu]))
print(verifier.describe()["backend"])
try:
    Full(Full.Config(backend="native_cpu")).load(RandomLlamas([NativeCpu]))
except ConfigError as error:
    print(error)
"""


def test_without_kernels_auto_is_torch_and_the_name_is_refused(unbuilt):
    done = without_kernels(unbuilt, "-c", AUTO)
    chosen, refusal = done.stdout.splitlines()
    assert chosen == "torch"
    assert refusal.startswith("backend 'native_cpu' cannot be used: its kernels cannot be loaded (")
