package goclient

import (
	"runtime/debug"
)

// faults runs f and tells whether it made a memory fault.
func faults(f func()) (fault bool) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		fault = recover() != nil
	}()
	f()
	return false
}
