"""Builds callboard._native: the C client's sources, its part for CUDA too, and the objects of Python around them.

From Python 3.11 on it keeps to the limited API: one wheel serves that version and all later ones. Python 3.10, whose
limited API has no buffers, and free-threaded Pythons, which have none, are compiled for as they are.
"""

import os
import shutil
import sys
import sysconfig
from glob import glob

from setuptools import Extension, setup
from setuptools.command.sdist import sdist

os.chdir(os.path.dirname(os.path.abspath(__file__)))

# Beside this directory in the repository, inside it in a source distribution.
C_CLIENT = os.path.join("..", "c") if os.path.exists(os.path.join("..", "c", "include")) else "c"
LIMITED = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")


class SourceDistribution(sdist):
    """With the C client's sources, which the extension is compiled from."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, [name for name in files if not name.startswith(os.pardir)])
        for directory in ("include", "src", "cuda"):
            source = os.path.join(C_CLIENT, directory)
            shutil.copytree(source, os.path.join(base_dir, "c", directory), dirs_exist_ok=True)
        for license in glob(os.path.join("..", "..", "LICENSE")) + glob("LICENSE"):
            shutil.copy(license, base_dir)


setup(
    ext_modules=[
        Extension(
            "callboard._native",
            sources=sorted(glob("src/native/*.c"))
            + sorted(glob(os.path.join(C_CLIENT, "src", "*.c")))
            + sorted(glob(os.path.join(C_CLIENT, "cuda", "*.c"))),
            depends=glob("src/native/*.h")
            + glob(os.path.join(C_CLIENT, "include", "*.h"))
            + glob(os.path.join(C_CLIENT, "src", "*.h"))
            + glob(os.path.join(C_CLIENT, "cuda", "*.h")),
            include_dirs=[os.path.join(C_CLIENT, "include")],
            define_macros=[("_GNU_SOURCE", None)] + [("Py_LIMITED_API", "0x030B0000")] * LIMITED,
            py_limited_api=LIMITED,
            extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra"],
            # Our own copy of the C client is the one that is called, whatever the process has loaded.
            extra_link_args=["-pthread", "-Wl,-Bsymbolic"],
            libraries=["dl"],  # before glibc 2.34 dlopen, which loads a driver of CUDA, was in a library of its own
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED else {},
    cmdclass={"sdist": SourceDistribution},
)
