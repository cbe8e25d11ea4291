"""The log: one callback for the process. Without one, Callboard says nothing anywhere."""

from __future__ import annotations

import atexit
import enum
from collections.abc import Callable

from . import _native


class Severity(enum.IntEnum):
    """How much a log record matters."""

    DEBUG = 0
    INFO = 1
    WARNING = 2
    ERROR = 3
    NONE = 4
    """A threshold that nothing reaches."""


_registered = False


def install_log(
    callback: Callable[[Severity, int, str], object], *, threshold: int = Severity.INFO, channels: str = ""
) -> None:
    """Calls callback(severity, time_ns, text) for what happens to sessions and handles; never for what happens to data.

    time_ns counts from 1970. The callback runs on a thread of its own, one record at a time, and nobody waits for it:
    while it is slow, records are dropped and their number is told. What it raises goes to sys.unraisablehook.
    threshold: what is less severe is left out. channels: the names of those that are told, with commas between them
    ("session", "memory", "handle", "call"), all where it is empty; each text begins with its channel's name. A name
    that no channel has matches nothing. A forked child has no callback; at the interpreter's end it is removed.

    Raises InvalidArgument for other text, AlreadyExists where the process has one: remove it first.
    """
    global _registered
    _native.log_install(callback, threshold, channels, Severity)
    if not _registered:
        atexit.register(_native.log_remove)
        _registered = True


def flush_log(timeout: float | None = 5.0) -> bool:
    """Waits until what was logged before is delivered; whether it is. timeout: seconds; 0 looks once; None: for ever.
    True at once without a callback. Raises OperationFailed within the callback."""
    return _native.log_flush(timeout)


def remove_log() -> None:
    """Delivers what was logged, then removes the callback. Raises OperationFailed within the callback."""
    _native.log_remove()
