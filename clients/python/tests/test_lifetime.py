"""Rounds of each way that a tensor goes, out and in, after which nothing is left: references, pins, files, memory."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import callboard as cb
import numpy as np
import pytest
from conftest import Broker, compiled, pinned, seal

ROUNDS = 10_000
C_HEADERS = Path(__file__).parents[2] / "c" / "include"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """lifetime_driver.c."""
    return compiled("lifetime_driver", tmp_path_factory.mktemp("lifetime"), "-pthread", f"-I{C_HEADERS}")


@pytest.fixture
def table(exchange_driver: ModuleType) -> ModuleType:
    return exchange_driver


@pytest.fixture
def world(broker: Broker, name: str, driver: ModuleType, table: ModuleType) -> Iterator[SimpleNamespace]:
    """A client with few pins and little room, so that a round which keeps one soon fails, and data to look at."""
    with broker.connect(pin_count=64, argument_bytes=65536, result_bytes=65536) as stage:
        with stage.query_from_path_list(["/a", "/b"]) as query:
            values = np.arange(6, dtype=np.float32).reshape(2, 3)
            stage.publish(name, values)
            stage.publish(name + "/opaque", np.zeros(2, np.uint16), dtype="bfloat16")
            stage.write_attribute(query, name + "/rows", values, ordinal=1).wait()
            stage.write_attribute(query, name + "/ragged", [values[0], values], ordinal=1, is_array=True).wait()
            seal(stage, 1, name + "/rows", name + "/ragged")
            gc.collect()
            gc.freeze()  # what pytest has is nothing to us, and takes long to look through
            yield SimpleNamespace(stage=stage, query=query, name=name, values=values, driver=driver, table=table)
            gc.unfreeze()


# ---- the books -----------------------------------------------------------------------------


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def books(w: SimpleNamespace) -> dict[str, int]:
    """What is there, exactly."""
    gc.collect()
    w.stage.advance_write_floor(1, scope=cb.Scope.INCLUDE, attributes=[w.name + "/rows"]).wait()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "pinned bytes": pinned(w.stage),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": sum("callboard" in line or "memfd" in line for line in maps),
        "threads": len(os.listdir("/proc/self/task")),
        "references to the stage": sys.getrefcount(w.stage),
        "references to the query": sys.getrefcount(w.query),
        "references to the values": sys.getrefcount(w.values),
        "objects that the collector knows": len(gc.get_objects()),
    }


def balance(w: SimpleNamespace, way: Callable[[SimpleNamespace], None], rounds: int = ROUNDS) -> None:
    """Walks the way so many times, and the books are as they were.

    One block of the interpreter's for each round is a leak; a few are its own. So is as much memory as an export of the
    C client takes, 250 bytes.
    """
    for _ in range(rounds // 10):  # what is made once, and kept
        way(w)
    before = books(w)
    for _ in range(3):  # a leak grows at each walk; what the interpreter keeps for itself does not
        blocks, resident = sys.getallocatedblocks(), resident_bytes()
        for _ in range(rounds):
            way(w)
        assert books(w) == before
        blocks, resident = sys.getallocatedblocks() - blocks, resident_bytes() - resident
        if blocks < max(rounds / 10, 20) and resident < max(200 * rounds, 500_000):
            return
    pytest.fail(f"{rounds} rounds: {blocks} blocks and {resident} bytes of memory more, and as much before")


# ---- the ways ------------------------------------------------------------------------------

WAYS: list[Callable[[SimpleNamespace], None]] = []


def way(function: Callable[[SimpleNamespace], None]) -> Callable[[SimpleNamespace], None]:
    WAYS.append(function)
    return function


class Legacy:
    """A producer, or a consumer's idea of one, from before version 1."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self) -> Any:
        return self.of.__dlpack__()


class Given(Legacy):
    """A producer of whatever __dlpack__ it is given."""

    def __dlpack__(self, **_: object) -> Any:
        return self.of() if callable(self.of) else self.of


@way
def exported_and_consumed(w: SimpleNamespace) -> None:
    array = np.from_dlpack(w.stage.latest(w.name))
    assert array[1, 2] == 5
    assert np.from_dlpack(w.stage.latest(w.name), copy=True)[1, 2] == 5


