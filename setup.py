"""Builds the optional CPU kernel; everything else is in pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import PurePath

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# No -ffast-math (it would switch off subnormals for the whole process) and no -march (the
# instruction set is chosen at run time).
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
FLAGS += ["-fvisibility=hidden", "-Wno-psabi", "-g0"]
# Threads come from the OpenMP library that torch has loaded. Apple's clang has none: one thread.
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]
SOURCES = "src/mpelu/kernels"

kernel = Extension(
    "mpelu.kernels._native",
    [f"{SOURCES}/native.cpp", f"{SOURCES}/binding.cpp"],
    depends=[f"{SOURCES}/{name}.h" for name in ("call", "layouts", "simd")],
    language="c++",
    extra_compile_args=FLAGS + OPENMP,
    extra_link_args=OPENMP,
    optional=True,  # without a working compiler plain torch operations are used
)


class BuildLibrary(build_ext):
    """A library for ctypes: nothing in its name or contents depends on the version of Python."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(PurePath(*fullname.split("."))) + ".so"


class PlatformWheel(bdist_wheel):
    """One wheel per platform, for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(
    # Microsoft's compiler lacks the vector extensions that the kernel is written in.
    ext_modules=[] if sys.platform == "win32" else [kernel],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)
