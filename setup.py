"""Builds the optional CPU kernel; everything else is in pyproject.toml."""

import sys

from setuptools import Extension, setup

# No -ffast-math (it would switch off subnormals for the whole process) and no -march (the
# instruction set is chosen at run time). Apple's clang has no OpenMP: one thread there.
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
FLAGS += ["-fvisibility=hidden", "-Wno-psabi"]
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]

setup(
    ext_modules=[
        Extension(
            "mpelu.kernels._native",
            ["src/mpelu/kernels/native.cpp"],
            language="c++",
            extra_compile_args=FLAGS + OPENMP,
            extra_link_args=OPENMP,
            optional=True,  # without a working compiler the plain torch path is used
        )
    ]
)
