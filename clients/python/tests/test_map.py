"""Filling in place: map sessions, long and short form."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator

import callboard as cb
import numpy as np
import pytest
from conftest import Broker, seal

PATHS = ["/World/R0", "/World/R1", "/World/R2"]


@pytest.fixture
def query(stage: cb.Stage) -> Iterator[cb.Query]:
    with stage.query_from_path_list(PATHS) as query:
        yield query


def read(stage: cb.Stage, query: cb.Query, name: str) -> np.ndarray:
    with stage.read_attributes(query, name) as groups:
        (group,) = list(groups)
        return group.array(0).copy()


def test_a_new_attribute_filled_in_place(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 176, 181, 196"""
    with stage.map_attribute(query, name, dtype="float32x3", ordinal=2, row_shape=None, init="none") as session:
        for group in session:
            assert group.shape == (3, 3) and group.rows == 3 and group.dtype == cb.dtype("float32x3")
            assert (group.attribute, group.ordinal, group.index, group.first_prim) == (name, 2, 0, 0)
            np.testing.assert_array_equal(group.prims, query.prims)
            group.array(0)[:] = np.arange(9).reshape(3, 3)
            np.from_dlpack(group.dlpack(0))[0] = 7
        assert session.fetch_map_next() is None
        assert session.op is None and not session.ended
    assert session.ended and session.op.done
    assert session.op.adopted and not session.op.adopt_refused
    seal(stage, 2, name)
    np.testing.assert_array_equal(read(stage, query, name), [[7, 7, 7], [3, 4, 5], [6, 7, 8]])


