package protocol

import "fmt"

// Error is a Status with a text for people. Go code compares the Status, for
// example with errors.Is(err, protocol.StatusFloorViolation.Error()).
type Error struct {
	// Status is the kind.
	Status Status
	// Text says what happened, which input, and what to do.
	Text string
}

// Errorf makes an *Error.
func Errorf(s Status, format string, args ...any) *Error {
	return &Error{Status: s, Text: fmt.Sprintf(format, args...)}
}

// Error gives the kind's name and the text.
func (e *Error) Error() string { return e.Status.String() + ": " + e.Text }

// Is holds for errors of the same kind, whatever their texts.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Status == e.Status
}
