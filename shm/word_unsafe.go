package shm

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// ErrBounds is wrapped by View and Slice when the wanted bytes do not lie inside the
// region or are not aligned for the wanted type. Offsets often come from peers, so this
// is an error and no panic.
var ErrBounds = errors.New("outside the region")

// The word functions below are sequentially consistent: each is one atomic access with
// a full order, which is what the protocol rules mean by "store, then load". Offsets
// given to them are our own constants, so a bad one is our bug and panics with numbers.

// LoadU64 reads the 64-bit word at byte offset off.
func LoadU64(b []byte, off int) uint64 { return atomic.LoadUint64(word64(b, off)) }

// StoreU64 writes v to the 64-bit word at byte offset off.
func StoreU64(b []byte, off int, v uint64) { atomic.StoreUint64(word64(b, off), v) }

// AddU64 adds delta to the 64-bit word at byte offset off and returns the new value.
func AddU64(b []byte, off int, delta uint64) uint64 { return atomic.AddUint64(word64(b, off), delta) }

// CasU64 replaces old by v in the 64-bit word at byte offset off; false says that it
// held something else.
func CasU64(b []byte, off int, old, v uint64) bool {
	return atomic.CompareAndSwapUint64(word64(b, off), old, v)
}

// LoadU32 reads the 32-bit word at byte offset off.
func LoadU32(b []byte, off int) uint32 { return atomic.LoadUint32(Word32(b, off)) }

// StoreU32 writes v to the 32-bit word at byte offset off.
func StoreU32(b []byte, off int, v uint32) { atomic.StoreUint32(Word32(b, off), v) }

// AddU32 adds delta to the 32-bit word at byte offset off and returns the new value.
func AddU32(b []byte, off int, delta uint32) uint32 { return atomic.AddUint32(Word32(b, off), delta) }

// CasU32 replaces old by v in the 32-bit word at byte offset off; false says that it
// held something else.
func CasU32(b []byte, off int, old, v uint32) bool {
	return atomic.CompareAndSwapUint32(Word32(b, off), old, v)
}

// Word32 gives the address of the 32-bit word at byte offset off, for FutexWait and
// FutexWake. It is valid as long as the mapping is.
func Word32(b []byte, off int) *uint32 {
	if off < 0 || len(b) < 4 || off > len(b)-4 {
		panic(fmt.Sprintf("shm: 4-byte word at offset %d lies outside a region of %d bytes", off, len(b)))
	}
	p := unsafe.Pointer(&b[off])
	if uintptr(p)%4 != 0 {
		panic(fmt.Sprintf("shm: 4-byte word at offset %d of a region of %d bytes is not aligned (address %#x)", off, len(b), uintptr(p)))
	}
	return (*uint32)(p)
}

func word64(b []byte, off int) *uint64 {
	if off < 0 || len(b) < 8 || off > len(b)-8 {
		panic(fmt.Sprintf("shm: 8-byte word at offset %d lies outside a region of %d bytes", off, len(b)))
	}
	p := unsafe.Pointer(&b[off])
	if uintptr(p)%8 != 0 {
		panic(fmt.Sprintf("shm: 8-byte word at offset %d of a region of %d bytes is not aligned (address %#x)", off, len(b), uintptr(p)))
	}
	return (*uint64)(p)
}

// View gives the bytes at off as a *T, in place.
//
// T must hold no Go pointers (layout structs and numbers do not). The peer may change
// the bytes at any time unless it maps them read-only: load a field once, check it, use
// the copy. The pointer is valid as long as the mapping is.
func View[T any](b []byte, off uint64) (*T, error) {
	var zero T
	if err := checkRange(b, off, 1, uint64(unsafe.Sizeof(zero)), uint64(unsafe.Alignof(zero))); err != nil {
		return nil, err
	}
	return (*T)(unsafe.Pointer(&b[off])), nil
}

// Slice gives n elements of type T that start at off, in place. The rules of View hold.
// n = 0 gives an empty slice for any off inside the region.
func Slice[T any](b []byte, off uint64, n int) ([]T, error) {
	var zero T
	if n < 0 {
		return nil, fmt.Errorf("slice of %d elements at offset %d: %w: the count must not be negative", n, off, ErrBounds)
	}
	if err := checkRange(b, off, uint64(n), uint64(unsafe.Sizeof(zero)), uint64(unsafe.Alignof(zero))); err != nil {
		return nil, err
	}
	if n == 0 {
		return []T{}, nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[off])), n), nil
}

func checkRange(b []byte, off, n, size, align uint64) error {
	length := uint64(len(b))
	if size == 0 {
		return fmt.Errorf("view of a type without size: %w", ErrBounds)
	}
	// Division instead of n*size, which a peer's count could overflow.
	if off > length || n > (length-off)/size {
		return fmt.Errorf("%d elements of %d bytes at offset %d: %w of %d bytes", n, size, off, ErrBounds, length)
	}
	if n == 0 {
		return nil
	}
	if addr := uintptr(unsafe.Pointer(&b[off])); uint64(addr)%align != 0 {
		return fmt.Errorf("offset %d: %w: not a multiple of %d bytes", off, ErrBounds, align)
	}
	return nil
}
