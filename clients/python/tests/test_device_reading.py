"""Memory of GPUs: looking at it there and on the host, and how long it is there."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import callboard as cb
import numpy as np
import pytest
from alone import SLOW, alone, counts, filled, held, host, left, only
from conftest import BINARY, pinned, seal
from cuda import Consumer, Driver, Handle, Pointer, Producer, Size

# ---- reading ---------------------------------------------------------------------------------


@alone
def test_the_arguments_of_dlpack(w: SimpleNamespace) -> None:
    """stream, dl_device, copy and max_version of a view on a GPU (behaviours 281 to 286; field report G17)."""
    driver = Driver()
    values = np.arange(6, dtype="f4").reshape(2, 3)
    w.stage.publish(w.name, values, device="cuda:0")
    view = w.stage.latest(w.name)
    assert view.__dlpack_device__() == (2, 0)
    for good in (
        *({"stream": s} for s in (None, 1, 2, -1, driver.stream(), 2**63)),
        {"dl_device": (2, 0)},
        {"dl_device": (2, 0), "copy": False},
        {"copy": False},
    ):
        consumer = Consumer(driver, view, **good)
        assert (consumer.device, consumer.pointer, consumer.flags) == ((2, 0), view.pointer, 1)
        assert np.array_equal(consumer.values(), values)
        consumer.give_back()
    for wrong, error, text in (
        ({"stream": 0}, BufferError, "stream is 0"),
        ({"stream": -2}, BufferError, "stream is -2"),
        ({"stream": 1.5}, TypeError, "stream must be"),
        ({"stream": True}, TypeError, "stream must be"),
        ({"dl_device": (2, 1)}, BufferError, r"\(2, 1\)"),
        ({"dl_device": (1, 1)}, BufferError, r"\(1, 1\)"),
        ({"dl_device": (1, 0), "copy": False}, BufferError, "copy=False"),
        ({"max_version": None}, BufferError, "max_version"),
        ({"max_version": (0, 8)}, BufferError, "max_version"),
    ):
        with pytest.raises(error, match=text):
            view.__dlpack__(**{"max_version": (1, 3), **wrong})
    own = Consumer(driver, view, copy=True)
    assert (own.device, own.flags) == ((2, 0), 2) and own.pointer != view.pointer
    driver.put(own.pointer, np.zeros_like(values))  # it may be written to
    assert np.array_equal(driver.get(view.pointer, "f4", (2, 3)), values)
    own.give_back()
    view.__dlpack__(copy=True)  # a legacy capsule, which nobody takes
    for options in ({}, {"copy": True}, {"stream": 1}):
        copied = Consumer(driver, view, dl_device=(1, 0), **options)
        assert (copied.device, copied.flags) == ((1, 0), 2), "the consumer's own"
        assert np.array_equal(copied.values(), values)
        copied.give_back()
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        array = np.from_dlpack(view, device="cpu")
        assert np.array_equal(array, values) and array.flags.writeable
    with w.stage.map(w.name) as session:
        with pytest.raises(BufferError, match="memory to fill"):
            session.view.__dlpack__(dl_device=(1, 0))
        assert session.view.__dlpack__() is not None, "what may be written needs no version"
        session.cuda_sync = cb.CudaSync(1)
    on_host = w.stage.latest(w.name, device="cpu")
    with pytest.raises(BufferError, match="stream"):
        on_host.__dlpack__(stream=1, max_version=(1, 0))
    with pytest.raises(BufferError, match="device="):
        on_host.__dlpack__(dl_device=(2, 0), max_version=(1, 0))


@alone
def test_the_host_is_told_how_to_look(w: SimpleNamespace) -> None:
    """NumPy and Python's own ways refuse what lies on a GPU, and say what to do."""
    Driver()
    w.stage.publish(w.name, np.arange(3, dtype="f4"), device="cuda:0")
    view = w.stage.latest(w.name)
    assert (len(view), view.size, view.nbytes) == (3, 3, 12)
    assert "on cuda:0" in repr(view)
    calls: list[Callable[[Any], Any]] = [
        lambda v: v.numpy(),
        memoryview,
        np.asarray,
        lambda v: v[0],
        lambda v: v.__setitem__(0, 1),
        lambda v: v.item(),
        float,
        int,
        bool,
        iter,
    ]
    with w.stage.map(w.name) as session:
        for call in calls:
            with pytest.raises(BufferError, match=r"cuda:0.*device='cpu'.*dl_device=\(1, 0\)"):
                call(view)
            with pytest.raises(BufferError, match=r"cuda:0.*staging='cpu'"):
                call(session.view)
        session.abort()
    bits = view.bits
    assert (bits.device, bits.dtype.name, bits.pointer) == ("cuda:0", "uint32", view.pointer)