@way
def exported_legacy_and_consumed(w: SimpleNamespace) -> None:
    capsule = w.stage.latest(w.name).__dlpack__(copy=True)
    assert np.from_dlpack(Given(capsule))[1, 2] == 5


@way
def capsules_that_nobody_consumes(w: SimpleNamespace) -> None:
    view = w.stage.latest(w.name)
    view.__dlpack__(max_version=(1, 0))
    kept = [view.__dlpack__(max_version=(1, 3), copy=True), view.__dlpack__(copy=True)]
    kept.append(view.__dlpack__(max_version=(1, 0)))
    del view, kept


@way
def exports_that_are_refused(w: SimpleNamespace) -> None:
    """behaviour 282, 288"""
    view = w.stage.latest(w.name)
    for options in ({}, {"stream": 1}, {"max_version": 1}, {"dl_device": (2, 0)}, {"copy": 1}):
        with pytest.raises((BufferError, TypeError)):
            view.__dlpack__(**options)


@way
def a_consumer_that_refuses(w: SimpleNamespace) -> None:
    """field report G16: NumPy knows no bfloat16, and gives up when it has the capsule"""
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(w.stage.latest(w.name + "/opaque"))


@way
def a_consumer_that_raises_half_way(w: SimpleNamespace) -> None:
    def consume(view: cb.View) -> None:
        capsule = view.__dlpack__(max_version=(1, 0))
        array = np.from_dlpack(Given(capsule))
        raise ZeroDivisionError(array[0], view)

    with pytest.raises(ZeroDivisionError):
        consume(w.stage.latest(w.name))


@way
def through_the_table(w: SimpleNamespace) -> None:
    """Each function of DLPack's table of C functions."""
    view = w.stage.latest(w.name)
    assert w.table.look(view, cb.View)["shape"] == (2, 3)
    again = w.table.convert(view, cb.View)
    del view
    assert np.asarray(w.table.convert(again, cb.View))[1, 2] == 5
    assert w.table.allocate(cb.View, (2, 32, 1), (2, 3), (1, 0)).shape == (2, 3)
    with pytest.raises(RuntimeError, match="device"):
        w.table.allocate(cb.View, (2, 32, 1), (2, 3), (2, 0))
    with pytest.raises(TypeError):
        w.table.look(w.values, cb.View)


@way
def buffers_that_go_late(w: SimpleNamespace) -> None:
    """behaviour 290: each look at the memory keeps it"""
    view = w.stage.latest(w.name)
    memory = memoryview(view)
    part = memory.cast("B")[4:8]
    array = np.asarray(view)[1:]
    del view
    memory.release()
    assert len(part) == 4 and array[0, 2] == 5
    with pytest.raises(TypeError):
        part[0] = 1
    part.release()


@way
def groups_of_a_read(w: SimpleNamespace) -> None:
    with w.stage.read_attributes(w.query, [w.name + "/rows", w.name + "/ragged"]) as read:
        groups = list(read)
    rows, ragged = groups
    kept = [rows.array(), ragged.array(0), ragged.array(1), np.from_dlpack(rows.dlpack()), memoryview(ragged.dlpack(1))]
    del groups, rows, ragged, read
    assert [a.shape for a in kept] == [(2, 3), (3,), (6,), (2, 3), (6,)]


@way
def a_snapshot(w: SimpleNamespace) -> None:
    with w.stage.snapshot() as snapshot:
        view = snapshot[w.name]
        with snapshot.read(w.query, [w.name + "/rows"]) as read:
            for group in read:
                group.array(0)
        assert snapshot.cursor.epoch
    assert view[1, 2] == 5


@way
def a_group_that_is_exported_then_unmapped(w: SimpleNamespace) -> None:
    with w.stage.map(w.name + "/mapped", (3,), "f4") as session:
        capsule = session.view.__dlpack__()
        array = np.from_dlpack(session.view)
        array[:] = 1
    del session
    array[:] = 2  # pointless, and harmless
    assert np.from_dlpack(Given(capsule)).shape == (3,)


