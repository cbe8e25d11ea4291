"""Builds callboard._native: the C client's sources and the objects of Python around them, in one extension."""

import os
from glob import glob

from setuptools import Extension, setup

os.chdir(os.path.dirname(os.path.abspath(__file__)))

C_CLIENT = os.path.join("..", "c")

setup(
    ext_modules=[
        Extension(
            "callboard._native",
            sources=sorted(glob("src/native/*.c")) + sorted(glob(os.path.join(C_CLIENT, "src", "*.c"))),
            depends=glob("src/native/*.h") + glob(os.path.join(C_CLIENT, "*", "*.h")),
            include_dirs=[os.path.join(C_CLIENT, "include")],
            define_macros=[("_GNU_SOURCE", None)],
            extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra"],
            # Our own copy of the C client is the one that is called, whatever the process has loaded.
            extra_link_args=["-pthread", "-Wl,-Bsymbolic"],
        )
    ],
)
