package shm

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
)

// ErrFault is wrapped by the error of Guard: the memory that was accessed has no page
// behind it, most likely because a process of the same user truncated the object.
var ErrFault = errors.New("memory fault in a shared object")

// Guard runs f and turns a memory fault inside it into an error (rule S3, field report
// B4): a client may truncate an object that it can write, and the broker must outlive
// that. What f did up to the fault stays done.
//
// It holds for the calling goroutine only, not for those that f starts. Any other panic,
// a nil pointer included, passes through: those are our bugs. The goroutine's former
// setting is restored. Guards nest; one costs a few nanoseconds and no allocation.
func Guard(f func()) (err error) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		cause := recover()
		if cause == nil {
			return
		}
		// Only faults at a real address carry one; the runtime gives none for nil
		// pointers and for bounds.
		fault, ok := cause.(interface {
			runtime.Error
			Addr() uintptr
		})
		if !ok {
			panic(cause)
		}
		err = fmt.Errorf("%w at address %#x: a process of this user has probably truncated it", ErrFault, fault.Addr())
	}()
	f()
	return nil
}
