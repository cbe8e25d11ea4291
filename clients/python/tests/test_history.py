"""Reads as of an ordinal and of what changed, through Python's own objects: scenarios show the rest (80-reads.txt)."""

from __future__ import annotations

from collections.abc import Iterator

import callboard as cb
import numpy as np
import pytest
from conftest import seal


@pytest.fixture
def query(stage: cb.Stage) -> Iterator[cb.Query]:
    with stage.query_from_path_list(["/a", "/b"]) as query:
        yield query


def write(stage: cb.Stage, query: cb.Query, name: str, values: list[float], ordinal: int) -> None:
    stage.write_attribute(query, name, np.array(values), ordinal=ordinal)
    seal(stage, ordinal, name)


def test_ordinals_and_values_of_a_range(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """rules O4, O7; behaviour 123, 127, 133, 134"""
    with stage.query_from_path_list(stage.paths.resolve(query.prims)[:1]) as first:
        write(stage, query, name, [1, 2], 3)
        write(stage, first, name, [9], 7)
        (group,) = stage.read_attributes(query, name)
        assert group.row_ordinals.tolist() == [7, 3] and group.ordinal == 7 and not group.is_delete
        assert group.row_ordinals is group.row_ordinals and group.row_ordinals.dtype == np.uint64
        (group,) = stage.read_attributes(query, name, at=3)
        assert group.array(0).tolist() == [1, 2] and group.row_ordinals.tolist() == [3, 3] and group.floor == 7
        (group,) = stage.read_attributes(query, name, since=3)
        assert group.prims.tolist() == query.prims.tolist()[:1] and group.row_ordinals.tolist() == [7]
        assert list(stage.read_attributes(query, name, since=7)) == []
    assert group.array(0).tolist()[0 if group.index_map is None else int(group.index_map[0])] == 9


def test_a_group_of_deletes_has_no_tensors(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 150"""
    write(stage, query, name, [1, 2], 1)
    stage.delete_attributes(query, [name], ordinal=2)
    seal(stage, 2, name)
    (group,) = stage.read_attributes(query, name, since=1)
    assert group.is_delete and group.rows == 0 and group.ordinal == 2 and group.shape == (0,)
    assert group.prims.tolist() == query.prims.tolist() and group.row_ordinals.tolist() == [2, 2]
    for call in (group.array, group.dlpack):
        with pytest.raises(IndexError, match="deletes"):
            call(0)
    group.release()
    with pytest.raises(cb.InvalidHandle):
        _ = group.is_delete


def test_deltas_from_cursor_to_cursor(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """rule O6, behaviour 144: each sealed change is in exactly one of them"""
    seen: list[tuple[bool, list[float]]] = []
    cursor = None
    for step in range(1, 6):
        if step == 4:
            stage.delete_attributes(query, [name], ordinal=step)
            seal(stage, step, name)
        elif step != 3:
            write(stage, query, name, [step, -step], step)
        with stage.snapshot() as snapshot:
            for group in snapshot.read(query, name, since=cursor):
                seen.append((group.is_delete, [] if group.is_delete else group.array(0).tolist()))
            cursor = snapshot.cursor
        assert cursor.epoch == snapshot.epoch and str(cursor.epoch) in repr(cursor)
    assert seen == [(False, [1, -1]), (False, [2, -2]), (True, []), (False, [5, -5])]


def test_a_cursor_is_asked_for_in_time_and_is_no_number(stage: cb.Stage, query: cb.Query, name: str) -> None:
    with stage.snapshot() as snapshot:
        for wrong in (1, "1", stage):
            with pytest.raises(TypeError, match="cursor"):
                snapshot.read(query, name, since=wrong)  # type: ignore[arg-type]
    with pytest.raises(cb.InvalidHandle):
        _ = snapshot.cursor
    with pytest.raises(TypeError):
        cb.Cursor()


@pytest.mark.parametrize("argument", ["at", "since"])
def test_ends_of_a_range_are_ordinals(stage: cb.Stage, query: cb.Query, name: str, argument: str) -> None:
    """behaviour 308, 310"""
    for wrong in (1.0, "1", True):
        with pytest.raises(TypeError, match=argument):
            stage.read_attributes(query, name, **{argument: wrong})
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match=argument):
            stage.read_attributes(query, name, **{argument: wrong})


def test_the_frontier_of_a_name(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 119"""
    assert stage.frontier("nobody wrote this") == 0
    write(stage, query, name, [1, 2], 1)
    assert stage.frontier(name) == 0
    with pytest.raises(TypeError):
        stage.frontier(7.0)  # type: ignore[arg-type]
