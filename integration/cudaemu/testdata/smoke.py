"""The library through ctypes, as a Python producer has it: handles go by value. Without handles this is the exporter,
which runs itself as the importer."""

import ctypes
import subprocess
import sys


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


SIZE = 1 << 20
cuda = ctypes.CDLL(sys.argv[1])
pointer, event, context = ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_void_p()
cuda.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, Handle, ctypes.c_uint]
cuda.cuIpcOpenEventHandle.argtypes = [ctypes.c_void_p, Handle]


def call(function, *arguments, wants=0):
    code = getattr(cuda, function)(*arguments)
    assert code == wants, f"{function}: {code}, not {wants}"


call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
if len(sys.argv) > 2:
    memory, recorded = (Handle.from_buffer_copy(bytes.fromhex(text)) for text in sys.argv[2:])
    call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), memory, 1)
    call("cuIpcOpenEventHandle", ctypes.byref(event), recorded)
    call("cuMemsetD8Async", pointer, 7, ctypes.c_size_t(SIZE), None)
    call("cuEventRecord", event, None)
    call("cuEventSynchronize", event)
else:
    memory, recorded = Handle(), Handle()
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(SIZE))
    call("cuEventCreate", ctypes.byref(event), 6)
    call("cuIpcGetMemHandle", ctypes.byref(memory), pointer)
    call("cuIpcGetEventHandle", ctypes.byref(recorded), event)
    call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), memory, 1, wants=201)
    subprocess.run([sys.executable, *sys.argv, bytes(memory).hex(), bytes(recorded).hex()], check=True)
    call("cuEventQuery", event)
    found = (ctypes.c_ubyte * SIZE)()
    call("cuMemcpyDtoH_v2", found, pointer, ctypes.c_size_t(SIZE))
    assert bytes(found) == b"\7" * SIZE
    call("cuMemFree_v2", pointer)
