package snapshot

import (
	"fmt"
	"testing"

	"callboard/protocol"

	"github.com/stretchr/testify/require"
)

// largeOn is large on a device.
func (f *fixture) largeOn(name string, ordinal uint64, size int, id uint32) error {
	schema := onDevice(bytesSchema(size), id)
	if err := f.store.Declare(name, schema, 1, protocol.HandoffCopy); err != nil {
		return err
	}
	_, err := f.write(queryOf(f.paths(1)...), name, schema, ordinal, make([]byte, size))
	if err == nil {
		f.seal(ordinal, protocol.ScopeInclude, name)
	}
	return err
}

// TestADeviceIsFull: rules V7, C1. Each device has a limit of its own, in which retained
// versions make room; beyond it the error names the device, what was needed, the limit, what
// is free, and what the rest is used for. The host and the other device go on.
func TestADeviceIsFull(t *testing.T) {
	f := newDeviceFixture(t, Config{Retain: 1}, 32*mib, 16*mib)
	f.tight = true
	f.memory.Holders = func() string { return "; held by reader 7: 9 MiB" }
	pins := &pinSet{}
	f.store.AddPins(pins)
	keep := func() { // the host's retained versions, and blocks for the next one
		for i := range uint64(5) {
			_, err := f.publish("kept", []byte{byte(i)})
			require.NoError(t, err)
			require.NoError(t, f.store.Declare("kept", bytesSchema(1), 2, protocol.HandoffCopy))
		}
	}
	keep()
	require.NoError(t, f.largeOn("a", 1, 6*mib, 0))
	pins.pins = append(pins.pins, Pin{f.store.Epoch(), protocol.PinAll})
	require.NoError(t, f.largeOn("a", 2, 6*mib, 0))
	keep()
	recycled := f.store.Usage().RecycledBytes
	require.NotZero(t, recycled)
	host := f.memory.totalBytes
	text := requireStatus(t, protocol.StatusOutOfMemory, f.largeOn("b", 1, 20*mib, 0)).Text
	require.Len(t, f.births("kept"), 3, "one is pinned, and two are retained")
	require.Equal(t, recycled, f.store.Usage().RecycledBytes)
	use := f.store.Usage().Devices[0]
	for _, want := range []string{"on cuda:0", fmt.Sprint(20 * mib), fmt.Sprintf("limit of %d", 32*mib), fmt.Sprintf("%d bytes of the segments on cuda:0 are free", use.FreeBytes),
		fmt.Sprintf("newest versions take %d", use.LiveBytes), fmt.Sprintf("readers pin %d", use.PinnedBytes), "release reads", "--gpu-memory", "held by reader 7"} {
		require.Contains(t, text, want)
	}
	require.EqualValues(t, 6*mib, use.LiveBytes)
	require.EqualValues(t, 6*mib, use.PinnedBytes)
	require.EqualValues(t, 32*mib, use.LimitBytes)
	require.LessOrEqual(t, use.HeldBytes, use.LimitBytes)
	require.LessOrEqual(t, f.memory.totalBytes-host, uint64(mib), "what is short on a device takes nothing from the host")
	require.Contains(t, requireStatus(t, protocol.StatusOutOfMemory, f.store.Declare("huge", onDevice(bytesSchema(20*mib), 1), 0, 0)).Text, "cuda:1")
	require.NoError(t, f.largeOn("c", 1, 6*mib, 1))
	require.NoError(t, f.large("d", 1, 40*mib), "the host")
	pins.pins = nil
	f.seal(20, protocol.ScopeAll)
	require.NoError(t, f.largeOn("b", 21, 20*mib, 0))
	require.Equal(t, "\x00", f.rowsAt(f.store.findColumn("a").index, f.store.Epoch())[f.paths(1)[0]][:1])
	f.checkBooks()
}

// TestAnArenaGoesWhenNobodyHasIt: rule C6. What is retired counts until the broker has freed
// it, and an error says so; the directory tells clients to close it.
func TestAnArenaGoesWhenNobodyHasIt(t *testing.T) {
	f := newDeviceFixture(t, Config{Retain: 1}, 16*mib)
	f.tight = true
	f.fakes.open = true
	require.NoError(t, f.largeOn("a", 1, 6*mib, 0))
	segment := f.versionAt(1, 1).Block.Segment
	f.delete(2, queryOf(f.paths(1)...), "a")
	f.seal(2, protocol.ScopeAll)
	text := requireStatus(t, protocol.StatusOutOfMemory, f.largeOn("b", 3, 12*mib, 0)).Text
	require.NotEmpty(t, f.fakes.retired)
	require.Contains(t, text, "still open in clients")
	e := walkEntry[protocol.SegmentEntry](f, protocol.SegmentPageBase, f.header().SegmentPages[:], segment-1)
	require.EqualValues(t, protocol.SegmentRetired, e.State)
	require.EqualValues(t, protocol.SegmentBroker|protocol.SegmentOnDevice, e.Sort)
	use := f.store.Usage().Devices[0]
	require.Positive(t, use.OpenBytes)
	require.Equal(t, use.HeldBytes, use.OpenBytes)
	for _, seg := range f.fakes.retired {
		f.memory.Freed(seg)
	}
	require.Panics(t, func() { f.memory.Freed(f.fakes.retired[0]) }, "freed twice")
	require.Zero(t, f.store.Usage().Devices[0].HeldBytes)
	require.NoError(t, f.largeOn("b", 3, 12*mib, 0))
	f.checkBooks()
}

// TestAnArenaThatCannotBeMade: the driver's reason reaches the op, with the device.
func TestAnArenaThatCannotBeMade(t *testing.T) {
	f := newDeviceFixture(t, Config{})
	f.refuse = protocol.Errorf(protocol.StatusOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY (2)")
	text := requireStatus(t, protocol.StatusOutOfMemory, f.largeOn("a", 1, mib, 1)).Text
	require.Contains(t, text, "CUDA_ERROR_OUT_OF_MEMORY (2)")
	require.Contains(t, text, "no 1048576 bytes for the stage's versions on cuda:1: ")
	f.refuse = nil
	require.NoError(t, f.largeOn("a", 1, mib, 1))
	f.checkBooks()
}

// TestADeadClientsArenasOnDevices: rule S5. They serve the next client of the same device,
// and of no other.
func TestADeadClientsArenasOnDevices(t *testing.T) {
	f := newDeviceFixture(t, Config{Retain: 1})
	q := queryOf(f.paths(1)...)
	lease := func(owner uint64, id uint32) (*Arena, uint64) {
		arena := f.memory.NewArena(protocol.SegmentClient, owner, "client", false)
		m, err := f.open(f, arena, Target{Query: q, Name: fmt.Sprint("a", id), Schema: onDevice(bytesSchema(1000), id), Next: true}, 0)
		require.NoError(t, err)
		g := m.Group(0)
		require.Equal(t, owner, f.memory.Segment(g.Block.Segment).Owner)
		f.store.EndSession(m)
		return arena, g.Block.Segment
	}
	first, segment := lease(1, 0)
	f.memory.CloseArena(first)
	require.EqualValues(t, ArenaAlign, f.store.Usage().Devices[0].SpareBytes)
	require.Zero(t, f.memory.Usage().SpareBytes)
	_, other := lease(2, 1)
	require.NotEqual(t, segment, other)
	_, again := lease(3, 0)
	require.Equal(t, segment, again)
	require.Zero(t, f.store.Usage().Devices[0].SpareBytes)
	f.checkBooks()
}
