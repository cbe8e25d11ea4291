"""bfloat16 and float8 (field report G10): ml_dtypes' arrays where that package is installed, else their bits."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import callboard as cb
import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from conftest import Broker, seal

TYPES = [
    "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip

WITHOUT_ML_DTYPES = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "ml_dtypes":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
"""


def values_of(dtype: str, shape: tuple[int, ...] = (2, 3)) -> np.ndarray:
    scalar = getattr(ml_dtypes, dtype)
    return np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(scalar)


def bits(array: Any) -> list[Any]:
    return np.asarray(array).view(f"u{array.itemsize}").tolist()


@pytest.mark.parametrize("dtype", TYPES)
def test_every_spelling_is_one_type(dtype: str) -> None:
    """behaviour 40"""
    scalar = getattr(ml_dtypes, dtype)
    for spelling in (dtype, scalar, np.dtype(scalar), cb.dtype(dtype)):
        assert cb.dtype(spelling).name == dtype
    assert cb.dtype(dtype).numpy == np.dtype(scalar)
    assert cb.dtype(scalar, 3) == cb.dtype(dtype + "x3")


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float4_e2m1fn", "float6_e2m3fn"])
def test_types_below_8_bits_are_none(stage: cb.Stage, name: str, dtype: str) -> None:
    with pytest.raises(ValueError, match="no element type"):
        cb.dtype(getattr(ml_dtypes, dtype))
    with pytest.raises(ValueError, match=dtype):
        stage.publish(name, np.zeros(3, getattr(ml_dtypes, dtype)))


@pytest.mark.parametrize("dtype", TYPES)
def test_arrays_go_in_and_come_out_as_they_are(stage: cb.Stage, name: str, dtype: str) -> None:
    values = values_of(dtype)
    stage.publish(name, values)
    view = stage.latest(name)
    assert view.dtype == cb.dtype(dtype)
    for array in (np.asarray(view), view.numpy(), view.__array__(), np.array(view), np.asarray(view, copy=True)):
        assert array.dtype == values.dtype and bits(array) == bits(values)
    assert np.asarray(view).ctypes.data == np.asarray(view.bits).ctypes.data  # no copy
    assert not np.asarray(view).flags.writeable and np.array(view).flags.writeable
    with pytest.raises(ValueError):
        np.asarray(view).flags.writeable = True
    assert np.asarray(view, np.float32).tolist() == values.astype(np.float32).tolist()
    assert view[1, 2] == values[1, 2] and bits(view[0]) == bits(values[0])
    stage.publish(name, view)
    assert stage.latest(name).ordinal == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_groups_and_sessions(stage: cb.Stage, name: str, dtype: str) -> None:
    values = values_of(dtype)
    with stage.query_from_path_list(["/a", "/b"]) as query:
        stage.write_attribute(query, name, values, ordinal=1).wait()
        seal(stage, 1, name)
        (group,) = stage.read_attributes(query, name)
        assert group.dtype == cb.dtype(dtype, 3)
        assert group.array(0).dtype == values.dtype and bits(group.array(0)) == bits(values)
        assert bits(group.array(0, flat=True)) == bits(values.ravel())
        with stage.map_attribute(query, name, dtype=f"{dtype}x3", ordinal=2) as session:
            for part in session:
                part.array(0)[:] = values + values
        seal(stage, 2, name)
        (group,) = stage.read_attributes(query, name)
        assert bits(group.array(0)) == bits(values + values)
        rows = [values[0, :1], values[0]]
        stage.write_attribute(query, name + "/r", rows, ordinal=1, is_array=True).wait()
        seal(stage, 1, name + "/r")
        (group,) = stage.read_attributes(query, name + "/r")
        assert [bits(group.array(i)) for i in range(2)] == [bits(row) for row in rows]


