package ring

import (
	"errors"
	"fmt"

	"callboard/protocol"
)

// ErrFull says that a submission found no room: the submission ring is full, or
// as many ops are outstanding as the completion ring has entries (rule R1).
// Nothing was submitted. Poll completions, then submit again.
var ErrFull = errors.New("ring: too many ops are outstanding; take completions, then submit again")

// ErrPinLimit says that every pin slot of the channel is in use.
var ErrPinLimit = errors.New("ring: no pin slot is free; release views or snapshots, or attach with a larger pin count")

// ErrLayout is wrapped by errors about sizes that no channel can have.
var ErrLayout = errors.New("ring: impossible channel size")

// CorruptError is what a reader of shared memory returns when the peer's words
// cannot be true (rule R5). The broker ends that session and lives on; a client
// gives up its connection. Nothing was read or written outside the channel.
type CorruptError struct {
	// Word is the field's name as package protocol spells it.
	Word string
	// Value is what was read.
	Value uint64
	// Expect says how Value must stand to Limit: "at most", "at least", "exactly", "a multiple of",
	// "a power of two such as".
	Expect string
	// Limit is what Value was compared with.
	Limit uint64
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("ring: %s is %d, expected %s %d: the peer broke the protocol or its memory is corrupt; this session cannot go on",
		e.Word, e.Value, e.Expect, e.Limit)
}

// VersionError says that a channel was made for another major version of the
// protocol, or that its creator has not finished it (Got 0).
type VersionError struct {
	// Got is the channel's version word.
	Got uint32
	// Want is ours.
	Want uint32
}

func (e *VersionError) Error() string {
	if e.Got == 0 {
		return "ring: the channel's version word is 0: its creator has not finished it"
	}
	return fmt.Sprintf("ring: the channel speaks protocol version %s, this library %s: use libraries of one major version",
		protocol.VersionText(e.Got), protocol.VersionText(e.Want))
}

func atMost(word string, value, limit uint64) *CorruptError {
	return &CorruptError{Word: word, Value: value, Expect: "at most", Limit: limit}
}

func atLeast(word string, value, limit uint64) *CorruptError {
	return &CorruptError{Word: word, Value: value, Expect: "at least", Limit: limit}
}

func exactly(word string, value, limit uint64) *CorruptError {
	return &CorruptError{Word: word, Value: value, Expect: "exactly", Limit: limit}
}

func multiple(word string, value, limit uint64) *CorruptError {
	return &CorruptError{Word: word, Value: value, Expect: "a multiple of", Limit: limit}
}
