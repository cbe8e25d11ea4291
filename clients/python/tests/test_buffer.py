"""The buffer protocol: what views answer to each request, and what is made of others' buffers."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
from types import ModuleType
from typing import Any

import callboard as cb
import ml_dtypes
import numpy as np
import pytest
from callboard._types import _SCALARS
from conftest import compiled, seal

FORMATS = {
    "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d", "complex64": "Zf", "complex128": "Zd",
}  # fmt: skip
OPAQUE = sorted(set(_SCALARS) - set(FORMATS))


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return compiled("buffer_driver", tmp_path_factory.mktemp("driver"))


def published(stage: cb.Stage, name: str, values: Any, **options: Any) -> cb.View:
    stage.publish(name, values, **options)
    return stage.latest(name)


# ---- out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (2, 3)], ids=str)
def test_every_type_has_its_format(
    stage: cb.Stage, name: str, driver: ModuleType, dtype: str, shape: tuple[int, ...]
) -> None:
    """field report G2, G3, G4: strides in bytes, canonical; none without dimensions"""
    values = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    view = published(stage, name, values)
    told = driver.ask(view, driver.FULL_RO)
    assert (told["format"], told["itemsize"], told["len"]) == (FORMATS[dtype], values.itemsize, values.nbytes)
    assert (told["ndim"], told["readonly"], told["suboffsets"]) == (len(shape), True, False)
    assert told["shape"] == (shape or None) and told["strides"] == (values.strides or None)
    assert told["owner"] is view
    memory = memoryview(view)
    assert memory.shape == shape and memory.tobytes() == values.tobytes() and memory.c_contiguous
    back = np.asarray(view)
    assert back.dtype == values.dtype and back.tobytes() == values.tobytes() and back.ctypes.data == told["address"]


def test_each_request_is_answered_as_it_was_made(stage: cb.Stage, name: str, driver: ModuleType) -> None:
    view = published(stage, name, np.arange(6, dtype=np.int16).reshape(2, 3))
    plain = {"format": None, "itemsize": 2, "len": 12, "ndim": 2, "shape": (2, 3), "strides": (6, 2)}
    for flags, differs in (
        (driver.SIMPLE, {"ndim": 1, "shape": None, "strides": None}),
        (driver.FORMAT, {"ndim": 1, "shape": None, "strides": None, "format": "h"}),
        (driver.ND, {"strides": None}),
        (driver.ND | driver.FORMAT, {"strides": None, "format": "h"}),
        (driver.STRIDES, {}),
        (driver.STRIDES | driver.FORMAT, {"format": "h"}),
        (driver.C_CONTIGUOUS, {}),
        (driver.ANY_CONTIGUOUS, {}),
        (driver.INDIRECT, {}),
        (driver.FULL_RO, {"format": "h"}),
    ):
        told = driver.ask(view, flags)
        assert {key: told[key] for key in plain} == {**plain, **differs}, flags
        assert told["readonly"] and not told["suboffsets"]
    with pytest.raises(BufferError, match="row-major"):
        driver.ask(view, driver.F_CONTIGUOUS)
    for flags in (driver.WRITABLE, driver.WRITABLE | driver.ND, driver.FULL):
        with pytest.raises(BufferError, match="read-only"):
            driver.ask(view, flags)
    with stage.map(name) as m:
        for flags in (driver.WRITABLE, driver.FULL):
            assert not driver.ask(m.view, flags)["readonly"]


@pytest.mark.parametrize("shape", [(), (4,), (1, 4), (4, 1), (1, 4, 1), (1, 1)], ids=str)
def test_one_long_dimension_is_column_major_too(
    stage: cb.Stage, name: str, driver: ModuleType, shape: tuple[int, ...]
) -> None:
    view = published(stage, name, np.zeros(shape))
    assert driver.ask(view, driver.F_CONTIGUOUS)["len"] == view.nbytes


def test_an_empty_view(stage: cb.Stage, name: str, driver: ModuleType) -> None:
    """behaviour 277, 29: never writable, and an address all the same"""
    with stage.query_from_path_list(["/a", "/b"]) as query:
        rows = [np.zeros((0, 3), np.float32), np.ones((2, 3), np.float32)]
        stage.write_attribute(query, name, rows, ordinal=1, is_array=True, dtype="float32x3").wait()
        seal(stage, 1, name)
        (group,) = stage.read_attributes(query, name)
        view, array_ = group.dlpack(0), group.array(0)
        told = driver.ask(view, driver.FULL_RO)
        assert (told["shape"], told["len"], told["format"], told["readonly"]) == ((0, 3), 0, "f", True)
        assert told["strides"] == (12, 4) and told["address"] != 0
        assert driver.ask(view, driver.F_CONTIGUOUS)["len"] == 0
        assert array_.shape == (0, 3) and array_.ctypes.data == told["address"]
        for refused in (lambda: array_.__setitem__(..., 1), lambda: setattr(array_.flags, "writeable", True)):
            with pytest.raises(ValueError):
                refused()
        assert np.from_dlpack(view).shape == (0, 3) and not np.from_dlpack(view).flags.writeable


def test_a_session_group_is_writable_unless_asked_otherwise(stage: cb.Stage, name: str, driver: ModuleType) -> None:
    """behaviour 280"""
    with stage.map(name, shape=(3,), dtype="f4") as m:
        for group in m:
            assert group.array(0).flags.writeable and not group.dlpack(0).readonly
            frozen = group.array(0, readonly=True)
            assert not frozen.flags.writeable and group.dlpack(0, readonly=True).readonly
            with pytest.raises(ValueError):
                frozen.flags.writeable = True
            with pytest.raises(BufferError):
                driver.ask(group.dlpack(0, readonly=True), driver.WRITABLE)
            group.array(0)[:] = 5
            assert (frozen == 5).all()  # one memory
            del frozen


def test_a_buffer_keeps_its_memory(stage: cb.Stage, name: str) -> None:
    """field report E3, E8"""
    memory = memoryview(published(stage, name, np.arange(1000)))
    for n in range(20):
        stage.publish(name, np.full(1000, -n))
        gc.collect()
    assert memory.tolist() == list(range(1000))


# ---- types that a buffer has no format for, and bytes as they are ------------------------------------


@pytest.mark.parametrize("dtype", OPAQUE)
def test_what_has_no_format_gives_its_bits(stage: cb.Stage, name: str, driver: ModuleType, dtype: str) -> None:
    """field report G10: a buffer that says 'H' would be taken for numbers"""
    bits = np.array([[1, 2, 3], [0, 0x7F, 0xFF]], "u2" if dtype == "bfloat16" else "u1")
    view = published(stage, name, bits, dtype=dtype)
    assert view.dtype == cb.dtype(dtype)
    for flags in (driver.FULL_RO, driver.FORMAT, driver.STRIDES | driver.FORMAT):
        with pytest.raises(BufferError, match="bits"):
            driver.ask(view, flags)
    told = driver.ask(view, driver.STRIDES)
    assert (told["format"], told["shape"], told["itemsize"]) == (None, (2, 3), bits.itemsize)
    assert view.bits.dtype == cb.dtype(bits.dtype) and view.bits.readonly
    assert (view.bits.attribute, view.bits.ordinal, view.bits.epoch) == (view.attribute, view.ordinal, view.epoch)
    memory = memoryview(view.bits)
    assert memory.tolist() == bits.tolist() and driver.ask(view.bits, driver.FULL_RO)["address"] == told["address"]


def test_the_bits_of_ordinary_types(stage: cb.Stage, name: str) -> None:
    view = published(stage, name, np.array([1.0, -2.0]))
    assert np.asarray(view.bits).tolist() == [0x3FF0000000000000, 0xC000000000000000]
    with stage.map(name) as m:
        assert not m.view.bits.readonly
        np.asarray(m.view.bits)[...] = 0
    assert np.asarray(stage.latest(name)).tolist() == [0, 0]
    with pytest.raises(cb.NotSupported, match="128 bits"):
        published(stage, name + "/z", np.zeros(2, complex)).bits  # noqa: B018


def test_a_bool_is_0_or_1(stage: cb.Stage, name: str) -> None:
    """field report G9: what is written is looked at; what is filled in place is not, and shows its bytes"""
    lies = np.array([0, 1, 2], np.uint8).view(bool)
    with stage.query_from_path_list(["/a", "/b", "/c"]) as query:
        for write in (
            lambda: stage.publish(name, lies),
            lambda: stage.publish(name, lies[::-1]),
            lambda: stage.publish(name, lies[2:].reshape(())),
            lambda: stage.write_attribute(query, name, lies, ordinal=1),
            lambda: stage.write_attributes(query, {name: lies}, ordinal=1),
            lambda: stage.write_attribute(query, name, [lies[:1], lies[:2], lies], ordinal=1, is_array=True),
        ):
            with pytest.raises(cb.InvalidArgument, match="bool.*uint8"):
                write()
    stage.publish(name, lies[:2])
    stage.publish(name + "/bytes", lies.view(np.uint8))
    with stage.map(name) as m:
        np.asarray(m.view.bits)[:] = [2, 0]
    assert np.asarray(stage.latest(name).bits).tolist() == [2, 0]


# ---- in -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size", "dtype"),
    [
        *((order + FORMATS[name], np.dtype(name).itemsize, name) for name in FORMATS for order in ("", "@", "=", "<")),
        ("l", 8, "int64"), ("<l", 4, "int32"), ("L", 8, "uint64"), ("=L", 4, "uint32"), ("n", 8, "int64"),
        ("N", 8, "uint64"), ("c", 1, "uint8"), ("", 1, "uint8"), (">b", 1, "int8"), ("!?", 1, "bool"),
        ("F", 8, "complex64"), ("D", 16, "complex128"), ("^f", 4, "float32"),
    ],
)  # fmt: skip
def test_every_format_of_native_order_is_known(
    stage: cb.Stage, name: str, driver: ModuleType, text: str, size: int, dtype: str
) -> None:
    exporter = driver.Exporter(bytes(2 * size), text, size, (2,), (size,), 0, False)
    view = published(stage, name, exporter)
    assert (view.dtype.name, view.shape) == (dtype, (2,))
    assert exporter.lent == 0


@pytest.mark.parametrize(
    ("text", "size", "why"),
    [
        (">f", 4, "big-endian"),
        ("!i", 4, "big-endian"),
        (">Zf", 8, "big-endian"),
        ("xf", 5, "format 'xf'"),
        ("fx", 8, "format 'fx'"),
        ("ff", 8, "format 'ff'"),
        ("2f", 8, "format '2f'"),
        ("T{f:x:}", 4, "format 'T{f:x:}'"),
        ("f", 8, "format 'f'"),  # a letter that lies about its size
        ("d", 4, "format 'd'"),
        ("i", 8, "format 'i'"),
        ("g", 16, "format 'g'"),
        ("Zg", 32, "format 'Zg'"),
        ("Z", 8, "format 'Z'"),
        ("O", 8, "format 'O'"),
        ("P", 8, "format 'P'"),
        ("s", 1, "format 's'"),
        ("w", 4, "format 'w'"),
        ("&f", 8, "format '&f'"),
        ("<", 1, "format '<'"),
        ("B", 0, "format 'B'"),
    ],
)
def test_what_has_no_type_here_is_refused(
    stage: cb.Stage, name: str, driver: ModuleType, text: str, size: int, why: str
) -> None:
    """field report G19; padding and records, and exporters that contradict themselves"""
    exporter = driver.Exporter(bytes(64), text, size, (2,), (size,), 0, False)
    with pytest.raises(ValueError, match=why):
        stage.publish(name, exporter)
    assert exporter.lent == 0


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "expected"),
    [
        ((2, 3), (6, 2), 0, [[0, 1, 2], [3, 4, 5]]),
        ((2, 3), (2, 4), 0, [[0, 2, 4], [1, 3, 5]]),  # column-major
        ((3,), (-2,), 4, [2, 1, 0]),
        ((2, 3), (-6, -2), 10, [[5, 4, 3], [2, 1, 0]]),
        ((2, 3), (0, 2), 0, [[0, 1, 2], [0, 1, 2]]),
        ((3,), (3,), 0, [0, 0x200, 3]),  # not whole elements
        ((1, 2), (1000, 2), 0, [[0, 1]]),  # of one row, the stride is never used
        ((1, 3), (-7, 2), 0, [[0, 1, 2]]),
        ((), (), 2, 1),
    ],
)
def test_any_strides_are_gathered(
    stage: cb.Stage, name: str, driver: ModuleType, shape: Any, strides: Any, offset: int, expected: Any
) -> None:
    """behaviour 11; field report G8: of any alignment"""
    for shift in (0, 1):
        memory = bytes(shift) + np.arange(16, dtype=np.uint16).tobytes()
        exporter = driver.Exporter(memory, "H", 2, shape, strides, offset + shift, False)
        stage.publish(f"{name}/{shift}", exporter)
        np.testing.assert_array_equal(stage.latest(f"{name}/{shift}"), expected)
        assert exporter.lent == 0


@pytest.mark.parametrize("options", [{}, {"dtype": "uint16x3"}])
def test_rows_behind_pointers_are_gathered(
    stage: cb.Stage, name: str, driver: ModuleType, options: dict[str, str]
) -> None:
    """Suboffsets: the rows lie anywhere, here in the other order"""
    exporter = driver.Exporter(np.arange(6, dtype=np.uint16).tobytes(), "H", 2, (2, 3), (8, 2), 0, True)
    with stage.query_from_path_list(["/a", "/b"]) as query:
        stage.write_attribute(query, name, exporter, ordinal=1, **options).wait()
        seal(stage, 1, name)
        (group,) = stage.read_attributes(query, name)
        assert group.array(0).tolist() == [[3, 4, 5], [0, 1, 2]]
    assert exporter.lent == 0


def test_an_exporter_without_strides_is_row_major(stage: cb.Stage, name: str, driver: ModuleType) -> None:
    """As ctypes is, whatever it is asked for; without a shape it is nothing"""
    memory = np.arange(4, dtype=np.uint16).tobytes()
    stage.publish(name, driver.Exporter(memory, "H", 2, (2, 2), None, 0, False))
    assert np.asarray(stage.latest(name)).tolist() == [[0, 1], [2, 3]]
    exporter = driver.Exporter(memory, "H", 2, (2, 2), False, 0, False)
    with pytest.raises(BufferError, match="no shape"):
        stage.publish(name, exporter)
    assert exporter.lent == 0


def test_buffers_of_the_standard_library(stage: cb.Stage, name: str) -> None:
    with mmap.mmap(-1, 4096) as pages:
        pages[:3] = b"abc"
        for n, (buffer, dtype, expected) in enumerate(
            [
                (bytearray(b"abc"), "uint8", [97, 98, 99]),
                (array.array("f", [1, 2]), "float32", [1, 2]),
                (array.array("l", [1, -2]), "int64", [1, -2]),
                ((ctypes.c_int * 3 * 2)((1, 2, 3), (4, 5, 6)), "int32", [[1, 2, 3], [4, 5, 6]]),
                ((ctypes.c_long * 2)(1, 2), "int64", [1, 2]),
                ((ctypes.c_bool * 2)(True, False), "bool", [1, 0]),
                (ctypes.c_double(2.5), "float64", 2.5),
                (memoryview(b"abcdef")[::-2], "uint8", [102, 100, 98]),
                (memoryview(bytes(range(8))).cast("H", (2, 2)), "uint16", [[0x100, 0x302], [0x504, 0x706]]),
            ]
        ):
            view = published(stage, f"{name}/{n}", buffer)
            assert view.dtype.name == dtype
            np.testing.assert_array_equal(view, expected)
        assert np.asarray(published(stage, f"{name}/pages", pages))[:4].tolist() == [97, 98, 99, 0]


def test_what_a_buffer_cannot_say(stage: cb.Stage, name: str, driver: ModuleType) -> None:
    """DLPack says it, as of JAX's bfloat16 and arrays on a GPU; without, the dtype says why, or its own error"""
    view = published(stage, name, np.array([0x3F80, 0x4000], np.uint16), dtype="bfloat16")
    device = view.__dlpack_device__()

    class Refuses(driver.Exporter):
        dtype: Any = np.dtype(np.float32)

    class Jax(Refuses):
        dtype = np.dtype(ml_dtypes.bfloat16)

        def __dlpack_device__(self) -> tuple[int, int]:
            return device

        def __dlpack__(self, **options: Any) -> object:
            return view.__dlpack__(**options)

    given = [kind(b"", "none", 2, (0,), (2,), 0, False) for kind in (Jax, Refuses)]
    assert published(stage, name + "/in", given[0]).bits[1] == 0x4000 and given[0].lent == 0
    device = (2, 1)
    for dtype in (Jax.dtype, np.dtype("f4")):
        Jax.dtype = dtype
        with pytest.raises(cb.NotSupported, match="driver of CUDA"):
            stage.publish(name, given[0])
    with pytest.raises(BufferError, match="there is no format"):
        stage.publish(name, given[1])
    Refuses.dtype = np.dtype("M8[s]")
    with pytest.raises(ValueError, match="datetime64"):
        stage.publish(name, given[1])


