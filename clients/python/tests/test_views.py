"""Views: how long they live, that nobody writes through them, and DLPack."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator

import callboard as cb
import numpy as np
import pytest
from conftest import Broker, capsule_pointer, pinned, seal

PATHS = ["/World/R0", "/World/R1"]


@pytest.fixture
def query(stage: cb.Stage) -> Iterator[cb.Query]:
    with stage.query_from_path_list(PATHS) as query:
        yield query


def test_views_outlive_everything_they_came_from(broker: Broker, name: str) -> None:
    """behaviour 159, 160, 171, 290; field report E3"""
    stage = broker.connect()
    query = stage.query_from_path_list(PATHS)
    stage.write_attribute(query, name, np.arange(2.0), ordinal=1).wait()
    seal(stage, 1, name)
    stage.publish(name + "/one", np.arange(1000.0))

    read = stage.read_attributes(query, name)
    group = read.fetch_read_next()
    snapshot = stage.snapshot()
    views = [
        group.array(0),
        group.array(0)[1:],
        np.from_dlpack(group.dlpack(0)),
        memoryview(group.dlpack(0)),
        group.dlpack(0),
        group.array(0, flat=True),
    ]
    roots = [np.asarray(stage.latest(name + "/one")), snapshot[name + "/one"], np.asarray(snapshot[name + "/one"])]
    group.release()
    read.release()
    snapshot.release()
    query.release()
    with broker.connect() as writer:  # versions enough that every block would be reused
        for ordinal in range(2, 30):
            with writer.query_from_path_list(PATHS) as q:
                writer.write_attribute(q, name, np.full(2, float(-ordinal)), ordinal=ordinal).wait()
            seal(writer, ordinal, name)
            writer.publish(name + "/one", np.full(1000, -1.0))
    stage.close()
    del stage, query, read, group, snapshot
    for _ in range(3):
        gc.collect()
    for view in views:
        values = np.asarray(view)
        np.testing.assert_array_equal(values, [1.0] if values.shape == (1,) else [0.0, 1.0])
    for view in roots:
        np.testing.assert_array_equal(np.asarray(view), np.arange(1000.0))


def test_a_pin_ends_with_the_last_view(stage: cb.Stage, name: str) -> None:
    stage.publish(name, np.zeros(100_000))
    before = pinned(stage)
    view = stage.latest(name)
    array = np.asarray(view)[::2]
    other = np.from_dlpack(view)
    capsule = view.__dlpack__(max_version=(1, 0))
    held = pinned(stage)
    assert held >= before + 800_000
    for last in (view, other, capsule):
        assert pinned(stage) == held
        del last
    del view, other, capsule
    gc.collect()
    assert pinned(stage) == held
    del array
    assert pinned(stage) == before


def test_a_read_view_is_not_writable_for_good(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 277: empty views too"""
    stage.write_attribute(query, name, np.arange(6.0).reshape(2, 3), ordinal=1).wait()
    seal(stage, 1, name)
    stage.publish(name + "/one", np.arange(3))
    with stage.read_attributes(query, name) as groups:
        (group,) = list(groups)
        root = stage.latest(name + "/one")
        arrays = [group.array(0), group.array(0, flat=True), group.array(0)[:0], np.from_dlpack(group.dlpack(0))]
        arrays += [np.asarray(root), root.numpy()]
        for array in arrays:
            with pytest.raises(ValueError):
                array[...] = 1
            with pytest.raises(ValueError):
                array.flags.writeable = True
        view = group.dlpack(0)
        assert view.readonly
        with pytest.raises(ValueError):
            view[0] = 1
        with pytest.raises(BufferError):
            group.dlpack(0, readonly=False)
        with pytest.raises(TypeError):
            del view[0]
        a, b = group.array(0), np.from_dlpack(view)
        assert a.ctypes.data == b.ctypes.data == np.asarray(view).ctypes.data  # zero copy
        assert a.ctypes.data % 8 == 0


