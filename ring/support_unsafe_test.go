package ring

import "unsafe"

// heapBytes makes zeroed memory in Go's heap, 8-byte aligned like a mapping. The
// race detector sees it, other than a mapping.
func heapBytes(sizeBytes uint64) []byte {
	words := make([]uint64, (sizeBytes+7)/8+1)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), sizeBytes)
}
