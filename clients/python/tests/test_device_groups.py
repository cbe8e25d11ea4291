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
