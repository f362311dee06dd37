"""Compiles the kernels: plain C++ behind a C interface, so neither torch's headers nor Python's ABI tie a build."""

import platform

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# -ffp-contract=off and no fast-math: a compiler that fuses or reorders sums as it likes would break the promise that a
# row's bits do not depend on the rows beside it.
FLAGS = ["-O3", "-std=c++17", "-fopenmp", "-ffp-contract=off", "-Wall", "-Wextra", "-g0"]
AVX512 = ["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512vnni", "-mprefer-vector-width=256"]
ISAS = {"portable": []}
if platform.machine() in ("x86_64", "AMD64"):
    ISAS |= {"avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx2", "-mfma", *AVX512]}


class BuildLibraries(build_ext):
    """Names the libraries as they are: ctypes opens them, Python does not import them."""

    def get_ext_filename(self, fullname):
        """Return the path without the ABI tag of an extension module."""
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, ext):
        """Return nothing: there is no PyInit function to export."""
        return []


setup(
    ext_modules=[
        Extension(
            f"quasar_cpu.kernels_{isa}",
            ["csrc/decoder.cpp"],
            depends=[f"csrc/{name}.h" for name in ("attention", "linear", "model", "simd", "team")],
            extra_compile_args=[*FLAGS, *flags],
            extra_link_args=["-fopenmp"],
            language="c++",
        )
        for isa, flags in ISAS.items()
    ],
    cmdclass={"build_ext": BuildLibraries},
)
