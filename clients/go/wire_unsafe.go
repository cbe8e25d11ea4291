package callboard

import "unsafe"

// bytesOf is the bytes of a plain wire struct, in place.
func bytesOf[T any](t *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(t)), unsafe.Sizeof(*t))
}

// decode copies a wire struct out of the start of b; ok is false when b is too
// short.
func decode[T any](b []byte) (t T, ok bool) {
	if uintptr(len(b)) < unsafe.Sizeof(t) {
		return t, false
	}
	copy(bytesOf(&t), b)
	return t, true
}

// bytesOfSlice is the bytes of a slice of plain values, in place.
func bytesOfSlice[T any](s []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), uintptr(len(s))*unsafe.Sizeof(t))
}

// sliceOf is b as values of type T. The caller has checked that they fit; ok is
// false when b is not aligned for T.
func sliceOf[T any](b []byte) (s []T, ok bool) {
	var t T
	if len(b) == 0 || unsafe.Sizeof(t) == 0 {
		return nil, true
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%unsafe.Alignof(t) != 0 {
		return nil, false
	}
	return unsafe.Slice((*T)(p), uintptr(len(b))/unsafe.Sizeof(t)), true
}

func sizeOf[T any]() int {
	var t T
	return int(unsafe.Sizeof(t))
}
