"""Stage: what is written in Python on top of the native one."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import _lists, _native
from ._errors import BrokerRestarted, InvalidHandle, OperationFailed, OutOfMemory, QueueFull, SessionEnded
from ._events import Watch
from ._lists import PathList
from ._types import Filter, Name, OpenGroup, PrimMode, Write

_LIST_SECONDS = 0.02  # between two lists of groups that find nothing


class Strings:
    """Ids and texts of one sort: `stage.paths` or `stage.tokens`. Ids are valid for the life of the stage's memory."""

    __slots__ = ("_paths", "_stage")

    def __init__(self, stage: Stage, paths: bool) -> None:
        self._stage = stage
        self._paths = paths

    def resolve(self, ids: int | Iterable[int]) -> Any:
        """The text of an id, or the list of texts of several. Raises NotFound for 0 and for unknown ids."""
        return self._stage._resolve(ids)

    def intern(self, texts: str | Iterable[str]) -> Any:
        """The id of a text, an int, or the ids of several, an array of uint64. Waits for the broker."""
        return self._stage._intern(self._paths, texts)

    def list(self, items: Iterable[int | str]) -> PathList:
        """A new list of ids, as a PathList, which is an int. Texts among the items are interned."""
        ids = [self.intern(item) if isinstance(item, str) else item for item in items]
        return PathList(self._stage, self._stage._list_create(ids))

    def slice(self, number: int, first: int, count: int) -> PathList:
        """A new list of `count` ids of a list from place `first` on."""
        return PathList(self._stage, self._stage._list_slice(number, first, count))

    def ids(self, number: int) -> Any:
        """The ids of a list, an array of uint64. Raises NotFound for an unknown list, as count does."""
        return self._stage._list_ids(number)

    def count(self, number: int) -> int:
        """How many ids a list has."""
        return self._stage._list_count(number)

    def add_reference(self, number: int) -> None:
        """Adds a reference to a list, which the caller gives back with release(). 0 does nothing."""
        _lists.add_reference(self._stage, number)

    def release(self, number: int) -> None:
        """Gives back a reference to a list: one that was added, else that of the PathList. 0 does nothing.

        Raises NotFound for a list that is unknown, also because its last reference was released.
        """
        _lists.release(self._stage, number)

    def from_tokens(self, tokens: Iterable[int | str]) -> int:
        """The id of the path whose components are these tokens, by id or text; of none, the root. Asks the broker."""
        return self._stage._path_from_tokens(
            [self._stage._intern(False, t) if isinstance(t, str) else t for t in tokens]
        )

    def to_tokens(self, path: int | str) -> Any:
        """The ids of a path's components, an array of uint64: empty for the root. Waits for the broker."""
        return self._stage._path_tokens(self._stage._intern(True, path) if isinstance(path, str) else path)


