//go:build callboard_tear

package snapshot

import (
	"bytes"
	"testing"

	"callboard/protocol"

	"github.com/stretchr/testify/require"
)

// TestInjectedTearTearsAPinnedRead: with the fault built in, a block that a reader
// has pinned is used anew under its eyes. The stress test must notice this.
func TestInjectedTearTearsAPinnedRead(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 1<<30)
	reader := &pinSet{}
	f.store.AddPins(reader)
	_, err := f.publish("a", bytes.Repeat([]byte{1}, 1000))
	require.NoError(t, err)
	reader.pins = []Pin{{1, protocol.PinAll}}
	v := *f.versionAt(1, 1)
	view := f.bytes(v.Block.Segment, v.Block.OffsetBytes, v.Block.LengthBytes)
	torn := false
	for i := byte(2); i < 10 && !torn; i++ {
		_, err = f.publish("a", bytes.Repeat([]byte{i}, 1000))
		require.NoError(t, err)
		torn = view[0] != 1
	}
	require.True(t, torn, "the fault is not there")
}
