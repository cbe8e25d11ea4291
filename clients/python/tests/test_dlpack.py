"""DLPack in: whatever a capsule says is checked before it is followed, and given back whatever happens."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any

import callboard as cb
import numpy as np
import pytest
from conftest import Broker, capsule_pointer, seal
from dlpack_structs import LEGACY, VERSIONED, Tensor, Versioned


def set_extents(tensor: Any, field: str, *values: int) -> None:
    """The producer's own may lie anywhere, and NumPy before 2.3 has no strides for what is row-major."""
    numbers = (ctypes.c_int64 * len(values))(*values)
    KEPT.append(numbers)
    setattr(tensor, field, numbers)


KEPT: list[Any] = []


class Producer:
    """NumPy's capsule of an array, changed before it is handed out."""

    def __init__(self, array: np.ndarray, change: Callable[[Any], None] = lambda _: None, legacy: bool = False) -> None:
        self.array, self.change, self.legacy = array, change, legacy

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **_: object) -> object:
        if self.legacy:
            capsule = self.array.__dlpack__()
            self.change(Tensor.from_address(capsule_pointer(capsule, LEGACY)))
        else:
            capsule = self.array.__dlpack__(max_version=(1, 0))
            managed = Versioned.from_address(capsule_pointer(capsule, VERSIONED))
            self.change(managed.tensor)
        return capsule


def setting(**fields: Any) -> Callable[[Any], None]:
    def change(tensor: Any) -> None:
        for field, value in fields.items():
            setattr(tensor, field, value)

    return change


@pytest.fixture(params=[True, False], ids=["legacy", "versioned"])
def legacy(request: pytest.FixtureRequest) -> bool:
    return request.param


def test_absent_strides_are_row_major(stage: cb.Stage, name: str, legacy: bool) -> None:
    """field report G1: as producers before DLPack 1.2 may leave them"""
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    stage.publish(name, Producer(values, setting(strides=None), legacy))
    np.testing.assert_array_equal(stage.latest(name), values)
    with stage.query_from_path_list(["/a", "/b"]) as query:
        producer = Producer(values, setting(strides=None), legacy)
        stage.write_attribute(query, name + "/lanes", producer, ordinal=1, dtype="int32x3").wait()
        seal(stage, 1, name + "/lanes")
        (group,) = stage.read_attributes(query, name + "/lanes")
        np.testing.assert_array_equal(group.array(0), values)


def test_a_value_without_dimensions(stage: cb.Stage, name: str, legacy: bool) -> None:
    """field report G3: shape and strides are not looked at"""
    stage.publish(name, Producer(np.array(2.5), setting(shape=None, strides=None), legacy))
    view = stage.latest(name)
    assert view.shape == () and np.from_dlpack(view) == 2.5 and np.asarray(view).shape == ()
    described = Versioned.from_address(capsule_pointer(kept := view.__dlpack__(max_version=(1, 0)), VERSIONED)).tensor
    assert described.ndim == 0 and not described.shape and not described.strides
    del kept


