"""Makes the calls of conformance scenarios with the Python client: one command per line on standard input, one answer
per line on standard output. See package conformance."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any
from urllib.parse import unquote

import callboard as cb
import numpy as np
from callboard import _abi
from find import Finding
from groups import Groups
from hoard import Hoard
from log import Log
from rounds import Rounds

LIMIT = 20.0  # seconds: a driver never hangs
NAMES = dict(enumerate(_abi.STATUS_NAMES))


class Late(Exception):
    """An error that came from waiting and not from the call."""


class Fetching(Exception):
    """An error that came from fetching what a read gives."""


class Absent(Exception):
    """The Python client has no such call."""


class Command:
    """One line: a verb, words, and options key=value. A batch has an entry behind each " / "."""

    def __init__(self, line: str) -> None:
        first, *more = line.split(" / ")
        self.verb, *words = first.split()
        self.args = [unquote(w) if w != "%" else "" for w in words if "=" not in w]  # "%" alone: the empty text
        self.opt = dict(w.split("=", 1) for w in words if "=" in w)
        self.more = [Command("entry " + m) for m in more]

    def number(self, key: str) -> int:
        return int(self.opt.get(key, "0"), 0)

    def numbers(self, key: str) -> list[int] | None:
        text = self.opt.get(key)
        return None if text is None else [int(n, 0) for n in text.split(",") if n]


class OnDevice:
    """A DLPack producer whose data are said to lie on a device."""

    def __init__(self, device: tuple[int, int]) -> None:
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        return np.zeros(1).__dlpack__(**options)


def element(text: str) -> tuple[np.dtype, int, int, int]:
    code, bits, lanes = (int(n) for n in text.split(":"))
    return cb.DType(code, bits).numpy, code, bits, lanes


def payload(c: Command) -> tuple[Any, Any]:
    """The array or arrays, and the element type where the array does not say it."""
    if "device" in c.opt:
        kind, index = c.opt["device"].split(":")
        return OnDevice((int(kind), int(index))), None
    types, arrays, dtype = c.opt["type"].split(";"), [], None
    for i, (shape, data) in enumerate(zip(c.opt["shape"].split(";"), c.opt["data"].split(";"), strict=True)):
        scalar, code, bits, lanes = element(types[min(i, len(types) - 1)])
        raw = np.frombuffer(bytes.fromhex(data), np.uint8)
        dims = [] if shape == "-" else [int(n) for n in shape.split(",")]
        if lanes != 1 or code == 4 or code > 6:
            dtype = cb.DType(code, bits, lanes)
        if lanes != 1:
            dims.append(lanes)
        offset = c.number("offset")
        if (strides := c.numbers("strides")) is not None:
            flat = raw.view(scalar)
            steps = [s * scalar.itemsize * lanes for s in strides] + ([scalar.itemsize] if lanes != 1 else [])
            arrays.append(np.lib.stride_tricks.as_strided(flat[offset // scalar.itemsize :], dims, steps))
        else:
            arrays.append(raw[offset:].view(scalar).reshape(dims))
    return (arrays if len(arrays) > 1 or "list" in c.opt else arrays[0]), dtype


def options(c: Command) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if "semantic" in c.opt:
        said["semantic"] = c.number("semantic")
    if "row_shape" in c.opt:
        said["row_shape"] = c.numbers("row_shape")
    if "count" in c.opt:
        said["count"] = cb.ALL if c.opt["count"] == "all" else c.number("count")
    if "map" in c.opt:
        said["index_map"] = c.numbers("map")
    if "mask" in c.opt:
        said["mask"] = c.numbers("mask")
    if "array" in c.opt:
        said["is_array"] = True
    return said


def quote(text: str) -> str:
    for plain in "% ,;=\n":
        text = text.replace(plain, f"%{ord(plain):02X}")
    return text


def join(values: Any) -> str:
    return ",".join(str(v) for v in values)


def typed(t: cb.DType) -> str:
    return f"type={t.code}:{t.bits}:{t.lanes}"


class Driver(Finding, Groups, Hoard, Rounds):
    """What one process holds between commands."""

    def __init__(self) -> None:
        super().__init__()
        self.stage: Any = None
        self.log = Log()
        self.handles: dict[str, Any] = {}
        self.flooded: list[cb.Op] = []
        self.cursors: dict[int, cb.Cursor] = {}  # of the snapshots that the scenario took, by epoch

    def line(self, text: str) -> str:
        c = Command(text)
        verb: Callable[[Command], str] | None = getattr(self, "do_" + c.verb, None)
        if verb is None:
            return f"error UNKNOWN call driver.py knows no verb {c.verb}"
        where = "call"
        try:
            return " ".join(["ok", verb(c)]).strip()
        except Absent as no:
            return f"absent {no}"
        except Late as late:
            where, error = "wait", late.__cause__
        except Fetching as fetching:
            where, error = "fetch", fetching.__cause__
        except Exception as other:
            error = other
        kind = type(error).__name__
        if where == "wait" and not isinstance(error, cb.OperationFailed):
            kind = "NOT_OperationFailed"  # behaviour 212
        if isinstance(error, cb.CallboardError):
            kind = NAMES[error.code]
        return f"error {kind} {where} " + " ".join(str(error).split())

    def finish(self, c: Command, op: cb.Op) -> str:
        if "async" in c.opt:
            self.handles[c.opt["async"]] = op
            return f"id={op.id}"
        return self.outcome(op, LIMIT)

    def outcome(self, op: cb.Op, timeout: float) -> str:
        try:
            op.wait(timeout)
        except Exception as error:
            raise Late from error
        return f"id={op.id} ordinal={op.ordinal} epoch={op.epoch} floor={op.floor} adopted={op.adopted}"

    def do_log(self, c: Command) -> str:
        return self.log.do(*c.args)

    def do_idle(self, c: Command) -> str:
        self.stage.close(if_idle=True)
        return ""

    def do_reset(self, c: Command) -> str:
        self.log.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            self.handles.clear()
            self.cursors.clear()
            if self.stage is not None:
                self.stage.close()
            self.stage = None
        return ""

    def do_connect(self, c: Command) -> str:
        os.environ["CALLBOARD_RUNTIME_DIR"] = unquote(c.opt["dir"])
        said = {"client_name": "conformance", "read_only": "readonly" in c.opt, "guard": "guard" in c.opt or None}
        before, self.stage = self.stage, cb.connect(c.opt["stage"], **said)
        if before is not None:
            before.close()
        return ""

    def do_close(self, c: Command) -> str:
        self.stage.close()
        return ""

    def do_query(self, c: Command) -> str:
        q = self.handles[c.args[0]] = self.stage.query_from_path_list(c.args[1:])
        return f"size={len(q)} prims={join(q.prims)}"

    def do_drop(self, c: Command) -> str:
        handle = self.handles[c.args[0]]  # stays known: what is released must say so
        match handle:
            case cb.MapSession():
                handle.abort()
            case cb.Group():
                handle.give_up()
            case _:
                handle.release()
        return ""

    def do_write(self, c: Command) -> str:
        array, dtype = payload(c)
        said = options(c)
        if "insert" in c.opt:
            said["prim_mode"] = cb.PrimMode.INSERT
        q = self.handles[c.args[0]]
        return self.finish(
            c, self.stage.write_attribute(q, c.args[1], array, ordinal=c.number("ordinal"), dtype=dtype, **said)
        )

    def do_batch(self, c: Command) -> str:
        writes: dict[str, Any] = {}
        for e in c.more:
            array, dtype = payload(e)
            if e.args[0] in writes:
                raise Absent("a mapping has each name once")
            writes[e.args[0]] = cb.Write(array, dtype=dtype, **options(e))
        return self.finish(c, self.stage.write_attributes(self.handles[c.args[0]], writes, ordinal=c.number("ordinal")))

    def do_publish(self, c: Command) -> str:
        array, dtype = payload(c)
        return f"ordinal={self.stage.publish(c.args[0], array, dtype=dtype, **options(c))}"

    def do_seal(self, c: Command) -> str:
        scope = {"include": cb.Scope.INCLUDE, "exclude": cb.Scope.EXCLUDE}.get(c.opt["scope"], cb.Scope.ALL)
        return self.finish(
            c,
            self.stage.advance_write_floor(
                c.number("ordinal"), scope=scope, attributes=c.args, stamp_ns=c.number("stamp")
            ),
        )

    def do_delete(self, c: Command) -> str:
        return self.finish(
            c, self.stage.delete_attributes(self.handles[c.args[0]], c.args[1:], ordinal=c.number("ordinal"))
        )

    def do_declare(self, c: Command) -> str:
        _, code, bits, lanes = element(c.opt["type"])
        said = options(c)
        if "retain" in c.opt:
            said["retain"] = c.number("retain")
        return self.finish(c, self.stage.declare(c.args[0], dtype=cb.DType(code, bits, lanes), **said))

    def do_wait(self, c: Command) -> str:
        return self.outcome(self.handles[c.args[0]], c.number("timeout") / 1e9 if "timeout" in c.opt else LIMIT)

    def do_op(self, c: Command) -> str:
        return f"id={self.handles[c.args[0]].id}"

    def do_floor(self, c: Command) -> str:
        return f"floor={self.stage.write_floor(*c.args)}"

    def do_epoch(self, c: Command) -> str:
        return f"epoch={self.stage.epoch}"

    def do_follow(self, c: Command) -> str:
        return f"epoch={self.stage.follow(c.number('after'), c.number('timeout') / 1e9)}"

    def do_read(self, c: Command) -> str:
        said = {key: c.number(key) for key in ("at", "since") if key in c.opt}
        said |= {"aligned": "common" in c.opt, "nearest": "nearest" in c.opt}
        said |= {"stamp_ns": c.number("stamp")} if "stamp" in c.opt else {}
        return self.groups(c, self.stage.read_attributes(self.handles[c.args[0]], c.args[1:], **said))

    def do_snapshot(self, c: Command) -> str:
        s = self.handles[c.args[0]] = self.stage.snapshot()
        self.cursors[s.epoch] = s.cursor
        return f"epoch={s.epoch} stamp={s.stamp_ns} floor={s.floor()}"

    def do_sread(self, c: Command) -> str:
        since = self.cursors[c.number("since")] if "since" in c.opt else None
        return self.groups(c, self.handles[c.args[0]].read(self.handles[c.args[1]], c.args[2:], since=since))

    def do_frontier(self, c: Command) -> str:
        return f"frontier={self.stage.frontier(c.args[0])}"

    def do_sfloor(self, c: Command) -> str:
        return f"floor={self.handles[c.args[0]].floor(*c.args[1:])}"

    def groups(self, c: Command, read: cb.Read) -> str:
        """Fetches all groups of a read and describes them; gives the read back, and the groups unless to be held."""
        epoch, groups = read.epoch, []
        try:
            while (g := read.fetch_read_next()) is not None:
                groups.append(g)
        except Exception as error:
            raise Fetching from error
        ended = read.fetch_read_next() is None  # END, twice
        read.release()
        texts = [f"ended={str(ended).lower()} epoch={epoch}"]
        for n, g in enumerate(groups):
            texts.append(self.describe(g))
            if "hold" in c.opt:
                self.handles[c.opt["hold"] + (f".{n}" if n else "")] = g
            else:
                g.release()
        return " ".join(texts)

    def describe(self, g: cb.ReadGroup) -> str:
        tensors = 0 if g.is_delete else g.prim_count if g.is_array else 1
        arrays = [np.asarray(g.array(i)) for i in range(tensors)]
        data = ";".join(a.tobytes().hex() for a in arrays)
        shape = ";".join(join(a.shape) for a in arrays) if g.is_array else join(g.shape)
        paths = join(quote(p) for p in self.stage.paths.resolve(g.prims)) if len(g.prims) else ""
        rows = "-" if g.index_map is None else join(g.index_map)
        return (
            f"/ attribute={quote(g.attribute)} kind={'array' if g.is_array else 'fixed'} {typed(g.dtype)}"
            f" shape={shape} data={data} paths={paths} map={rows} rows={g.rows}"
            f" semantic={int(g.semantic)} ordinal={g.ordinal} floor={g.floor} epoch={g.epoch}"
            f" generation={g.layout_generation} stamp={g.stamp_ns} deleted={str(g.is_delete).lower()}"
            f" ordinals={join(g.row_ordinals)}"
        )

    def do_show(self, c: Command) -> str:
        return self.describe(self.handles[c.args[0]])

    def do_latest(self, c: Command) -> str:
        v = self.stage.latest(c.args[0])
        if "hold" in c.opt:
            self.handles[c.opt["hold"]] = v
        return (
            f"/ attribute={quote(v.attribute)} kind=fixed {typed(v.dtype)} shape={join(v.shape)}"
            f" data={np.asarray(v).tobytes().hex()} paths=/ map=- rows=1 semantic={int(v.semantic)}"
            f" ordinal={v.ordinal} floor={v.floor} epoch={v.epoch} stamp={v.stamp_ns}"
        )

    def do_map(self, c: Command) -> str:
        said = options(c)
        if "type" in c.opt:
            _, code, bits, lanes = element(c.opt["type"])
            said["dtype"] = cb.DType(code, bits, lanes)
        if "insert" in c.opt:
            said["prim_mode"] = cb.PrimMode.INSERT
        if "sizes" in c.opt:
            said["element_sizes"] = c.numbers("sizes")
        if "init" in c.opt:
            said["init"] = c.opt["init"]
        if "group_rows" in c.opt:
            said["group_rows"] = c.number("group_rows")
        m = self.stage.map_attribute(self.handles[c.args[1]], c.args[2], ordinal=c.number("ordinal"), **said)
        self.handles[c.args[0]] = m
        if "share" in c.opt:  # others may claim its groups
            return ""
        return " ".join(self.hold_group(f"{c.args[0]}.{g.index}", g) for g in m)

    def do_fill(self, c: Command) -> str:
        data, at = bytes.fromhex(c.opt["data"]), c.number("at")
        flat = np.asarray(self.handles[c.args[0]].array(c.number("row"))).reshape(-1).view(np.uint8)
        flat[at : at + len(data)] = np.frombuffer(data, np.uint8)
        return ""

    def do_unmap(self, c: Command) -> str:
        handle = self.handles[c.args[0]]
        return self.finish(c, handle.unmap_attribute() if isinstance(handle, cb.MapSession) else handle.unmap())

    def do_abort(self, c: Command) -> str:
        self.handles[c.args[0]].abort()
        return ""

    def do_intern(self, c: Command) -> str:
        strings = self.stage.paths if c.args[0] == "paths" else self.stage.tokens
        return f"ids={join(strings.intern(c.args[1:]))}"

    def do_resolve(self, c: Command) -> str:
        return f"texts={join(quote(t) for t in self.stage.paths.resolve([int(w, 0) for w in c.args]))}"

    def do_statuses(self, c: Command) -> str:
        return " ".join(f"{name}={quote(_abi.STATUS_TEXTS[code])}" for code, name in sorted(NAMES.items()))

    def do_version(self, c: Command) -> str:
        built = metadata.version("callboard").replace(".", ",")
        return f"abi={cb.ABI_VERSION} version={join(cb.version)} built={built}"

    def do_attributes(self, c: Command) -> str:
        return f"names={join(quote(a['name']) for a in self.stage.attributes())}"

    def do_handles(self, c: Command) -> str:
        raise Absent("how many pins are in use is not shown")

    def do_waits(self, c: Command) -> str:
        """Several threads wait for one op."""
        op, ok = self.handles[c.args[0]], []
        on_threads(c.number("threads"), lambda thread: ok.append(op.wait(LIMIT)))
        return f"ok={len(ok)}"

    def do_flood(self, c: Command) -> str:
        """Submits one write over and over until it is refused; drain waits for all."""
        array, code = payload(c)[0], "OK"
        try:
            while len(self.flooded) < 20000:
                op = self.stage.write_attribute(self.handles[c.args[0]], c.args[1], array, ordinal=c.number("ordinal"))
                self.flooded.append(op)
        except cb.CallboardError as error:
            code = NAMES[error.code]
        return f"submitted={len(self.flooded)} code={code}"

    def do_drain(self, c: Command) -> str:
        failed = 0
        for op in self.flooded:
            try:
                op.wait(LIMIT)
            except cb.CallboardError:
                failed += 1
        self.flooded.clear()
        return f"failed={failed}"

    def do_ticks(self, c: Command) -> str:
        """Writes and seals n ordinals: all values of tick i are i."""
        query, name, n = self.handles[c.args[0]], c.args[1], c.number("n")
        for i in range(1, n + 1):
            self.stage.write_attribute(query, name, np.full(len(query), i, "i8"), ordinal=i)
            op = self.stage.advance_write_floor(i, scope=cb.Scope.INCLUDE, attributes=[name])
            if i % 32 == 0 or i == n:  # some ticks are on their way at a time
                op.wait(LIMIT)
        return self.outcome(op, LIMIT)

    def do_chase(self, c: Command) -> str:
        """Reads at its own rate until it has seen tick n; ticks must not go backwards or be torn. With deltas it reads
        what changed from cursor to cursor: then no tick may come twice either."""
        query, name, n, deltas = self.handles[c.args[0]], c.args[1], c.number("n"), "deltas" in c.opt
        reads = seen = epoch = 0
        cursor: Any = None
        while seen < n:
            epoch = self.stage.follow(epoch, LIMIT)
            with self.stage.snapshot() as snapshot:
                delta = snapshot.read(query, [name], since=cursor) if deltas else None
                cursor = snapshot.cursor
            with delta or self.stage.read_attributes(query, [name]) as read:
                for group in read:
                    values = group.array(0)
                    if values.min() != values.max() or values[0] < seen + deltas or values[0] != group.ordinal:
                        raise RuntimeError(f"after tick {seen}: values {values} at ordinal {group.ordinal}")
                    seen = int(values[0])
                    group.release()
                    reads += 1
        return f"seen={seen} reads={reads}"

    def do_threads(self, c: Command) -> str:
        """Threads that each write, seal and read an attribute of their own."""
        query, rounds, right = self.handles[c.args[0]], c.number("rounds"), []

        def use(thread: int) -> None:
            name = f"{c.args[1]}{thread}"
            for i in range(1, rounds + 1):
                self.stage.write_attribute(query, name, np.array([i], "i4"), ordinal=i)
                self.stage.advance_write_floor(i, scope=cb.Scope.INCLUDE, attributes=[name]).wait(LIMIT)
                with self.stage.read_attributes(query, [name]) as read:
                    for group in read:
                        if group.array(0)[0] == i:
                            right.append(i)
                        group.release()

        on_threads(c.number("threads"), use)
        return f"wrong={c.number('threads') * rounds - len(right)}"


def on_threads(n: int, run: Callable[[int], object]) -> None:
    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    warnings.simplefilter("error", ResourceWarning)
    driver = Driver()
    for line in sys.stdin:
        print(driver.line(line.rstrip("\n")), flush=True)
    driver.do_reset(Command("reset"))


if __name__ == "__main__":
    main()
