"""A broker for the tests that need one: the real program, with memory and sockets in a temporary directory."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import IO

import callboard as cb
import pytest

BINARY = Path(os.environ.get("CALLBOARD_BIN") or Path(__file__).parents[3] / "bin" / "callboard")


def read_line(pipe: IO[bytes], timeout: float = 30) -> str:
    """The next line of a child's unbuffered output; fails where none comes in time. "" at the end."""
    line, deadline = b"", time.monotonic() + timeout
    while not line.endswith(b"\n"):
        if not select.select([pipe], [], [], max(0, deadline - time.monotonic()))[0]:
            pytest.fail(f"no line within {timeout} s, only {line!r}")
        byte = os.read(pipe.fileno(), 1)
        if not byte:
            break
        line += byte
    return line.decode()


class Broker:
    """One running broker and how to reach it."""

    def __init__(self, directory: Path, *options: str, environment: Mapping[str, str] | None = None) -> None:
        if not BINARY.exists():
            pytest.fail(f"{BINARY} does not exist: build it with `make build`, or name it in $CALLBOARD_BIN")
        self.name = "pytest"
        self.runtime = directory / "run"
        self.runtime.mkdir(mode=0o700)
        (directory / "shm").mkdir(mode=0o700)
        found = {"CALLBOARD_RUNTIME_DIR": str(self.runtime), "CALLBOARD_STAGE": self.name}
        self.environment = {**os.environ, **(environment or {}), **found}
        self.log = directory / "log"
        self.command = [BINARY, "serve", "--stage", self.name, "--shm-dir", str(directory / "shm"), *options]
        self.start()

    def start(self) -> None:
        """Starts it, anew where it was killed, and returns when it serves."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                self.connect().close()
                return
            except cb.NotFound:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    pytest.fail(f"the broker did not start:\n{self.log.read_text()}")
                time.sleep(0.02)
            except BaseException:
                self.stop()
                raise

    def connect(self, **options: object) -> cb.Stage:
        """A session with this broker; the caller closes it."""
        before = os.environ.get("CALLBOARD_RUNTIME_DIR")
        os.environ["CALLBOARD_RUNTIME_DIR"] = str(self.runtime)
        try:
            return cb.connect(self.name, **options)  # type: ignore[arg-type]
        finally:
            if before is None:
                del os.environ["CALLBOARD_RUNTIME_DIR"]
            else:
                os.environ["CALLBOARD_RUNTIME_DIR"] = before

    def python(self, program: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs a program in a fresh interpreter that finds this broker by its environment."""
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def freeze(self) -> None:
        """Stops all its threads, and returns when they stand; thaw() lets them go on."""
        pid = self.process.pid
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + 30
        while any(f.read_text().rpartition(")")[2].split()[0] != "T" for f in Path(f"/proc/{pid}/task").glob("*/stat")):
            assert time.monotonic() < deadline, "the broker does not stop"

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Ends it, and lets it go on before, since one that is frozen would outlive its tests."""
        if self.process.poll() is None:
            self.thaw()
            self.process.send_signal(how)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


CUDA_LIBRARY = "CALLBOARD_CUDA_LIBRARY"


@pytest.fixture(scope="session", autouse=True)
def cuda_library() -> Iterator[str | None]:
    """What the variable was. Neither this process nor its brokers find a driver of CUDA, whatever the machine has:
    tests of device memory run in processes of their own (alone.py)."""
    before = os.environ.get(CUDA_LIBRARY)
    os.environ[CUDA_LIBRARY] = "/nowhere/libcuda.so.1"
    yield before
    del os.environ[CUDA_LIBRARY]
    if before is not None:
        os.environ[CUDA_LIBRARY] = before


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that most tests share. Nobody seals with scope ALL on it: that would reach every test's attributes."""
    broker = Broker(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


@pytest.fixture
def new_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Starts brokers for one test, which may end them as it likes."""
    brokers: list[Broker] = []

    def start(*options: str) -> Broker:
        directory = tmp_path / str(len(brokers))
        directory.mkdir()
        brokers.append(Broker(directory, *options))
        return brokers[-1]

    try:
        yield start
    finally:
        for broker in brokers:
            broker.stop()


@pytest.fixture
def stage(broker: Broker) -> Iterator[cb.Stage]:
    """A session of this test."""
    with broker.connect(client_name="test") as stage:
        yield stage


_numbers = count(1)


@pytest.fixture
def name() -> str:
    """An attribute that no other test uses."""
    return f"attribute/{next(_numbers)}"


def seal(stage: cb.Stage, ordinal: int, *names: str) -> cb.Op:
    """Seals these attributes and waits for it."""
    return stage.advance_write_floor(ordinal, scope=cb.Scope.INCLUDE, attributes=names).wait()


def pinned(stage: cb.Stage) -> int:
    """What this client's pins keep, in bytes."""
    return stage.info()["pinned_bytes"]


capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer  # (capsule, name)
capsule_pointer.restype, capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def compiled(name: str, directory: Path, *options: str) -> ModuleType:
    """The extension module `name`.c of this directory, for what Python alone cannot play."""
    built = directory / f"{name}.so"
    compiler = [os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    include = f"-I{sysconfig.get_paths()['include']}"
    subprocess.run(
        [*compiler, include, *options, Path(__file__).with_name(f"{name}.c"), "-o", built], check=True, timeout=120
    )
    spec = importlib.util.spec_from_file_location(name, built)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def exchange_driver(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """exchange_driver.c, both sides of DLPack's table of C functions, against the standard's own header."""
    import tvm_ffi  # the matrix has these fixtures, too, and no need of it

    include = f"-I{tvm_ffi.libinfo.find_dlpack_include_path()}"
    return compiled("exchange_driver", tmp_path_factory.mktemp("exchange"), include)


# ---- a machine with a GPU --------------------------------------------------------------------

EMULATED = Path(__file__).parents[3] / "integration" / "cudaemu" / "csrc"
COUNT = "from cuda import Driver; print(Driver().devices())"


def has_gpu(library: str) -> bool:
    """Whether it is a real driver, with a device."""
    found = subprocess.run(
        [sys.executable, "-c", COUNT],
        cwd=Path(__file__).parent,
        env={**os.environ, CUDA_LIBRARY: library},
        capture_output=True,
        text=True,
    )
    return found.returncode == 0 and int(found.stdout) > 0


# The frameworks that REQUIRE_GPU=1 asks for as well: device memory is there for them. Others may be left out.
REQUIRED = {"cupy", "torch"}


def why_not(frameworks: list[str], gpu: bool, required: bool) -> tuple[str, bool]:
    """Why what needs a real GPU and these frameworks cannot run, "" if it can; and whether that is a failure."""
    missing = [f for f in frameworks if importlib.util.find_spec(f) is None]
    if missing:
        return f"not installed: {', '.join(missing)}", required and not REQUIRED.isdisjoint(missing)
    return ("", False) if gpu else ("no real GPU is here", required)


def needs(frameworks: list[str], library: str, otherwise: str) -> None:
    """Leaves the test out where it cannot run, and says why; under REQUIRE_GPU=1 that is a failure."""
    reason, failure = why_not(frameworks, has_gpu(library), os.environ.get("REQUIRE_GPU") == "1")
    if failure:
        pytest.fail(f"REQUIRE_GPU=1, and {otherwise}: {reason}")
    if reason:
        pytest.skip(f"{otherwise}: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which driver the tests of device memory had: a header would be hidden by -q."""
    library = os.environ.get(CUDA_LIBRARY) or "libcuda.so.1"
    terminalreporter.write_line(f"driver of CUDA: {'a real GPU' if has_gpu(library) else 'emulated'}")


@pytest.fixture(scope="session")
def machine(
    cuda_library: str | None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, str]:
    """The environment of all who use the driver."""
    directory = tmp_path_factory.mktemp("cuda")
    real = has_gpu(cuda_library or "libcuda.so.1")
    if os.environ.get("REQUIRE_GPU") == "1" and not real:
        pytest.fail("REQUIRE_GPU=1, and no real GPU is here")
    if cuda_library or real:
        return {CUDA_LIBRARY: cuda_library or "libcuda.so.1", "CUDAEMU_DIR": str(directory)}
    return {CUDA_LIBRARY: request.getfixturevalue("emulated"), "CUDAEMU_DIR": str(directory)}


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The emulated driver."""
    library = tmp_path_factory.mktemp("cudaemu") / "libcuda.so.1"
    if shutil.which(os.environ.get("CC", "cc")) is None:
        reason = f"the emulated driver needs a C compiler, and {os.environ.get('CC', 'cc')} is not here"
        if os.environ.get("CALLBOARD_TEST_NO_SKIP") == "1":
            pytest.fail(f"may not be skipped here: {reason}")
        pytest.skip(reason)
    compiler = [
        os.environ.get("CC", "cc"),
        "-std=c11",
        "-D_GNU_SOURCE",
        "-O1",
        "-fPIC",
        "-pthread",
        "-fvisibility=hidden",
    ]
    link = ["-shared", "-Wl,-soname,libcuda.so.1", "-o", library, *sorted(EMULATED.glob("*.c")), "-ldl"]
    subprocess.run([*compiler, *link], check=True, timeout=300)
    return str(library)


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory, machine: dict[str, str]) -> Iterator[Broker]:
    """A broker that serves it."""
    options = ("--gpu", "required", "--gpu-memory", "256MiB")
    broker = Broker(tmp_path_factory.mktemp("gpu"), *options, environment=machine)
    yield broker
    broker.stop()