@way
def a_session_that_is_given_up(w: SimpleNamespace) -> None:
    with pytest.raises(ZeroDivisionError), w.stage.map(w.name + "/mapped", (3,), "f4") as session:
        array = session.array
        raise ZeroDivisionError
    array[:] = 3
    session = w.stage.map(w.name + "/mapped", (3,), "f4")
    session.abort()
    with pytest.raises(cb.NotSupported):
        w.stage.map("@floor", (3,), "f4")


@way
def imported(w: SimpleNamespace) -> None:
    capsule = w.values.__dlpack__(max_version=(1, 0))
    for form in (w.values, Legacy(w.values), Given(capsule), w.values[::-1], memoryview(w.values)):
        w.stage.publish(w.name + "/in", form)
    w.stage.publish(w.name + "/in", w.stage.latest(w.name + "/in"))


@way
def what_cannot_be_imported(w: SimpleNamespace) -> None:
    """behaviour 289, field report G16: an exception in the middle keeps no room, no pin and no reference"""

    def raises() -> None:
        raise ZeroDivisionError

    used = w.values.__dlpack__(max_version=(1, 0))
    np.from_dlpack(Given(used))
    wide = w.values.T.reshape((1,) * 30 + (3, 2))
    bad: list[Any] = [np.arange(3.0), w.values.astype(object), w.values.astype(">f4"), wide, np.zeros((2, 300), "f4")]
    bad += [Given(raises), Given(used), Given(None), Given(w.values.__dlpack__(copy=True))]
    bad += [[1.0, "x"], [w.values, 5], "text", object()]
    for data in bad:
        with pytest.raises((ValueError, TypeError, BufferError, ZeroDivisionError, cb.CallboardError)):
            w.stage.write_attribute(w.query, w.name + "/refused", data, ordinal=1, row_shape=(7, 7))
    for rows in ([w.values, raises], [w.values, w.values.astype("M8[s]")], [w.values]):
        with pytest.raises((ValueError, TypeError, cb.CallboardError)):
            w.stage.write_attribute(w.query, w.name + "/refused", rows, ordinal=1, is_array=True)


@pytest.mark.parametrize("walk", WAYS, ids=lambda walk: walk.__name__)
def test_ten_thousand_rounds_leave_nothing(world: SimpleNamespace, walk: Callable[[SimpleNamespace], None]) -> None:
    balance(world, walk)


# ---- deleters where no Python is -----------------------------------------------------------


