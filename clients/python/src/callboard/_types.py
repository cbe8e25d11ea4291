"""Names for numbers, and element types. Nothing here talks to a broker."""

from __future__ import annotations

import numbers
import re
import sys
from collections.abc import Iterable
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple, Protocol, SupportsIndex

from . import _abi


class Semantic(IntEnum):
    """What an attribute's numbers stand for. NONE in a write means "no opinion"."""

    NONE = 0
    POINT = 1
    VECTOR = 2
    NORMAL = 3
    COLOR = 4
    QUATERNION = 5
    MATRIX = 6
    FRAME = 7
    TEXTURE_COORDINATE = 8
    TIME_CODE = 9
    TOKEN_ID = 10
    RELATIONSHIP_PATH_ID = 11
    CONNECTION_PATH_ID = 12
    ASSET_PATH_ID = 13
    PATH_EXPRESSION = 14
    STRING = 15


class Kind(IntEnum):
    """FIXED rows all have one shape; ARRAY rows have lengths of their own."""

    FIXED = _abi.KIND_FIXED
    ARRAY = _abi.KIND_ARRAY


class PrimMode(IntEnum):
    """UPSERT writes prims whether they exist or not; INSERT refuses those that do."""

    UPSERT = _abi.MODE_UPSERT
    INSERT = _abi.MODE_INSERT


class Scope(IntEnum):
    """Which attributes a seal covers: all, the named ones, all but the named ones."""

    ALL = _abi.SCOPE_ALL
    INCLUDE = _abi.SCOPE_INCLUDE
    EXCLUDE = _abi.SCOPE_EXCLUDE


# Every prim of a query, spelled out: what None means as a count.
ALL = None

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6

