"""Writing, sealing and reading back, through a real broker."""

from __future__ import annotations

import array
import re
import sys
import weakref
from collections.abc import Callable

import callboard as cb
import numpy as np
import pytest
from conftest import Broker, seal

PATHS = ["/World/R0", "/World/R1", "/World/R2"]


def read(stage: cb.Stage, query: cb.Query, name: str) -> np.ndarray:
    """The values in the query's order, copied."""
    with stage.read_attributes(query, name) as groups:
        (group,) = list(groups)
        rows = group.array(0)
        return rows.copy() if group.index_map is None else rows[group.index_map]


def test_one_lane_column_round_trip(stage: cb.Stage, name: str) -> None:
    """behaviour 1, 326: in fewer than ten calls"""
    with stage.query_from_path_list(PATHS) as q:
        values = np.array([2.5, -1, 0], np.float32)
        op = stage.write_attribute(q, name, values, ordinal=1)
        assert op.id > 0 and op.wait() is op and op.done
        sealed = seal(stage, 1, name)
        assert sealed.floor == 1 and sealed.epoch == stage.epoch
        with stage.read_attributes(q, [name]) as read:
            group = read.fetch_read_next()
            assert group is not None
            with group:
                assert (group.attribute, group.ordinal, group.is_array, group.is_delete) == (name, 1, False, False)
                assert (group.floor, group.epoch, group.mask) == (1, read.epoch, None)
                assert group.dtype == cb.dtype("float32") and group.shape == (3,) and group.row_shape == ()
                np.testing.assert_array_equal(group.array(0), values)
                assert stage.paths.resolve(group.prims) == PATHS
                np.testing.assert_array_equal(group.prims, q.prims)
            assert read.fetch_read_next() is None  # behaviour 228
            assert read.fetch_read_next() is None


@pytest.mark.parametrize("shape", [(3, 3), (3, 2, 4), (3, 7), (3, 255)])
def test_trailing_dimensions_fold_into_lanes(stage: cb.Stage, name: str, shape: tuple[int, ...]) -> None:
    """behaviour 3, 4, 14, 278"""
    values = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    lanes = int(np.prod(shape[1:]))
    with stage.query_from_path_list(PATHS) as q:
        stage.write_attribute(q, name, values, ordinal=1).wait()
        seal(stage, 1, name)
        with stage.read_attributes(q, name) as groups:
            for group in groups:
                assert group.dtype == cb.dtype("float64", lanes)
                assert group.array(0).shape == (3, lanes)
                assert np.from_dlpack(group.dlpack(0)).shape == (3, lanes)
                np.testing.assert_array_equal(group.array(0, flat=True), values.ravel())
                with pytest.raises(IndexError):
                    group.array(1)


def test_a_declared_row_shape_stays(stage: cb.Stage, name: str) -> None:
    with stage.query_from_path_list(PATHS) as q:
        values = np.arange(24, dtype=np.int16).reshape(3, 2, 4)
        stage.write_attribute(q, name, values, ordinal=1, row_shape=(2, 4)).wait()
        seal(stage, 1, name)
        np.testing.assert_array_equal(read(stage, q, name), values)
        with pytest.raises(cb.InvalidArgument, match="row_shape"):
            stage.write_attribute(q, name, values, ordinal=2, row_shape=(4, 2))