def test_deleters_on_threads_that_no_interpreter_knows(world: SimpleNamespace) -> None:
    """field report G15: this thread holds the GIL meanwhile, so one that wanted it would wait for ever"""
    w = world

    def drop(w: SimpleNamespace) -> None:
        for _ in range(50):  # of 64 pins
            view = w.stage.latest(w.name)
            w.driver.take(view.__dlpack__(max_version=(1, 0)))
            w.driver.take(view.__dlpack__(copy=True))
        session = w.stage.map(w.name + "/mapped", (3,), "f4")
        w.driver.take(session.view.__dlpack__())
        session.abort()
        del session, view
        assert w.driver.delete_on_threads() == 101

    balance(w, drop, rounds=ROUNDS // 50)


PROGRAM = """
import importlib.util, sys
import callboard as cb
import numpy as np

def load(name, file):
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

name, driver = sys.argv[1], load("lifetime_driver", sys.argv[2])
stage = cb.connect(pin_count=16384)
values = np.arange(1000.0)
"""


def test_ten_thousand_deleters_after_the_interpreter_has_ended(broker: Broker, world: SimpleNamespace) -> None:
    """field report G15"""
    program = (
        PROGRAM
        + """
stage.publish(name, values)
for _ in range(3334):
    view = stage.latest(name)
    driver.take(view.__dlpack__(max_version=(1, 0)))
    driver.take(view.__dlpack__(copy=True))
    with stage.map(name + "/mapped", (3,), "f4") as session:
        driver.take(session.view.__dlpack__())
driver.delete_at_exit()
stage.close()
"""
    )
    done = broker.python(program, world.name + "/last", world.driver.__file__)
    assert (done.returncode, done.stdout, done.stderr) == (0, "deleted 10002\n", "")


# ---- ends ------------------------------------------------------------------------------------


def test_what_is_kept_over_the_stages_end(broker: Broker, world: SimpleNamespace) -> None:
    """behaviour 290, field reports A10, B11, E8: the last look at a closed stage ends its mappings and descriptors"""
    w = world

    def close(w: SimpleNamespace) -> None:
        stage = broker.connect()
        view = stage.latest(w.name)
        session = stage.map(w.name + "/mapped", (3,), "f4")
        kept = [np.from_dlpack(view), memoryview(view), view.__dlpack__(max_version=(1, 0)), session.array]
        stage.close()
        assert kept[0][1, 2] == 5 and view.nbytes == 24
        kept[3][:] = 1

    balance(w, close, rounds=500)


def test_cycles_are_collected(world: SimpleNamespace) -> None:
    """field report E13: a view in a cycle goes with it"""
    w = world

    class Node:
        pass

    before = pinned(w.stage)
    for _ in range(100):  # of 64 pins
        node = Node()
        node.itself, node.array = node, np.asarray(w.stage.latest(w.name))
        watch = weakref.ref(node)
        del node
        gc.collect()
        assert watch() is None
    assert pinned(w.stage) == before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_children_with_live_capsules(world: SimpleNamespace) -> None:
    """rule I4: a child drops what it inherited, and the parent keeps what it has"""
    w = world
    view = w.stage.latest(w.name)
    capsule = view.__dlpack__(max_version=(1, 0))
    w.driver.take(view.__dlpack__(max_version=(1, 0)))
    session = w.stage.map(w.name + "/mapped", (3,), "f4")
    w.driver.take(session.view.__dlpack__())
    array = session.array

    def fork(w: SimpleNamespace) -> None:
        nonlocal view, capsule, array, session
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert np.asarray(view)[1, 2] == 5
                w.driver.delete_on_threads()
                del view, capsule, array, session
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0

    balance(w, fork, rounds=50)
    array[:] = 4
    session.unmap_attribute(seal=True).wait()
    del array, session
    assert w.driver.delete_on_threads() == 2
    assert np.asarray(view)[1, 2] == np.from_dlpack(Given(capsule))[1, 2] == 5
    assert np.asarray(w.stage.latest(w.name + "/mapped")).tolist() == [4, 4, 4]


# ---- memory that runs out --------------------------------------------------------------------


def test_each_allocation_fails_once(broker: Broker, world: SimpleNamespace) -> None:
    """field report G16: MemoryError, or it went well; never another error, never a crash. In a process of its own."""
    program = (
        PROGRAM
        + """
import array, gc
table = load("exchange_driver", sys.argv[3])
stage.publish(name, values)
query = stage.query_from_path_list(["/a", "/b"])
data = array.array("f", range(6))
view = stage.latest(name)

def export():
    view.__dlpack__(max_version=(1, 0)), view.__dlpack__(copy=True), memoryview(view), view.shape, view.strides

def exchange():
    table.convert(view, cb.View)

def look():
    stage.latest(name)

def write():
    stage.write_attribute(query, name + "/w", memoryview(data).cast("B").cast("f", (2, 3)), ordinal=1).wait()

def read():
    with stage.read_attributes(query, [name + "/w"]) as read:
        for group in read:
            group.dlpack(0)

def fill():
    session = stage.map_attribute(query, name + "/m", dtype="f4", ordinal=1)
    session.view.__dlpack__()
    session.abort()

def snapshot():
    with stage.snapshot() as snapshot:
        snapshot[name]

write()
stage.advance_write_floor(0, scope=cb.Scope.INCLUDE, attributes=[name]).wait()
failed = 0
for way in (export, exchange, look, write, read, fill, snapshot):
    way()
    gc.collect()
    held = stage.info()["pinned_bytes"]
    n, reached = 0, True
    while reached:
        n += 1
        reached, kind = driver.call_failing(way, n)
        if kind is not None:
            assert issubclass(kind, MemoryError), (way, n, kind)
            failed += 1
        way()
        gc.collect()
        assert stage.info()["pinned_bytes"] == held, (way, n)
print("failed", failed)
del view
query.release()
stage.close()
"""
    )
    done = broker.python(program, world.name + "/fails", world.driver.__file__, world.table.__file__)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) >= 20