def test_view_is_an_array(stage: cb.Stage, name: str) -> None:
    values = np.arange(12, dtype=np.int16).reshape(3, 4)
    stage.publish(name, values)
    view = stage.latest(name)
    assert (view.shape, view.strides, view.ndim) == ((3, 4), (8, 2), 2)
    assert (view.size, view.itemsize, view.nbytes) == (12, 2, 24)
    assert (len(view), view.dtype, view.semantic) == (3, cb.dtype("int16"), cb.Semantic.NONE)
    assert view[1, 2] == 6 and (view[-1] == values[-1]).all() and [row[0] for row in view] == [0, 4, 8]
    assert np.asarray(view, np.float64).dtype == np.float64
    copy = np.array(view)
    copy[0] = 1
    assert view.__array__(copy=True).flags.writeable and not view.__array__().flags.writeable
    with pytest.raises(ValueError):
        view.__array__(np.float64, copy=False)
    assert (np.add(view, 1) == values + 1).all()
    assert repr(view) == f"<callboard.View of '{name}': int16 (3, 4), ordinal 1, epoch {view.epoch}>"
    assert bytes(memoryview(view)) == values.tobytes()
    with pytest.raises(ValueError):
        view.item()
    with pytest.raises(ValueError):
        bool(view)
    reference = weakref.ref(view)
    del view
    assert reference() is None


DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128".split()


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 3, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numpys_own_array_is_that_of_asarray(stage: cb.Stage, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    """numpy() takes NumPy's C functions by their places; np.asarray finds the same by itself. behaviour 277, G6"""
    written = np.ones(shape, dtype) * np.arange(int(np.prod(shape)), dtype="u1").reshape(shape).astype(dtype)
    with stage.map(name, shape=shape, dtype=dtype) as session:
        filled = session.array
        assert filled.flags.writeable and filled.dtype == dtype
        filled[...] = written
        del filled
    view = stage.latest(name)
    array, other = view.numpy(), np.asarray(view)
    assert type(array) is np.ndarray and array.dtype == other.dtype == np.dtype(dtype)
    assert array.shape == other.shape == shape and array.tolist() == other.tolist() == written.tolist()
    assert array.strides == other.strides
    assert array.ctypes.data == other.ctypes.data
    for flag in ("c_contiguous", "f_contiguous", "aligned", "owndata", "writeable"):
        assert getattr(array.flags, flag) == getattr(other.flags, flag), flag
    assert array.base is view
    with pytest.raises(ValueError):
        array.flags.writeable = True


def test_values_without_dimensions(stage: cb.Stage, name: str) -> None:
    """field report G3"""
    stage.publish(name, 2.5)
    view = stage.latest(name)
    assert (view.shape, view.strides, view.item(), float(view), int(view), bool(view)) == ((), (), 2.5, 2.5, 2, True)
    assert np.from_dlpack(view).shape == () and np.from_dlpack(view) == 2.5
    with pytest.raises(TypeError):
        len(view)


def capsule_name(capsule: object) -> str:
    import ctypes

    get = ctypes.pythonapi.PyCapsule_GetName
    get.restype, get.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return get(capsule).decode()


def versioned_flags(capsule: object) -> int:
    import ctypes

    address = capsule_pointer(capsule, b"dltensor_versioned")
    major, _ = (ctypes.c_uint32 * 2).from_address(address)
    assert major == 1
    return ctypes.c_uint64.from_address(address + 24).value


def test_version_negotiation(stage: cb.Stage, name: str) -> None:
    """behaviour 281, 282"""
    stage.publish(name, np.arange(3.0))
    view = stage.latest(name)
    for version in ((1, 0), (1, 7), (2, 0)):
        capsule = view.__dlpack__(max_version=version)
        assert capsule_name(capsule) == "dltensor_versioned"
        assert versioned_flags(capsule) == 1
    assert versioned_flags(view.__dlpack__(max_version=(1, 0), copy=True)) == 2
    for version in (None, (0, 8)):
        with pytest.raises(BufferError, match="read-only"):
            view.__dlpack__(max_version=version)
        assert capsule_name(view.__dlpack__(max_version=version, copy=True)) == "dltensor"
    for version in (1, "1.0", (1,), (1, 2, 3)):
        with pytest.raises(TypeError):
            view.__dlpack__(max_version=version)
    with stage.map(name) as m:
        assert capsule_name(m.view.__dlpack__()) == "dltensor"
        assert versioned_flags(m.view.__dlpack__(max_version=(1, 0))) == 0


def test_device_stream_and_copy(stage: cb.Stage, name: str) -> None:
    """behaviour 283, 284, 285, 286; field report G21"""
    stage.publish(name, np.arange(3.0))
    view = stage.latest(name)
    assert view.__dlpack_device__() == (1, 0)
    for good in ({"dl_device": (1, 0)}, {"copy": False}, {"stream": None}, {"copy": None, "dl_device": None}):
        view.__dlpack__(max_version=(1, 0), **good)
    elsewhere = ({"dl_device": (2, 0)}, {"dl_device": (2, 1), "copy": False}, {"dl_device": (1, 1)})
    for bad in (*elsewhere, {"stream": 1}, {"stream": -1}, {"stream": 0}):
        with pytest.raises(BufferError):
            view.__dlpack__(max_version=(1, 0), **bad)
    for wrong in ({"dl_device": 1}, {"copy": 1}, {"copy": "yes"}):
        with pytest.raises(TypeError):
            view.__dlpack__(max_version=(1, 0), **wrong)
    with pytest.raises(TypeError):
        view.__dlpack__(None)
    copy = np.from_dlpack(view, copy=True)
    before = pinned(stage)
    del view
    assert pinned(stage) < before or before == 0
    copy[0] = 9
    assert copy.tolist() == [9, 1, 2] and np.asarray(stage.latest(name))[0] == 0


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 1), (0, 3), (2, 0), (1, 1, 1), (2, 3, 4)])
def test_every_shape_is_exported_and_imported(stage: cb.Stage, name: str, shape: tuple[int, ...]) -> None:
    """field report G1, G2, G4: strides are always there, in elements"""
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    try:
        stage.publish(name, values)
    except cb.InvalidArgument:
        assert 0 in shape  # rows without bytes are refused by the stage, with a reason
        return
    view = stage.latest(name)
    for array in (np.asarray(view), np.from_dlpack(view), np.from_dlpack(view, copy=True)):
        assert array.shape == shape and array.flags.c_contiguous
        np.testing.assert_array_equal(array, values)
    assert view.strides == values.strides