@pytest.mark.parametrize(
    "values",
    [
        np.array([True, False, True]),
        *(np.array([np.iinfo(t).min, 0, np.iinfo(t).max], t) for t in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")),
        np.array([0x7E01, 0x8000, 0xFC00], np.uint16).view(np.float16),
        np.array([0x7FC01234, 0x80000000, 0xFF800000], np.uint32).view(np.float32),
        np.array([0x7FF8000000001234, 1 << 63, 0xFFF0000000000000], np.uint64).view(np.float64),
        np.array([1 + 2j, -0.0j, complex(float("nan"), 1)], np.complex64),
        np.array([1 + 2j, -0.0j, complex(float("inf"), 1)], np.complex128),
    ],
    ids=lambda values: str(values.dtype),
)
def test_every_type_survives_bit_by_bit(stage: cb.Stage, name: str, values: np.ndarray) -> None:
    """behaviour 39, 45"""
    with stage.query_from_path_list(PATHS) as q:
        stage.write_attribute(q, name, values, ordinal=1).wait()
        seal(stage, 1, name)
        back = read(stage, q, name)
        assert back.dtype == values.dtype
        assert back.tobytes() == values.tobytes()


def test_bool_is_not_uint8(stage: cb.Stage, name: str) -> None:
    """behaviour 44, 45"""
    stage.publish(name, np.zeros(3, bool))
    with pytest.raises(cb.InvalidArgument, match="bool"):
        stage.publish(name, np.zeros(3, np.uint8))
    assert stage.latest(name).ordinal == 1


@pytest.mark.parametrize(
    "view",
    [
        np.arange(12, dtype=np.int32)[::2].reshape(3, 2),
        np.arange(6, dtype=np.int32).reshape(2, 3).T,
        np.arange(6, dtype=np.int32).reshape(3, 2)[::-1, ::-1],
        np.broadcast_to(np.int32(7), (3, 2)),
        np.zeros(3, np.dtype([("a", "i1"), ("b", "2i4")]))["b"],
    ],
    ids=["step", "transposed", "backwards", "repeated", "field of packed records"],
)
def test_any_strides_are_gathered(stage: cb.Stage, name: str, view: np.ndarray) -> None:
    """behaviour 11"""
    with stage.query_from_path_list(PATHS) as q:
        stage.write_attribute(q, name, view, ordinal=1).wait()
        seal(stage, 1, name)
        np.testing.assert_array_equal(read(stage, q, name), view)


def test_an_array_may_change_when_the_call_returns(stage: cb.Stage, name: str) -> None:
    """behaviour 218: inline and, above 64 KiB, through mapped memory"""
    for columns in (1, 50_000):
        values = np.ones((3, columns))
        with stage.query_from_path_list(PATHS) as q:
            op = stage.write_attribute(q, f"{name}/{columns}", values, ordinal=1, row_shape=(columns,))
            values[:] = 2
            op.wait()
            seal(stage, 1, f"{name}/{columns}")
            assert (read(stage, q, f"{name}/{columns}") == 1).all()


class OnlyDLPack:
    """What offers nothing but the protocol; legacy: as before version 1."""

    def __init__(self, array: np.ndarray, legacy: bool) -> None:
        self.array, self.legacy = array, legacy

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: object) -> object:
        if self.legacy and options:
            raise TypeError("unexpected keyword")
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("legacy", [True, False])
def test_any_dlpack_producer_can_be_written(stage: cb.Stage, name: str, legacy: bool) -> None:
    """behaviour 291"""
    values = np.arange(12, dtype=np.float32).reshape(3, 4)[:, 1:3]
    stage.publish(name, OnlyDLPack(values, legacy))
    np.testing.assert_array_equal(np.asarray(stage.latest(name)), values)


@pytest.mark.parametrize("n", [3, 100_000])  # in the argument area, and in leased memory
def test_what_was_written_may_go_at_once(stage: cb.Stage, name: str, n: int) -> None:
    """behaviour 291: the call copies before it returns, and keeps nothing"""
    values = np.arange(n, dtype=np.float32)
    references = sys.getrefcount(values)
    producer = OnlyDLPack(values, False)
    gone = weakref.ref(producer)
    with stage.query_from_path_list(PATHS[:1]) as q:
        op = stage.write_attribute(q, name, producer, ordinal=1, is_array=True)
        del producer
        assert gone() is None and sys.getrefcount(values) == references
        values[:] = -1
        op.wait()
        seal(stage, 1, name)
        (group,) = stage.read_attributes(q, name)
        np.testing.assert_array_equal(group.array(0), np.arange(n, dtype=np.float32))


def test_device_memory_is_refused_before_it_is_touched(stage: cb.Stage, name: str) -> None:
    class OnDevice(OnlyDLPack):
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with pytest.raises(cb.NotSupported, match="driver of CUDA"):
        stage.publish(name, OnDevice(np.zeros(3), False))


