"""Tries every cell of one framework against the broker of the environment, in a process of its own.

    python probe.py FRAMEWORK

Prints a line of JSON before each cell and one after it, so that a crash has a name, and at first the versions.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import sys
from typing import Any

import callboard as cb
import numpy as np
from adapters import FRAMEWORKS, Absent, Framework
from capsules import IS_COPIED, READ_ONLY, Producer, capsule_by_exchange, check_export, exchange_of
from matrix import BITS, CELLS, DOORS, ONE, Cell

ROWS = {
    "0-d": (),
    "zero-size": (0,),
    "size-1": (1, 3, 1),
    "n-d": (2, 3, 4),
    "strided": (4, 3),
    "read-only": (2, 3),
    "lanes": (2, 3),
}


def values(dtype: str, shape: tuple[int, ...], first: int) -> np.ndarray:
    """Numbers from `first` on, as bytes. Booleans are 0 and 1 (field report G9)."""
    count = int(np.prod(shape))
    of = cb.dtype(dtype)
    if dtype == "bool":
        numbers = (np.arange(count) + first) % 2 == 1
    elif dtype.startswith(("bfloat", "float8")):
        numbers = (np.arange(count) + first).astype(f"uint{of.bits}")
    else:
        numbers = (np.arange(count) + first).astype(dtype)
    return numbers.reshape(*shape, 1).view(np.uint8)


class Probe:
    def __init__(self, framework: Framework, stage: cb.Stage) -> None:
        self.framework = framework
        self.stage = stage
        self.root = stage.query_from_path_list(["/"])
        self.two = stage.query_from_path_list(["/a", "/b"])
        self.ordinals: dict[str, int] = {}

    # ---- a stage's side ------------------------------------------------------------------------------

    def next(self, name: str) -> int:
        self.ordinals[name] = self.ordinals.get(name, 0) + 1
        return self.ordinals[name]

    def write(self, name: str, cell: Cell, array: Any, dtype: str | None) -> None:
        """As the shape wants it: a row of an array attribute, lanes of two prims, or one tensor."""
        ordinal = self.next(name)
        if cell.shape == "zero-size":
            op = self.stage.write_attribute(self.root, name, [array], ordinal=ordinal, is_array=True, dtype=dtype)
        elif cell.shape == "lanes":
            op = self.stage.write_attribute(self.two, name, array, ordinal=ordinal, dtype=f"{cell.dtype}x3")
        else:
            self.ordinals[name] = self.stage.publish(name, array, dtype=dtype)
            return
        op.wait(30)
        self.seal(name)

    def seal(self, name: str) -> None:
        self.stage.advance_write_floor(self.ordinals[name], scope=cb.Scope.INCLUDE, attributes=[name]).wait(30)

    def view(self, name: str, cell: Cell) -> cb.View:
        """What was written, as a read view of the shape that was written."""
        (group,) = self.stage.read_attributes(self.two if cell.shape == "lanes" else self.root, name)
        assert group.dtype == cb.dtype(cell.dtype, 3 if cell.shape == "lanes" else 1), f"the group is {group.dtype}"
        return group.dlpack(0) if cell.shape in ("zero-size", "lanes") else self.stage.latest(name)

    # ---- in ------------------------------------------------------------------------------------------

    def into(self, cell: Cell) -> str:
        framework = self.framework
        expected = values(cell.dtype, ROWS[cell.shape], DOORS["in"].index(cell.door))
        array = framework.made(expected, cell.dtype, cell.shape == "strided")
        if cell.shape == "read-only":
            array = framework.frozen(array)
        dtype = framework.dtype(array)
        if cell.door == "exchange":
            array = Producer(framework.exchange(array))
        elif cell.door != "plain":
            array = Producer(framework.capsule(array, cell.door == "versioned"))
        name = f"in/{cell.dtype}/{cell.shape}"
        self.write(name, cell, array, None if dtype == cell.dtype else cell.dtype)
        view = self.view(name, cell)
        assert view.shape == ROWS[cell.shape], f"shape {view.shape}, expected {ROWS[cell.shape]}"
        assert raw_bytes(view) == expected.tobytes(), "other values"
        return "value" + suffix(dtype, cell)

    # ---- out -----------------------------------------------------------------------------------------

    def out(self, cell: Cell, view: cb.View) -> Any:
        """The framework's array of a view, through the door. Capsules of ours are looked at on the way."""
        framework, flags = self.framework, READ_ONLY if view.readonly else 0
        address = np.asarray(view).ctypes.data if view.nbytes else None
        if cell.door == "plain":
            return framework.plain_read(view) if cell.direction == "read" else framework.plain_map(view)
        if cell.door == "from_dlpack":
            return framework.from_dlpack(view)
        if cell.door == "exchange":
            table = exchange_of(type(view))
            if table is not None:
                check_export(capsule_by_exchange(table, view), address, view.shape, flags)
            return framework.take_exchange(view)
        if cell.door == "copy":
            check_export(view.__dlpack__(max_version=(1, 0), copy=True), address, view.shape, IS_COPIED)
            return framework.take(view.__dlpack__(copy=True))
        options = {"max_version": (1, 0)} if cell.door == "versioned" else {}
        check_export(view.__dlpack__(**options), address, view.shape, flags)
        return framework.take(view.__dlpack__(**options))

    def compare(self, cell: Cell, array: Any, view: cb.View, expected: np.ndarray) -> str:
        framework = self.framework
        has = framework.raw(array)
        one = view.ndim == 0 and has.shape[:-1] == (1,)
        assert one or has.shape == expected.shape, f"shape {has.shape[:-1]}, expected {expected.shape[:-1]}"
        assert has.tobytes() == expected.tobytes(), f"values {has.tolist()}, expected {expected.tolist()}"
        end = suffix(framework.dtype(array), cell) + (ONE if one else "")
        if not view.nbytes:
            return "value" + end
        if framework.address(array) != np.asarray(view).ctypes.data:
            return "copy" + end
        if not framework.writable(array):
            return "view" + end
        return ("unguarded" if view.readonly else "shared") + end

    def read(self, cell: Cell) -> str:
        name = f"read/{cell.dtype}/{cell.shape}"
        expected = values(cell.dtype, ROWS[cell.shape], 1)
        if name not in self.ordinals:
            array = typed_for_callboard(expected, cell.dtype)
            if cell.shape == "strided":
                array = np.asfortranarray(array)
            self.write(name, cell, array, cell.dtype)
        view = self.view(name, cell)
        return self.compare(cell, self.out(cell, view), view, expected)

    def session(self, name: str, cell: Cell) -> cb.MapSession:
        shape = ROWS[cell.shape]
        if cell.shape in ("0-d", "size-1", "n-d", "strided"):
            return self.stage.map(name, shape, cell.dtype)  # its view has the row's own shape
        options: dict[str, Any] = {"dtype": cell.dtype, "row_shape": shape}
        if cell.shape == "zero-size":
            options = {"dtype": cell.dtype, "is_array": True, "element_sizes": [0]}
        elif cell.shape == "lanes":
            options = {"dtype": f"{cell.dtype}x3"}
        query = self.two if cell.shape == "lanes" else self.root
        return self.stage.map_attribute(query, name, ordinal=self.next(name), **options)

    def map(self, cell: Cell) -> str:
        name = f"map/{cell.dtype}/{cell.shape}"
        expected, after = (values(cell.dtype, ROWS[cell.shape], first) for first in (0, 1))
        sealed = False
        with self.session(name, cell) as session:
            if name in self.ordinals:
                group = next(session)
                view = group.dlpack(0, readonly=cell.shape == "read-only")
            else:
                group, view, sealed = None, session.view, True
            address = np.asarray(view).ctypes.data
            ctypes.memmove(address, expected.tobytes(), expected.nbytes)
            shape = (*view.shape, expected.shape[-1])
            try:
                array = self.out(cell, view)
                outcome = self.compare(cell, array, view, expected.reshape(shape))
                if outcome.startswith("shared"):
                    self.framework.fill(array, after.reshape(shape), cell.dtype)
                    expected = after
                    has = ctypes.string_at(address, after.nbytes)
                    assert has == after.tobytes(), "what the framework wrote is not in the group's memory"
            finally:
                view = group = array = None
        if not sealed:
            self.seal(name)
        assert raw_bytes(self.view(name, cell)) == expected.tobytes(), "what was filled does not arrive"
        return outcome

    def try_cell(self, cell: Cell) -> tuple[str, str]:
        try:
            return {"in": self.into, "read": self.read, "map": self.map}[cell.direction](cell), ""
        except Absent as absent:
            return "absent", str(absent)
        except AssertionError as wrong:
            return f"wrong: {wrong}", ""
        except Exception as error:
            return type(error).__name__, str(error)


