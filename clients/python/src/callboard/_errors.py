"""The errors: one class per kind, all under OperationFailed, itself a CallboardError."""

from __future__ import annotations

from . import _abi


class CallboardError(RuntimeError):
    """Something that the stage refused or that failed. `code` is one of callboard's status numbers, the text is for
    people."""

    code: int = _abi.STATUS_INTERNAL


class OperationFailed(CallboardError):
    """An operation was refused at submission, or failed; the subclass says how."""

    code = _abi.STATUS_OP_FAILED


class InvalidArgument(OperationFailed, ValueError):
    """A shape, type, semantic or other argument does not fit; the text compares the numbers."""

    code = _abi.STATUS_INVALID_ARGUMENT


class InvalidHandle(OperationFailed):
    """A group, session, query, snapshot or op that was released or has ended."""

    code = _abi.STATUS_INVALID_HANDLE


class NotFound(OperationFailed):
    """No such stage, attribute, path or id."""

    code = _abi.STATUS_NOT_FOUND


class AlreadyExists(OperationFailed):
    """INSERT of a prim that is there already."""

    code = _abi.STATUS_ALREADY_EXISTS


class FloorViolation(OperationFailed):
    """A write at ordinal 0 or at or below the write floor."""

    code = _abi.STATUS_FLOOR_VIOLATION


class NotSupported(OperationFailed):
    """This version, or this stage, does not do that."""

    code = _abi.STATUS_NOT_SUPPORTED


class QueueFull(OperationFailed):
    """Too much is outstanding: wait for an op, or seal, and try again."""

    code = _abi.STATUS_QUEUE_FULL


class OutOfMemory(OperationFailed):
    """The stage's memory does not suffice."""

    code = _abi.STATUS_OUT_OF_MEMORY


class LayoutChanged(OperationFailed):
    """The attribute's rows changed in a way that the operation cannot follow."""

    code = _abi.STATUS_LAYOUT_CHANGED


class Timeout(OperationFailed, TimeoutError):
    """Not finished in the time given; it may be waited for again."""

    code = _abi.STATUS_TIMEOUT


class OutOfRange(OperationFailed):
    """The state of that ordinal is not retained any more."""

    code = _abi.STATUS_OUT_OF_RANGE


class LimitReached(OperationFailed):
    """This client holds too much; the text names its oldest pins."""

    code = _abi.STATUS_LIMIT


class SessionEnded(OperationFailed):
    """The stage was closed, the broker is gone or ended the session, or this is a forked child. The text says which.
    What was sealed can still be read after the broker is gone, not after close; see connect."""

    code = _abi.STATUS_SESSION_ENDED


class AccessDenied(OperationFailed):
    """This user, or this read-only client, may not do that."""

    code = _abi.STATUS_ACCESS_DENIED


class BrokerRestarted(OperationFailed):
    """The broker restarted before this was sealed: submit it again. Where `sealed_maybe` is true it may have been
    sealed all the same, since its ordinal is at or below the write floor: read to see."""

    code = _abi.STATUS_BROKER_RESTARTED
    sealed_maybe: bool = False


class IncompatibleVersion(OperationFailed):
    """The broker speaks another version of the protocol; the text names both."""

    code = _abi.STATUS_INCOMPATIBLE_VERSION


class InternalError(OperationFailed):
    """An invariant of Callboard's own is broken: please report it."""

    code = _abi.STATUS_INTERNAL


_KINDS: list[type[OperationFailed]] = [OperationFailed, *OperationFailed.__subclasses__()]
CLASSES: dict[int, type[OperationFailed]] = {kind.code: kind for kind in _KINDS}