def test_the_consumers_own_error_comes_through(stage: cb.Stage, name: str) -> None:
    """behaviour 288, 289: no SystemError, nothing unraisable, no leak"""
    stage.publish(name, np.arange(3.0))
    view = stage.latest(name)
    references = sys.getrefcount(view)
    before = pinned(stage)
    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            _ = (view.__dlpack__(max_version=(1, 0)), 1 // 0)
        with pytest.raises(ValueError, match="read-only"):
            np.from_dlpack(view)[0] = 1
        with pytest.raises(ValueError):
            np.asarray(view).reshape(7)
    assert sys.getrefcount(view) == references
    assert pinned(stage) == before


def test_a_callback_that_raises_at_the_end(stage: cb.Stage, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """behaviour 289: of an array that a capsule of ours ends with, and of one whose capsule we end"""

    class Raises(np.ndarray):
        def __del__(self) -> None:
            raise ZeroDivisionError

    class GivesAway:
        """Its capsule has the only reference to the array."""

        def __init__(self) -> None:
            self.arrays = [np.arange(3.0).view(Raises)]

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **options: object) -> object:
            return self.arrays.pop().__dlpack__(**options)

    def raises(_: object) -> None:
        raise ZeroDivisionError

    raised = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: raised.append(what.exc_type))
    stage.publish(name, np.arange(3.0))
    view = stage.latest(name)
    before = sys.getrefcount(view), sys.getrefcount(Raises), pinned(stage)
    for _ in range(5):
        exported = np.from_dlpack(view)
        watch = weakref.ref(exported, raises)
        assert sys.getrefcount(Raises) == before[1]
        del exported
        assert watch() is None
        stage.publish(name + "/in", GivesAway())
    assert raised == [ZeroDivisionError] * 10
    assert (sys.getrefcount(view), sys.getrefcount(Raises), pinned(stage)) == before
    assert np.asarray(stage.latest(name + "/in")).tolist() == [0, 1, 2]


