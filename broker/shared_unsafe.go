package broker

import (
	"fmt"
	"unsafe"

	"callboard/protocol"
)

const regionHeaderBytes = unsafe.Sizeof(protocol.RegionHeader{})

// regionHeader is the head of one of our own objects.
func regionHeader(mem []byte) *protocol.RegionHeader {
	if uintptr(len(mem)) < regionHeaderBytes {
		panic(fmt.Sprintf("broker: an object of %d bytes has no room for its header", len(mem)))
	}
	return (*protocol.RegionHeader)(unsafe.Pointer(unsafe.SliceData(mem)))
}

// decode copies a struct from offset off of b; ok is false when it does not fit.
// b is private: what lies there was copied from the peer once.
func decode[T any](b []byte, off uint64) (t T, ok bool) {
	size := uint64(unsafe.Sizeof(t))
	if off > uint64(len(b)) || uint64(len(b))-off < size {
		return t, false
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&t)), size), b[off:])
	return t, true
}

// encode is the bytes of a struct; the slice aliases t.
func encode[T any](t *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(t)), unsafe.Sizeof(*t))
}

// words copies n numbers from offset off of b; ok is false when they do not fit.
func words[T uint32 | uint64](b []byte, off, n uint64) (out []T, ok bool) {
	var t T
	size := uint64(unsafe.Sizeof(t))
	if off > uint64(len(b)) || (uint64(len(b))-off)/size < n {
		return nil, false
	}
	out = make([]T, n)
	if n > 0 {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&out[0])), n*size), b[off:])
	}
	return out, true
}

// putWord stores a number into a result room.
func putWord(room []byte, i int, v uint64) {
	copy(room[8*i:8*i+8], encode(&v))
}