@alone
def test_the_array_interface_of_views(w: SimpleNamespace) -> None:
    """Version 3, for libraries without DLPack; what is in host memory has none."""
    Driver()
    w.stage.publish(w.name, np.arange(6, dtype="c8").reshape(2, 3), device="cuda:0")
    view = w.stage.latest(w.name)
    assert view.__cuda_array_interface__ == {
        "shape": (2, 3), "typestr": "<c8", "data": (view.pointer, True), "strides": None, "stream": None, "version": 3,
    }  # fmt: skip
    w.stage.publish(w.name + "/b", np.zeros(2, "u2"), dtype="bfloat16", device="cuda:0")
    opaque = w.stage.latest(w.name + "/b")
    assert not hasattr(opaque, "__cuda_array_interface__")
    assert opaque.bits.__cuda_array_interface__["typestr"] == "<u2"
    assert not hasattr(w.stage.latest(w.name, device="cpu"), "__cuda_array_interface__")
    with w.stage.map(w.name) as session:
        assert session.view.__cuda_array_interface__["data"] == (session.view.pointer, False)
        session.abort()


@alone(**SLOW)
def test_a_group_is_released_behind_a_stream(w: SimpleNamespace) -> None:
    """Rule V8: what a stream reads keeps its bytes until it has read them."""
    w.driver = driver = Driver()
    w.stage.declare(w.name, dtype="u1", row_shape=3, device="cuda:0", retain=1).wait()
    stream = driver.stream()
    for ordinal in range(1, 8):
        producer = Producer(driver, np.full((2, 3), ordinal, "u1"))
        w.stage.write_attribute(w.query, w.name, producer, ordinal=ordinal).wait()
        seal(w.stage, ordinal, w.name)
        if ordinal == 1:
            (group,) = w.stage.read_attributes(w.query, w.name)
            (on_host,) = w.stage.read_attributes(w.query, w.name, device="cpu")
            to = driver.allocate(6)
            view = group.dlpack(0)
            driver("cuMemcpyDtoDAsync_v2", Pointer(to), Pointer(view.pointer), Size(6), Handle(stream))
            del view
            refused: list[tuple[object, type[Exception]]] = [(0, cb.InvalidArgument), ("x", TypeError)]
            if driver.emulated:  # a real one may look at what lies there
                refused.append((0x1234560, cb.InvalidArgument))
            for wrong, error in refused:
                with pytest.raises(error):
                    group.release(stream=wrong)
            with pytest.raises(cb.InvalidArgument, match="lies on the host"):
                on_host.release(stream=stream)
            on_host.release()
            assert group.device == "cuda:0"
            group.release(stream=stream)
            with pytest.raises(cb.InvalidHandle):
                group.release(stream=stream)
            assert pinned(w.stage) == 0
    assert driver.get(to, "u1", (2, 3)).tolist() == [[1] * 3] * 2
    driver.free(to)


@alone
def test_one_copy_on_the_host_for_all_readers(w: SimpleNamespace) -> None:
    """device="cpu" asks the broker once for each version (rule C5); the other way round too."""
    w.driver = driver = Driver()
    assert filled(w, 3, 1, device="cuda:0").adopted
    with w.stage.snapshot() as snapshot:
        first = only(w.stage.read_attributes(w.query, w.name, device="cpu"))
        second = only(snapshot.read(w.query, w.name, device=(1, 0)))
        assert first.device == second.device == "cpu"
        assert first.dlpack(0).pointer == second.dlpack(0).pointer
        assert first.array(0).tolist() == [[3] * 3] * 2
        assert not first.array(0).flags.writeable
        there = only(snapshot.read(w.query, w.name))
        assert there.device == "cuda:0"
        at = only(w.stage.read_attributes(w.query, w.name, at=1, device="cpu")).dlpack(0)
        assert at.pointer == first.dlpack(0).pointer
    w.stage.publish(w.name + "/host", np.arange(3, dtype="f4"))
    moved = w.stage.latest(w.name + "/host", device="cuda:0")
    assert moved.device == "cuda:0"
    assert driver.get(moved.pointer, "f4", (3,)).tolist() == [0, 1, 2]
    assert Consumer(driver, moved, dl_device=(1, 0)).values().tolist() == [0, 1, 2]
    with pytest.raises(cb.NotSupported):
        list(w.stage.read_attributes(w.query, "@path", device="cuda:0"))


@alone
def test_a_row_of_another_order_is_found_on_the_host(w: SimpleNamespace) -> None:
    """A snapshot's row of one prim, behind an index map, and its copy."""
    Driver()
    with w.stage.query_from_path_list(["/x", "/"]) as query:
        w.stage.publish(w.name, np.arange(6, dtype="f4").reshape(2, 3), paths=query, device="cuda:0")
    with w.stage.snapshot() as snapshot:
        view = snapshot[w.name]
        assert (view.shape, view.device) == ((3,), "cuda:0")
        copied = Consumer(Driver(), view, dl_device=(1, 0))
        assert copied.values().tolist() == [3, 4, 5]
        copied.give_back()


# ---- lives ---------------------------------------------------------------------------------------