def test_read_only_arrays_other_buffers_and_numbers_can_be_written(stage: cb.Stage, name: str) -> None:
    """behaviour 298"""
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    for n, (value, dtype, shape) in enumerate(
        [
            (frozen, "float64", (3,)),
            (array.array("h", [1, 2]), "int16", (2,)),
            (b"abc", "uint8", (3,)),
            (memoryview(b"abcd").cast("I"), "uint32", (1,)),
            (1.5, "float64", ()),
            (np.float32(2), "float32", ()),
            ([[1, 2], [3, 4]], "int64", (2, 2)),
            (True, "bool", ()),
        ]
    ):
        stage.publish(f"{name}/{n}", value)
        view = stage.latest(f"{name}/{n}")
        assert (view.dtype.name, view.shape) == (dtype, shape)
        expected = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.asarray(value)
        np.testing.assert_array_equal(np.asarray(view), expected)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, TypeError),
        ("text", TypeError),
        (object(), TypeError),
        (np.array([None]), ValueError),
        (np.zeros(2, [("a", "f4"), ("b", "i4")]), ValueError),
        (np.zeros(2, ">f4"), ValueError),
        (np.zeros(2, "M8[s]"), ValueError),
        (np.zeros(2, np.longdouble), ValueError),
        (["a"], ValueError),
    ],
)
def test_what_is_no_tensor_is_refused_before_anything_is_sent(
    stage: cb.Stage, name: str, value: object, error: type[Exception]
) -> None:
    """behaviour 41"""
    with pytest.raises(error):
        stage.publish(name, value)
    with pytest.raises(cb.NotFound):
        stage.latest(name)


def test_a_list_of_tensors_is_not_a_tensor(stage: cb.Stage, name: str) -> None:
    """behaviour 9: NumPy would stack them"""
    with stage.query_from_path_list(PATHS) as q, pytest.raises(cb.InvalidArgument, match="3 tensors"):
        stage.write_attribute(q, name, [np.zeros(1), np.zeros(1), np.zeros(1)], ordinal=1)


@pytest.mark.parametrize("shape", [(2,), (4,), (9,), ()])
def test_the_leading_dimension_is_the_number_of_prims(stage: cb.Stage, name: str, shape: tuple[int, ...]) -> None:
    """behaviour 6, 8, 13, 224"""
    with stage.query_from_path_list(PATHS) as q, pytest.raises(cb.InvalidArgument) as caught:
        stage.write_attribute(q, name, np.zeros(shape, np.float32), ordinal=1, semantic=cb.Semantic.POINT)
    assert caught.value.code == cb.InvalidArgument.code
    assert len(str(caught.value)) > 20


def test_a_row_that_is_too_wide_says_what_to_do(stage: cb.Stage, name: str) -> None:
    """behaviour 15"""
    with stage.query_from_path_list(PATHS) as q:
        with pytest.raises(cb.NotSupported, match="row_shape"):
            stage.write_attribute(q, name, np.zeros((3, 256)), ordinal=1)
        stage.write_attribute(q, name, np.zeros((3, 256)), ordinal=1, row_shape=256).wait()


@pytest.mark.parametrize(("shape", "lanes"), [((3, 3), 3), ((3, 4), 4), ((3, 2, 2), 4)])
def test_an_explicit_type_folds_trailing_axes(stage: cb.Stage, name: str, shape: tuple[int, ...], lanes: int) -> None:
    """behaviour 292: what is read back has the lanes, in every form"""
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    with stage.query_from_path_list(PATHS) as q:
        stage.write_attribute(q, name, values, ordinal=1, dtype=f"float32x{lanes}").wait()
        seal(stage, 1, name)
        (group,) = stage.read_attributes(q, name)
        assert group.dtype == cb.dtype("float32", lanes) and group.rows == 3
        for array in (group.array(0), np.from_dlpack(group.dlpack(0))):
            assert array.dtype == np.float32
            np.testing.assert_array_equal(array, values.reshape(3, lanes))


