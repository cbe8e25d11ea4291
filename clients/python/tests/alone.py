"""Bodies of tests that run in interpreters of their own, against a broker that serves a GPU.

A process that has loaded a driver of CUDA cannot be forked any more, and its tensors of made-up addresses are refused
by that driver. So a test of device memory is a body that `alone` makes a test of. At its end nothing may be left open.
"""

from __future__ import annotations

import gc
import importlib
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import callboard as cb
from conftest import Broker, seal

SLOW = {"CUDAEMU_DELAY_US": "30000"}  # before each operation of a stream, so that a missing wait shows

Body = Callable[[SimpleNamespace], Any]
bodies: dict[str, Body] = {}


def run_alone(broker: Broker, body: Body, name: str, **environment: str) -> None:
    """Runs a body in an interpreter of its own; fails as it does."""
    program = "import sys, alone; alone.play(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", program, body.__module__, body.__name__, name],
        cwd=Path(__file__).parent,
        env={**broker.environment, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"status {done.returncode}\n{done.stdout}{done.stderr}"


def alone(body: Body | None = None, **environment: str) -> Any:
    """Makes a test of a function that is given a world, in an interpreter of its own with this environment."""
    if body is None:
        return lambda body: alone(body, **environment)
    bodies[body.__name__] = body

    def test(gpu: Broker, name: str) -> None:
        run_alone(gpu, body, name, **environment)

    test.__doc__ = body.__doc__
    return test


def counts() -> tuple[int, ...]:
    """What this process has of the driver, as integration/cudaemu reports it. Of a real driver nobody can say."""
    report = Path(os.environ["CUDAEMU_DIR"]) / f"process-{os.getpid()}"
    return struct.unpack_from("=8Q", report.read_bytes(), 16) if report.exists() else (0,) * 8


def held() -> tuple[int, int]:
    """What it has open of others: memory and events."""
    return (counts()[3], counts()[5])


left: list[Any] = []  # what a body leaves for the interpreter's end


def play(module: str, body: str, name: str) -> None:
    """A test's body, in the child."""
    importlib.import_module(module)
    with cb.connect() as stage, stage.query_from_path_list(["/a", "/b"]) as query:
        w = SimpleNamespace(stage=stage, query=query, name=name)
        bodies[body](w)
        w.__dict__.clear()
    gc.collect()
    if not left:
        assert held() == (0, 0), f"{held()} imports of memory and events are open at the end"


def filled(w: SimpleNamespace, value: int, ordinal: int, **options: Any) -> cb.Op:
    """Fills both rows of (3,) uint8 with a byte in place, on a stream, and seals them."""
    driver, stream = w.driver, w.driver.stream()
    session = w.stage.map_attribute(w.query, w.name, ordinal=ordinal, dtype="u1", row_shape=3, **options)
    view = session.view
    driver.fill(view.pointer, value, view.nbytes, stream)
    del view
    op = session.unmap_attribute(cuda_sync=cb.CudaSync(stream)).wait()
    seal(w.stage, ordinal, w.name)
    return op


def only(read: cb.Read) -> cb.ReadGroup:
    (group,) = read
    return group


def host(w: SimpleNamespace) -> Any:
    """The newest rows, on the host."""
    return only(w.stage.read_attributes(w.query, w.name, device="cpu")).array(0)


def body(function: Body) -> Body:
    """One that a test runs by name, perhaps beside others."""
    bodies[function.__name__] = function
    return function