def test_group_by_group(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 175, 187, 188"""
    stage.write_attribute(query, name, np.zeros(3), ordinal=1).wait()
    seal(stage, 1, name)
    with stage.map_attribute(query, name, ordinal=2) as session:
        group = session.fetch_map_next()
        group.array()[:] = [1, 2, 3]
        group.unmap().wait()
        for call in (group.unmap, group.array, group.dlpack, lambda: group.prims, lambda: group.rows):
            with pytest.raises(cb.InvalidHandle):
                call()
    for call in (session.unmap_attribute, session.fetch_map_next, lambda: session.array, session.__enter__):
        with pytest.raises(cb.InvalidHandle):
            call()
    session.abort()  # like a second close
    seal(stage, 2, name)
    np.testing.assert_array_equal(read(stage, query, name), [1, 2, 3])


def test_init(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 180"""
    stage.write_attribute(query, name, np.array([1.0, 2, 3]), ordinal=1).wait()
    seal(stage, 1, name)
    with stage.map_attribute(query, name, ordinal=2, init="current") as session:
        session.array[1] = 20
    seal(stage, 2, name)
    np.testing.assert_array_equal(read(stage, query, name), [1, 20, 3])
    with stage.map_attribute(query, name, ordinal=3, init="zero") as session:
        session.array[1] = 5
    seal(stage, 3, name)
    np.testing.assert_array_equal(read(stage, query, name), [0, 5, 0])


def test_a_new_attribute_needs_a_type(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 177, 179, 184"""
    with pytest.raises(cb.InvalidArgument):
        stage.map_attribute(query, name, ordinal=1)
    assert name not in [a["name"] for a in stage.attributes()]
    stage.write_attribute(query, name, np.zeros(3), ordinal=1, semantic=cb.Semantic.TIME_CODE).wait()
    seal(stage, 1, name)
    with pytest.raises(cb.InvalidArgument):
        stage.map_attribute(query, name, dtype="float32", ordinal=2)
    with pytest.raises(cb.InvalidArgument):
        stage.map_attribute(query, name, semantic=cb.Semantic.COLOR, ordinal=2)
    with pytest.raises(cb.FloorViolation, match="1"):
        stage.map_attribute(query, name, ordinal=1)


def test_an_exception_aborts(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 191: and goes through unchanged"""
    with pytest.raises(ZeroDivisionError), stage.map_attribute(query, name, dtype="f8", ordinal=1) as session:
        session.array[:] = 1
        raise ZeroDivisionError
    assert session.ended and session.op is None
    seal(stage, 1, name)
    with stage.read_attributes(query, name) as groups:
        assert list(groups) == []
    stage.write_attribute(query, name, np.zeros(3), ordinal=2).wait()  # the prims are free


def test_a_floor_that_moved_meanwhile_is_an_error_and_no_commit(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 184, rule O3"""
    stage.write_attribute(query, name, np.zeros(3), ordinal=1).wait()
    with pytest.raises(cb.FloorViolation), stage.map_attribute(query, name, ordinal=1) as session:
        session.array[:] = 1
        seal(stage, 1, name)
    np.testing.assert_array_equal(read(stage, query, name), [0, 0, 0])


@pytest.mark.parametrize("how", ["numpy", "view", "memoryview", "dlpack", "capsule"])
def test_a_living_export_refuses_the_hand_over(stage: cb.Stage, query: cb.Query, name: str, how: str) -> None:
    """rule M1: and a later write through it does not reach sealed bytes (behaviour 189)"""
    keep = {
        "numpy": lambda g: g.array(0)[1:],
        "view": lambda g: g.dlpack(0),
        "memoryview": lambda g: memoryview(g.dlpack(0)),
        "dlpack": lambda g: np.from_dlpack(g.dlpack(0)),
        "capsule": lambda g: g.dlpack(0).__dlpack__(),
    }[how]
    with stage.map_attribute(query, name, dtype="f8", ordinal=1) as session:
        group = session.fetch_map_next()
        group.array(0)[:] = [1, 2, 3]
        kept = keep(group)
    assert session.op.adopt_refused and not session.op.adopted
    seal(stage, 1, name)
    if how == "numpy":
        kept[:] = 99
    np.testing.assert_array_equal(read(stage, query, name), [1, 2, 3])
    del kept, group, session
    gc.collect()
    with stage.map_attribute(query, name, ordinal=2) as session:
        session.array[:] = [4, 5, 6]
    assert session.op.adopted
    seal(stage, 2, name)
    np.testing.assert_array_equal(read(stage, query, name), [4, 5, 6])
    (info,) = [a for a in stage.attributes() if a["name"] == name]
    assert info["adopt_refused_count"] == 1


def test_a_mapped_array_outlives_session_and_stage(broker: Broker, name: str) -> None:
    """field report E3, E7: the memory stays mapped while anything looks at it"""
    with broker.connect() as stage:
        with stage.map(name, shape=(1000,), dtype="f8") as m:
            array = m.array
            array[:] = 3
        del m
    del stage
    gc.collect()
    array[:] = 4
    assert array.sum() == 4000


def test_a_read_only_export_of_a_mapped_buffer(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 197, 280"""
    with stage.map_attribute(query, name, dtype="f8", ordinal=1) as session:
        group = session.fetch_map_next()
        group.array(0)[:] = [1, 2, 3]
        frozen = np.from_dlpack(group.dlpack(0, readonly=True))
        with pytest.raises(ValueError):
            frozen[0] = 9
        del frozen
    seal(stage, 1, name)
    np.testing.assert_array_equal(read(stage, query, name), [1, 2, 3])


def test_the_short_form_seals_the_next_ordinal(stage: cb.Stage, name: str) -> None:
    with stage.map(name, shape=(4, 6, 3), dtype="uint8") as m:
        assert m.array.shape == (4, 6, 3)
        m.array[:] = 5
    assert (m.op.ordinal, m.op.adopted) == (1, True)
    with stage.map(name) as m:
        m.view[...] = 6
    assert m.op.ordinal == 2
    view = stage.latest(name)
    assert view.shape == (4, 6, 3) and view.ordinal == 2 and (np.asarray(view) == 6).all()
    assert stage.publish(name, np.zeros((4, 6, 3), np.uint8)) == 3


def test_the_short_form_of_scalars_lanes_and_paths(stage: cb.Stage, name: str) -> None:
    with stage.map(name + "/scalar", shape=(), dtype=float) as m:
        m.array[...] = 2.5
    assert float(stage.latest(name + "/scalar")) == 2.5
    with stage.map(name + "/lanes", (2,), "float32x3") as m:
        assert m.array.shape == (2, 3)
        m.array[:] = 1
    assert stage.latest(name + "/lanes").shape == (2, 3)
    with stage.map(name + "/paths", shape=(2,), dtype="i4", paths=PATHS) as m:
        assert m.array.shape == (3, 2)
        m.array[:] = 4
    with stage.query_from_path_list(PATHS) as query:
        assert read(stage, query, name + "/paths").sum() == 24


def test_what_was_handed_back_group_by_group_is_sealed_at_the_end(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 187: the end of a session has no group left to commit, and seals what it had"""
    with stage.map(name, shape=(4,), dtype="u1") as session:
        for group in session:
            group.array()[:] = 5
            group.unmap()
    assert session.op.ordinal == 1
    assert (stage.latest(name).ordinal, np.asarray(stage.latest(name)).tolist()) == (1, [5] * 4)
    session = stage.map(name)
    group = next(session)
    group.array()[:] = 6
    group.unmap().wait()
    op = session.unmap_attribute().wait()
    assert (op.ordinal, op.floor) == (2, 2)
    assert np.asarray(stage.latest(name)).tolist() == [6] * 4
    session = stage.map_attribute(query, name + "/long", dtype="f8", ordinal=7)
    group = next(session)
    group.array()[:] = 1
    group.unmap().wait()
    assert session.unmap_attribute(seal=True).wait().floor == 7
    assert read(stage, query, name + "/long").tolist() == [1, 1, 1]
    session = stage.map_attribute(query, name + "/long", ordinal=8)  # and without seal nothing is sealed
    group = next(session)
    group.array()[:] = 2
    group.unmap().wait()
    session.unmap_attribute().wait()
    assert read(stage, query, name + "/long").tolist() == [1, 1, 1]
    assert stage.write_floor(name + "/long") == 7


def test_too_many_groups(stage: cb.Stage, name: str) -> None:
    """the text says how many rows a group needs"""
    with (
        stage.query_from_path_list(f"/many/{i}" for i in range(30000)) as many,
        pytest.raises(cb.LimitReached, match="30000 groups, the limit is 4096; use 8 or more"),
    ):
        stage.map_attribute(many, name, dtype="u1", ordinal=1, group_rows=1)


def test_pipelined_unmap_and_seal(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 185: only the seal is waited for"""
    for ordinal in range(1, 20):
        session = stage.map_attribute(query, name, dtype="f8", ordinal=ordinal)
        session.array[:] = ordinal
        session.unmap_attribute()
        assert seal(stage, ordinal, name).floor == ordinal
    np.testing.assert_array_equal(read(stage, query, name), [19, 19, 19])


def test_a_session_may_seal_itself(stage: cb.Stage, query: cb.Query, name: str) -> None:
    session = stage.map_attribute(query, name, dtype="f8", ordinal=5)
    session.array[:] = 1
    assert session.unmap_attribute(copy=True, seal=True).wait().adopted is False
    assert stage.write_floor(name) == 5


def test_guard_makes_a_late_writer_stop(broker: Broker, name: str) -> None:
    """behaviour 189: in a process of its own, since it does not survive"""
    program = f"""
import callboard as cb
import sys
with cb.connect(guard=True) as stage:
    with stage.map({name!r}, shape=(1024,), dtype="f8") as m:
        array = m.array
        array[:] = 1
    print("before", flush=True)
    array[0] = 2
    print("after", flush=True)
"""
    done = broker.python(program)
    assert done.stdout == "before\n"
    assert done.returncode < 0
    with broker.connect() as stage:
        assert (np.asarray(stage.latest(name)) == 1).all()


def test_a_segment_that_was_read_and_is_handed_on_can_be_written(broker: Broker, stage: cb.Stage, name: str) -> None:
    """S5: a dead client's memory goes to the next one, which may have read it before"""
    program = (
        "import sys, callboard as cb, numpy as np\n"
        "with cb.connect(sys.argv[1], client_name='owner') as stage:\n"
        "    stage.declare(sys.argv[2], dtype='uint8', row_shape=(1 << 20,), retain=1).wait()\n"
        "    for value in sys.argv[3:]:\n"
        "        with stage.map(sys.argv[2], shape=(1 << 20,), dtype='uint8') as m:\n"
        "            m.array[:] = int(value)\n"
        "    print('sealed', flush=True)\n"
        "    sys.stdin.read()\n"
    )

    def owner(*values: int) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", program, stage.info()["name"], name, *map(str, values)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=broker.environment,
        )
        assert child.stdout is not None and child.stdout.readline() == "sealed\n"
        return child

    for round in range(6):
        first = owner(1)
        assert np.asarray(stage.latest(name)).min() == 1  # maps the owner's segment, to read
        second = owner(2, 3, 4)  # the first one's version goes
        first.communicate(timeout=30)
        second.communicate(timeout=30)
        time.sleep(0.3)  # both are proven dead; memory that nothing lies in is handed on
        with stage.map(f"{name}/own{round}", shape=(1 << 20,), dtype="uint8") as m:
            m.array[:] = 9
        assert np.asarray(stage.latest(f"{name}/own{round}")).max() == 9
        assert np.asarray(stage.latest(name)).max() == 4
