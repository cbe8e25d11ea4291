"""Map sessions of several groups that are filled in the memory of a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import callboard as cb
import numpy as np
import pytest
from alone import SLOW, alone, body, run_alone
from conftest import Broker, seal
from cuda import Driver

PATHS = [f"/{n}" for n in range(10)]


def split(w: SimpleNamespace, query: cb.Query, ordinal: int = 1, **options: str) -> cb.MapSession:
    where: dict[str, str] = {"device": "cuda:0", **options}
    return w.stage.map_attribute(
        query, w.name, dtype="u1", row_shape=3, ordinal=ordinal, group_rows=3, init="zero", **where
    )


def queue(driver: Driver, group: cb.Group, stream: int, first: int) -> None:
    """Each row gets its place in the query."""
    view = group.array(0)
    assert isinstance(view, cb.View) and not view.readonly and view.device == group.device == "cuda:0"
    for row in range(group.rows):
        driver.fill(view.pointer + 3 * row, first + group.first_prim + row, 3, stream)


def rows(w: SimpleNamespace, query: cb.Query) -> list[int]:
    with w.stage.read_attributes(query, w.name, device="cpu") as read:
        (group,) = list(read)
        return [int(row[0]) for row in group.array(0)]


@alone(**SLOW)
def test_the_owner_fills_group_by_group(w: SimpleNamespace) -> None:
    """Each group has work of its own to wait for (M2, C3; behaviours 175, 188)."""
    driver = Driver()
    with w.stage.query_from_path_list(PATHS) as query:
        for ordinal, where in enumerate(({}, {"staging": "cuda:0"}, {"device": "cpu", "staging": "cuda:0"}), 1):
            w.name += "+"
            session = split(w, query, ordinal, **where)
            assert session.group_count == 4
            streams = [driver.stream(), driver.stream()]
            ops = []
            for n, group in enumerate(session):
                np.testing.assert_array_equal(group.prims, query.prims[3 * n : 3 * n + 3])
                queue(driver, group, streams[n % 2], 10)
                ops.append(group.unmap(cuda_sync=cb.CudaSync(streams[n % 2])))
            with pytest.raises(cb.InvalidArgument, match="several groups"):
                session.unmap_attribute(cuda_sync=cb.CudaSync(streams[0]))
            session.unmap_attribute().wait()
            assert all(op.done for op in ops)
            seal(w.stage, ordinal, w.name)
            assert rows(w, query) == list(range(10, 20))


@alone(**SLOW)
def test_another_client_works_on_groups_of_a_gpu(w: SimpleNamespace) -> None:
    """work_on: the function hands the group back itself, since there is something to wait for."""
    driver = Driver()
    stream = driver.stream()

    def fill(group: cb.Group) -> None:
        np.testing.assert_array_equal(group.prims, query.prims[group.first_prim : group.first_prim + group.rows])
        queue(driver, group, stream, 30)
        group.unmap(cuda_sync=cb.CudaSync(stream))

    def fail(group: cb.Group) -> None:
        raise ArithmeticError(group.attempt)

    with w.stage.query_from_path_list(PATHS) as query, cb.connect(client_name="worker") as worker:
        op = split(w, query).unmap_attribute()
        with pytest.raises(ArithmeticError, match="1"):
            worker.work_on(w.name, fail, idle=0)
        assert not op.done
        assert worker.work_on(w.name, fill, idle=0) == 4
        op.wait()
        seal(w.stage, 1, w.name)
        assert rows(w, query) == list(range(30, 40))


@body
def fills(w: SimpleNamespace) -> None:
    driver = Driver()
    stream = driver.stream()

    def fill(group: cb.Group) -> None:
        queue(driver, group, stream, 50)
        group.unmap(cuda_sync=cb.CudaSync(stream)).wait()

    assert w.stage.work_on(w.name, fill, idle=0) == 4


def test_another_process_works_on_groups_of_a_gpu(gpu: Broker, name: str) -> None:
    """The owner needs no driver of its own, where it reads on the host."""
    with gpu.connect() as stage, stage.query_from_path_list(PATHS) as query:
        w = SimpleNamespace(stage=stage, name=name)
        stage.declare(name, dtype="u1", row_shape=3, device="cuda:0").wait()
        session = stage.map_attribute(query, name, ordinal=1, group_rows=3, init="zero")
        op = session.unmap_attribute()
        run_alone(gpu, fills, name, **SLOW)
        op.wait()
        seal(stage, 1, name)
        assert rows(w, query) == list(range(50, 60))


@alone(CUDAEMU_FAIL="cuIpcOpenMemHandle:1:2")
def test_a_group_that_cannot_be_had_is_given_up(w: SimpleNamespace) -> None:
    """M2: its owner has it at the next try; it is not committed as it lies."""
    driver = Driver()
    stream = driver.stream()
    with w.stage.query_from_path_list(PATHS) as query:
        session = split(w, query)
        groups = iter(session)
        with pytest.raises(cb.OutOfMemory):
            next(groups)
        assert [(group.index, group.attempt) for group in w.stage.list_groups(w.name)] == [
            (0, 2),
            (1, 1),
            (2, 1),
            (3, 1),
        ]
        for group in session:
            queue(driver, group, stream, 70)
            group.unmap(cuda_sync=cb.CudaSync(stream))
        session.unmap_attribute().wait()
        seal(w.stage, 1, w.name)
        assert rows(w, query) == list(range(70, 80))


@alone(CUDAEMU_FAIL="cuIpcOpenEventHandle:2:2")
def test_a_claim_that_fails_gives_up_its_own_group(w: SimpleNamespace) -> None:
    """M2: who has group 0 keeps it when a claim of group 2 fails."""
    with w.stage.query_from_path_list(PATHS) as query, cb.connect(client_name="worker") as worker:
        session = split(w, query)
        opened = worker.list_groups(w.name)[0].session
        first = worker.claim_group(opened, 0)
        with pytest.raises(cb.OutOfMemory):
            worker.claim_group(opened, 2)
        assert [(group.index, group.attempt) for group in worker.list_groups(w.name)] == [(1, 1), (2, 2), (3, 1)]
        first.unmap().wait()
        session.abort()


@alone()
def test_a_group_of_empty_rows_is_handed_back_under_guard(w: SimpleNamespace) -> None:
    """There is no memory whose pages could be guarded."""
    paths = PATHS[:4]
    with cb.connect(guard=True) as stage, stage.query_from_path_list(paths) as query:
        sizes = [0] * len(paths)
        session = stage.map_attribute(
            query, w.name, dtype="u1", is_array=True, ordinal=1, group_rows=2, element_sizes=sizes
        )
        for group in session:
            group.unmap().wait()
        session.unmap_attribute().wait()
        seal(stage, 1, w.name)
        with stage.read_attributes(query, w.name) as read:
            (whole,) = list(read)
            assert [len(whole.array(i)) for i in range(len(paths))] == sizes