@pytest.mark.parametrize("shape", [(3, 1), (1, 3), (1, 1), (1, 3, 1)], ids=str)
def test_strides_of_size_1_do_not_matter(stage: cb.Stage, name: str, legacy: bool, shape: tuple[int, ...]) -> None:
    """field report G4: in, any; out, canonical ones"""

    def change(tensor: Any) -> None:
        set_extents(tensor, "strides", *(12345 if extent == 1 else 1 for extent in shape))

    values = np.arange(float(np.prod(shape))).reshape(shape)
    stage.publish(name, Producer(values, change, legacy))
    view = stage.latest(name)
    np.testing.assert_array_equal(view, values)
    described = Versioned.from_address(capsule_pointer(kept := view.__dlpack__(max_version=(1, 0)), VERSIONED)).tensor
    assert described.strides[: len(shape)] == [stride // 8 for stride in np.empty(shape).strides]
    del kept


def test_any_alignment_and_offset(stage: cb.Stage, name: str, legacy: bool) -> None:
    """field report G8: each column starts on 256 bytes, and nobody else's has to"""
    values = np.frombuffer(b"-" + np.arange(4.0).tobytes(), np.float64, offset=1)

    def change(tensor: Any) -> None:
        tensor.data -= 24
        tensor.byte_offset = 24

    if not legacy:  # NumPy keeps read-only arrays from the old form
        stage.publish(name, Producer(values, change, legacy))
    stage.publish(name, Producer(np.array(values), change, legacy))
    stage.publish(name, values)
    view = stage.latest(name)
    np.testing.assert_array_equal(view, values)
    with stage.query_from_path_list(["/a"]) as query:
        stage.write_attribute(query, name + "/c", values[:1], ordinal=1).wait()
        seal(stage, 1, name + "/c")
        (group,) = stage.read_attributes(query, name + "/c")
        assert group.array(0).ctypes.data % 256 == 0


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"ndim": -1}, cb.InvalidArgument, "ndim -1"),
        ({"ndim": 65}, cb.InvalidArgument, "ndim 65"),
        ({"shape": None}, cb.InvalidArgument, "shape NULL"),
        ({"lanes": 0}, cb.InvalidArgument, "lanes is 0"),
        ({"lanes": 256}, cb.InvalidArgument, "lanes is 256"),
        ({"code": 3}, cb.InvalidArgument, "code 3"),
        ({"code": 99}, cb.InvalidArgument, "code 99"),
        ({"bits": 24}, cb.InvalidArgument, "24 bits"),
        ({"code": 17, "bits": 4}, cb.NotSupported, "below 8 bits"),
        ({"device_type": 2}, cb.NotSupported, "driver of CUDA"),
        ({"device_type": 13}, cb.NotSupported, "driver of CUDA"),
        ({"device_type": 10}, cb.NotSupported, "device"),
        ({"device_type": 1, "device_id": 1}, cb.InvalidArgument, r"device \(1, 1\)"),
        ({"device_type": 0}, cb.InvalidArgument, r"device \(0, 0\)"),
        ({"byte_offset": 2**64 - 1}, cb.InvalidArgument, "beyond the address space"),
        ({"data": None}, cb.InvalidArgument, "no data"),
    ],
)
def test_what_a_capsule_cannot_be(
    stage: cb.Stage, name: str, legacy: bool, fields: dict[str, Any], error: type[Exception], text: str
) -> None:
    """field report G16, G18; behaviour 297: refused in words, and the producer has its tensor back"""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    references = sys.getrefcount(values)
    with stage.query_from_path_list(["/a", "/b"]) as query:
        for options in ({}, {"is_array": True, "dtype": "float32x3"}):
            producer = Producer(values, setting(**fields), legacy)
            with pytest.raises(error, match=text):
                stage.write_attribute(query, name, producer, ordinal=1, **options)
            del producer
            gc.collect()
            assert sys.getrefcount(values) == references


@pytest.mark.parametrize("extent", [-1, -(2**63), 2**62, 2**63 - 1])
def test_extents_that_no_memory_has(stage: cb.Stage, name: str, legacy: bool, extent: int) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    references = sys.getrefcount(values)

    def change(tensor: Any) -> None:
        tensor.shape[0] = extent

    def gather(tensor: Any) -> None:
        tensor.shape[0] = extent
        set_extents(tensor, "strides", 0, -1)  # nothing but the number of bytes is too large

    with stage.query_from_path_list(["/a", "/b"]) as query:
        for how in (change, gather):
            for options in ({}, {"is_array": True}, {"is_array": True, "dtype": "float32x3"}):
                with pytest.raises((cb.InvalidArgument, ValueError)):
                    stage.write_attribute(query, name, Producer(values, how, legacy), ordinal=1, **options)
                gc.collect()
                assert sys.getrefcount(values) == references


def test_255_lanes_and_no_more(stage: cb.Stage, name: str, legacy: bool) -> None:
    """behaviour 297"""
    values = np.arange(512, dtype=np.uint8)
    lanes = 255

    def change(tensor: Any) -> None:
        tensor.lanes = lanes
        set_extents(tensor, "shape", 2)
        set_extents(tensor, "strides", 1)

    with stage.query_from_path_list(["/a", "/b"]) as query:
        stage.write_attribute(query, name, Producer(values, change, legacy), ordinal=1).wait()
        seal(stage, 1, name)
        (group,) = stage.read_attributes(query, name)
        assert group.dtype == cb.dtype("uint8x255")
        np.testing.assert_array_equal(group.array(0), values[:510].reshape(2, 255))
        lanes = 256
        with pytest.raises(ValueError, match="lanes"):
            stage.write_attribute(query, name, Producer(values, change, legacy), ordinal=2)


