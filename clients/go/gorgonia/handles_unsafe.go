package gorgonia

import (
	"unsafe"

	"gorgonia.org/cu"
)

// cu keeps its handles in unexported fields and makes nothing of a handle: a Stream and an
// Event are a struct of the driver's handle alone, which is looked at in place. That they
// have a handle's size is checked when this compiles.
const (
	_ = uint(unsafe.Sizeof(cu.Stream{}) - unsafe.Sizeof(uintptr(0)))
	_ = uint(unsafe.Sizeof(uintptr(0)) - unsafe.Sizeof(cu.Stream{}))
	_ = uint(unsafe.Sizeof(cu.Event{}) - unsafe.Sizeof(uintptr(0)))
	_ = uint(unsafe.Sizeof(uintptr(0)) - unsafe.Sizeof(cu.Event{}))
)

func handleOfStream(s *cu.Stream) uint64 { return uint64(*(*uintptr)(unsafe.Pointer(s))) }

func handleOfEvent(e *cu.Event) uint64 { return uint64(*(*uintptr)(unsafe.Pointer(e))) }

func eventOf(handle uint64) (e cu.Event) {
	*(*uintptr)(unsafe.Pointer(&e)) = uintptr(handle)
	return e
}
