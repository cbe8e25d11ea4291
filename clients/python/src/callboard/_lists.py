"""Lists of ids: numbers that own what they stand for."""

from __future__ import annotations

import threading
import warnings
from typing import Any
from weakref import WeakKeyDictionary

from . import _native
from ._errors import InvalidHandle, NotFound


class _References:
    """The references to one list that Python has: its object's, and those that were added."""

    __slots__ = ("added", "owned")

    def __init__(self) -> None:
        self.owned = True
        self.added = 0


_lock = threading.RLock()  # a finalizer may run within any of these
_known: WeakKeyDictionary[_native.Stage, dict[int, _References]] = (
    WeakKeyDictionary()
)  # by stage: not by who looks at it


class PathList(int):
    """The number of an immutable, ordered list of ids, and a reference to it: stage.paths.list() makes one.

    It is an int wherever one is wanted; copies and pickles are plain ints, which own nothing. Give it back with
    release() or a with-block. One that is dropped is released with a ResourceWarning, unless its stage was closed.
    """

    _stage: _native.Stage
    _references: _References

    def __new__(cls, stage: _native.Stage, number: int) -> PathList:
        self = super().__new__(cls, number)
        self._stage = stage
        self._references = _References()
        with _lock:
            _known.setdefault(stage, {})[number] = self._references
        return self

    @property
    def released(self) -> bool:
        """True once the object's own reference was given back, through it or through its number."""
        return not self._references.owned

    def add_reference(self) -> PathList:
        """Adds a reference that is the caller's; release() or stage.paths.release() gives it back."""
        add_reference(self._stage, int(self))
        return self

    def release(self) -> None:
        """Gives back the object's own reference, or, where that is gone, one that was added.

        Raises InvalidHandle where there is none.
        """
        with _lock:
            if not self._references.owned and self._references.added == 0:
                raise InvalidHandle(f"list {int(self)} was released")
            _give_back(self._stage, int(self), self._references, own=self._references.owned)

    def __enter__(self) -> PathList:
        if self.released:
            raise InvalidHandle(f"list {int(self)} was released")
        return self

    def __exit__(self, *unused: Any) -> None:
        if not self.released:
            self.release()

    def __del__(self) -> None:
        references = getattr(self, "_references", None)
        if references is None or not references.owned:
            return
        silent = self._stage.closed
        with _lock:
            _give_back(self._stage, int(self), references, own=True)
        if not silent:
            warnings.warn(
                f"list {int(self)} was not released; it was garbage-collected and is given back now",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def __repr__(self) -> str:
        return f"<callboard.PathList {int(self)}{', released' if self.released else ''}>"

    def __str__(self) -> str:
        return int.__repr__(self)

    def __copy__(self) -> int:
        return int(self)

    def __deepcopy__(self, memo: Any) -> int:
        return int(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


def _give_back(stage: _native.Stage, number: int, references: _References, *, own: bool) -> None:
    if own:
        references.owned = False
    else:
        references.added -= 1
    if not references.owned and references.added == 0:
        _known.get(stage, {}).pop(number, None)
    stage._list_release(number)


def add_reference(stage: _native.Stage, number: int) -> None:
    """Adds a reference to a list by its number; 0 does nothing."""
    if number == 0:
        return
    with _lock:
        stage._list_add(number)
        references = _known.get(stage, {}).get(number)
        if references is None:  # only a query refers to it
            references = _known.setdefault(stage, {})[number] = _References()
            references.owned = False
        references.added += 1


def release(stage: _native.Stage, number: int) -> None:
    """Gives a reference back by a list's number: one that was added while there are any, then the object's own."""
    if number == 0:
        return
    with _lock:
        references = _known.get(stage, {}).get(number)
        if references is None:
            raise NotFound(
                f"list {number} is unknown: it was never made on this stage, or its last reference was released"
            )
        _give_back(stage, number, references, own=references.added == 0)