def test_dtype_says_which_dimensions_are_lanes(stage: cb.Stage, name: str) -> None:
    """behaviour 292: an explicit type checks the fold and converts nothing"""
    with stage.query_from_path_list(PATHS) as q:
        stage.write_attribute(q, name, np.zeros((3, 2, 2), np.float32), ordinal=1, dtype="float32x4").wait()
        for dtype in ("float32x3", "float64x4", "int32x4", "float32x8"):
            with pytest.raises(ValueError, match="dtype"):
                stage.write_attribute(q, name, np.zeros((3, 2, 2), np.float32), ordinal=1, dtype=dtype)


def test_partial_update_touches_no_other_row(stage: cb.Stage, name: str) -> None:
    """behaviour 18, 91: another order, and the last of two wins"""
    five = [f"/p{i}" for i in range(5)]
    with stage.query_from_path_list(five) as all_, stage.query_from_path_list([five[3], five[1], five[3]]) as two:
        stage.write_attribute(all_, name, np.arange(1.0, 6.0), ordinal=1).wait()
        seal(stage, 1, name)
        stage.write_attribute(two, name, np.array([0.0, 20.0, 40.0]), ordinal=2).wait()
        seal(stage, 2, name)
        np.testing.assert_array_equal(read(stage, all_, name), [1, 20, 3, 40, 5])
        with stage.read_attributes(two, name) as groups:
            for group in groups:  # behaviour 16: more rows than prims come with a map
                assert group.index_map is not None
                assert group.array(0).shape[0] >= group.prim_count
                np.testing.assert_array_equal(group.array(0)[group.index_map], [40, 20, 40])


def test_count_writes_the_leading_prims(stage: cb.Stage, name: str) -> None:
    """behaviour 63"""
    four = [f"/c{i}" for i in range(4)]
    with stage.query_from_path_list(four) as q:
        stage.write_attribute(q, name, np.array([5.0, 6, 7, 8]), ordinal=1).wait()
        seal(stage, 1, name)
        stage.write_attribute(q, name, np.array([50.0, 60]), ordinal=2, count=2).wait()
        seal(stage, 2, name)
        np.testing.assert_array_equal(read(stage, q, name), [50, 60, 7, 8])


def test_an_index_map_picks_source_rows(stage: cb.Stage, name: str) -> None:
    """behaviour 68, 70, 71, 74, 76, 90: it gathers, it does not scatter"""
    four = [f"/c{i}" for i in range(4)]
    with stage.query_from_path_list(four) as q:
        for ordinal, rows, index_map, count, expected in (
            (1, [5, 6, 7, 8], None, None, [5, 6, 7, 8]),
            (2, [70, 80, 90], [2, 0, 1], None, [90, 70, 80, 8]),
            (3, [10, 20], [1], None, [20, 70, 80, 8]),
            (4, [9], np.zeros(3, np.uint32), None, [9, 9, 9, 8]),
            (5, [1, 2], [1, 0, 0, 0, 0], 2, [2, 1, 9, 8]),
        ):
            values = np.array(rows, float)
            stage.write_attribute(q, name, values, ordinal=ordinal, index_map=index_map, count=count).wait()
            seal(stage, ordinal, name)
            np.testing.assert_array_equal(read(stage, q, name), expected)
        with pytest.raises(cb.InvalidArgument, match="index_map"):
            stage.write_attribute(q, name, np.zeros(1), ordinal=6, index_map=[1])


def test_a_mask_writes_the_set_bits(stage: cb.Stage, name: str) -> None:
    """behaviour 82, 86: and does not shrink the payload"""
    five = [f"/m{i}" for i in range(5)]
    with stage.query_from_path_list(five) as q:
        stage.write_attribute(q, name, np.array([5.0, 6, 7, 8, 9]), ordinal=1).wait()
        seal(stage, 1, name)
        op = stage.write_attribute(q, name, np.array([0.0, 0, 70, 0, 0]), ordinal=2, mask=[1 << 2], count=5)
        op.wait()
        seal(stage, 2, name)
        np.testing.assert_array_equal(read(stage, q, name), [5, 6, 70, 8, 9])
        with pytest.raises(cb.InvalidArgument):
            stage.write_attribute(q, name, np.zeros(1), ordinal=3, mask=[1], count=5)