def test_a_capsule_of_another_major_version(stage: cb.Stage, name: str) -> None:
    """Nothing of it is read but the deleter, which is called."""
    values = np.arange(3.0)
    references = sys.getrefcount(values)

    class Newer(Producer):
        def __dlpack__(self, **_: object) -> object:
            capsule = self.array.__dlpack__(max_version=(1, 0))
            Versioned.from_address(capsule_pointer(capsule, VERSIONED)).major = 2
            return capsule

    with pytest.raises(BufferError, match=r"DLPack 2\.\d, expected 1\.x"):
        stage.publish(name, Newer(values))
    gc.collect()
    assert sys.getrefcount(values) == references


def test_what_is_no_capsule(stage: cb.Stage, name: str) -> None:
    """field report G16, G21: and the producer's own error comes through"""
    values = np.arange(3.0)
    taken = values.__dlpack__(max_version=(1, 0))
    stage.publish(name, type("Once", (Producer,), {"__dlpack__": lambda *_, **__: taken})(values))
    for given in (taken, None, 5, values):
        producer = type("Gives", (Producer,), {"__dlpack__": lambda *_, given=given, **__: given})(values)
        with pytest.raises(BufferError, match="no tensor"):
            stage.publish(name, producer)
    for raised in (BufferError("not today"), ZeroDivisionError("by zero"), KeyboardInterrupt()):

        def fail(*_: object, raised: BaseException = raised, **__: object) -> None:
            raise raised

        for method in ("__dlpack__", "__dlpack_device__"):
            with pytest.raises(type(raised)):
                stage.publish(name, type("Fails", (Producer,), {method: fail})(values))


def test_masked_elements_are_refused(stage: cb.Stage, name: str) -> None:
    """numpy.ma: what lies under a mask is no value. Without any masked element it is an array like others."""
    values = np.arange(4.0)
    for given in (np.ma.masked_array(values, mask=[0, 1, 0, 0]), np.ma.masked_greater(values, 1)):
        with pytest.raises(cb.InvalidArgument, match=r"masked elements.*\.filled\(\), .*mask="):
            stage.publish(name, given)
        with stage.query_from_path_list(["/a"]) as query, pytest.raises(cb.InvalidArgument, match="masked"):
            stage.write_attribute(query, name, [given], ordinal=1, is_array=True)
    for given in (np.ma.masked_array(values), np.ma.masked_array(values, mask=[0, 0, 0, 0])):
        stage.publish(name, given)
        np.testing.assert_array_equal(stage.latest(name), values)


@pytest.mark.parametrize(
    ("device", "error", "text"),
    [
        *(
            (odd, TypeError, "tuple of two integers")
            for odd in (None, "cpu", [1, 0], (1,), (1, 0, 0), (1, None), (2**64, 0))
        ),
        ((2**32 + 1, 0), cb.NotSupported, r"device \(4294967297, 0\)"),
        ((1, 2**32), cb.InvalidArgument, "CPU device 4294967296"),
        ((1, -1), cb.InvalidArgument, "CPU device -1"),
    ],
)
def test_what_a_device_cannot_be(stage: cb.Stage, name: str, device: object, error: type[Exception], text: str) -> None:
    """behaviour 297: none is cut down to one that there is"""
    producer = type("Odd", (Producer,), {"__dlpack_device__": lambda _: device})(np.arange(3.0))
    with pytest.raises(error, match=text):
        stage.publish(name, producer)


def test_a_legacy_producer_is_asked_once_more_without_arguments(stage: cb.Stage, name: str) -> None:
    """behaviour 291: and its own TypeError is not mistaken for the lack of an argument"""
    asked = []

    class Old(Producer):
        def __dlpack__(self, stream: object = None) -> object:  # type: ignore[override]
            asked.append(stream)
            return self.array.__dlpack__()

    stage.publish(name, Old(np.arange(3.0)))
    assert asked == [None] and np.asarray(stage.latest(name)).tolist() == [0, 1, 2]


def test_torch_is_asked_for_and_missing(broker: Broker, name: str) -> None:
    """field report G12: the private copy is the default; without PyTorch the error says what is missing"""
    program = f"""
import sys
import callboard as cb
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
with cb.connect() as stage:
    stage.publish({name!r}, b"abc")
    try:
        stage.latest({name!r}).torch()
    except ImportError as error:
        print(error)
"""
    done = broker.python(program)
    assert (done.returncode, done.stderr) == (0, "") and "torch" in done.stdout
