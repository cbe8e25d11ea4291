"""Watch: a snapshot for each change, by `for` and by `async for`."""

from __future__ import annotations

import numbers
import time
from typing import TYPE_CHECKING

from . import _native
from ._errors import Timeout
from ._types import Name

if TYPE_CHECKING:
    from ._stage import Stage


class Watch:
    """What Stage.watch gives: an iterator over Snapshots, for one loop at a time, in either form.

    `async for` runs in asyncio. It holds no lock and no thread while it waits, lets other tasks run between two
    snapshots, and may be cancelled at any place: nothing is lost, and iterating goes on with the newest state. Any
    number of them may wait at once, on one stage or several. close() gives its descriptor back, and so does its end.
    """

    __slots__ = ("_busy", "_closed", "_epoch", "_events", "_floors", "_names", "_stage", "_timeout")

    def __init__(self, stage: Stage, names: tuple[Name, ...], after: int | None, timeout: float | None) -> None:
        for name in names:
            if isinstance(name, bool) or not isinstance(name, str | numbers.Integral):
                raise TypeError(f"names must be strings or tokens, not {type(name).__name__}")
        self._stage = stage
        self._names = names
        self._epoch = 0 if after is None else after
        self._floors: list[int] | None = [0] * len(names) if after is None else None  # None: whatever comes is new
        self._timeout = timeout
        self._events: _native.Events | None = None
        self._busy = self._closed = False

    def _look(self) -> _native.Snapshot | None:
        """The newest state, where it is another one to this watch."""
        snapshot = self._stage._snapshot()
        self._epoch = snapshot.epoch
        seen = [snapshot.floor(name) for name in self._names]
        changed = not self._names or seen != self._floors
        self._floors = seen
        return snapshot if changed else None

    def _deadline(self) -> float | None:
        return None if self._timeout is None else time.monotonic() + self._timeout

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> _native.Snapshot:
        deadline = self._deadline()
        while not self._closed:
            self._stage.follow(self._epoch, None if deadline is None else max(0.0, deadline - time.monotonic()))
            snapshot = self._look()
            if snapshot is not None:
                return snapshot
        raise StopIteration

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> _native.Snapshot:
        if self._busy:
            raise RuntimeError("this watch is waited for already: give each task its own")
        self._busy = True
        try:
            return await self._next()
        finally:
            self._busy = False

    async def _next(self) -> _native.Snapshot:
        import asyncio  # not before it is used: it is large

        deadline = self._deadline()
        await asyncio.sleep(0)  # a reader slower than the seals has always something to read, and lets others run
        while not self._closed:
            if self._events is None:
                self._events = self._stage._events()
            if self._events.drain() > self._epoch:
                snapshot = self._look()
                if snapshot is not None:
                    return snapshot
                await asyncio.sleep(0)
                continue
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise Timeout(f"nothing new was sealed for {self._timeout:.3g} s; the epoch is {self._epoch}")
            loop = asyncio.get_running_loop()
            readable = loop.create_future()
            fd = self._events.fileno()
            loop.add_reader(fd, lambda future=readable: future.done() or future.set_result(None))
            try:
                await asyncio.wait((readable,), timeout=left)
            finally:
                loop.remove_reader(fd)
        raise StopAsyncIteration

    def close(self) -> None:
        """Ends it: iterating stops. Not while a task waits for it: cancel that."""
        if self._busy:
            raise RuntimeError("this watch is waited for: cancel its task")
        self._closed = True
        if self._events is not None:
            self._events.release()
            self._events = None

    async def aclose(self) -> None:
        """As close(), for contextlib.aclosing."""
        self.close()
