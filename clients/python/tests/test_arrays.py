"""Array attributes through Python's own objects: scenarios show the rest (20-array.txt)."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import callboard as cb
import numpy as np
import pytest
from conftest import seal


@pytest.fixture
def query(stage: cb.Stage) -> Iterator[cb.Query]:
    with stage.query_from_path_list(["/a", "/b", "/c"]) as query:
        yield query


def rows_of(stage: cb.Stage, query: cb.Query, name: str) -> list[list[object]]:
    (group,) = stage.read_attributes(query, name)
    assert group.is_array
    return [np.asarray(group.array(i)).tolist() for i in range(group.prim_count)]


def write(stage: cb.Stage, query: cb.Query, name: str, array: object, ordinal: int = 1, **options: object) -> None:
    stage.write_attribute(query, name, array, ordinal=ordinal, is_array=True, **options).wait()  # type: ignore[arg-type]
    seal(stage, ordinal, name)


def test_a_group_has_an_array_for_each_prim(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 20, 29, 37, 300"""
    write(stage, query, name, [np.arange(3, dtype="f4"), np.zeros(0, "f4"), np.arange(8, dtype="f4")[::4]])
    (group,) = stage.read_attributes(query, name)
    assert group.is_array and group.shape is None and group.row_shape == () and group.index_map is None
    assert (group.rows, group.prim_count) == (3, 3)
    arrays = [group.array(i) for i in range(3)]
    assert [a.tolist() for a in arrays] == [[0, 1, 2], [], [0, 4]]
    assert [a.shape for a in arrays] == [(3,), (0,), (2,)] and not any(a.flags.writeable for a in arrays)
    for i in (-1, 3):
        with pytest.raises(IndexError, match="3"):
            group.array(i)
    capsule = group.dlpack(2)
    assert capsule.shape == (2,) and capsule.semantic == cb.Semantic.NONE and capsule.attribute == name
    exported = np.from_dlpack(capsule)
    group.release()
    del group, capsule, arrays[1:]
    gc.collect()
    for ordinal in range(2, 9):  # a view keeps its bytes, whatever is collected meanwhile (behaviour 159, 290)
        write(stage, query, name, [np.full(4, ordinal, "f4")] * 3, ordinal)
    assert exported.tolist() == [0, 4] and arrays[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("dtype", "lanes"), [("float32", ()), ("float32x2", (2,))])
def test_each_row_has_a_capsule_of_its_own(
    stage: cb.Stage, query: cb.Query, name: str, dtype: str, lanes: tuple[int, ...]
) -> None:
    """behaviour 300: of shape (n,) or (n, lanes)"""
    rows = [np.arange(n * 2, dtype="f4").reshape(-1, *lanes) + n for n in (3, 0, 1)]
    write(stage, query, name, rows, dtype=dtype)
    (group,) = stage.read_attributes(query, name)
    capsules = [group.dlpack(i) for i in range(3)]
    assert len({id(capsule) for capsule in capsules}) == 3
    group.release()
    for capsule, row in zip(capsules, rows, strict=True):
        exported = np.from_dlpack(capsule)
        assert exported.shape == row.shape and exported.dtype == row.dtype
        np.testing.assert_array_equal(exported, row)


@pytest.mark.parametrize(
    ("array", "options", "expected"),
    [
        (np.arange(6.0), {}, [[0, 1], [2, 3], [4, 5]]),
        (np.arange(6.0).reshape(2, 3), {}, [[0, 1], [2, 3], [4, 5]]),
        ([1.5, 2.5, 3.5], {}, [[1.5], [2.5], [3.5]]),  # a list of numbers is one array, packed
        ([[1.5], [2.5, 3.5], ()], {"dtype": "f8"}, [[1.5], [2.5, 3.5], []]),
        ([np.ones(1), np.ones((2, 2)), np.ones((0, 5))], {}, [[1], [1] * 4, []]),
        ((np.arange(4.0), np.arange(2.0)), {"index_map": [1, 0, 1]}, [[0, 1], [0, 1, 2, 3], [0, 1]]),
        (np.arange(4.0), {"index_map": [1, 1, 0]}, [[2, 3], [2, 3], [0, 1]]),
        (np.arange(4.0), {"count": 2}, [[0, 1], [2, 3]]),
        ([np.ones(1), np.ones(2), np.ones(3)], {"count": 3, "mask": [5]}, [[1], [1, 1, 1]]),
    ],
    ids=repr,
)
def test_rows_and_packed(
    stage: cb.Stage, query: cb.Query, name: str, array: object, options: dict[str, object], expected: object
) -> None:
    """behaviour 20, 21, 24, 70, 77, 80, 82"""
    write(stage, query, name, array, **options)
    assert rows_of(stage, query, name) == expected


