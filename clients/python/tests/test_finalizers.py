"""What is dropped without being given back: it is given back, and then a ResourceWarning says so."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator

import callboard as cb
import numpy as np
import pytest
from conftest import Broker, seal


@pytest.fixture
def query(stage: cb.Stage, name: str) -> Iterator[cb.Query]:
    with stage.query_from_path_list(["/a", "/b"]) as query:
        stage.write_attribute(query, name, np.zeros(2), ordinal=1).wait()
        seal(stage, 1, name)
        yield query


def group_of(stage: cb.Stage, query: cb.Query, name: str) -> cb.ReadGroup:
    with stage.read_attributes(query, name) as read:
        return read.fetch_read_next()


MAKERS: dict[str, Callable[[cb.Stage, cb.Query, str], object]] = {
    "query": lambda s, q, name: s.query_from_path_list(["/a"]),
    "read": lambda s, q, name: s.read_attributes(q, name),
    "group": group_of,
    "session": lambda s, q, name: s.map_attribute(q, name, ordinal=2),
    "snapshot": lambda s, q, name: s.snapshot(),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_dropped_is_given_back_with_a_warning(
    stage: cb.Stage, query: cb.Query, name: str, make: Callable[[cb.Stage, cb.Query, str], object]
) -> None:
    """behaviour 165, 191, 247"""
    before = stage.info()["pinned_bytes"]
    thing = make(stage, query, name)
    with pytest.warns(ResourceWarning, match="garbage-collected"):
        del thing
        gc.collect()
    assert stage.info()["pinned_bytes"] == before
    for ordinal in (2, 3):  # nothing is in the way of a writer
        stage.write_attribute(query, name, np.ones(2), ordinal=ordinal).wait()
        seal(stage, ordinal, name)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_given_back_also_when_the_warning_is_an_error(
    stage: cb.Stage, query: cb.Query, name: str, make: Callable[[cb.Stage, cb.Query, str], object]
) -> None:
    """behaviour 167"""
    before = stage.info()["pinned_bytes"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        thing = make(stage, query, name)
        del thing
        gc.collect()
    assert stage.info()["pinned_bytes"] == before
    stage.write_attribute(query, name, np.ones(2), ordinal=2).wait()
    seal(stage, 2, name)


def test_no_false_alarm(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 166; and iteration needs no release, nor does what outlives its stage's end"""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for make in MAKERS.values():
            thing = make(stage, query, name)
            thing.abort() if isinstance(thing, cb.MapSession) else thing.release()
            del thing
        with stage.read_attributes(query, name) as read:
            for group in read:
                group.array(0)
        for group in stage.read_attributes(query, name):
            group.array(0)
        stage.write_attribute(query, name, np.ones(2), ordinal=2)  # a dropped op goes on
        del group, read
        gc.collect()


def test_a_query_that_its_stages_end_gave_back_is_no_oversight(broker: Broker) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with broker.connect() as stage:
            query = stage.query_from_path_list(["/a"])
            session = stage.map_attribute(query, "finalizers/late", dtype="f4", ordinal=1)
        del query, session, stage
        gc.collect()


def test_a_dropped_stage_is_closed_with_a_warning(broker: Broker) -> None:
    stage = broker.connect()
    with pytest.warns(ResourceWarning, match="stage was not closed"):
        del stage
        gc.collect()


def test_handles_do_not_grow(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 266, 333"""
    before = stage.info()["pinned_bytes"]
    for _ in range(1000):
        with stage.query_from_path_list(["/a"]) as q, stage.read_attributes(q, name) as read:
            for group in read:
                group.array(0)
        with stage.snapshot() as snapshot:
            snapshot.floor(name)
    del group
    assert stage.info()["pinned_bytes"] == before
