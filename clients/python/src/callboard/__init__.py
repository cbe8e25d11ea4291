"""Callboard: tensors between processes, through shared memory, without copying them.

    import callboard as cb

    with cb.connect("default") as stage:
        stage.publish("camera/rgb", frame)            # copies once, and seals
        view = stage.latest("camera/rgb")             # in place; valid as long as it lives

NumPy is used where it is installed and not needed where it is not: views have the buffer protocol and DLPack.

Attributes may lie in the memory of a GPU, where CuPy, PyTorch, JAX or Warp fill them and look at them in place, by
DLPack: see `device` of Stage.declare, map and latest. A driver of CUDA, libcuda.so.1 or what $CALLBOARD_CUDA_LIBRARY
names, is loaded when that is used first, and never otherwise.
"""

from . import _errors, _native
from ._errors import (
    AccessDenied,
    AlreadyExists,
    BrokerRestarted,
    CallboardError,
    FloorViolation,
    IncompatibleVersion,
    InternalError,
    InvalidArgument,
    InvalidHandle,
    LayoutChanged,
    LimitReached,
    NotFound,
    NotSupported,
    OperationFailed,
    OutOfMemory,
    OutOfRange,
    QueueFull,
    SessionEnded,
    Timeout,
)
from ._log import Severity, flush_log, install_log, remove_log
from ._native import ABI_VERSION, Cursor, Group, MapSession, Op, Query, Read, ReadGroup, Snapshot, View
from ._types import (
    ALL,
    Contains,
    CudaSync,
    DType,
    Filter,
    Greater,
    GreaterEqual,
    Has,
    In,
    Kind,
    Less,
    LessEqual,
    OpenGroup,
    PathIn,
    PathPrefix,
    PrimMode,
    Scope,
    Semantic,
    Write,
    dtype,
)

_native.setup(_errors.CLASSES, OperationFailed, DType, dtype, tuple(Semantic), CudaSync)

from ._events import Watch  # noqa: E402
from ._lists import PathList  # noqa: E402
from ._stage import Stage, Strings, connect  # noqa: E402  (after setup: nothing may run before it)

version = (0, 1, 0)
__version__ = "0.1.0"

__all__ = [
    "ABI_VERSION",
    "ALL",
    "AccessDenied",
    "AlreadyExists",
    "BrokerRestarted",
    "CallboardError",
    "Cursor",
    "Contains",
    "CudaSync",
    "DType",
    "Filter",
    "FloorViolation",
    "Group",
    "Greater",
    "GreaterEqual",
    "Has",
    "In",
    "IncompatibleVersion",
    "InternalError",
    "InvalidArgument",
    "InvalidHandle",
    "Kind",
    "LayoutChanged",
    "Less",
    "LessEqual",
    "LimitReached",
    "MapSession",
    "NotFound",
    "NotSupported",
    "Op",
    "OpenGroup",
    "OperationFailed",
    "OutOfMemory",
    "OutOfRange",
    "PathIn",
    "PathList",
    "PathPrefix",
    "PrimMode",
    "Query",
    "QueueFull",
    "Read",
    "ReadGroup",
    "Scope",
    "Semantic",
    "SessionEnded",
    "Severity",
    "Snapshot",
    "Stage",
    "Strings",
    "Timeout",
    "View",
    "Watch",
    "Write",
    "__version__",
    "connect",
    "dtype",
    "flush_log",
    "install_log",
    "remove_log",
    "version",
]