def raw_bytes(view: cb.View) -> bytes:
    """No buffer says bfloat16 or float8: their bits are integers."""
    return bytes(view.bits if view.dtype.name.startswith(("bfloat", "float8")) else view)


def typed_for_callboard(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Of types that NumPy lacks the bits: the attribute's type is the write's dtype."""
    of = cb.dtype(dtype)
    return raw.view(of.numpy if of.numpy.itemsize == raw.shape[-1] else f"uint{of.bits}")[..., 0]


def suffix(dtype: str, cell: Cell) -> str:
    if dtype == cell.dtype:
        return ""
    assert dtype == f"uint{cb.dtype(cell.dtype).bits}", f"the array is {dtype}, the attribute {cell.dtype}"
    return BITS


def main(name: str) -> None:
    framework = FRAMEWORKS[name]()
    versions = {"numpy": np.__version__}
    for module in framework.modules:
        try:
            versions[module] = importlib.import_module(module).__version__
        except ImportError:
            continue
    print(json.dumps(versions), flush=True)
    with cb.connect(client_name=name) as stage:
        probe = Probe(framework, stage)
        for cell in CELLS:
            print(json.dumps([*cell]), flush=True)
            print(json.dumps(probe.try_cell(cell)), flush=True)
        gc.collect()
        print(json.dumps({"pinned_bytes": stage.info()["pinned_bytes"]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
