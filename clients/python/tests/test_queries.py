"""Queries by filter (behaviour 232 to 247), @path (271)."""

from __future__ import annotations

import gc

import callboard as cb
import numpy as np
import pytest
from conftest import seal


@pytest.fixture
def written(stage: cb.Stage, name: str) -> str:
    with stage.query_from_path_list([f"/{name}/a", f"/{name}/b"]) as query:
        stage.write_attribute(query, name, np.array([1.0, 2.0]), ordinal=1).wait()
    seal(stage, 1, name)
    return name


def test_a_query_by_filter_is_a_context_manager(stage: cb.Stage, written: str) -> None:
    """behaviour 236, 247"""
    with stage.query(cb.Has(written)) as query:
        assert len(query) == 2 and query.attributes == (written,)
        with stage.read_attributes(query, [written, "@path"]) as read:
            values = {group.attribute: group.array(0) for group in read}
    assert list(values[written]) == [1, 2] and list(values["@path"]) == list(
        stage.paths.intern([f"/{written}/a", f"/{written}/b"])
    )
    with pytest.raises(cb.InvalidHandle):
        query.attributes  # noqa: B018
    query = stage.query(cb.Has(written))
    with pytest.warns(ResourceWarning, match="query"):
        del query
        gc.collect()


def test_filters_take_numbers_and_texts(stage: cb.Stage, written: str) -> None:
    """behaviour 242, 243"""
    for filters, found in [
        ([cb.Less(written, 1.5)], 1),
        ([cb.Less(written, "1.5"), cb.Greater(written, np.float32(0.5))], 1),
        ([cb.GreaterEqual(written, 1), cb.LessEqual(written, 2)], 2),
        ([cb.In(written, [2, 3])], 1),
        ([cb.PathPrefix(f"/{written}/"), cb.PathIn([f"/{written}/b"])], 1),
    ]:
        with stage.query(*filters, attributes=[written]) as query:
            assert len(query) == found
    for wrong in (
        lambda: cb.Less(written, None),
        lambda: cb.In(written, "12"),
        lambda: cb.PathIn("/a"),
        lambda: cb.Less(written, True),
    ):
        with pytest.raises(TypeError):
            stage.query(wrong())
    with pytest.raises(TypeError):
        stage.query(cb.Has(1.0))  # type: ignore[arg-type]
    with pytest.raises(cb.NotSupported):
        stage.query(cb.Contains(written, ["a"]))


def test_a_running_query_is_usable(stage: cb.Stage, written: str) -> None:
    """behaviour 99, 140, 215"""
    with stage.query(cb.Has(written), wait=False) as query:
        op = stage.write_attribute(query, written, np.array([3.0, 4.0]), ordinal=2)
        read = stage.read_attributes(query, written)
        assert [list(group.array(0)) for group in read] == [[1, 2]]
        op.wait()
        assert query.wait() is query and len(query) == 2


def test_path_arrays_outlive_their_group(stage: cb.Stage, written: str) -> None:
    """behaviour 271, 290"""
    with stage.query(cb.Has(written)) as query:
        with stage.read_attributes(query, "@path") as read:
            paths = [group.array(0) for group in read][0]
        ids = list(query.prims)
    gc.collect()
    assert list(paths) == ids and not paths.flags.writeable