# DLPack's code and bits by name. The float8 family is stored as opaque bytes.
_SCALARS: dict[str, tuple[int, int]] = {
    "bool": (_BOOL, 8),
    **{f"int{bits}": (_INT, bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (_UINT, bits) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (_FLOAT, bits) for bits in (16, 32, 64)},
    "bfloat16": (_BFLOAT, 16),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
    "complex64": (_COMPLEX, 64),
    "complex128": (_COMPLEX, 128),
}
_NAMES = {scalar: name for name, scalar in _SCALARS.items()}

# What else NumPy calls them: kind and bytes ("f4"), one letter, and words. "l" is 64 bits where Callboard runs.
_CODES = {"i": _INT, "u": _UINT, "f": _FLOAT, "c": _COMPLEX, "b": _BOOL}
_LETTERS = {
    "?": "bool", "b": "int8", "B": "uint8", "h": "int16", "H": "uint16", "i": "int32", "I": "uint32", "l": "int64",
    "L": "uint64", "q": "int64", "Q": "uint64", "e": "float16", "f": "float32", "d": "float64", "F": "complex64",
    "D": "complex128", "half": "float16", "single": "float32", "double": "float64", "float": "float64",
    "int": "int64", "complex": "complex128", "byte": "int8", "ubyte": "uint8", "short": "int16", "ushort": "uint16",
}  # fmt: skip
_ABSTRACT = {"generic", "number", "integer", "signedinteger", "unsignedinteger", "inexact", "floating"} | {
    "complexfloating", "flexible", "character",
}  # fmt: skip
_CLASSES: dict[type, str] = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


def _is_integer(number: Any) -> bool:
    """No bool, NumPy's neither, of which releases before 2.3 make an index."""
    return hasattr(type(number), "__index__") and type(number).__name__ not in ("bool", "bool_")


class _Fields(NamedTuple):
    code: int
    bits: int
    lanes: int


class DType(_Fields):
    """An element type as DLPack has it: a code, the bits of one lane, and lanes (the width of a tuple, 1 to 255)."""

    __slots__ = ()

    def __new__(cls, code: int, bits: int, lanes: int = 1) -> DType:
        for name, number in (("code", code), ("bits", bits), ("lanes", lanes)):
            if not _is_integer(number):
                raise TypeError(f"{name} must be an integer, not {type(number).__name__}")
        if not 1 <= lanes <= 255:
            raise ValueError(f"lanes is {lanes}, expected 1 to 255")
        if (code, bits) not in _NAMES:
            raise ValueError(f"there is no element type of code {code} with {bits} bits")
        return super().__new__(cls, int(code), int(bits), int(lanes))

    @property
    def name(self) -> str:
        """As dtype() takes it: "float32x3"."""
        scalar = _NAMES[self.code, self.bits]
        return scalar if self.lanes == 1 else f"{scalar}x{self.lanes}"

    @property
    def itemsize(self) -> int:
        """Bytes of one element with all its lanes."""
        return self.bits // 8 * self.lanes

    @property
    def numpy(self) -> Any:
        """The numpy.dtype of one lane.

        bfloat16 and float8, which NumPy does not have, are ml_dtypes' types where that package is installed, else
        unsigned integers of their width. Raises ImportError without NumPy.
        """
        return _numpy_dtype(self.code, self.bits)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"callboard.dtype('{self.name}')"


@cache
def _numpy_dtype(code: int, bits: int) -> Any:
    import numpy

    name = _NAMES[code, bits]
    if code != _BFLOAT and code <= _BOOL:
        return numpy.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return numpy.dtype(f"uint{bits}")
    return numpy.dtype(getattr(ml_dtypes, name, f"uint{bits}"))  # an old release lacks some


def dtype(spec: Any, lanes: int = 1) -> DType:
    """The element type that `spec` names.

    Accepts "float32x3" (the number behind the x is lanes), NumPy's names and short codes ("float32", "f4", "<f4"),
    numpy.dtype objects and scalar classes, ml_dtypes' too, Python's bool, int, float and complex, and DType. `lanes`
    is the width where spec does not say one.

    Raises ValueError for types that cannot be exchanged (structured, object, strings, dates, big-endian, None) and
    for lanes outside 1 to 255; TypeError for lanes that are no integer.
    """
    if not _is_integer(lanes):
        raise TypeError(f"lanes must be an integer, not {type(lanes).__name__}")
    if isinstance(spec, DType):
        return spec if lanes == 1 else _with_lanes(spec.code, spec.bits, spec.lanes, lanes)
    own = 1
    if isinstance(spec, str):
        scalar = _scalar_of_text(spec)
        if scalar is None and (laned := re.fullmatch(r"(.+)x(\d+)", spec)):
            scalar, own = _scalar_of_text(laned[1]), int(laned[2])
            if scalar is not None and not 1 <= own <= 255:
                raise ValueError(f"{spec!r} has {own} lanes, expected 1 to 255")
    elif isinstance(spec, type) and spec in _CLASSES:
        scalar = _SCALARS[_CLASSES[spec]]
    else:
        scalar = _scalar_of_numpy(spec)
    if scalar is None:
        raise ValueError(f"{spec!r} is no element type that can be exchanged; expected for example 'float32x3' or 'u1'")
    return _with_lanes(*scalar, own, lanes)


def _with_lanes(code: int, bits: int, own: int, lanes: int) -> DType:
    if own != 1 and lanes not in (1, own):
        raise ValueError(f"the type has {own} lanes, and lanes is {lanes}")
    return DType(code, bits, own if own != 1 else lanes)


def _scalar_of_text(text: str) -> tuple[int, int] | None:
    if text[:1] == ">":
        raise ValueError(f"{text!r} is big-endian; only the native order, little-endian, can be exchanged")
    text = text.lstrip("<=|")
    if text in _SCALARS:
        return _SCALARS[text]
    if text in _LETTERS:
        return _SCALARS[_LETTERS[text]]
    if re.fullmatch(r"[iufcb]\d{1,2}", text):
        scalar = (_CODES[text[0]], 8 * int(text[1:]))
        return scalar if scalar in _NAMES else None
    return None


def _scalar_of_numpy(spec: Any) -> tuple[int, int] | None:
    """numpy.dtype objects and scalar classes, without importing NumPy: who has one has imported it."""
    numpy = sys.modules.get("numpy")
    if numpy is None or spec is None:
        return None
    if isinstance(spec, type) and issubclass(spec, numpy.generic):
        if spec.__name__ in _ABSTRACT:
            return None
        spec = numpy.dtype(spec)
    if not isinstance(spec, numpy.dtype) or spec.fields is not None or spec.subdtype is not None:
        return None
    if spec.byteorder == ">":
        raise ValueError(f"{spec!r} is big-endian; only the native order, little-endian, can be exchanged")
    return _SCALARS.get(spec.name)


class _Handles(NamedTuple):
    stream: int
    wait_event: int


class CudaSync(_Handles):
    """What work on a GPU is ordered behind: a stream, an event that was recorded, or both; CudaSync() is nothing.

    stream: a stream of CuPy, PyTorch, Warp or Numba, anything with __cuda_stream__, or an integer as of DLPack: 1 is
    the legacy default stream, 2 the default one of the calling thread, else a handle; 0 is none. An object that stands
    for the default stream, whose handle is 0, becomes 1. wait_event: an event of those, or a handle; 0 is none. Both
    are used at the call that they are given to; keep them until then.

    Raises TypeError for what is neither, ValueError for integers beyond 64 bits and events that were not recorded.
    """

    __slots__ = ()

    def __new__(cls, stream: Any = 0, wait_event: Any = 0) -> CudaSync:
        return super().__new__(cls, _stream_handle(stream), _event_handle(wait_event))


def _handle(value: Any, name: str, attributes: tuple[str, ...]) -> int | None:
    """The number behind a library's object, or None for a number itself."""
    if value is None or _is_integer(value):
        return None
    if name == "stream" and hasattr(value, "__cuda_stream__"):
        return int(value.__cuda_stream__()[1])
    for attribute in attributes:
        if hasattr(value, attribute):
            found = getattr(value, attribute)
            return int(getattr(found, "value", found) or 0)  # of ctypes, where NULL is None
    raise TypeError(f"{name} must be a {name} of CUDA or its handle, an integer, not {type(value).__name__}")


def _number(value: Any, name: str) -> int:
    number = 0 if value is None else int(value)
    if not 0 <= number < 2**64:
        raise ValueError(f"{name} must be from 0 to 2**64-1, not {number}")
    return number


def _stream_handle(value: Any) -> int:
    handle = _handle(value, "stream", ("cuda_stream", "ptr", "handle"))
    return _number(value, "stream") if handle is None else _number(handle, "stream") or 1


def _event_handle(value: Any) -> int:
    handle = _handle(value, "event", ("cuda_event", "ptr", "handle"))
    if handle == 0:
        raise ValueError("the event has no handle yet: record it first")
    return _number(value, "wait_event") if handle is None else _number(handle, "wait_event")


class Write:
    """One attribute of Stage.write_attributes, where it needs more than its array.

    Everything means what it means in Stage.write_attribute: count, index_map and mask too, of which a mask may be
    longer than its count needs.
    """

    __slots__ = ("array", "count", "dtype", "index_map", "is_array", "mask", "row_shape", "semantic")

    def __init__(
        self,
        array: Any,
        *,
        semantic: int = Semantic.NONE,
        is_array: bool = False,
        row_shape: Any = None,
        count: int | None = None,
        index_map: Any = None,
        mask: Any = None,
        dtype: Any = None,
    ) -> None:
        self.array = array
        self.semantic = semantic
        self.is_array = is_array
        self.row_shape = row_shape
        self.count = count
        self.index_map = index_map
        self.mask = mask
        self.dtype = dtype


class OpenGroup(NamedTuple):
    """A group of somebody's map session that waits to be claimed: see Stage.list_groups."""

    session: int
    index: int  # type: ignore[assignment]  # and not tuple's
    ordinal: int
    first_prim: int
    rows: int
    attempt: int


# The reserved attribute of the prims' own path ids: it can be read and filtered by.
PATH = "@path"

# An attribute: its name, or the token of its name (Stage.intern, NumPy's integers too).
Name = str | SupportsIndex

# What a filter compares with: a text, or a number, which becomes one.
Value = str | int | float


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"a filter's value must be a string or a number, not {type(value).__name__}")
    return str(value)