def test_views_are_given_back_by_any_thread(stage: cb.Stage, name: str) -> None:
    """behaviour 169, field report G15"""
    stage.publish(name, np.arange(3.0))
    before = pinned(stage)
    views = [np.from_dlpack(stage.latest(name)) for _ in range(400)]

    def drop() -> None:
        while True:
            try:
                views.pop()
            except IndexError:
                return

    threads = [threading.Thread(target=drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert pinned(stage) == before


def test_a_view_may_be_given_back_while_the_interpreter_ends(broker: Broker, name: str) -> None:
    """field report G15: a consumer's own library may do it later still"""
    program = f"""
import callboard as cb
import numpy as np
stage = cb.connect()
stage.publish({name!r}, np.arange(3.0))
kept = np.from_dlpack(stage.latest({name!r}))

class Late:
    def __init__(self, value): self.value = value
    def __del__(self): self.value = None

late = Late(kept)
cycle = [late]; cycle.append(cycle)
stage.close()
"""
    done = broker.python(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_deleter_called_from_c_after_the_interpreter_has_ended(broker: Broker, name: str) -> None:
    """field report G15: `atexit` of libc runs after Py_Finalize; the deleter runs no Python"""
    program = f"""
import ctypes
import callboard as cb
import numpy as np
stage = cb.connect()
stage.publish({name!r}, np.arange(3.0))
capsule = stage.latest({name!r}).__dlpack__(max_version=(1, 0))
pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
address = pointer(capsule, b"dltensor_versioned")
ctypes.pythonapi.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
used = b"used_dltensor_versioned"
ctypes.pythonapi.PyCapsule_SetName(capsule, used)
deleter = ctypes.c_void_p.from_address(address + 16).value
libc = ctypes.CDLL(None)
# __cxa_atexit(deleter, address, NULL): called with the one argument that a deleter takes
libc.__cxa_atexit.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
assert libc.__cxa_atexit(deleter, address, None) == 0
stage.close()
print("done")
"""
    done = broker.python(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_snapshot_reads_are_of_one_epoch(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """design D6, rule O6"""
    a, b = name + "/a", name + "/b"
    for n in (1, 2):
        stage.write_attribute(query, a, np.full(2, float(n)), ordinal=n)
        stage.write_attribute(query, b, np.full(2, float(n)), ordinal=n)
        seal(stage, n, a, b)
    with stage.snapshot() as snapshot:
        stage.write_attribute(query, a, np.full(2, 3.0), ordinal=3)
        seal(stage, 3, a)
        with snapshot.read(query, [a, b]) as read:
            groups = {group.attribute: group for group in read}
            assert set(groups) == {a, b} and {group.epoch for group in groups.values()} == {snapshot.epoch}
            for group in groups.values():
                assert group.array(0).tolist() == [2, 2] and group.ordinal == 2
        assert (snapshot.floor(a), snapshot.floor(b)) == (2, 2)
        assert snapshot.cursor.epoch == snapshot.epoch and snapshot.cursor is snapshot.cursor
        with pytest.raises(cb.NotFound, match="read"):
            snapshot[a]  # it lies on other prims
        with pytest.raises(TypeError):
            snapshot[1.0]
    assert stage.write_floor(a) == 3
    for call in (lambda: snapshot[a], lambda: snapshot.read(query, [a]), lambda: snapshot.floor(), snapshot.__enter__):
        with pytest.raises(cb.InvalidHandle, match="released"):
            call()


def test_use_after_release(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 162, 164"""
    stage.write_attribute(query, name, np.zeros(2), ordinal=1).wait()
    seal(stage, 1, name)
    with stage.read_attributes(query, name) as read:
        group = read.fetch_read_next()
    with pytest.raises(ZeroDivisionError), group:
        raise ZeroDivisionError
    members = [m for m in dir(group) if not m.startswith("_") and m not in ("release", "array", "dlpack", "texts")]
    calls = (group.array, group.dlpack, group.texts, group.__enter__)
    for call in (*calls, *(lambda m=m: getattr(group, m) for m in members)):
        with pytest.raises(cb.InvalidHandle, match="released"):
            call()
    group.release()


def test_python_knows_no_shared_memory_tracker(broker: Broker) -> None:
    """field report A23"""
    program = "import callboard, sys; raise SystemExit('multiprocessing.shared_memory' in sys.modules)"
    assert broker.python(program).returncode == 0
