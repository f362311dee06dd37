"""The kernels under the address and undefined-behaviour sanitizers, driven without Python; see driver.cpp."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++")
# No optimisation: compiling would take minutes. What the optimiser may do to sums is for the other tests to find.
FLAGS = [
    "-std=c++17",
    "-O0",
    "-fopenmp",
    "-ffp-contract=off",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
]
AVX2 = ["-mavx2", "-mfma"]


def run(*command):
    # Threads of the team outlive main, and the leak checker needs rights that a container may not give.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "2"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def processor_flags():
    """Return what Linux says of the processor; elsewhere nothing, and the portable kernels are what is tested."""
    listed = Path("/proc/cpuinfo")
    return set(listed.read_text(encoding="utf-8").split()) if listed.exists() else set()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder for programs, after making sure that sanitized ones can be built and run here."""
    if COMPILER is None:
        pytest.skip("no C++ compiler here")
    folder = tmp_path_factory.mktemp("sanitizers")
    (folder / "nothing.cpp").write_text("int main() { return 0; }\n", encoding="utf-8")
    built = run(COMPILER, *FLAGS, str(folder / "nothing.cpp"), "-o", str(folder / "nothing"))
    if built.returncode or run(str(folder / "nothing")).returncode:
        pytest.skip(f"{COMPILER} cannot build or run sanitized programs here")
    return folder


@pytest.mark.parametrize("flags", [[], AVX2], ids=["portable", "avx2"])
def test_blocks_trees_and_windows_run_clean_and_have_the_bits_of_their_rows(folder, flags):
    if flags and "avx2" not in processor_flags():
        pytest.skip("this processor lacks AVX2")
    program = str(folder / f"driver{len(flags)}")
    sources = [str(HERE / "driver.cpp"), str(HERE.parent / "csrc" / "decoder.cpp")]
    built = run(COMPILER, *FLAGS, *flags, f"-I{HERE.parent / 'csrc'}", *sources, "-o", program)
    assert built.returncode == 0, built.stderr
    done = run(program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "84 checks, 0 differences\n"
    assert done.stderr == ""
