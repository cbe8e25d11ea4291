package callboard

import (
	"context"
	"errors"

	"callboard/protocol"
	"callboard/snapshot"
)

// Sentinels for errors.Is, one for each kind. ErrOpFailed holds for every failed
// operation as well, at submission and at Wait, whatever its kind.
var (
	ErrInvalidArgument     = sentinel(protocol.StatusInvalidArgument)
	ErrInvalidHandle       = sentinel(protocol.StatusInvalidHandle)
	ErrNotFound            = sentinel(protocol.StatusNotFound)
	ErrAlreadyExists       = sentinel(protocol.StatusAlreadyExists)
	ErrFloorViolation      = sentinel(protocol.StatusFloorViolation)
	ErrNotSupported        = sentinel(protocol.StatusNotSupported)
	ErrQueueFull           = sentinel(protocol.StatusQueueFull)
	ErrEnd                 = sentinel(protocol.StatusEnd) // ClaimGroup: there is none left
	ErrOutOfMemory         = sentinel(protocol.StatusOutOfMemory)
	ErrLayoutChanged       = sentinel(protocol.StatusLayoutChanged)
	ErrTimeout             = sentinel(protocol.StatusTimeout)
	ErrOpFailed            = sentinel(protocol.StatusOpFailed)
	ErrOutOfRange          = sentinel(protocol.StatusOutOfRange)
	ErrLimit               = sentinel(protocol.StatusLimit)
	ErrSessionEnded        = sentinel(protocol.StatusSessionEnded)
	ErrAccessDenied        = sentinel(protocol.StatusAccessDenied)
	ErrBrokerRestarted     = sentinel(protocol.StatusBrokerRestarted)
	ErrIncompatibleVersion = sentinel(protocol.StatusIncompatibleVersion)
	ErrInternal            = sentinel(protocol.StatusInternal)
)

func sentinel(s protocol.Status) error { return &protocol.Error{Status: s, Text: s.Text()} }

// Error is every error that this package returns.
type Error struct {
	// Status is the kind; programs decide by it, or by errors.Is with a sentinel.
	Status protocol.Status
	// Text says what happened, with which input, and what to do. For people.
	Text string
	// OpID is the operation that failed, 0 when it was refused at submission or when no
	// operation was meant.
	OpID uint64
	// SealedMaybe, of BROKER_RESTARTED: the operation may have been sealed before the broker
	// went, as a whole, since the write floor is at or above its ordinal. Else it left
	// nothing behind.
	SealedMaybe bool

	operation bool // an operation failed, at submission or at its end
	cause     error
}

// Error gives the kind's name and the text.
func (e *Error) Error() string { return e.Status.String() + ": " + e.Text }

// Unwrap gives the cause where there is one: the context's error of a wait that
// was given up.
func (e *Error) Unwrap() error { return e.cause }

// Is holds for the sentinel of the error's kind, and for ErrOpFailed when an
// operation failed (behaviour 212).
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case *protocol.Error:
		return t.Status == e.Status || t.Status == protocol.StatusOpFailed && e.operation
	case *Error:
		return t.Status == e.Status
	}
	return false
}

func fail(s protocol.Status, format string, args ...any) *Error {
	p := protocol.Errorf(s, format, args...)
	return &Error{Status: p.Status, Text: p.Text}
}

// asError gives any error of the packages below its kind; nil stays nil.
func asError(err error) error {
	if err == nil {
		return nil
	}
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	p := snapshot.StatusError(err)
	return &Error{Status: p.Status, Text: p.Text, cause: err}
}

// refused marks an error as an operation's that was not submitted (rule R6).
func refused(err error) error {
	var own *Error
	if err = asError(err); errors.As(err, &own) {
		own.operation = own.Status != protocol.StatusTimeout
	}
	return err
}

// gaveUp is the error of a wait that its context ended. It is no failure of what
// was waited for (behaviour 207).
func gaveUp(ctx context.Context, what string) error {
	return &Error{Status: protocol.StatusTimeout, Text: what + " is not done yet: " + context.Cause(ctx).Error() + "; wait again", cause: context.Cause(ctx)}
}
