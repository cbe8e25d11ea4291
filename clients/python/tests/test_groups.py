"""Map sessions of several groups, and sharing them among workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import callboard as cb
import numpy as np
import pytest
from conftest import Broker, seal

PRIMS = 10


@pytest.fixture
def query(stage: cb.Stage) -> Iterator[cb.Query]:
    with stage.query_from_path_list(f"/World/R{i}" for i in range(PRIMS)) as query:
        yield query


@pytest.fixture
def worker(broker: Broker) -> Iterator[cb.Stage]:
    with broker.connect(client_name="worker") as worker:
        yield worker


def split(stage: cb.Stage, query: cb.Query, name: str, ordinal: int = 1, rows: int = 3) -> cb.MapSession:
    return stage.map_attribute(query, name, dtype="u8", ordinal=ordinal, group_rows=rows, init="zero")


def number(group: cb.Group) -> None:
    """Each row gets its place in the query, and a part of its prim's id."""
    group.array(0)[:] = np.arange(group.rows) + group.first_prim + (group.prims << np.uint64(32))


def check(stage: cb.Stage, query: cb.Query, name: str) -> None:
    with stage.read_attributes(query, name) as groups:
        (group,) = list(groups)
        rows = np.arange(PRIMS) if group.index_map is None else group.index_map
        np.testing.assert_array_equal(group.array(0)[rows], np.arange(PRIMS) + (query.prims << np.uint64(32)))


def test_the_owner_claims_group_by_group(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 138, 175, 188"""
    with split(stage, query, name) as session:
        assert session.group_count == 4
        with pytest.raises(cb.InvalidArgument, match="several groups"):
            _ = session.array
        for n, group in enumerate(session):
            assert (group.index, group.first_prim, group.rows, group.attempt) == (n, 3 * n, min(3, PRIMS - 3 * n), 1)
            np.testing.assert_array_equal(group.prims, query.prims[3 * n : 3 * n + 3])
            number(group)
            if n % 2 == 0:  # the others go with the session
                group.unmap().wait()
                with pytest.raises(cb.InvalidHandle):
                    group.unmap()
        assert session.fetch_map_next() is None
    seal(stage, 1, name)
    check(stage, query, name)


def test_claims(stage: cb.Stage, worker: cb.Stage, query: cb.Query, name: str) -> None:
    """rule M2"""
    session = split(stage, query, name)
    groups = worker.list_groups(name)
    assert [(g.index, g.ordinal, g.first_prim, g.rows, g.attempt) for g in groups] == [
        (i, 1, 3 * i, min(3, PRIMS - 3 * i), 1) for i in range(4)
    ]
    assert worker.list_groups("none") == []
    handle = groups[0].session
    group = worker.claim_group(handle, 2)
    assert group is not None and group.attribute == name
    with pytest.raises(cb.InvalidHandle):
        stage.claim_group(handle, 2)
    number(group)
    group.unmap().wait()
    with pytest.raises(cb.InvalidHandle):
        group.array(0)
    group = worker.claim_group(handle)
    assert group is not None and group.index == 0
    group.give_up()
    group.give_up()
    again = worker.claim_group(handle, 0)
    assert again is not None and again.attempt == 2 and not again.array(0).any()
    with pytest.warns(ResourceWarning, match="neither unmapped nor given up"):
        del again
    op = session.unmap_attribute()
    with pytest.raises(cb.Timeout):
        op.wait(0.05)
    assert worker.work_on(name, number, idle=0) == 3
    op.wait()
    with pytest.raises(cb.InvalidHandle):
        worker.claim_group(handle)
    seal(stage, 1, name)
    check(stage, query, name)


def test_an_exception_gives_the_group_back(stage: cb.Stage, worker: cb.Stage, query: cb.Query, name: str) -> None:
    """rule M2"""
    session = split(stage, query, name)
    with pytest.raises(ZeroDivisionError):
        worker.work_on(name, lambda group: 1 // 0)
    assert [g.attempt for g in worker.list_groups(name)] == [2, 1, 1, 1]
    session.abort()
    assert worker.list_groups(name) == []


def test_abort_while_others_fill(stage: cb.Stage, worker: cb.Stage, query: cb.Query, name: str) -> None:
    """rule M3: also after the final unmap, and by an exception in the block"""
    session = split(stage, query, name)
    group = worker.claim_group(worker.list_groups(name)[0].session)
    assert group is not None
    op = session.unmap_attribute()
    session.abort()
    with pytest.raises(cb.InvalidHandle):
        op.wait()
    number(group)
    with pytest.raises(cb.InvalidHandle):
        group.unmap().wait()
    with pytest.raises(KeyError), split(stage, query, name) as session:
        for group in session:
            group.unmap().wait()
        raise KeyError
    seal(stage, 1, name)
    with stage.read_attributes(query, name) as groups:
        assert list(groups) == []


def test_workers_share_sessions(broker: Broker, stage: cb.Stage, query: cb.Query, name: str) -> None:
    """each group is one worker's; a worker that starts late finds what was announced before"""
    stop = threading.Event()
    counts: list[int] = []

    def work() -> None:
        with broker.connect(client_name="worker") as own:
            counts.append(own.work_on(name, number, stop=stop))

    threads = [threading.Thread(target=work) for _ in range(2)]
    threads[0].start()
    for ordinal in range(1, 6):
        with split(stage, query, name, ordinal, rows=1):
            if ordinal == 2:
                threads[1].start()
        seal(stage, ordinal, name)
        check(stage, query, name)
    stop.set()
    for thread in threads:
        thread.join()
    assert sum(counts) == 5 * PRIMS
