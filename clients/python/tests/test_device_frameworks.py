"""PyTorch and CuPy as clients of device memory, with kernels that are late: on a real GPU alone.

What they ask of Callboard is tested without them in test_device*.py, on the emulated driver as well.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import callboard as cb
import pytest
from alone import body, only
from conftest import Broker, needs, seal

TURNS = 20
SIZE = 4096  # of square matrices whose product takes a GPU long enough to be late


@body
def cupy_fills_and_torch_reads(w: SimpleNamespace) -> None:
    """In place on both sides, for each way to say what is waited for (rules C3, C5; behaviours 305, 307)."""
    import cupy as cp
    import torch

    w.stage.declare(w.name, dtype="f4", row_shape=3, device="cuda:0").wait()
    stream, event = cp.cuda.Stream(non_blocking=True), cp.cuda.Event(disable_timing=True)
    factor = cp.ones((SIZE, SIZE), dtype=cp.float32)
    cp.cuda.Device().synchronize()  # the stream does not wait for what filled it
    for ordinal in range(1, TURNS + 1):
        session = w.stage.map_attribute(w.query, w.name, ordinal=ordinal)
        with stream:
            rows = cp.from_dlpack(session.view)
            late = (factor @ factor)[:2, :3] * 0
            rows[...] = late + cp.arange(6, dtype=cp.float32).reshape(2, 3) * ordinal
            del rows, late
            event.record(stream)
        sync = cb.CudaSync(stream) if ordinal % 2 else cb.CudaSync(wait_event=event)
        assert session.unmap_attribute(cuda_sync=sync).wait().adopted
        seal(w.stage, ordinal, w.name)
        group = only(w.stage.read_attributes(w.query, w.name))
        pose = torch.from_dlpack(group.dlpack(0))
        assert pose.device == torch.device("cuda", 0)
        assert pose.data_ptr() == group.dlpack(0).pointer, "it was copied"
        assert pose.tolist() == [[0, ordinal, 2 * ordinal], [3 * ordinal, 4 * ordinal, 5 * ordinal]]
        del pose


@body
def torch_publishes_and_cupy_reads(w: SimpleNamespace) -> None:
    """What PyTorch has queued for a tensor is waited for (behaviour 305), on its default stream and on another one."""
    import cupy as cp
    import torch

    factor = torch.ones((SIZE, SIZE), device="cuda")
    for turn in range(1, TURNS + 1):
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.default_stream() if turn % 2 else torch.cuda.Stream()):
            tensor = (factor @ factor)[0, :3] * 0 + turn
            w.stage.publish(w.name, tensor)
        found = cp.from_dlpack(w.stage.latest(w.name))
        assert cp.asnumpy(found).tolist() == [turn] * 3
        del found


@body
def rows_of_torch_are_scattered(w: SimpleNamespace) -> None:
    """Rows of a tensor on the device, each to its prim, and one of them alone (rule C5)."""
    import torch

    rows = torch.arange(6, device="cuda", dtype=torch.float32).reshape(2, 3)
    w.stage.write_attribute(w.query, w.name, rows, ordinal=1).wait()
    seal(w.stage, 1, w.name)
    with w.stage.query_from_path_list(["/b"]) as second:
        w.stage.write_attribute(second, w.name, rows[:1] + 10, ordinal=2).wait()
    seal(w.stage, 2, w.name)
    found = torch.from_dlpack(only(w.stage.read_attributes(w.query, w.name)).dlpack(0))
    assert found.tolist() == [[0, 1, 2], [10, 11, 12]]
    del found


BODIES = [cupy_fills_and_torch_reads, torch_publishes_and_cupy_reads, rows_of_torch_are_scattered]


@pytest.mark.parametrize("played", BODIES, ids=[b.__name__ for b in BODIES])
def test_a_framework_on_a_gpu(
    played: Callable[[SimpleNamespace], None],
    cuda_library: str | None,
    request: pytest.FixtureRequest,
    name: str,
) -> None:
    needs(["cupy", "torch"], cuda_library or "libcuda.so.1", "no framework was a client")
    broker: Broker = request.getfixturevalue("gpu")
    program = "import sys; sys.path.insert(0, sys.argv[1]); import alone; alone.play(*sys.argv[2:])"
    done = broker.python(program, str(Path(__file__).parent), __name__, played.__name__, name, timeout=300)
    assert done.returncode == 0, done.stderr