def _several(values: Iterable[Any]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise TypeError("a filter's values must be a list of values, not one string")
    return tuple(map(_text, values))


class Filter(Protocol):
    """What Stage.query takes."""

    def _predicate(self) -> tuple[int, Name, tuple[str, ...]]: ...


class Has(NamedTuple):
    """A filter of Stage.query: prims that carry the attribute."""

    attribute: Name

    def _predicate(self) -> tuple[int, Name, tuple[str, ...]]:
        return _abi.FILTER_HAS, self.attribute, ()


class PathPrefix(NamedTuple):
    """A filter of Stage.query: prims whose path begins with the prefix. "/World/" takes all below /World."""

    prefix: str

    def _predicate(self) -> tuple[int, Name, tuple[str, ...]]:
        return _abi.FILTER_PREFIX, PATH, (self.prefix,)


class PathIn(NamedTuple):
    """A filter of Stage.query: those of the paths that exist."""

    paths: Iterable[str]

    def _predicate(self) -> tuple[int, Name, tuple[str, ...]]:
        return _abi.FILTER_IN, PATH, _several(self.paths)


class In(NamedTuple):
    """A filter of Stage.query: prims whose attribute, one number or token, is one of the values."""

    attribute: Name
    values: Iterable[Value]

    def _predicate(self) -> tuple[int, Name, tuple[str, ...]]:
        return _abi.FILTER_IN, self.attribute, _several(self.values)


class Contains(NamedTuple):
    """A filter of Stage.query: prims among whose tokens is one of the values. For all of several give one each."""

    attribute: Name
    values: Iterable[str]

    def _predicate(self) -> tuple[int, Name, tuple[str, ...]]:
        return _abi.FILTER_CONTAINS, self.attribute, _several(self.values)


class Less(NamedTuple):
    """A filter of Stage.query: prims whose attribute, one number or token, is below the value."""

    attribute: Name
    value: Value

    def _predicate(self) -> tuple[int, Name, tuple[str, ...]]:
        return _abi.FILTER_LESS, self.attribute, (_text(self.value),)


class LessEqual(NamedTuple):
    """As Less, or equal."""

    attribute: Name
    value: Value

    def _predicate(self) -> tuple[int, Name, tuple[str, ...]]:
        return _abi.FILTER_LESS_EQUAL, self.attribute, (_text(self.value),)


class Greater(NamedTuple):
    """A filter of Stage.query: prims whose attribute, one number or token, is above the value."""

    attribute: Name
    value: Value

    def _predicate(self) -> tuple[int, Name, tuple[str, ...]]:
        return _abi.FILTER_GREATER, self.attribute, (_text(self.value),)


class GreaterEqual(NamedTuple):
    """As Greater, or equal."""

    attribute: Name
    value: Value

    def _predicate(self) -> tuple[int, Name, tuple[str, ...]]:
        return _abi.FILTER_GREATER_EQUAL, self.attribute, (_text(self.value),)