class Stage(_native.Stage):
    """A session with a stage: made by callboard.connect(), ended by close() or by leaving a with-block.

    Wherever a call takes an attribute's name it takes the token of that name as well, an integer of this stage's
    tokens (NumPy's too): it is the same attribute. An unknown token raises NotFound, and nothing is made.
    """

    __slots__ = ()

    @property
    def paths(self) -> Strings:
        """The paths of prims and their ids."""
        return Strings(self, True)

    @property
    def tokens(self) -> Strings:
        """Tokens, such as attribute names, and their ids."""
        return Strings(self, False)

    def query_from_path_list(self, paths: Iterable[str] | int) -> _native.Query:
        """A Query of the prims with these paths, in this order; or of the path ids of a list, by its number.

        They need not exist. Each path starts with '/', and its names are not empty. A PathList is kept as long as the
        query. Waits for the broker. Raises InvalidArgument, which names the path and its place, NotFound for an
        unknown list.
        """
        return self._query_from_list(paths) if isinstance(paths, int) else super().query_from_path_list(paths)

    def query(
        self,
        *filters: Filter,
        attributes: Name | Iterable[Name] | None = None,
        sealed: bool = False,
        wait: bool = True,
        timeout: float | None = None,
    ) -> _native.Query:
        """A Query of the prims that satisfy all filters; without one, of every prim that carries anything.

        filters: Has, PathIn, PathPrefix, In, Contains, Less, LessEqual, Greater, GreaterEqual. They see what was
        written, sealed or not; sealed=True: what is sealed alone. The query is evaluated once: later changes do not
        change it. Its prims are in the order in which their paths came up first. query.attributes are the names that
        they carry, limited to `attributes` where given.

        wait=False returns at once: operations with the query run after it and fail when it does, a read raises its
        error when the first group is fetched, and query.wait() makes its prims known. timeout: seconds to wait.

        Raises, before anything is made, NotSupported for a filter that the attribute does not know, or a reserved name;
        InvalidArgument for what is no name, path or number.
        """
        query = self._query(tuple(f._predicate() for f in filters), attributes, sealed)
        if wait:
            try:
                query.wait(timeout)
            except BaseException:
                query.release()
                raise
        return query

    def write_attributes(
        self,
        query: _native.Query,
        attributes: Mapping[Any, Any],
        *,
        ordinal: int,
        prim_mode: int = PrimMode.UPSERT,
    ) -> _native.Op:
        """Writes several attributes of the query's prims at an ordinal, all or none, as one Op.

        attributes maps names to arrays, or to Write where an array needs options; together they fit into connect's
        argument_bytes, else LimitReached is raised. See write_attribute. Several write_attribute calls and one seal
        are seen together as well.
        """
        entries = []
        for name, value in attributes.items():
            w = value if isinstance(value, Write) else Write(value)
            entries.append((name, w.array, w.semantic, w.is_array, w.row_shape, w.count, w.index_map, w.mask, w.dtype))
        return self._write_attributes(query, entries, ordinal, prim_mode)

    def list_groups(self, attribute: Name | None = None) -> list[OpenGroup]:
        """The groups of an attribute's map sessions (None: of all) that nobody has claimed. Waits for the broker."""
        return [OpenGroup(*group) for group in self._list_groups(attribute)]

    def claim_group(self, session: int, index: int | None = None) -> _native.Group | None:
        """Claims a group that list_groups named to fill it; the first claim wins. None: any group of the session.

        End it with group.unmap(), or group.give_up(); one that is dropped is given up, with a ResourceWarning. Returns
        None when no group of the session is left. Raises InvalidHandle when somebody else was faster or the session is
        over, AccessDenied.
        """
        return self._claim_group(session, index)

    def work_on(
        self,
        attribute: Name,
        fn: Callable[[_native.Group], Any],
        *,
        stop: threading.Event | None = None,
        idle: float | None = None,
    ) -> int:
        """Fills groups of an attribute's map sessions, whoever opened them, and returns how many.

        Claims one group after the other, calls fn(group), which fills group.array(0) for the prims group.prims, and
        hands the group back. Any number of processes may do so: each group is one worker's, and that of a worker that
        died comes again, as the next attempt. An exception of fn gives the group back, for somebody else, and is raised
        here. What becomes of a session meanwhile (it was aborted, or a seal passed it) is its owner's to know: the work
        goes on with others, after a restart of the broker too.

        A group on a GPU fn hands back itself, group.unmap(cuda_sync=...), where something is queued to fill it.

        Goes on until stop is set or no group has come for `idle` seconds; None: for ever. Groups are found by listing
        them every 20 ms: no NATS is needed. Raises SessionEnded when the broker is gone.
        """
        filled = 0
        last = time.monotonic()
        while stop is None or not stop.is_set():
            before = filled
            for session in self._open_sessions(attribute):
                while (stop is None or not stop.is_set()) and self._work(session, fn):
                    filled += 1
            now = time.monotonic()
            if filled > before:
                last = now
                continue
            if idle is not None and now - last >= idle:
                break
            pause = _LIST_SECONDS if idle is None else min(_LIST_SECONDS, max(0.0, last + idle - now))
            if stop is None:
                time.sleep(pause)
            else:
                stop.wait(pause)
        return filled

    def _open_sessions(self, attribute: Name) -> list[int]:
        """The sessions that have groups to claim."""
        try:
            return list(dict.fromkeys(group.session for group in self.list_groups(attribute)))
        except BrokerRestarted:
            return []  # the next list waits for the next broker

    def _work(self, session: int, fn: Callable[[_native.Group], Any]) -> bool:
        """Claims a group and fills it. False: there is none, or no room for it now."""
        try:
            group = self._claim_group(session, None)
        except (InvalidHandle, QueueFull, OutOfMemory, BrokerRestarted):
            return False  # the list waits for the next broker
        if group is None:
            return False
        try:
            fn(group)
        except BaseException:
            group.give_up()
            raise
        try:
            group.unmap().wait()
        except (SessionEnded, KeyboardInterrupt):
            raise
        except (QueueFull, OutOfMemory):
            return False
        except OperationFailed:
            group.give_up()  # where it is still held; else fn has handed it back, or the session was aborted or sealed
        return True

    def watch(self, *names: Name, after: int | None = None, timeout: float | None = None) -> Watch:
        """Gives a Snapshot whenever one of the attributes was sealed, or anything where none is named.

            for snapshot in stage.watch("pose"): ...
            async for snapshot in stage.watch("pose"): ...      # beside other tasks of an asyncio loop

        The first one comes at once where something is sealed already; with `after`, an epoch, it is the first state
        that is newer. A reader that is slower than the seals sees the newest state, not each. timeout: seconds to
        wait for each; then Timeout is raised, and one may go on. Ends by SessionEnded when the stage is closed.
        """
        return Watch(self, names, after, timeout)