def test_a_mask_may_be_longer_than_its_count_needs(stage: cb.Stage, name: str) -> None:
    """behaviour 84: exactly ceil(count/64) words are read; as in the other clients, the rest is ignored"""
    many = [f"/m{i}" for i in range(66)]
    with stage.query_from_path_list(many) as q:
        stage.write_attribute(q, name, np.zeros(66), ordinal=1).wait()
        seal(stage, 1, name)
        stage.write_attribute(q, name, np.ones(64), ordinal=2, mask=[1 << 63 | 1, 3, 2**64 - 1], count=64).wait()
        seal(stage, 2, name)
        assert np.flatnonzero(read(stage, q, name)).tolist() == [0, 63]  # not 64, 65
        stage.write_attribute(q, name, np.full(65, 2.0), ordinal=3, mask=[0, 3], count=65).wait()
        seal(stage, 3, name)
        assert np.flatnonzero(read(stage, q, name) == 2).tolist() == [64]
    assert "extra words are ignored" in cb.Stage.write_attribute.__doc__


def test_semantics_are_kept_and_none_is_no_opinion(stage: cb.Stage, name: str) -> None:
    """behaviour 49, 59"""
    with stage.query_from_path_list(PATHS) as q:
        stage.write_attribute(q, name, np.zeros((3, 3)), ordinal=1, semantic=cb.Semantic.POINT).wait()
        stage.write_attribute(q, name, np.ones((3, 3)), ordinal=1).wait()
        other = stage.write_attribute(q, name, np.ones((3, 3)), ordinal=1, semantic=cb.Semantic.COLOR)
        with pytest.raises(cb.InvalidArgument, match="semantic"):
            other.wait()  # what is not sealed only the broker knows
        seal(stage, 1, name)
        with pytest.raises(cb.InvalidArgument, match="semantic"):
            stage.write_attribute(q, name, np.ones((3, 3)), ordinal=2, semantic=cb.Semantic.COLOR)
        with stage.read_attributes(q, name) as groups:
            (group,) = list(groups)
            assert group.semantic is cb.Semantic.POINT


def test_token_ids_come_back_and_resolve(stage: cb.Stage, name: str) -> None:
    """behaviour 50, 51, 248, 252"""
    ids = stage.tokens.intern(["red", "grün"])
    assert stage.tokens.intern("red") == ids[0] != 0
    stage.publish(name, ids, semantic=cb.Semantic.TOKEN_ID)
    assert stage.tokens.resolve(np.asarray(stage.latest(name))) == ["red", "grün"]
    with pytest.raises(cb.InvalidArgument):
        stage.publish(name + "/bad", ids.astype(np.uint32), semantic=cb.Semantic.TOKEN_ID)
    for unknown in (0, 1, 2**64 - 1):
        with pytest.raises(cb.NotFound):
            stage.tokens.resolve(unknown)


def test_floor_rules(stage: cb.Stage, name: str) -> None:
    """behaviour 101, 102, 106, 118"""
    with stage.query_from_path_list(PATHS) as q:
        with pytest.raises(cb.FloorViolation):
            stage.write_attribute(q, name, np.zeros(3), ordinal=0)
        stage.write_attribute(q, name, np.zeros(3), ordinal=8).wait()
        seal(stage, 8, name)
        for ordinal in (2, 8):
            with pytest.raises(cb.FloorViolation, match="8"):
                stage.write_attribute(q, name, np.zeros(3), ordinal=ordinal)
        assert seal(stage, 4, name).floor == 8
        assert stage.write_floor(name) == 8
        assert stage.write_floor(name + "/never") == 0


def test_seal_waits_for_what_was_submitted(stage: cb.Stage, name: str) -> None:
    """behaviour 104, 107"""
    with stage.query_from_path_list(PATHS) as q:
        for value in range(10):
            stage.write_attribute(q, name, np.full(3, value), ordinal=7)
        seal(stage, 7, name)
        np.testing.assert_array_equal(read(stage, q, name), [9, 9, 9])


def test_missing_and_unsealed_attributes_give_no_group(stage: cb.Stage, name: str) -> None:
    """behaviour 120, 125"""
    with stage.query_from_path_list(PATHS) as q:
        stage.write_attribute(q, name, np.zeros(3), ordinal=1).wait()
        with stage.read_attributes(q, [name, name + "/missing"]) as groups:
            assert list(groups) == []