def test_a_buffer_of_an_unknown_format_comes_by_dlpack(stage: cb.Stage, name: str) -> None:
    """As of TensorFlow's tensors of bfloat16, which are asked for what they lack in Python. Else the format is named"""
    asked = []

    class Tensor(ctypes.c_wchar * 3):
        def __getattr__(self, attribute: str) -> object:
            asked.append(attribute)
            raise AttributeError(attribute)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **options: Any) -> object:
            if self[0] == "?":
                raise ZeroDivisionError
            return np.arange(3.0).__dlpack__(**options)

    assert published(stage, name, Tensor(*"abc"))[2] == 2
    with pytest.raises(ValueError, match="format '<u'"):
        stage.publish(name, Tensor(*"?bc"))
    assert asked


def test_an_exporter_that_refuses_is_heard(stage: cb.Stage, name: str) -> None:
    """field report G16"""
    memory = memoryview(bytearray(3))
    memory.release()
    with pytest.raises(ValueError, match="released"):
        stage.publish(name, memory)

    class BigEndian(ctypes.BigEndianStructure):
        _fields_ = [("x", ctypes.c_int)]

    with pytest.raises(ValueError, match="format"):
        stage.publish(name, BigEndian(1))
    with pytest.raises(ValueError, match="big-endian"):
        stage.publish(name, (ctypes.c_int.__ctype_be__ * 2)(1, 2))
