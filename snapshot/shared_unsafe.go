package snapshot

import (
	"fmt"
	"unsafe"
)

// at is the struct of type T at offset off of b. It panics with the numbers when
// T does not fit or is misaligned there: places are ours, or were checked.
func at[T any](b []byte, off uint64) *T {
	var t T
	size, align := uint64(unsafe.Sizeof(t)), uint64(unsafe.Alignof(t))
	if off > uint64(len(b)) || uint64(len(b))-off < size || (uintptr(unsafe.Pointer(unsafe.SliceData(b)))+uintptr(off))%uintptr(align) != 0 {
		panic(fmt.Sprintf("snapshot: %T of %d bytes at offset %d of %d bytes", t, size, off, len(b)))
	}
	return (*T)(unsafe.Pointer(&b[off]))
}

// slice is n structs of type T from offset off of b; it panics as at does.
func slice[T any](b []byte, off uint64, n int) []T {
	if n == 0 {
		return nil
	}
	var t T
	size := uint64(unsafe.Sizeof(t))
	if n < 0 || off > uint64(len(b)) || (uint64(len(b))-off)/size < uint64(n) {
		panic(fmt.Sprintf("snapshot: %d times %T of %d bytes at offset %d of %d bytes", n, t, size, off, len(b)))
	}
	return unsafe.Slice(at[T](b, off), n)
}

// sizeOf is the size of T in bytes.
func sizeOf[T any]() uint64 {
	var t T
	return uint64(unsafe.Sizeof(t))
}

// low32 is the address of the low half of a word: the futex word of the epoch (rule R4).
func low32(p *uint64) *uint32 { return (*uint32)(unsafe.Pointer(p)) }