def test_empty_query_is_accepted(stage: cb.Stage, name: str) -> None:
    """behaviour 19"""
    with stage.query_from_path_list([]) as q:
        assert len(q) == 0 and len(q.prims) == 0
        stage.write_attribute(q, name, np.zeros((0, 3)), ordinal=1).wait()


def test_all_scope_reaches_everything(new_broker: Callable[..., Broker]) -> None:
    """behaviour 111, 114, 117"""
    with new_broker().connect() as stage:
        stage.publish("a", 1.0)
        op = stage.advance_write_floor(5, stamp_ns=123456789).wait()
        assert (op.floor, stage.write_floor(), stage.write_floor("a"), stage.write_floor("unborn")) == (5, 5, 5, 5)
        with stage.snapshot() as snapshot:
            assert snapshot.stamp_ns == 123456789
        with stage.query_from_path_list(["/p"]) as q:
            with pytest.raises(cb.FloorViolation):
                stage.write_attribute(q, "c", np.zeros(1), ordinal=4)
            stage.write_attribute(q, "c", np.zeros(1), ordinal=6).wait()


def test_publish_takes_the_next_ordinal(stage: cb.Stage, name: str) -> None:
    frame = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert stage.publish(name, frame) == 1
    assert stage.publish(name, frame + 1) == 2
    view = stage.latest(name)
    assert view.shape == frame.shape and view.ordinal == 2 and view.attribute == name
    np.testing.assert_array_equal(np.asarray(view), frame + 1)
    with pytest.raises(cb.InvalidArgument):
        stage.publish(name, frame[:1])


def test_a_refused_publish_names_the_attribute_and_the_shape_that_was_given(stage: cb.Stage, name: str) -> None:
    """behaviour 44: another shape or element type, of one row and of rows"""
    stage.publish(name, np.zeros(4, np.float32))
    for value, text in (
        (np.zeros(5, np.float32), "tensor has shape (5,): the attribute's row_shape is (4,)"),
        (np.float32(0), "tensor has shape (): the attribute's row_shape is (4,)"),
        (np.zeros(4), "tensor of shape (4,) makes a row of float64: the attribute holds float32"),
    ):
        with pytest.raises(cb.InvalidArgument, match=re.escape(f'attribute "{name}": {text}')):
            stage.publish(name, value)
    with stage.query_from_path_list(["/"]) as q:
        text = f'attribute "{name}": tensor has shape (1, 5): behind the rows, the row_shape is (4,)'
        with pytest.raises(cb.InvalidArgument, match=re.escape(text)):
            stage.write_attribute(q, name, np.zeros((1, 5), np.float32), ordinal=2)


def test_publish_to_paths(stage: cb.Stage, name: str) -> None:
    values = np.arange(24.0).reshape(3, 2, 4)
    assert stage.publish(name, values, paths=PATHS) == 1
    with stage.query_from_path_list(PATHS) as q:
        assert stage.publish(name, values + 1, paths=q) == 2
        np.testing.assert_array_equal(read(stage, q, name), values + 1)


def test_declare_states_the_schema(stage: cb.Stage, name: str) -> None:
    op = stage.declare(
        name, dtype="float64x16", row_shape=(), semantic=cb.Semantic.MATRIX, device="cpu", is_array=False, retain=2,
        handoff="copy",
    )  # fmt: skip
    op.wait()
    (info,) = [a for a in stage.attributes() if a["name"] == name]
    assert info["dtype"] == cb.dtype("float64x16") and info["semantic"] is cb.Semantic.MATRIX
    assert (info["retain"], info["handoff"], info["row_bytes"]) == (2, "copy", 128)
    with stage.map_attribute(q := stage.query_from_path_list(PATHS), name, ordinal=1) as session:
        session.array[:] = 1
    assert session.op.adopted is False
    seal(stage, 1, name)
    with pytest.raises(cb.InvalidArgument, match="float64x16"):
        stage.write_attribute(q, name, np.zeros(3), ordinal=2)
    q.release()


