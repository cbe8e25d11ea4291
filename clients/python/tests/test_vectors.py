"""The committed bytes of protocol/testdata/vectors, read by callboard._abi.

The Go tests and clients/c/tests/test_vectors.c read the same files by their own
layouts. Every file explains its format in its head.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from callboard import _abi

VECTORS = Path(__file__).parents[3] / "protocol" / "testdata" / "vectors"
FILES = sorted(VECTORS.glob("*.hex"))


class Line(NamedTuple):
    """Bytes at an offset and what they say."""

    offset: int
    data: bytes
    path: str
    value: str


def read_vector(path: Path) -> list[tuple[str, list[Line]]]:
    """Sections of a file: a struct's name, or "" for loose values, and its lines."""
    sections: list[tuple[str, list[Line]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if line == "values":
            sections.append(("", []))
        elif line.startswith("struct "):
            sections.append((line.removeprefix("struct "), []))
        else:
            head, _, value = line.partition(" = ")
            offset, digits, name = head.split()
            digits, _, zeros = digits.partition("+")
            data = bytes.fromhex(digits) + bytes(int(zeros or 0))
            sections[-1][1].append(Line(int(offset), data, name, value))
    return sections


def parse(value: str, length: int) -> Any:
    """A value as unpack gives it; byte arrays have length bytes."""
    if value.startswith('"'):
        return value[1:-1].encode().ljust(length, b"\0")
    if value.startswith("hex:"):
        return bytes.fromhex(value[4:])
    if value.startswith("["):
        return tuple(int(element, 0) for element in value[1:-1].split(", "))
    return int(value, 0)


def follow(values: Any, path: str) -> Any:
    """The value at a path such as records[1].entry_count."""
    for name, index in re.findall(r"(\w+)(?:\[(\d+)\])?", path):
        values = values[name]
        if index:
            values = values[int(index)]
    return values


def place(name: str, path: str) -> int:
    """Offset of a path with indices, by the table."""
    offset, form = 0, name
    for element, index in re.findall(r"(\w+)(?:\[(\d+)\])?", path):
        at, form = next((f[1], f[2]) for f in _abi.STRUCTS[form][1] if f[0] == element)
        offset += at + (int(index) * _abi.size_of(form) if index else 0)
    return offset


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_vector_decodes_to_what_it_says_and_encodes_back(path: Path) -> None:
    base = 0
    for name, lines in read_vector(path):
        if not name:
            for line in lines:
                assert line.offset == base, "loose values leave no gap"
                want = parse(line.value, len(line.data))
                if line.path == "text":
                    assert line.data == want
                else:
                    form = {"u32": "I", "u64": "Q"}[line.path]
                    assert line.data == struct.pack(f"<{len(want)}{form}", *want)
                base += len(line.data)
            continue
        data = bytearray(_abi.size_of(name))
        for line in lines:
            at = line.offset - base
            assert at + len(line.data) <= len(data)
            data[at : at + len(line.data)] = line.data
        values = _abi.unpack(name, bytes(base) + data, base)
        for line in lines:
            assert place(name, line.path) == line.offset - base, line.path
            want = parse(line.value, len(line.data))
            assert follow(values, line.path) == want, line.path
        assert _abi.pack(name, values) == data
        base += len(data)


def nested(name: str) -> set[str]:
    forms = {form for _, _, form, _ in _abi.STRUCTS[name][1] if form in _abi.STRUCTS}
    return {name}.union(*(nested(form) for form in forms))


def test_every_struct_is_in_a_vector() -> None:
    seen: set[str] = set()
    for path in FILES:
        for name, _ in read_vector(path):
            seen |= nested(name) if name else set()
    assert seen == set(_abi.STRUCTS)


def test_offset_of_enters_nested_structs() -> None:
    assert _abi.offset_of("DirectoryHeader", "epoch") == 128
    assert _abi.offset_of("WriteEntry", "payload.length_bytes") == 88
    with pytest.raises(_abi.AbiError, match="nothing"):
        _abi.offset_of("WriteEntry", "nothing")


def test_pack_refuses_what_does_not_fit() -> None:
    for values, text in (
        ({"nothing": 1}, "nothing"),
        ({"epoch": 1 << 64}, "epoch"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": "1"}, "epoch"),
    ):
        with pytest.raises(_abi.AbiError, match=text):
            _abi.pack("PinSlot", values)
    with pytest.raises(_abi.AbiError, match="room for 64"):
        _abi.pack("HelloRequest", {"name": b"x" * 65})
    with pytest.raises(_abi.AbiError, match="array has 6"):
        _abi.pack("Schema", {"row_shape": (1, 2)})


def test_unpack_refuses_a_buffer_that_ends_too_early() -> None:
    for buffer, offset in ((bytes(15), 0), (bytes(31), 16), (bytes(32), -16)):
        with pytest.raises(_abi.AbiError, match="needs 16 bytes"):
            _abi.unpack("PinSlot", buffer, offset)


def test_pack_into_writes_its_bytes_and_no_other() -> None:
    buffer = bytearray(b"\xff" * 48)
    _abi.pack_into("PinSlot", buffer, 16, {"epoch": 17, "attribute": _abi.PIN_ALL})
    assert buffer[:16] == buffer[32:] == b"\xff" * 16
    assert _abi.unpack("PinSlot", buffer, 16) == {
        "epoch": 17,
        "attribute": _abi.PIN_ALL,
        "reserved": 0,
    }
    with pytest.raises(_abi.AbiError, match="at 40 of 48"):
        _abi.pack_into("PinSlot", buffer, 40, {})


def test_status_names_and_texts_are_distinct_and_never_empty() -> None:
    # Behaviour 222.
    for table in (_abi.STATUS_NAMES, _abi.STATUS_TEXTS):
        assert len(set(table)) == len(table) == _abi.STATUS_COUNT
        assert all(table)
    for code, name in enumerate(_abi.STATUS_NAMES):
        assert getattr(_abi, "STATUS_" + name) == code


def test_identities_and_pages_agree_with_go() -> None:
    assert [_abi.page_place(64, i) for i in (0, 63, 64, 191, 192)] == [
        (0, 0),
        (0, 63),
        (1, 0),
        (1, 127),
        (2, 0),
    ]
    identity = _abi.string_id(0xABCDEF, 2)
    assert identity == 0xABCDEF0000000003
    assert _abi.string_index(0xABCDEF, identity) == 2
    assert _abi.string_index(0xABCDEE, identity) is None
    assert _abi.string_index(0, 0) is None
    assert _abi.hash_string("") == 0xCBF29CE484222325
    assert _abi.hash_string("foobar") == 0x85944171F73967E8
