package snapshot

import (
	"fmt"
	"testing"

	"callboard/protocol"

	"github.com/stretchr/testify/require"
)

// large writes and seals one row of so many bytes, copied into the stage's memory.
func (f *fixture) large(name string, ordinal uint64, size int) error {
	if err := f.store.Declare(name, bytesSchema(size), 1, protocol.HandoffCopy); err != nil {
		return err
	}
	_, err := f.write(queryOf(f.paths(1)...), name, bytesSchema(size), ordinal, make([]byte, size))
	if err == nil {
		f.seal(ordinal, protocol.ScopeInclude, name)
	}
	return err
}

// B5, B14: large attributes that were deleted give their memory back whole, whatever small ones were written between them; the next large one has room.
func TestSmallBlocksDoNotKeepLargeSegments(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 64*mib)
	one := queryOf(f.paths(1)...)
	const pieces = 10
	for i := range pieces {
		require.NoError(t, f.large(fmt.Sprint("large", i), 1, 4*mib))
		_, err := f.write(one, fmt.Sprint("small", i), bytesSchema(100), 1, make([]byte, 100))
		require.NoError(t, err)
		f.seal(1, protocol.ScopeInclude, fmt.Sprint("small", i))
	}
	for i := range pieces {
		name := fmt.Sprint("large", i)
		f.delete(2, one, name)
		f.seal(2, protocol.ScopeInclude, name)
	}
	require.Less(t, f.store.Usage().LiveBytes, uint64(1*mib), "a deleted column has no rows and keeps no bytes")
	require.NoError(t, f.large("next", 1, 50*mib), "most of the memory is free")
	for i := range pieces {
		require.Len(t, f.rowsAt(f.store.findColumn(fmt.Sprint("small", i)).index, f.store.Epoch()), 1)
	}
	f.checkBooks()
}

// Behaviour 147, 151: a column that lost all its prims is written anew, through queries that knew it and with any other prims.
func TestAColumnThatWasEmptiedIsWrittenAnew(t *testing.T) {
	f := newFixture(t, Config{Retain: 2}, 1<<30)
	p := f.paths(3)
	q, other := queryOf(p...), queryOf(p[2], p[0])
	for ordinal := uint64(1); ordinal < 30; ordinal += 3 {
		_, err := f.write(q, "a", bytesSchema(1), ordinal, []byte("abc"))
		require.NoError(t, err)
		f.seal(ordinal, protocol.ScopeAll)
		require.Equal(t, map[uint64]string{p[0]: "a", p[1]: "b", p[2]: "c"}, f.rowsAt(1, f.store.Epoch()))
		f.delete(ordinal+1, q, "a")
		f.seal(ordinal+1, protocol.ScopeAll)
		require.Empty(t, f.rowsAt(1, f.store.Epoch()))
		require.Zero(t, f.versionAt(1, f.store.Epoch()).Rows)
		require.Len(t, f.rowsAt(1, f.store.Epoch()-1), 3, "the version before stays as it is")
		_, err = f.write(other, "a", bytesSchema(1), ordinal+2, []byte("xy"))
		require.NoError(t, err)
		f.seal(ordinal+2, protocol.ScopeAll)
		require.Equal(t, map[uint64]string{p[2]: "x", p[0]: "y"}, f.rowsAt(1, f.store.Epoch()))
		f.checkBooks()
	}
}

// V7: a refusal says what memory is used for, with true numbers and advice that fits.
func TestOutOfMemoryTellsTheTruth(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 32*mib)
	f.tight = true
	pins := &pinSet{}
	f.store.AddPins(pins)
	require.NoError(t, f.large("a", 1, 6*mib))
	pins.pins = append(pins.pins, Pin{f.store.Epoch(), protocol.PinAll})
	require.NoError(t, f.large("a", 2, 6*mib))
	u := f.store.Usage()
	require.EqualValues(t, 6*mib, u.LiveBytes)
	require.EqualValues(t, 6*mib, u.PinnedBytes)
	require.Zero(t, u.RetainedBytes)
	e := requireStatus(t, protocol.StatusOutOfMemory, f.large("b", 1, 30*mib))
	for _, text := range []string{fmt.Sprint(30 * mib), fmt.Sprint(32 * mib), fmt.Sprintf("readers pin %d", 6*mib), fmt.Sprintf("newest versions take %d", 6*mib), "release reads", "--memory"} {
		require.Contains(t, e.Text, text)
	}
	pins.pins = nil
	e = requireStatus(t, protocol.StatusOutOfMemory, f.large("b", 1, 30*mib))
	require.Contains(t, e.Text, "readers pin 0")
	require.NotContains(t, e.Text, "release reads", "nobody reads")
	require.Contains(t, e.Text, "delete attributes")
	require.NoError(t, f.large("c", 1, 12*mib))
	f.checkBooks()
}

// B6, B14: what is kept for the next versions is told apart from what is used, and is given up before anybody is refused.
func TestRecycledStorageIsToldAndGivenUp(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 32*mib)
	f.tight = true
	for ordinal := uint64(1); ordinal <= 4; ordinal++ {
		require.NoError(t, f.large("a", ordinal, 6*mib))
	}
	u := f.store.Usage()
	require.EqualValues(t, 6*mib, u.LiveBytes)
	require.NotZero(t, u.RecycledBytes)
	require.Zero(t, u.PinnedBytes+u.RetainedBytes)
	require.LessOrEqual(t, u.FreeBytes+u.LiveBytes+u.RecycledBytes+u.DirectoryBytes, u.HeldBytes)
	require.NoError(t, f.large("b", 1, 10*mib), "two copies of it fit beside the 6 MiB only without what is kept")
	require.Zero(t, f.store.Usage().RecycledBytes)
	f.checkBooks()
}

// S3: memory that is free at two looks leaves; what was used between them stays.
func TestIdleSegmentsAreTrimmed(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	a := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	var blocks []*Block
	for range 3 {
		b, err := f.memory.Alloc(a, 3*mib)
		require.NoError(t, err)
		blocks = append(blocks, b)
	}
	segments := len(a.segments)
	require.Greater(t, segments, 1)
	for _, b := range blocks {
		f.memory.Drop(b)
	}
	require.Zero(t, f.memory.TrimIdle(), "it was used a moment ago")
	b, err := f.memory.Alloc(a, 3*mib)
	require.NoError(t, err)
	used := b.Ref.Segment
	f.memory.Drop(b)
	require.NotZero(t, f.memory.TrimIdle())
	require.NotNil(t, f.memory.Segment(used), "used since the last look")
	require.Len(t, a.segments, 1)
	require.Len(t, f.retired, segments-1)
	f.checkBooks()
}