def test_deleted_attributes_and_prims_are_left_out(stage: cb.Stage, name: str) -> None:
    """behaviour 147, 148, 149, 153, 156"""
    other = name + "/other"
    with (
        stage.query_from_path_list([f"/{name}/{i}" for i in range(3)]) as q,
        stage.query_from_path_list([f"/{name}/1"]) as one,
    ):
        stage.write_attributes(q, {name: np.arange(3.0), other: np.arange(3.0)}, ordinal=1).wait()
        seal(stage, 1, name, other)
        with stage.read_attributes(q, name) as groups:
            (held,) = list(groups)
        assert stage.delete_attributes(one, name, ordinal=2).wait().done
        assert read(stage, q, name).tolist() == [0, 1, 2]  # not before the seal
        # this client's delete is not sealed, so that the broker decides: another dtype is what comes after it
        stage.write_attribute(one, name, np.full(1, 7, np.int32), ordinal=3).wait()
        seal(stage, 2, name)
        assert read(stage, q, name).tolist() == [0, 2]
        assert held.array(0).tolist() == [0, 1, 2]
        seal(stage, 3, name, other)
        assert read(stage, one, name).dtype == np.int32
        assert read(stage, q, other).tolist() == [0, 1, 2]
        for bad, error in (
            ({"attributes": name, "ordinal": 3}, cb.FloorViolation),
            ({"attributes": [], "ordinal": 0}, cb.FloorViolation),
            ({"ordinal": 4}, TypeError),
            ({"attributes": ["@path"], "ordinal": 4}, cb.NotSupported),
            ({"attributes": [""], "ordinal": 4}, cb.InvalidArgument),
            ({"attributes": 3.0, "ordinal": 4}, TypeError),
            ({"attributes": name}, TypeError),
        ):
            with pytest.raises(error):
                stage.delete_attributes(q, **bad)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            stage.delete_attributes("/a", name, ordinal=4)  # type: ignore[arg-type]
        stage.delete_attributes(one, [], ordinal=10**6).wait()  # the prim
        seal(stage, 10**6, name, other)
        assert read(stage, q, name).tolist() == [0, 2]
        assert read(stage, q, other).tolist() == [0, 2]
        stage.write_attribute(one, name, np.ones(1), ordinal=10**6 + 1, prim_mode=cb.PrimMode.INSERT).wait()


def test_a_name_has_a_column_for_each_schema(stage: cb.Stage, name: str) -> None:
    """behaviour 46, rule L6: writes and maps find the column that their type fits, or make one"""
    with stage.query_from_path_list(["/wide"]) as wide, stage.query_from_path_list(["/flat"]) as flat:
        stage.write_attribute(wide, name, np.ones((1, 3)), ordinal=1, row_shape=(3,)).wait()
        seal(stage, 1, name)
        # mapped: its rows are single numbers and not those of the other column
        large = np.arange(300_000, dtype=np.float64)
        with stage.query_from_path_list([f"/many/{i}" for i in range(len(large))]) as many:
            stage.write_attribute(many, name, large, ordinal=2).wait()
            seal(stage, 2, name)
            np.testing.assert_array_equal(read(stage, many, name), large)
        with stage.map_attribute(flat, name, dtype="int16", ordinal=3) as session:
            session.array[:] = 7
        seal(stage, 3, name)
        assert read(stage, flat, name).tolist() == [7]
        assert read(stage, wide, name).tolist() == [[1, 1, 1]]
        assert len([info for info in stage.attributes() if info["name"] == name]) == 3
        with stage.map_attribute(flat, name, ordinal=4) as session:  # without a type: that of the prims
            assert session.array.dtype == np.int16
            session.array[:] = 8
        for query, values in ((wide, np.ones(1)), (flat, np.ones(1, np.int32))):
            with pytest.raises(cb.InvalidArgument):
                stage.write_attribute(query, name, values, ordinal=5)


