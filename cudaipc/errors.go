package cudaipc

import (
	"errors"
	"fmt"
)

// Code is a result of the driver. It is an error, so that errors.Is(err, ErrOutOfMemory)
// holds for whatever wraps it.
type Code int32

// The codes that something here or above decides by.
const (
	ErrInvalidValue    Code = 1
	ErrOutOfMemory     Code = 2
	ErrNotInitialized  Code = 3
	ErrStubLibrary     Code = 34
	ErrUnavailable     Code = 46
	ErrNoDevice        Code = 100
	ErrInvalidDevice   Code = 101
	ErrInvalidContext  Code = 201
	ErrMapFailed       Code = 205
	ErrAlreadyMapped   Code = 208
	ErrPeerAccess      Code = 217
	ErrOperatingSystem Code = 304
	ErrInvalidHandle   Code = 400
	ErrNotReady        Code = 600
	ErrIllegalAddress  Code = 700
	ErrContextGone     Code = 709
	ErrTooManyPeers    Code = 711
	ErrLaunchFailed    Code = 719
	ErrNotPermitted    Code = 800
	ErrNotSupported    Code = 801
	ErrDriverMismatch  Code = 803
)

// codeNames are the names of cuda.h, for where the driver cannot be asked.
var codeNames = map[Code]string{
	ErrInvalidValue: "INVALID_VALUE", ErrOutOfMemory: "OUT_OF_MEMORY", ErrNotInitialized: "NOT_INITIALIZED",
	ErrStubLibrary: "STUB_LIBRARY", ErrUnavailable: "DEVICE_UNAVAILABLE", ErrNoDevice: "NO_DEVICE", ErrInvalidDevice: "INVALID_DEVICE",
	ErrInvalidContext: "INVALID_CONTEXT", ErrMapFailed: "MAP_FAILED", ErrAlreadyMapped: "ALREADY_MAPPED",
	ErrPeerAccess: "PEER_ACCESS_UNSUPPORTED", ErrOperatingSystem: "OPERATING_SYSTEM", ErrInvalidHandle: "INVALID_HANDLE",
	ErrNotReady: "NOT_READY", ErrIllegalAddress: "ILLEGAL_ADDRESS", ErrContextGone: "CONTEXT_IS_DESTROYED",
	ErrTooManyPeers: "TOO_MANY_PEERS", ErrLaunchFailed: "LAUNCH_FAILED", ErrNotPermitted: "NOT_PERMITTED",
	ErrNotSupported: "NOT_SUPPORTED", ErrDriverMismatch: "SYSTEM_DRIVER_MISMATCH",
}

// Error gives the name in cuda.h and the number.
func (c Code) Error() string {
	if name, ok := codeNames[c]; ok {
		return fmt.Sprintf("CUDA_ERROR_%s (%d)", name, int32(c))
	}
	return fmt.Sprintf("CUDA error %d", int32(c))
}

// ContextLost says that nothing works in this process's context any more: the driver
// gives the code for every later call, and only a new process gets a working one.
func (c Code) ContextLost() bool {
	return c == ErrIllegalAddress || c == ErrLaunchFailed || c == ErrContextGone
}

// Error is a call that the driver refused.
type Error struct {
	Code     Code
	Function string // of the driver, "cuMemAlloc_v2"
	Name     string // the driver's own name of the code, "CUDA_ERROR_OUT_OF_MEMORY"; "" where it was not asked
	Text     string // and its own text
}

func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("%s: %v", e.Function, e.Code)
	}
	return fmt.Sprintf("%s: %s (%d): %s", e.Function, e.Name, int32(e.Code), e.Text)
}

// Unwrap gives the code, for errors.Is.
func (e *Error) Unwrap() error { return e.Code }

// CodeOf finds the driver's code in an error; 0 if it has none.
func CodeOf(err error) Code {
	var code Code
	if errors.As(err, &code) {
		return code
	}
	return 0
}

// LibraryError says that there is no driver library to ask.
type LibraryError struct {
	Path   string
	Reason string // the dynamic linker's text, or what is missing in the library
}

func (e *LibraryError) Error() string {
	return fmt.Sprintf("loading the driver library %s: %s", e.Path, e.Reason)
}

var (
	// ErrNotBuilt says that this program was built without device support.
	ErrNotBuilt = errors.New("this program was built without GPU support (tag nogpu, or another platform than linux on amd64 or arm64)")
	// ErrClosed says that a Thread, a Copier or a pool has been closed.
	ErrClosed = errors.New("closed")
	// ErrOtherDevice says that something lies on a device that this process, or this
	// Thread, does not have.
	ErrOtherDevice = errors.New("another device")
	// ErrProducerDied says that the process that was to complete an event has ended.
	ErrProducerDied = errors.New("the producer ended before its work on the device was done")
	// ErrDeadline says that an event did not complete in time.
	ErrDeadline = errors.New("the producer's work on the device did not complete in time")
	// ErrNoEvents says that all events of a pool are leased.
	ErrNoEvents = errors.New("all interprocess events are in use")
	// ErrStale says that a generation is not that of the arena.
	ErrStale = errors.New("of an earlier generation")
)
