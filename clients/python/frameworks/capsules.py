"""DLPack below Python's protocol: what a capsule says, and the table of C functions that a type may offer."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # last: conftest is this folder's own
from dlpack_structs import LEGACY, VERSIONED, Tensor, Versioned  # noqa: E402

TABLE = b"dlpack_exchange_api"
READ_ONLY, IS_COPIED = 1, 2


# int (*)(PyObject *, DLManagedTensorVersioned **) and int (*)(DLManagedTensorVersioned *, PyObject **); PYFUNCTYPE
# raises what they set.
FromObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
ToObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))


class Exchange(ctypes.Structure):
    """DLPackExchangeAPI of DLPack 1.3."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("before", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("from_object", FromObject),
        ("to_object", ToObject),
        ("tensor_from_object", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, Destructor)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_raw_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@Destructor
def _not_taken(capsule: int) -> None:
    """The capsule is being freed, so that it is an address here and not an object."""
    if _raw_valid(capsule, VERSIONED):
        managed = _raw_pointer(capsule, VERSIONED)
        Versioned.from_address(managed).deleter(managed)


class Producer:
    """An object with one capsule to give, whatever it is asked for."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule


def is_versioned(capsule: Any) -> bool:
    return bool(_valid(capsule, VERSIONED))


def tensor_of(capsule: Any) -> tuple[Tensor, int]:
    """What the capsule lends, and its flags; 0 for a legacy one. The capsule stays as it is."""
    if is_versioned(capsule):
        managed = Versioned.from_address(_pointer(capsule, VERSIONED))
        return managed.tensor, managed.flags
    return Tensor.from_address(_pointer(capsule, LEGACY)), 0


def exchange_of(kind: type) -> Exchange | None:
    """The type's table of C functions, where it has one."""
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    return None if capsule is None else Exchange.from_address(_pointer(capsule, TABLE))


def managed_by_exchange(table: Exchange, array: Any) -> int:
    """The address of a DLManagedTensorVersioned, which the caller owns."""
    managed = ctypes.c_void_p()
    if table.from_object(array, ctypes.byref(managed)) != 0 or not managed.value:
        raise AssertionError("the table's function failed without an exception")
    return managed.value


def capsule_by_exchange(table: Exchange, array: Any) -> Any:
    return _new(managed_by_exchange(table, array), VERSIONED, _not_taken)


def object_by_exchange(table: Exchange, managed: int) -> Any:
    """The framework's array of a tensor, which it takes over."""
    address = ctypes.c_void_p()
    try:
        failed = table.to_object(managed, ctypes.byref(address)) != 0
    except Exception:
        Versioned.from_address(managed).deleter(managed)  # PyTorch 2.15 leaves what it refuses to the caller
        raise
    assert not failed, "the table's function failed without an exception"
    array = ctypes.cast(address, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(array))  # the function's own reference
    return array


def check_export(capsule: Any, address: int | None, shape: tuple[int, ...], flags: int) -> None:
    """behaviour 281, field reports G1, G2, G3, G4: what an export of ours always says."""
    tensor, has = tensor_of(capsule)
    assert (tensor.device_type, tensor.device_id) == (1, 0), "the device is not (1, 0)"
    assert tensor.lanes == 1, f"{tensor.lanes} lanes: they are the last dimension"
    assert tensor.byte_offset == 0, f"byte_offset is {tensor.byte_offset}"
    assert tensor.ndim == len(shape), f"{tensor.ndim} dimensions, expected {len(shape)}"
    assert tuple(tensor.shape[: tensor.ndim]) == shape, f"shape {tensor.shape[: tensor.ndim]}, expected {shape}"
    if shape:
        assert tensor.strides, "strides are NULL"
        strides, step = [], 1
        for extent in reversed(shape):
            strides.insert(0, step)
            step *= max(extent, 1)
        assert tensor.strides[: tensor.ndim] == strides, f"strides {tensor.strides[: tensor.ndim]}, expected {strides}"
    if is_versioned(capsule):
        assert has == flags, f"flags are {has}, expected {flags}"
    if address is not None:
        same = tensor.data == address
        assert same != bool(flags & IS_COPIED), "the capsule copies" if not same else "the capsule does not copy"
