"""Element types: every spelling, and what is refused. No broker."""

from __future__ import annotations

import callboard as cb
import numpy as np
import pytest
from callboard._types import _SCALARS

SCALARS = {
    "bool": (6, 8),
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "complex64": (5, 64),
    "complex128": (5, 128),
}


@pytest.mark.parametrize("name", SCALARS)
def test_every_numpy_spelling_gives_the_same_type(name: str) -> None:
    """behaviour 40"""
    dtype = np.dtype(name)
    texts = (name, dtype.str, dtype.str[1:], dtype.char)
    for spelling in (*texts, dtype.type, dtype, dtype.newbyteorder("="), cb.dtype(name)):
        assert tuple(cb.dtype(spelling)) == (*SCALARS[name], 1), spelling
    assert cb.dtype(name).name == name
    assert cb.dtype(name).itemsize == dtype.itemsize
    assert cb.dtype(name).numpy == dtype


def test_python_types_have_their_widest_meaning() -> None:
    """behaviour 40: Python's float is 64 bits"""
    assert cb.dtype(float) == cb.dtype("float64")
    assert cb.dtype(int) == cb.dtype("int64")
    assert cb.dtype(bool) == cb.dtype("bool")
    assert cb.dtype(complex) == cb.dtype("complex128")


@pytest.mark.parametrize(
    "spec",
    [
        None,
        object,
        np.dtype(object),
        np.dtype([("a", "f4")]),
        np.dtype(("f4", (3,))),
        np.dtype("M8[ns]"),
        np.dtype("U3"),
        "float128",
        "S1",
        "M8",
        "float32x",
        "xfloat",
        "",
        "f5",
        "i16",
        3,
        3.5,
        np.floating,
        [],
    ],
)
def test_what_is_no_element_type_is_a_value_error(spec: object) -> None:
    """behaviour 41: None, above all, is not float64"""
    with pytest.raises(ValueError, match="no element type"):
        cb.dtype(spec)


@pytest.mark.parametrize("spec", [">f4", np.dtype(">f4")])
def test_big_endian_is_refused_by_name(spec: object) -> None:
    """field report G19"""
    with pytest.raises(ValueError, match="big-endian"):
        cb.dtype(spec)


def test_lanes_have_bounds() -> None:
    """behaviour 42"""
    for lanes in (-1, 0, 256, 65536):
        with pytest.raises(ValueError):
            cb.dtype("float32", lanes)
    for lanes in (1.5, "3", None, 3.0, True, np.True_):
        with pytest.raises(TypeError):
            cb.dtype("float32", lanes)  # type: ignore[arg-type]
    assert cb.dtype("uint8", 255) == cb.dtype("uint8x255")
    assert cb.dtype("float32", np.int64(3)) == cb.dtype("float32x3")
    assert cb.dtype("float32x3", 3).lanes == 3
    with pytest.raises(ValueError):
        cb.dtype("float32x3", 4)
    for text in ("float32x0", "float32x256"):
        with pytest.raises(ValueError, match="lanes"):
            cb.dtype(text)


@pytest.mark.parametrize("lanes", [0, 256, 65535])
def test_descriptors_built_by_hand_have_the_same_bounds(lanes: int) -> None:
    """behaviour 43"""
    with pytest.raises(ValueError, match="lanes"):
        cb.DType(2, 32, lanes)


@pytest.mark.parametrize("name", _SCALARS)
@pytest.mark.parametrize("lanes", [1, 3, 255])
def test_a_types_name_is_a_spelling_of_it(name: str, lanes: int) -> None:
    dtype = cb.DType(*_SCALARS[name], lanes)
    assert cb.dtype(dtype.name) == dtype == cb.dtype(name, lanes)


def test_types_compare_and_hash_as_values() -> None:
    assert {cb.dtype("f4"): 1}[cb.dtype(np.float32)] == 1
    assert str(cb.dtype("float64x16")) == "float64x16"
    assert repr(cb.dtype("u1")) == "callboard.dtype('uint8')"
