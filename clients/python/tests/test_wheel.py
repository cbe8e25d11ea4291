"""What is handed out: a source distribution that stands alone, and of it one wheel for Python 3.11 and later."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import Broker

CLIENT = Path(__file__).parents[1]
LIMITED = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")

ROUND_TRIP = """
import array, sys
import callboard as cb
print(cb.__file__)
with cb.connect() as stage, stage.query_from_path_list(["/a", "/b"]) as query:
    stage.write_attribute(query, sys.argv[1], array.array("d", [1.5, 2.5]), ordinal=1).wait()
    stage.advance_write_floor(1, scope=cb.Scope.INCLUDE, attributes=[sys.argv[1]]).wait()
    with stage.read_attributes(query, sys.argv[1]) as read:
        for group in read:
            print(memoryview(group.dlpack(0)).tolist())
"""


def run(*command: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution of this tree, and the wheel of that alone."""
    directory = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", directory, CLIENT)
    (sources,) = directory.glob("callboard-*.tar.gz")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, sources)
    (wheel,) = directory.glob("callboard-*.whl")
    return sources, wheel


def test_the_sources_are_all_there(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for tree, into in (
        (CLIENT / "src" / "native", "src/native"),
        *((CLIENT.parent / "c" / part, f"c/{part}") for part in ("src", "include", "cuda")),
    ):
        assert {f"{into}/{file.name}" for file in tree.iterdir()} <= names
    assert {"LICENSE", "pyproject.toml", "setup.py", "src/callboard/py.typed", "src/callboard/_native.pyi"} <= names
    assert not [name for name in names if ".." in name or name.startswith("tests")]
    assert not (CLIENT / "c").exists()  # and nothing was left here


def test_the_wheel_says_whom_it_is_for(built: tuple[Path, Path]) -> None:
    tags = built[1].stem.split("-")[2:]
    own = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert tags[:2] == (["cp311", "abi3"] if LIMITED else [own, own + getattr(sys, "abiflags", "")])
    with zipfile.ZipFile(built[1]) as archive:
        names = archive.namelist()
    assert [name for name in names if name.endswith(".so")] == [
        "callboard/_native.abi3.so" if LIMITED else f"callboard/_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    ]
    assert {"callboard/py.typed", "callboard/_native.pyi"} <= set(names)
    assert any(name.endswith("LICENSE") for name in names)
    if LIMITED:  # the symbols of the shared object against the tag
        run(sys.executable, "-m", "abi3audit", "--strict", built[1])


def test_the_wheel_works_where_nothing_else_is(
    built: tuple[Path, Path], broker: Broker, name: str, tmp_path: Path
) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path)
    python = tmp_path / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", built[1])
    done = subprocess.run(
        [python, "-c", ROUND_TRIP, name],
        env=broker.environment,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    where, values = done.stdout.splitlines()
    assert Path(where).is_relative_to(tmp_path) and values == "[1.5, 2.5]"
