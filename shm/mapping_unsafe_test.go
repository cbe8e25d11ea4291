package shm

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Only at a multiple of its size can a huge page be mapped.
func TestLargeMappingsBeginAtAMultipleOfAHugePage(t *testing.T) {
	for _, size := range []uint64{hugePage, 5*hugePage + 4096} {
		o := anyObject(t, size)
		for range 3 {
			require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(mapped(t, o, true).Bytes())))%hugePage)
		}
		require.NoError(t, o.Remove())
	}
}
