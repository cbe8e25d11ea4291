"""A driver of CUDA through ctypes, and what stands for a library that has arrays on a GPU, for tests of device memory.

The driver is the one that the client loads: $CALLBOARD_CUDA_LIBRARY, which conftest.py makes the emulated one where
this machine has no GPU (see integration/cudaemu). Nothing of PyTorch or CuPy is needed.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

import numpy as np
from dlpack_structs import Deleter, Tensor, Versioned
from numpy.typing import NDArray

Pointer, Size, Handle = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p


class Driver:
    """The driver of this process, with the primary context of device 0 current in the thread that made it."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ.get("CALLBOARD_CUDA_LIBRARY") or "libcuda.so.1")
        self.context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self("cuCtxSetCurrent", self.context)
        self.emulated = hasattr(self.library, "callboard_cudaemu_version")

    def __call__(self, function: str, *arguments: Any) -> None:
        code = getattr(self.library, function)(*arguments)
        if code != 0:
            raise RuntimeError(f"{function} gave {code}")

    def devices(self) -> int:
        """How many real ones: 0 of the emulated driver."""
        count = ctypes.c_int()
        self("cuDeviceGetCount", ctypes.byref(count))
        return 0 if self.emulated else count.value

    def allocate(self, size: int) -> int:
        pointer = Pointer()
        self("cuMemAlloc_v2", ctypes.byref(pointer), Size(max(size, 1)))
        return pointer.value

    def free(self, pointer: int) -> None:
        self("cuMemFree_v2", Pointer(pointer))

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(stream), 1)
        assert stream.value is not None
        return stream.value

    def synchronize(self, stream: int) -> None:
        self("cuStreamSynchronize", ctypes.c_void_p(stream))

    def event(self, stream: int) -> int:
        """One that was recorded on the stream."""
        event = ctypes.c_void_p()
        self("cuEventCreate", ctypes.byref(event), 2)
        self("cuEventRecord", event, ctypes.c_void_p(stream))
        assert event.value is not None
        return event.value

    def wait(self, stream: int, event: int) -> None:
        self("cuStreamWaitEvent", ctypes.c_void_p(stream), ctypes.c_void_p(event), 0)

    def fill(self, pointer: int, value: int, size: int, stream: int) -> None:
        """Queues a fill with one byte."""
        self("cuMemsetD8Async", Pointer(pointer), ctypes.c_ubyte(value), Size(size), ctypes.c_void_p(stream))

    def put(self, pointer: int, array: NDArray[Any]) -> None:
        self("cuMemcpyHtoD_v2", Pointer(pointer), ctypes.c_void_p(array.ctypes.data), Size(array.nbytes))

    def get(self, pointer: int, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        array = np.zeros(shape, dtype)
        if array.nbytes > 0:
            self("cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), Pointer(pointer), Size(array.nbytes))
        return array


CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class Legacy(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]


make_capsule = ctypes.pythonapi.PyCapsule_New
make_capsule.restype, make_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
open_capsule = ctypes.pythonapi.PyCapsule_GetPointer
open_capsule.restype, open_capsule.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
rename_capsule = ctypes.pythonapi.PyCapsule_SetName
rename_capsule.restype, rename_capsule.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
USED = b"used_dltensor_versioned"  # a capsule has a pointer to its name


class Producer:
    """An array on device 0 that a library fills on a stream of its own, and offers by DLPack as the array API says.

    What is queued on its stream is ordered before the consumer's, as __dlpack__ promises. `asked` has its arguments.
    """

    def __init__(self, driver: Driver, array: NDArray[Any], strides: tuple[int, ...] | None = None) -> None:
        self.driver = driver
        self.array = array
        self.pointer = driver.allocate(array.nbytes)
        self.stream = driver.stream()
        self.strides = strides
        self.device = (2, 0)
        self.asked: list[dict[str, Any]] = []
        self.lent = 0
        driver.put(self.pointer, array)
        weakref.finalize(self, driver.free, self.pointer)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def before(self, stream: int | None) -> None:
        """Orders what is queued before a consumer's stream."""
        if stream != -1:
            self.driver.wait(1 if stream is None else stream, self.driver.event(self.stream))

    def described(self, minor: int = 0) -> Versioned:
        ndim = self.array.ndim
        self.extents = (ctypes.c_int64 * max(ndim, 1))(*self.array.shape)
        steps = self.strides or np.empty(self.array.shape, "i1").strides
        self.steps = (ctypes.c_int64 * max(ndim, 1))(*steps)
        tensor = Tensor(self.pointer, *self.device, ndim, CODES[self.array.dtype.kind], 8 * self.array.itemsize, 1)
        tensor.shape, tensor.strides = self.extents, self.steps
        return Versioned(1, minor, None, Deleter(self.given_back), 0, tensor)

    def given_back(self, _: int) -> None:
        self.lent -= 1

    def __dlpack__(self, **options: Any) -> object:
        self.asked.append(options)
        self.before(options.get("stream"))
        self.managed = self.described()
        self.lent += 1
        return make_capsule(ctypes.addressof(self.managed), b"dltensor_versioned", None)


class Old(Producer):
    """One from before DLPack 1.0: no max_version, and a capsule without a version."""

    def __dlpack__(self, stream: int | None = None) -> object:  # type: ignore[override]
        self.asked.append({"stream": stream})
        self.before(stream)
        versioned = self.described()
        self.legacy = Legacy(versioned.tensor, None, versioned.deleter)
        self.lent += 1
        return make_capsule(ctypes.addressof(self.legacy), b"dltensor", None)


class Interface:
    """An array that offers CUDA's array interface alone, as Numba's do."""

    def __init__(self, producer: Producer, **changes: Any) -> None:
        self.producer = producer
        array = producer.array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (producer.pointer, False),
            "strides": None,
            "stream": producer.stream,
            "version": 3,
            **changes,
        }


class Consumer:
    """What a library does with a capsule: it takes the tensor, and gives it back when it is dropped."""

    def __init__(self, driver: Driver, source: Any, **options: Any) -> None:
        capsule = source.__dlpack__(**{"max_version": (1, 3), **options})
        self.driver = driver
        self.address = open_capsule(capsule, b"dltensor_versioned")
        self.managed = Versioned.from_address(self.address)
        assert rename_capsule(capsule, USED) == 0
        tensor = self.managed.tensor
        assert tensor.byte_offset == 0 and tensor.lanes == 1
        kind = {code: kind for kind, code in CODES.items()}[tensor.code]
        self.dtype = np.dtype(f"{kind}{tensor.bits // 8}")
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        self.strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
        self.device = (tensor.device_type, tensor.device_id)
        self.pointer = tensor.data
        self.flags = self.managed.flags

    def values(self) -> NDArray[Any]:
        """Copied to the host."""
        if self.device[0] == 2:
            return self.driver.get(self.pointer or 0, self.dtype, self.shape)
        size = int(np.prod(self.shape)) * self.dtype.itemsize
        return np.frombuffer(ctypes.string_at(self.pointer, size), self.dtype).reshape(self.shape)

    def give_back(self) -> None:
        self.managed.deleter(self.address)