def test_strided_scalar_and_listed(stage: cb.Stage, name: str) -> None:
    """behaviour 11"""
    values = values_of("bfloat16", (4, 6))
    one = ml_dtypes.bfloat16(1.5)
    for n, (given, expected) in enumerate(
        [
            (values[::-2, ::3], values[::-2, ::3]),
            (values.T, values.T),
            (np.broadcast_to(one, (2, 2)), np.full((2, 2), one)),
            (one, np.array(one)),
            ([one, one], np.array([one, one])),
        ]
    ):
        stage.publish(f"{name}/{n}", given)
        view = stage.latest(f"{name}/{n}")
        assert view.dtype.name == "bfloat16" and bits(view) == bits(expected)
    assert stage.latest(f"{name}/3").item() == 1.5 and float(stage.latest(f"{name}/3")) == 1.5
    with pytest.raises(ValueError, match="dtype"):
        stage.publish(name, values, dtype="uint16")
    with pytest.raises(ValueError, match="nothing is converted"):
        stage.publish(name, values.astype(np.float32), dtype="bfloat16")


def test_by_dlpack(stage: cb.Stage, name: str) -> None:
    """The code travels; NumPy alone has no such type to take it as."""
    values = values_of("bfloat16")
    stage.publish(name, values)
    view = stage.latest(name)
    tensor = tvm_ffi.from_dlpack(view)
    assert str(tensor.dtype) == "bfloat16"

    class Wrapped:  # nothing but the protocol
        def __dlpack_device__(self) -> tuple[int, int]:
            return tensor.__dlpack_device__()

        def __dlpack__(self, **options: Any) -> object:
            return tensor.__dlpack__(**options)

    stage.publish(name + "/back", Wrapped())
    assert bits(stage.latest(name + "/back")) == bits(values)
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(view)


def test_without_ml_dtypes_there_are_bits(broker: Broker, name: str) -> None:
    program = (
        WITHOUT_ML_DTYPES
        + f"""
import numpy as np
import callboard as cb
assert cb.dtype("bfloat16").numpy == np.dtype("uint16") and cb.dtype("float8_e5m2x4").numpy == np.dtype("uint8")
with cb.connect() as stage:
    stage.publish({name!r}, np.array([0x3F80, 0x4000], np.uint16), dtype="bfloat16")
    view = stage.latest({name!r})
    array = np.asarray(view)
    assert array.dtype == np.uint16 and array.tolist() == [0x3F80, 0x4000] and not array.flags.writeable
    assert array.ctypes.data == np.asarray(view.bits).ctypes.data
    assert view.numpy().dtype == np.uint16 and view[1] == 0x4000
    stage.publish({name!r}, view)  # a view knows its type
    with stage.map({name!r}) as m:
        m.array[:] = [1, 2]
    assert stage.latest({name!r}).dtype.name == "bfloat16" and list(stage.latest({name!r})) == [1, 2]
    try:
        stage.publish({name!r}, array)
    except cb.InvalidArgument as error:
        print(error)
"""
    )
    done = broker.python(program)
    assert (done.returncode, done.stderr) == (0, "") and "bfloat16" in done.stdout


def test_without_numpy_there_are_bits(broker: Broker, name: str) -> None:
    program = (
        WITHOUT_ML_DTYPES.replace('"ml_dtypes"', '"numpy"')
        + f"""
import array
import callboard as cb
with cb.connect() as stage:
    stage.publish({name!r}, array.array("H", [0x3F80, 0x4000]), dtype="bfloat16")
    view = stage.latest({name!r})
    assert list(view) == [0x3F80, 0x4000] and view[1] == 0x4000 and memoryview(view.bits).tolist() == list(view)
    with stage.map({name!r}) as m:
        m.array[0] = 5
    assert stage.latest({name!r})[0] == 5
    stage.publish({name!r} + "/one", array.array("H", [7]), dtype="bfloat16")
    assert stage.latest({name!r} + "/one").item() == 7
"""
    )
    done = broker.python(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_neither_is_imported_by_the_import() -> None:
    program = "import callboard, sys; sys.exit('numpy' in sys.modules or 'ml_dtypes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
