"""DLPack's table of C functions, __dlpack_c_exchange_api__: out to consumers that know it, in from those that do."""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import Any

import callboard as cb
import numpy as np
import pytest
import tvm_ffi
from conftest import pinned
from tvm_ffi.core import DLTensorTestWrapper

GOOD, RAISES, GIVES_NOTHING = range(3)


@pytest.fixture
def driver(exchange_driver: ModuleType) -> ModuleType:
    return exchange_driver


def address(view: cb.View) -> int:
    return np.asarray(view).ctypes.data


# ---- out -----------------------------------------------------------------------------------


def test_the_type_offers_the_table(driver: ModuleType) -> None:
    """Every function that must be there is. `dltensor_from_py_object_no_sync` may be absent and is: what it gives
    cannot say that it is read-only (behaviour 282)."""
    assert driver.table(cb.View) == (1, 3, False, (True, True, True, False, True))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 1), (2, 3, 4)])
def test_a_read_view_goes_out_shared_and_marked_read_only(
    stage: cb.Stage, name: str, driver: ModuleType, shape: tuple[int, ...]
) -> None:
    """field report G1, G2, G3, G11, G22"""
    values = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    with stage.query_from_path_list(["/a"]) as query:
        if shape == (0,):  # rows of fixed kind have bytes; one of an array attribute may have none
            stage.write_attribute(query, name, [values], ordinal=1, is_array=True).wait()
            stage.advance_write_floor(1, scope=cb.Scope.INCLUDE, attributes=[name]).wait()
            (group,) = stage.read_attributes(query, name)
            view = group.dlpack(0)
        else:
            stage.publish(name, values)
            view = stage.latest(name)
    before = sys.getrefcount(view), pinned(stage)
    for _ in range(3):
        told = driver.look(view, cb.View)
        assert (told["flags"], told["device"], told["dtype"], told["offset"]) == (1, (1, 0), (0, 16, 1), 0)
        assert told["version"][0] == 1
        assert told["address"] == address(view) or not values.size
        if shape == ():
            assert (told["shape"], told["strides"]) == (None, None)
        else:
            assert told["shape"] == shape
            assert told["strides"] == tuple(stride // 2 for stride in view.strides)
    assert (sys.getrefcount(view), pinned(stage)) == before


def test_a_map_view_goes_out_writable(stage: cb.Stage, name: str, driver: ModuleType) -> None:
    """behaviour 280"""
    with stage.map(name, shape=(4,), dtype="u1") as m:
        assert driver.look(m.view, cb.View)["flags"] == 0
        for group in m:
            assert driver.look(group.dlpack(0, readonly=True), cb.View)["flags"] == 1


def test_the_table_of_a_view_knows_only_views(driver: ModuleType) -> None:
    for other in (None, np.zeros(3), 5):
        with pytest.raises(TypeError, match="callboard.View"):
            driver.look(other, cb.View)


def test_a_consumer_that_knows_the_table_uses_it(stage: cb.Stage, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """tvm-ffi, a real one. By __dlpack__() without a version, which it falls back to, read-only data is refused."""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    stage.publish(name, values)
    view = stage.latest(name)
    with pytest.raises(BufferError):
        view.__dlpack__()
    before = pinned(stage)
    tensor = tvm_ffi.from_dlpack(view)
    assert (tuple(tensor.shape), str(tensor.dtype)) == ((2, 3), "float32")
    del view
    gc.collect()
    assert pinned(stage) == before  # the tensor has it
    np.testing.assert_array_equal(np.from_dlpack(tensor), values)
    del tensor
    assert pinned(stage) < before or before == 0

    echo = tvm_ffi.get_global_func("testing.echo")
    with stage.map(name) as m:
        out = echo(m.view)  # an argument goes out by the table, the result comes back by it
        assert type(out) is cb.View and not out.readonly and address(out) == address(m.view)
        out[0, 0] = 7
        del out
    assert stage.latest(name)[0, 0] == 7
    gone = echo(stage.latest(name))
    gc.collect()
    np.testing.assert_array_equal(gone, stage.latest(name))


# ---- what consumers make: tensors that become views -------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        ((2, 32, 1), (2, 3), (2, 3)),
        ((1, 8, 4), (5,), (5, 4)),  # lanes are the last dimension
        ((4, 16, 1), (), ()),
        ((5, 128, 1), (0, 3), (0, 3)),
        ((6, 8, 1), (1, 1, 1, 1, 1, 1, 1, 2), (1, 1, 1, 1, 1, 1, 1, 2)),
    ],
)
def test_a_consumer_allocates_a_tensor(
    driver: ModuleType, dtype: tuple[int, int, int], shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    view = driver.allocate(cb.View, dtype, shape, (1, 0))
    assert type(view) is cb.View and not view.readonly and view.attribute is None
    assert (view.shape, view.dtype) == (expected, cb.DType(dtype[0], dtype[1]))
    told = driver.look(view, cb.View)
    assert told["flags"] == 0 and told["address"] % 64 == 0
    array = np.from_dlpack(view) if dtype[0] != 4 else np.asarray(view)
    array[...] = 1
    again = np.from_dlpack(view) if dtype[0] != 4 else np.asarray(view)
    del view
    gc.collect()
    assert (again == 1).all()  # one memory, which either keeps


@pytest.mark.parametrize(
    ("dtype", "shape", "device", "error"),
    [
        ((2, 32, 1), (2,), (2, 0), "BufferError: .*device"),
        ((2, 32, 1), (2,), (1, 1), "BufferError: .*device"),
        ((2, 32, 1), (2,), (0, 0), "BufferError: .*device"),
        ((2, 33, 1), (2,), (1, 0), "BufferError: .*33 bits"),
        ((17, 4, 1), (2,), (1, 0), "BufferError: .*below 8 bits"),
        ((2, 32, 0), (2,), (1, 0), "BufferError: .*lanes"),
        ((2, 32, 256), (2,), (1, 0), "BufferError: .*lanes"),
        ((2, 32, 1), (-1,), (1, 0), "BufferError: .*negative"),
        ((2, 32, 1), (1 << 40, 1 << 40), (1, 0), "BufferError: .*bytes"),
        ((2, 32, 1), (1 << 58,), (1, 0), "MemoryError: .*bytes|BufferError: .*address space"),
    ],
)
def test_what_cannot_be_allocated_is_told(
    driver: ModuleType, dtype: tuple[int, int, int], shape: tuple[int, ...], device: tuple[int, int], error: str
) -> None:
    with pytest.raises(RuntimeError, match=f"^{error}"):
        driver.allocate(cb.View, dtype, shape, device)


def test_a_tensor_of_another_library_becomes_a_view(driver: ModuleType) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    view = driver.convert(DLTensorTestWrapper(tvm_ffi.from_dlpack(values)), cb.View)
    assert type(view) is cb.View and address(view) == values.ctypes.data and not view.readonly
    references = sys.getrefcount(values)
    del view
    assert sys.getrefcount(values) < references
    for refused, why in (
        (np.arange(6.0).reshape(2, 3).T, "row-major"),
        (np.zeros((1,) * 9), "9 dimensions"),
    ):
        references = sys.getrefcount(refused)
        with pytest.raises(BufferError, match=why):
            driver.convert(DLTensorTestWrapper(tvm_ffi.from_dlpack(refused)), cb.View)
        gc.collect()
        assert sys.getrefcount(refused) == references


def test_no_stream_is_before_a_view(driver: ModuleType) -> None:
    """Host memory has none, and on a GPU nothing of ours is queued: the default one will do (field report G17)"""
    assert driver.stream(cb.View, 1, 0) == driver.stream(cb.View, 2, 0) == 0
    with pytest.raises(BufferError, match="stream"):
        driver.stream(cb.View, 10, 0)


# ---- in ------------------------------------------------------------------------------------------


def producer(driver: ModuleType, **how: int) -> Any:
    """An object whose type has a table, and whose __dlpack__, if called, says so."""
    given = {"major": 1, "older": 0, "tensor_major": 1, "device": 1, "row_stride": 3, "mood": GOOD, "has": 1, **how}

    class Producer:
        __dlpack_c_exchange_api__ = driver.produce(*given.values())

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: object) -> object:
            return np.full(3, -1.0).__dlpack__(max_version=(1, 0))

    return Producer()