def test_lanes_are_described_and_never_guessed(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 24, 25, 26, 292, 295"""
    points = np.arange(18, dtype="f4").reshape(6, 3)
    write(stage, query, name, [points[:1], points[1:4], points[4:]], dtype="float32x3")
    (group,) = stage.read_attributes(query, name)
    assert group.dtype == cb.dtype("float32x3") and [group.array(i).shape for i in range(3)] == [(1, 3), (3, 3), (2, 3)]
    assert np.array_equal(group.array(1), points[1:4])
    for wrong in ([points, points, points], points):
        with pytest.raises(cb.InvalidArgument, match="float32x3"):
            stage.write_attribute(query, name, wrong, ordinal=2, is_array=True)
    turned = np.asfortranarray(points)  # lanes that do not lie together
    write(stage, query, name, turned, 2, dtype="float32x3")
    assert rows_of(stage, query, name) == [points[i : i + 2].tolist() for i in (0, 2, 4)]
    write(stage, query, name, [points[::2], points[:0], points[::-1]], 3, dtype="float32x3")
    assert rows_of(stage, query, name) == [points[::2].tolist(), [], points[::-1].tolist()]
    with pytest.raises(ValueError, match=r"array\[1\].*lanes"):
        stage.write_attribute(query, name, [points, points[:, :2], points], ordinal=4, is_array=True, dtype="float32x3")


def test_text_is_bytes_with_a_semantic(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 36"""
    write(stage, query, name, ["", "a", "€"], semantic=cb.Semantic.STRING)
    (group,) = stage.read_attributes(query, name)
    assert group.texts() == ["", "a", "€"] and group.semantic == cb.Semantic.STRING
    assert [bytes(group.array(i)) for i in range(3)] == [b"", b"a", b"\xe2\x82\xac"]
    write(stage, query, name, (b"\xff\0", "x", bytearray(b"yz")), 2)
    (group,) = stage.read_attributes(query, name)
    assert bytes(group.array(0)) == b"\xff\0"
    with pytest.raises(UnicodeDecodeError):
        group.texts()
    write(stage, query, name, "abc", 3)  # one array, packed
    (group,) = stage.read_attributes(query, name)
    assert group.texts() == ["a", "b", "c"]
    stage.write_attribute(query, name + "/fixed", np.zeros(3, "u1"), ordinal=1)
    seal(stage, 1, name + "/fixed")
    (group,) = stage.read_attributes(query, name + "/fixed")
    with pytest.raises(cb.InvalidArgument, match="no text"):
        group.texts()


def test_what_is_no_row_is_named(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 13, 33, 34, 224"""
    one = np.ones(1)
    for array, error, match in (
        ([one, one], cb.InvalidArgument, "2 tensors.*3 addressed prims.*none for prim 2"),
        ([one, one.astype("f4"), one], cb.InvalidArgument, "tensor 1.*float32"),
        ([one, np.ones(()), one], cb.InvalidArgument, "tensor 1.*rank 0"),
        ([one, object(), one], TypeError, r"array\[1\]"),
        ([one, np.array([None]), one], ValueError, r"array\[1\]"),
        ([], ValueError, "empty list"),
        (np.ones(4), cb.InvalidArgument, "4 elements.*3 rows"),
    ):
        with pytest.raises(error, match=match):
            stage.write_attribute(query, name, array, ordinal=1, is_array=True)
    with pytest.raises(cb.InvalidArgument, match="row_shape"):
        stage.write_attribute(query, name, np.ones(3), ordinal=1, is_array=True, row_shape=(1,))
    assert list(stage.read_attributes(query, name)) == []


def test_a_session_of_element_sizes(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 176, 180, 182, 196"""
    with stage.map_attribute(
        query, name, ordinal=1, dtype="int32x2", is_array=True, element_sizes=np.array([2, 0, 1])
    ) as session:
        (group,) = session
        assert group.is_array and group.shape is None and group.rows == 3
        assert [group.array(i).shape for i in range(3)] == [(2, 2), (0, 2), (1, 2)]
        group.array(0)[:] = [[1, 2], [3, 4]]
        group.dlpack(2)[0, 1] = 6
        group.array(2, flat=True)[0] = 5
        for member in ("array", "view"):
            with pytest.raises(cb.InvalidArgument, match="array"):
                getattr(session, member)
        with pytest.raises(IndexError):
            group.array(3)
    seal(stage, 1, name)
    assert rows_of(stage, query, name) == [[[1, 2], [3, 4]], [], [[5, 6]]]
    with stage.map_attribute(query, name, ordinal=2, init="current", element_sizes=[1, 1, 2]) as session:
        (group,) = session
        assert [group.array(i).tolist() for i in range(3)] == [[[1, 2]], [[0, 0]], [[5, 6], [0, 0]]]
    seal(stage, 2, name)
    for sizes in ([1, 1], None, [1, 1, -1], [1, 1.0, 1]):
        with pytest.raises((cb.InvalidArgument, ValueError, TypeError), match="element_sizes"):
            stage.map_attribute(query, name, ordinal=3, element_sizes=sizes)  # type: ignore[arg-type]
    with pytest.raises(cb.InvalidArgument, match="element_sizes.*fixed"):
        stage.map_attribute(query, name + "/new", dtype="f4", ordinal=3, element_sizes=[1, 1, 1])


def test_large_rows_and_many_rows(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 18, 20, 77: above what travels in the arguments"""
    rows = [np.arange(n, dtype="f8") for n in (300_000, 1, 40_000)]
    write(stage, query, name, rows)
    assert rows_of(stage, query, name) == [row.tolist() for row in rows]
    write(stage, query, name, rows[:2], 2, count=2)
    write(stage, query, name, [rows[1], rows[0], rows[0]], 3, count=3, mask=[2])
    assert [len(row) for row in rows_of(stage, query, name)] == [300_000, 300_000, 40_000]
    with stage.query_from_path_list(f"/many/{i}" for i in range(20_000)) as many:
        sizes = np.random.default_rng(1).integers(0, 9, len(many))
        stage.write_attribute(many, name, [np.full(n, i) for i, n in enumerate(sizes)], ordinal=4, is_array=True).wait()
        seal(stage, 4, name)
        groups = list(stage.read_attributes(many, name))
        (group,) = [g for g in groups if g.dtype == cb.dtype("int64")]
        for i in (0, 7, 4321, 19_999):
            assert group.array(i).tolist() == [i] * sizes[i]


def test_fixed_rows_of_some_prims_above_the_argument_area(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 18, 63, 82"""
    rows = np.arange(3 * 200_000, dtype="f4").reshape(3, -1)
    stage.write_attribute(query, name, rows, ordinal=1, row_shape=rows.shape[1])
    stage.write_attribute(query, name, rows + 1, ordinal=2, count=3, mask=[4]).wait()
    op = stage.write_attribute(query, name, rows[:1] + 2, ordinal=3, count=1).wait()
    assert op.ordinal == 3
    stage.write_attribute(query, name, rows, ordinal=4, index_map=[2, 2]).wait()
    for ordinal, expected in ((3, [rows[0] + 2, rows[1], rows[2] + 1]), (4, [rows[2], rows[2], rows[2] + 1])):
        seal(stage, ordinal, name)
        (group,) = stage.read_attributes(query, name)
        assert np.array_equal(group.array(0), expected)


def test_a_batch_of_more_than_64_kib(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 198"""
    a, b = name + "/a", name + "/b"
    large = np.arange(3 * 20_000, dtype="f4").reshape(3, -1)
    texts = cb.Write(["x", "yy", ""], is_array=True, semantic=cb.Semantic.STRING)
    stage.write_attributes(query, {a: cb.Write(large, row_shape=large.shape[1]), b: texts}, ordinal=1).wait()
    seal(stage, 1, a, b)
    groups = {g.attribute: g for g in stage.read_attributes(query, [a, b])}
    assert np.array_equal(groups[a].array(0), large) and groups[b].texts() == ["x", "yy", ""]
    with pytest.raises(cb.LimitReached, match="argument_bytes"):
        wide = np.zeros((3, 200_000), "f4")
        stage.write_attributes(query, {b: texts, name + "/c": cb.Write(wide, row_shape=200_000)}, ordinal=2)


def test_latest_of_an_array(stage: cb.Stage, name: str) -> None:
    with stage.query_from_path_list(["/"]) as root:
        write(stage, root, name, [np.arange(4)])
    view = stage.latest(name)
    assert view.shape == (4,) and list(view) == [0, 1, 2, 3]
    with stage.snapshot() as snapshot:
        assert snapshot[name].shape == (4,)


def test_history_of_arrays(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 32, 123, 127, 150"""
    write(stage, query, name, [np.arange(2), np.arange(3), np.arange(0)])
    with stage.query_from_path_list(["/b"]) as b:
        write(stage, b, name, [np.arange(5)], 2)
        stage.delete_attributes(b, [name], ordinal=3)
        seal(stage, 3, name)
    (group,) = stage.read_attributes(query, name, at=1)
    assert [len(group.array(i)) for i in range(3)] == [2, 3, 0]
    (group,) = stage.read_attributes(query, name, since=1, at=2)
    assert group.prim_count == 1 and group.array(0).tolist() == [0, 1, 2, 3, 4] and group.row_ordinals.tolist() == [2]
    (group,) = stage.read_attributes(query, name, since=1)
    assert group.is_delete and group.rows == 0 and group.shape is None
    with pytest.raises(IndexError):
        group.array(0)


def test_without_the_kind_a_list_is_refused(stage: cb.Stage, query: cb.Query, name: str) -> None:
    """behaviour 9, 27, 28"""
    with pytest.raises(cb.InvalidArgument, match="exactly one"):
        stage.write_attribute(query, name, [np.ones(1)] * 3, ordinal=1)
    write(stage, query, name, np.ones(3))
    with pytest.raises(cb.InvalidArgument, match="kind"):
        stage.write_attribute(query, name, np.ones(3), ordinal=2)
    stage.declare(name + "/new", dtype="uint8", is_array=True, semantic=cb.Semantic.STRING).wait()
    write(stage, query, name + "/new", ["a", "b", "c"])
    (group,) = stage.read_attributes(query, name + "/new")
    assert group.semantic == cb.Semantic.STRING
