"""What the matrix asks of a framework, for each of them.

Values travel as their bytes: a uint8 array of NumPy whose last dimension is the bytes of one element.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from capsules import (
    Producer,
    capsule_by_exchange,
    exchange_of,
    is_versioned,
    managed_by_exchange,
    object_by_exchange,
)


class Absent(Exception):
    """The framework has no such door, type or shape."""


def _ml_dtypes() -> Any:
    try:
        import ml_dtypes
    except ImportError:
        return None
    return ml_dtypes


ML_DTYPES = _ml_dtypes()


def typed(raw: np.ndarray, dtype: str) -> np.ndarray:
    """As NumPy's own type, or ml_dtypes', or where neither has it as unsigned integers."""
    name: Any = dtype
    if dtype.startswith(("bfloat", "float8")):
        name = getattr(ML_DTYPES, dtype) if ML_DTYPES else f"uint{raw.shape[-1] * 8}"
    return np.ascontiguousarray(raw).view(name)[..., 0]


def raw_of(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array)[..., None].view(np.uint8).reshape(*array.shape, array.dtype.itemsize)


class Framework:
    """The answers that most frameworks have in common."""

    modules: tuple[str, ...] = ()

    def made(self, raw: np.ndarray, dtype: str, strided: bool = False) -> Any:
        """An array of the framework's own, row-major or not."""
        try:
            return (self.strided if strided else self.make)(raw, dtype)
        except Exception as error:
            raise Absent(f"cannot be made: {type(error).__name__}: {error}") from error

    def make(self, raw: np.ndarray, dtype: str) -> Any:
        raise NotImplementedError

    def strided(self, raw: np.ndarray, dtype: str) -> Any:
        """The same values, of which every second row was left out of a larger array."""
        wide = np.repeat(raw, 2, axis=0)
        wide[1::2] = 1
        return self.make(wide, dtype)[::2]

    def frozen(self, array: Any) -> Any:
        """The same array, read-only. Those of most frameworks are never, or always."""
        if self.writable(array):
            raise Absent("has no read-only arrays")
        return array

    def capsule(self, array: Any, versioned: bool) -> Any:
        if not versioned:
            return array.__dlpack__()
        try:
            capsule = array.__dlpack__(max_version=(1, 0))
        except TypeError as error:
            raise Absent(str(error)) from error
        if not is_versioned(capsule):
            raise Absent("asked for a versioned capsule it gives a legacy one")
        return capsule

    def exchange(self, array: Any) -> Any:
        """A capsule of what the framework's table of C functions gives."""
        table = exchange_of(type(array))
        if table is None:
            raise Absent("the type has no table of C functions")
        return capsule_by_exchange(table, array)

    def take(self, capsule: Any) -> Any:
        """The framework's array over what the capsule lends."""
        return self.from_dlpack(Producer(capsule))

    def take_exchange(self, view: Any) -> Any:
        """By our table, and the framework's own where it has one."""
        ours, theirs = exchange_of(type(view)), exchange_of(type(self.made(np.zeros((1, 1), np.uint8), "uint8")))
        if ours is None:
            raise AssertionError("callboard.View has no __dlpack_c_exchange_api__")
        if theirs is None:
            return self.take(capsule_by_exchange(ours, view))
        return object_by_exchange(theirs, managed_by_exchange(ours, view))

    def from_dlpack(self, producer: Any) -> Any:
        """The framework's public function, on an object with __dlpack__."""
        raise NotImplementedError

    def plain_read(self, view: Any) -> Any:
        """What the framework's page recommends for a read view."""
        raise NotImplementedError

    def plain_map(self, view: Any) -> Any:
        """What it recommends for a view of a map group."""
        return self.from_dlpack(view)

    def address(self, array: Any) -> int:
        raise NotImplementedError

    def raw(self, array: Any) -> np.ndarray:
        return raw_of(np.asarray(array))

    def dtype(self, array: Any) -> str:
        return array.dtype.name

    def writable(self, array: Any) -> bool:
        return False

    def fill(self, array: Any, raw: np.ndarray, dtype: str) -> None:
        raise NotImplementedError


class NumPy(Framework):
    modules = ("numpy", "ml_dtypes")

    def make(self, raw: np.ndarray, dtype: str) -> Any:
        return typed(raw.copy(), dtype)

    def strided(self, raw: np.ndarray, dtype: str) -> Any:
        """Also backwards, and column-major."""
        values = typed(raw, dtype)
        wide = np.empty((*values.shape[::-1], 2), values.dtype)[..., 1].T[:, ::-1]
        wide[...] = values
        return wide

    def frozen(self, array: Any) -> Any:
        array.flags.writeable = False
        return array

    def from_dlpack(self, producer: Any) -> Any:
        return np.from_dlpack(producer)

    def plain_read(self, view: Any) -> Any:
        return np.asarray(view)

    plain_map = plain_read

    def address(self, array: Any) -> int:
        return array.ctypes.data

    def writable(self, array: Any) -> bool:
        return array.flags.writeable

    def fill(self, array: Any, raw: np.ndarray, dtype: str) -> None:
        array[...] = typed(raw, dtype).view(array.dtype)


