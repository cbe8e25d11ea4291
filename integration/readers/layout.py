"""Prints every struct that processes share, as the client lays it out: "Struct size", then "Struct.field offset bytes"
for each of its fields. The bytes are those of a field that is packed, not those of the table."""

from callboard import _abi

for name, (size, fields) in _abi.STRUCTS.items():
    assert len(_abi.pack(name, {})) == size
    print(name, size)
    for field, offset, form, count in fields:
        print(f"{name}.{field}", offset, count if form == "s" else _abi._width(form) * count)