def connect(
    name: str | None = None,
    *,
    client_name: str | None = None,
    guard: bool | None = None,
    read_only: bool = False,
    timeout: float | None = None,
    sq_entries: int = 0,
    cq_entries: int = 0,
    pin_count: int = 0,
    argument_bytes: int = 0,
    result_bytes: int = 0,
    reattach_timeout: float | None = 10.0,
) -> Stage:
    """Attaches to a running stage.

    name: the stage; None: $CALLBOARD_STAGE, else what $CALLBOARD_RUNTIME_DIR serves, else "default". client_name: how
    this client is listed; None: the program's name. guard: memory that was handed back becomes read-only, so that a
    late write stops the process instead of being lost (also $CALLBOARD_GUARD=1). read_only: this client will not
    write. timeout: seconds for the broker's answer; None: 10.

    The sizes of this client's channel; 0 is the default:
    sq_entries: ops that the broker has not taken yet, a power of two up to 32768 (256).
    cq_entries: ops that may be outstanding, likewise (512).
    pin_count: groups, views of different reads and snapshots that may be held at a time, up to 65536 (4096).
    argument_bytes, result_bytes: room for what ops send and get, up to 64 MiB (1 MiB each).

    A broker that is killed and started anew, or replaced, takes this session up again: the next one is looked for up to
    reattach_timeout seconds (0: not at all; None: for ever). Meanwhile and afterwards views, snapshots and new reads
    show what was sealed, and waits for an epoch go on. What was not sealed is gone: ops on their way, submissions of
    that time and map sessions raise BrokerRestarted, and so does, once, the first write or seal after work that was
    accepted and never sealed. Do the work again. Queries stay usable.

    When the broker is gone for good, stopped or not started anew in time, `alive` turns False as soon as it is noticed,
    and waits, submissions and the first look at memory that is not mapped yet raise SessionEnded with the reason. What
    was sealed stays readable in place, as far as it is mapped: the memory belongs to no process. It is the state at the
    broker's end. An orderly stop removes the memory from the machine, so that only what is mapped stays.

    Raises NotFound (listing the places looked at, or naming the stage that is served there instead), ValueError for
    sizes out of range, IncompatibleVersion, AccessDenied, LimitReached, Timeout.
    """
    if client_name is None and sys.argv and sys.argv[0] not in ("", "-c", "-m"):
        client_name = os.path.basename(sys.argv[0]) or None
    return Stage(
        name,
        client_name=client_name,
        guard=guard,
        read_only=read_only,
        timeout=timeout,
        sq_entries=sq_entries,
        cq_entries=cq_entries,
        pin_count=pin_count,
        argument_bytes=argument_bytes,
        result_bytes=result_bytes,
        reattach_timeout=reattach_timeout,
    )