def test_write_attributes_checks_everything_first(stage: cb.Stage, name: str) -> None:
    """behaviour 199, 203: one entry is a single write, and one that is malformed refuses all"""
    a, b = name + "/a", name + "/b"
    with stage.query_from_path_list(PATHS) as q:
        op = stage.write_attributes(q, {a: cb.Write(np.ones((3, 3)), semantic=cb.Semantic.POINT)}, ordinal=1)
        first = op.wait().id
        seal(stage, 1, a)
        np.testing.assert_array_equal(read(stage, q, a), np.ones((3, 3)))
        for error, bad in (
            (cb.InvalidArgument, {a: np.zeros((3, 3)), b: np.zeros(2)}),
            (cb.InvalidArgument, {b: np.zeros(3), a: np.zeros((3, 2))}),
            (cb.InvalidArgument, {}),
            (cb.NotSupported, {a: np.zeros((3, 3)), b: np.zeros((3, 10_000, 1))}),
            (TypeError, {a: np.zeros((3, 3)), b: None}),
            (TypeError, {a: np.zeros((3, 3)), 1.5: np.zeros(3)}),
        ):
            with pytest.raises(error):
                stage.write_attributes(q, bad, ordinal=2)  # type: ignore[arg-type]
        assert b not in [info["name"] for info in stage.attributes()]
        assert stage.write_attribute(q, a, np.zeros((3, 3)), ordinal=2).id == first + 2  # one seal, and nothing refused


def test_several_attributes_appear_together_or_not_at_all(stage: cb.Stage, name: str) -> None:
    """behaviour 198, 199, 201, 203: one op, one ordinal, all or none"""
    a, b, c = name + "/a", name + "/b", name + "/c"
    with stage.query_from_path_list(PATHS) as q:
        op = stage.write_attributes(q, {a: np.arange(3.0), b: np.ones((3, 3))}, ordinal=1)
        op.wait()
        assert op.id > 0
        assert not list(stage.read_attributes(q, [a, b]))  # behaviour 120: nothing before the seal
        seal(stage, 1, a, b)
        with stage.read_attributes(q, [a, b]) as read:
            got = {group.attribute: group.array(0).copy() for group in read}
        np.testing.assert_array_equal(got[a], np.arange(3.0))
        np.testing.assert_array_equal(got[b], np.ones((3, 3)))
        # what is not sealed only the broker knows: c is of another type already; a and b stay as they are
        stage.write_attribute(q, b, np.zeros((3, 3)), ordinal=2).wait()
        stage.write_attribute(q, c, np.zeros(3), ordinal=2).wait()
        batch = {a: np.full(3, 9.0), b: np.ones((3, 3)), c: np.ones(3, np.int16)}
        refused = stage.write_attributes(q, batch, ordinal=3)
        with pytest.raises(cb.InvalidArgument, match="int16"):
            refused.wait()
        seal(stage, 4, a, b, c)
        with stage.read_attributes(q, [a, b]) as read:
            got = {group.attribute: group.array(0).copy() for group in read}
        np.testing.assert_array_equal(got[a], np.arange(3.0))
        np.testing.assert_array_equal(got[b], np.zeros((3, 3)))


def test_declarations_state_and_change_settings(stage: cb.Stage, name: str) -> None:
    """behaviour 15: what is declared is told, settings of what exists can change, its schema cannot"""
    stage.declare(name, dtype="f4", row_shape=(2, 3), retain=2, handoff="copy").wait()

    def told() -> tuple[object, ...]:
        (info,) = [a for a in stage.attributes() if a["name"] == name]
        return tuple(info[key] for key in ("row_shape", "retain", "handoff"))

    assert told() == ((2, 3), 2, "copy")
    stage.declare(name, dtype="f4", row_shape=(2, 3)).wait()  # no opinion
    assert told() == ((2, 3), 2, "copy")
    stage.declare(name, dtype="f4", row_shape=(2, 3), retain=7, handoff="adopt").wait()
    assert told() == ((2, 3), 7, "adopt")
    for wrong in ({"dtype": "f8", "row_shape": (2, 3)}, {"dtype": "f4", "row_shape": 6}):
        with pytest.raises(cb.InvalidArgument):
            stage.declare(name, **wrong).wait()
    with pytest.raises(cb.InvalidArgument, match="1048577"):
        stage.declare(name, dtype="f4", row_shape=(2, 3), retain=1 << 20 | 1).wait()
    assert told() == ((2, 3), 7, "adopt")