class Jax(Framework):
    modules = ("jax", "jaxlib")

    def __init__(self) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax

        jax.config.update("jax_enable_x64", True)  # else JAX halves what has 64 bits
        self.jax = jax

    def make(self, raw: np.ndarray, dtype: str) -> Any:
        return self.jax.numpy.array(typed(raw, dtype))

    def from_dlpack(self, producer: Any) -> Any:
        return self.jax.dlpack.from_dlpack(producer)

    def plain_read(self, view: Any) -> Any:
        return self.jax.device_put(np.asarray(view), may_alias=True)

    plain_map = plain_read

    def address(self, array: Any) -> int:
        return array.unsafe_buffer_pointer()


class Warp(Framework):
    modules = ("warp",)

    def __init__(self) -> None:
        import warp

        warp.config.quiet = True
        warp.init()
        self.warp = warp

    def make(self, raw: np.ndarray, dtype: str) -> Any:
        array = self.warp.empty(shape=raw.shape[:-1], dtype=getattr(self.warp, dtype), device="cpu")
        ctypes.memmove(array.ptr or 0, raw.ctypes.data, raw.nbytes)
        return array

    def from_dlpack(self, producer: Any) -> Any:
        return self.warp.from_dlpack(producer)

    def plain_read(self, view: Any) -> Any:
        """With a dtype, since Warp makes vectors and matrices of small last dimensions otherwise."""
        return self.warp.from_numpy(np.asarray(view), dtype=getattr(self.warp, view.dtype.name, None), device="cpu")

    def address(self, array: Any) -> int:
        return array.ptr

    def raw(self, array: Any) -> np.ndarray:
        raw = np.empty((*array.shape, self.warp.types.type_size_in_bytes(array.dtype)), np.uint8)
        ctypes.memmove(raw.ctypes.data, array.ptr or 0, raw.nbytes)
        return raw

    def dtype(self, array: Any) -> str:
        return array.dtype.__name__

    def writable(self, array: Any) -> bool:
        return True

    def fill(self, array: Any, raw: np.ndarray, dtype: str) -> None:
        self.warp.copy(array, self.make(raw, dtype))


class Torch(Framework):
    modules = ("torch",)

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def make(self, raw: np.ndarray, dtype: str) -> Any:
        array = self.torch.empty(raw.shape[:-1], dtype=getattr(self.torch, dtype))
        ctypes.memmove(array.data_ptr(), raw.tobytes(), raw.nbytes)
        return array

    def strided(self, raw: np.ndarray, dtype: str) -> Any:
        """Also column-major."""
        return super().strided(raw.swapaxes(0, 1), dtype).swapaxes(0, 1)

    def take(self, capsule: Any) -> Any:
        return self.torch.from_dlpack(capsule)

    def from_dlpack(self, producer: Any) -> Any:
        return self.torch.from_dlpack(producer)

    def plain_read(self, view: Any) -> Any:
        return view.torch()

    def plain_map(self, view: Any) -> Any:
        return view.torch(copy=False)

    def address(self, array: Any) -> int:
        return array.data_ptr()

    def raw(self, array: Any) -> np.ndarray:
        array = array.contiguous()
        data = ctypes.string_at(array.data_ptr(), array.nbytes) if array.nbytes else b""
        return np.frombuffer(data, np.uint8).reshape(*array.shape, array.itemsize)

    def dtype(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def writable(self, array: Any) -> bool:
        return True

    def fill(self, array: Any, raw: np.ndarray, dtype: str) -> None:
        array.copy_(self.make(raw, dtype))


class TensorFlow(Framework):
    modules = ("tensorflow",)

    def __init__(self) -> None:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        import tensorflow

        self.tf = tensorflow

    def make(self, raw: np.ndarray, dtype: str) -> Any:
        return self.tf.constant(typed(raw, dtype))

    def take(self, capsule: Any) -> Any:
        return self.tf.experimental.dlpack.from_dlpack(capsule)

    def from_dlpack(self, producer: Any) -> Any:
        """It takes capsules only, which the caller asks for."""
        return self.take(producer.__dlpack__())

    def plain_read(self, view: Any) -> Any:
        return self.tf.constant(np.asarray(view))

    plain_map = plain_read

    def address(self, array: Any) -> int:
        return np.frombuffer(array, np.uint8).ctypes.data  # float8 has no capsule

    def raw(self, array: Any) -> np.ndarray:
        return raw_of(array.numpy())

    def dtype(self, array: Any) -> str:
        return array.dtype.name


FRAMEWORKS = {
    "numpy": NumPy,
    "numpy1": NumPy,
    "jax": Jax,
    "warp": Warp,
    "torch": Torch,
    "tensorflow": TensorFlow,
}