@alone
def test_rounds_leave_nothing(w: SimpleNamespace) -> None:
    """Pins, imports and references are where they were after each way out and in."""
    w.driver = driver = Driver()
    stage, name = w.stage, w.name
    producer = Producer(driver, np.zeros((2, 3), "u1"))
    stage.declare(name, dtype="u1", row_shape=3, device="cuda:0").wait()

    def one(ordinal: int) -> None:
        stage.write_attribute(w.query, name, producer, ordinal=2 * ordinal - 1).wait()
        seal(stage, 2 * ordinal - 1, name)
        filled(w, 1, 2 * ordinal)
        group = only(stage.read_attributes(w.query, name))
        view = group.array(0)
        consumer = Consumer(driver, view)
        Consumer(driver, view, dl_device=(1, 0)).give_back()
        Consumer(driver, view, copy=True).give_back()
        view.__dlpack__(copy=True)
        view.__dlpack__(max_version=(1, 0))  # a capsule that nobody takes
        with pytest.raises(BufferError):
            view.numpy()
        assert host(w).tolist() == [[1] * 3] * 2
        del group, view
        consumer.give_back()

    for ordinal in range(1, 4):
        one(ordinal)
    gc.collect()
    before = (sys.getrefcount(producer), pinned(stage), counts()[1], held())
    for ordinal in range(4, 30):
        one(ordinal)
        producer.asked.clear()
        gc.collect()
        assert (sys.getrefcount(producer), pinned(stage), counts()[1]) == before[:3], ordinal
    assert held()[0] <= before[3][0] + 1, "an arena or two, however many rounds"
    assert producer.lent == 0


@alone
def test_exports_outlive_the_stage(w: SimpleNamespace) -> None:
    """An export owns its pin, and the import of its memory (behaviour 290)."""
    w.driver = driver = Driver()
    filled(w, 4, 1, device="cuda:0")
    group = only(w.stage.read_attributes(w.query, w.name))
    view = group.dlpack(0)
    consumer = Consumer(driver, view)
    interface = view.__cuda_array_interface__
    group.release()
    del group
    w.query.release()
    w.stage.close()
    assert view.pointer == consumer.pointer == interface["data"][0]
    assert driver.get(view.pointer, "u1", (2, 3)).tolist() == [[4] * 3] * 2
    del view
    gc.collect()
    assert consumer.values().tolist() == [[4] * 3] * 2
    assert not driver.emulated or held()[0] > 0
    consumer.give_back()


@alone
def test_the_interpreter_ends_with_exports(w: SimpleNamespace) -> None:
    """In whatever order things go then, the process ends well."""
    w.driver = driver = Driver()
    filled(w, 4, 1, device="cuda:0")
    view = only(w.stage.read_attributes(w.query, w.name)).dlpack(0)
    session = w.stage.map_attribute(w.query, w.name, ordinal=2)
    left.extend(
        [
            view,
            Consumer(driver, view),
            view.__dlpack__(max_version=(1, 0)),
            session.view,
            Consumer(driver, session.view),
        ]
    )
    left.append(Consumer(driver, view, copy=True))
    session.abort()


@alone
def test_a_forked_child_has_no_gpu(w: SimpleNamespace) -> None:
    """CUDA's rule: the child is told, and giving back there touches no driver."""
    w.driver = Driver()
    filled(w, 4, 1, device="cuda:0")
    view = only(w.stage.read_attributes(w.query, w.name)).dlpack(0)
    consumer = Consumer(w.driver, view)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with pytest.raises(cb.SessionEnded, match="fork"):
                w.stage.latest(w.name)
            with cb.connect() as stage, stage.query_from_path_list(["/a", "/b"]) as query:
                with pytest.raises(cb.NotSupported, match="fork"):
                    list(stage.read_attributes(query, w.name))
                (group,) = stage.read_attributes(query, w.name, device="cpu")
                assert group.array(0).tolist() == [[4] * 3] * 2
            consumer.give_back()
            del view
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert consumer.values().tolist() == [[4] * 3] * 2
    consumer.give_back()


@alone
def test_a_program_that_closed_its_stage_runs_on(w: SimpleNamespace) -> None:
    """It is gone from the stage, since it said what it closed; with a view on a GPU it stays (rules B4, C6)."""
    w.stage.publish(w.name, np.arange(3, dtype="f4"), device="cuda:0")

    def clients() -> str:
        return subprocess.run([BINARY, "info"], capture_output=True, text=True, check=True).stdout

    for view_is_kept in (False, True):
        name = f"leaves {view_is_kept}"
        with cb.connect(client_name=name) as stage:
            view = stage.latest(w.name)
            assert view.pointer
            assert name in clients()
            if not view_is_kept:
                del view
                gc.collect()
        if view_is_kept:
            assert name in clients()
            del view
        else:
            deadline = time.monotonic() + 60
            while name in clients():
                assert time.monotonic() < deadline, "it is waited for"
                time.sleep(0.02)
