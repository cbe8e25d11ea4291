package tensor

import "fmt"

// Code is the kind of an Error, by its stable name. The callers map it to the
// number that goes over the wire.
type Code string

// The kinds that this package reports: the input is wrong, or it is meaningful
// but more than a column, or this machine's memory, can hold.
const (
	InvalidArgument Code = "INVALID_ARGUMENT"
	NotSupported    Code = "NOT_SUPPORTED"
	OutOfMemory     Code = "OUT_OF_MEMORY"
)

// Sentinels for errors.Is; they match every Error of their kind.
var (
	ErrInvalidArgument error = &Error{Code: InvalidArgument}
	ErrNotSupported    error = &Error{Code: NotSupported}
	ErrOutOfMemory     error = &Error{Code: OutOfMemory}
)

// Error is refused input. Text is for people: it names the offending input, the
// numbers compared and what to do instead.
type Error struct {
	Code Code
	Text string
}

func (e *Error) Error() string {
	if e.Text == "" {
		return string(e.Code)
	}
	return e.Text
}

// Is reports whether target is the sentinel of the same kind.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Text == "" && t.Code == e.Code
}

func invalid(format string, args ...any) error {
	return &Error{Code: InvalidArgument, Text: fmt.Sprintf(format, args...)}
}

func notSupported(format string, args ...any) error {
	return &Error{Code: NotSupported, Text: fmt.Sprintf(format, args...)}
}