@pytest.mark.parametrize(
    "how",
    [{}, {"major": 2, "older": 1}, {"row_stride": -3}, {"row_stride": 0}, {"device": 3}],
    ids=["plain", "an older table behind a newer one", "backwards", "the same row twice", "pinned memory"],
)
def test_a_producers_table_is_used(stage: cb.Stage, name: str, driver: ModuleType, how: dict[str, int]) -> None:
    """behaviour 11, 291; field report G22"""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    stage.publish(name, producer(driver, **how))
    expected = {0: values[[0, 0]], -3: values[::-1]}.get(how.get("row_stride", 3), values)
    np.testing.assert_array_equal(stage.latest(name), expected)
    assert driver.alive() == 0


@pytest.mark.parametrize(
    "how",
    [{"major": 2}, {"major": 0, "older": 3}, {"has": 0}, {"device": 2}],
    ids=["newer", "none of ours", "without the function", "on a GPU"],
)
def test_a_table_of_another_version_is_left_for_the_protocol(
    stage: cb.Stage, name: str, driver: ModuleType, how: dict[str, int]
) -> None:
    stage.publish(name, producer(driver, **how))
    np.testing.assert_array_equal(stage.latest(name), [-1, -1, -1])


def test_what_a_table_gives_is_checked(stage: cb.Stage, name: str, driver: ModuleType) -> None:
    """field report G16, G21: and given back"""
    with stage.query_from_path_list(["/a", "/b"]) as query:
        for how, error, text in (
            ({"mood": RAISES}, BufferError, "the producer refuses"),
            ({"mood": GIVES_NOTHING}, BufferError, "neither a tensor nor an error"),
            ({"tensor_major": 2}, BufferError, "DLPack 2.0"),
        ):
            for kind in ({}, {"is_array": True, "dtype": "float32x3"}):
                with pytest.raises(error, match=text):
                    stage.write_attribute(query, name, producer(driver, **how), ordinal=1, **kind)
                assert driver.alive() == 0


def test_an_attribute_that_is_no_table_is_left_alone(stage: cb.Stage, name: str) -> None:
    class Producer:
        __dlpack_c_exchange_api__ = 5

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **options: object) -> object:
            return np.arange(3.0).__dlpack__(**options)

    stage.publish(name, Producer())
    np.testing.assert_array_equal(stage.latest(name), [0, 1, 2])


def test_tensors_of_a_real_producer(stage: cb.Stage, name: str) -> None:
    """tvm-ffi: strided too, and kept until the call returns"""
    values = np.arange(12, dtype=np.float64).reshape(3, 4)
    for n, array in enumerate((values, values[:, ::2], values.T)):
        stage.publish(f"{name}/{n}", DLTensorTestWrapper(tvm_ffi.from_dlpack(array)))
        np.testing.assert_array_equal(stage.latest(f"{name}/{n}"), array)
