package snapshot

import (
	"bytes"
	"fmt"
	"testing"

	"callboard/protocol"

	"github.com/stretchr/testify/require"
)

const mib = 1 << 20

// publish writes one prim and seals it, at the next ordinal.
func (f *fixture) publish(name string, bytes []byte) (Outcome, error) {
	return f.run(func() (Outcome, *Job, error) {
		return f.store.Write(&Target{Query: queryOf(f.paths(1)...), Name: name, Schema: bytesSchema(len(bytes)), Next: true}, bytes, 1, all, true)
	})
}

// births are the epochs of the versions of a column that are there.
func (f *fixture) births(name string) (births []uint64) {
	c := f.store.findColumn(name)
	if name == floorName {
		c = f.store.columns[protocol.FloorColumn]
	}
	for _, v := range c.versions {
		births = append(births, v.birth)
	}
	return births
}

// TestRetentionAndPins: rules O4 and V3. What is retained or pinned stays as it is;
// what is neither is used again by the next seals.
func TestRetentionAndPins(t *testing.T) {
	f := newFixture(t, Config{Retain: 3}, 1<<30)
	one, everything := &pinSet{}, &pinSet{}
	f.store.AddPins(one)
	f.store.AddPins(everything)
	row := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 1000) }
	for i := 1; i <= 200; i++ {
		out, err := f.publish("a", row(i))
		require.NoError(t, err)
		require.EqualValues(t, i, out.Epoch)
		_, err = f.write(queryOf(f.paths(1)...), "b", bytesSchema(1), uint64(i), []byte{byte(i)}) // never sealed after 1
		if i == 1 {
			require.NoError(t, err)
		}
		switch i {
		case 10:
			one.pins = []Pin{{10, 1}}
		case 20:
			everything.pins = []Pin{{20, protocol.PinAll}}
		}
	}
	for epoch := uint64(1); epoch <= 200; epoch++ {
		if kept := epoch == 10 || epoch == 20 || epoch > 197; !kept {
			continue
		}
		v := f.versionAt(1, epoch)
		require.Equal(t, string(row(int(epoch))), f.rowsAt(1, epoch)[f.paths(1)[0]])
		require.EqualValues(t, []uint64{epoch, epoch}, []uint64{v.OrdinalLowest, v.OrdinalHighest})
	}
	require.Equal(t, []uint64{10, 20, 198, 199, 200}, f.births("a"))
	require.EqualValues(t, 198, f.attribute(1).Horizon, "no higher than the oldest retained version's birth")
	require.Equal(t, []uint64{20, 200}, f.births(floorName), "a pin of one column is not a pin of the floors")
	floors, _ := f.floorsAt(20)
	require.NotZero(t, floors.StampNs)
	slots := len(f.store.findColumn("a").slots)

	f.store.RemovePins(everything) // proven dead: at once (rule I3)
	require.Equal(t, []uint64{10, 198, 199, 200}, f.births("a"))
	one.pins = nil
	_, err := f.publish("a", row(1))
	require.NoError(t, err)
	require.Equal(t, []uint64{199, 200, 201}, f.births("a"))
	require.NoError(t, f.store.Declare("a", bytesSchema(1000), 1, 0))
	_, err = f.publish("a", row(2))
	require.NoError(t, err)
	require.Equal(t, []uint64{202}, f.births("a"))
	require.NoError(t, f.store.Declare("a", bytesSchema(1000), 0, 0)) // no opinion
	require.Equal(t, 1, f.store.findColumn("a").retain)
	require.Len(t, f.store.findColumn("a").slots, slots)
	f.checkBooks()
}

// TestEveryEpochPinnedGrowsTheChain: rule V4, slots chain in pages without a limit.
func TestEveryEpochPinnedGrowsTheChain(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 1<<30)
	f.delayed = true
	pins := &pinSet{}
	f.store.AddPins(pins)
	for i := range 100 {
		_, err := f.publish("a", []byte{byte(i)})
		require.NoError(t, err)
		pins.pins = append(pins.pins, Pin{f.store.Epoch(), protocol.PinAll})
	}
	for i := range 100 {
		require.Equal(t, string([]byte{byte(i)}), f.rowsAt(1, uint64(i+1))[f.paths(1)[0]])
	}
	require.Len(t, f.store.findColumn("a").slots, 4*protocol.SlotsPerPage)
	pins.pins = nil
	_, err := f.publish("a", []byte{1})
	require.NoError(t, err)
	require.Len(t, f.store.findColumn("a").versions, 1)
	f.checkBooks()
}

// TestWhenMemoryRunsOut: rule V7. Retained states go first, then the error says who
// holds what; nothing that is pinned or newest is ever given up.
func TestWhenMemoryRunsOut(t *testing.T) {
	f := newFixture(t, Config{Retain: 100}, 16*mib)
	f.tight = true
	f.memory.Holders = func() string { return "; held by reader 7: 9 MiB" }
	reader := &pinSet{}
	f.store.AddPins(reader)
	for i := 1; i <= 50; i++ {
		_, err := f.publish("a", bytes.Repeat([]byte{byte(i)}, mib))
		require.NoError(t, err, "retained versions make room")
		if i == 5 {
			reader.pins = []Pin{{uint64(i), 1}}
		}
	}
	require.LessOrEqual(t, f.memory.totalBytes, uint64(16*mib))
	require.EqualValues(t, 5, f.rowsAt(1, 5)[f.paths(1)[0]][0])
	require.EqualValues(t, 50, f.rowsAt(1, 50)[f.paths(1)[0]][0])
	_, err := f.publish("big", make([]byte, 14*mib))
	text := requireStatus(t, protocol.StatusOutOfMemory, err).Text
	require.Contains(t, text, "held by reader 7: 9 MiB")
	require.Contains(t, text, fmt.Sprint(14*mib))
	require.Contains(t, text, fmt.Sprint(16*mib))
	require.Nil(t, f.store.findColumn("big"))
	require.EqualValues(t, 5, f.rowsAt(1, 5)[f.paths(1)[0]][0])
	require.EqualValues(t, 50, f.rowsAt(1, 50)[f.paths(1)[0]][0])
	for i := 51; i <= 80; i++ { // the broker goes on
		_, err := f.publish("a", bytes.Repeat([]byte{byte(i)}, mib))
		require.NoError(t, err)
	}
	f.checkBooks()
}

// TestASegmentThatCannotBeMade: the reason reaches the op that needed it, and the
// next attempt is a new one.
func TestASegmentThatCannotBeMade(t *testing.T) {
	for _, delayed := range []bool{false, true} {
		f := newFixture(t, Config{}, 1<<30)
		f.delayed = delayed
		f.refuse = protocol.Errorf(protocol.StatusOutOfMemory, "/dev/shm has 5 bytes left")
		held := f.memory.totalBytes
		_, err := f.publish("a", make([]byte, 3*mib))
		require.Contains(t, requireStatus(t, protocol.StatusOutOfMemory, err).Text, "/dev/shm has 5 bytes left")
		require.Equal(t, held, f.memory.totalBytes)
		f.refuse = nil
		_, err = f.publish("a", make([]byte, 3*mib))
		require.NoError(t, err)
		f.checkBooks()
	}
}

// TestAFailureOfABigSegmentIsNotToldToASmallOne: its asker may be gone.
func TestAFailureOfABigSegmentIsNotToldToASmallOne(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	f.delayed = true
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	_, err := f.memory.Alloc(arena, 100*mib)
	require.ErrorIs(t, err, ErrRetry)
	_, err = f.memory.Alloc(arena, 100)
	require.ErrorIs(t, err, ErrRetry, "one segment at a time")
	f.refuse = protocol.Errorf(protocol.StatusOutOfMemory, "full")
	f.settle()
	f.refuse = nil
	_, err = f.memory.Alloc(arena, 100)
	require.ErrorIs(t, err, ErrRetry)
	f.settle()
	b, err := f.memory.Alloc(arena, 100)
	require.NoError(t, err)
	f.memory.Drop(b)
	f.checkBooks()
}

// TestADeadClientsSegments: rules S2 and S5. They serve the next client, warm, once
// nothing published lies in them; a segment on its way goes the same way.
func TestADeadClientsSegments(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 1<<30)
	q := queryOf(f.paths(1)...)
	first := f.memory.NewArena(protocol.SegmentClient, 7, "first", false)
	m, err := f.open(f, first, Target{Query: q, Name: "a", Schema: bytesSchema(1000), Ordinal: 1}, protocol.InitZero)
	require.NoError(t, err)
	segment := m.Group(0).Block.Segment
	_, err = f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, all, true, true) })
	require.NoError(t, err)
	f.store.EndSession(m)
	f.delayed = true
	_, _, err = f.store.Map(f, first, &Target{Query: q, Name: "b", Schema: bytesSchema(mib), Ordinal: 1}, 0, 0)
	require.ErrorIs(t, err, ErrRetry)
	f.memory.CloseArena(first)
	require.Zero(t, f.memory.spareBytes, "a version lies in it")
	f.settle()
	require.EqualValues(t, 2*mib, f.memory.spareBytes, "what came too late is there for others")
	require.EqualValues(t, 7, f.memory.Segment(segment).Owner)
	_, err = f.publish("a", make([]byte, 1000))
	require.NoError(t, err)
	require.EqualValues(t, 3*mib, f.memory.spareBytes)
	f.checkBooks()

	second := f.memory.NewArena(protocol.SegmentClient, 8, "second", false)
	m, err = f.open(f, second, Target{Query: q, Name: "b", Schema: bytesSchema(1000), Ordinal: 1}, 0)
	require.NoError(t, err)
	require.Equal(t, segment, m.Group(0).Block.Segment, "the smallest that will do")
	require.EqualValues(t, 8, f.memory.Segment(segment).Owner)
	require.EqualValues(t, 8, at[protocol.RegionHeader](f.memory.Segment(segment).Bytes, 0).OwnerIncarnation)
	require.EqualValues(t, 2*mib, f.memory.spareBytes)
	usage := f.memory.Usage()
	require.Equal(t, f.memory.totalBytes, usage.HeldBytes)
	require.Equal(t, len(f.memory.segments), usage.Segments)
	f.checkBooks()
}

// TestFreeSegmentsMakeRoomUnderPressure: an idle client's memory, spares and holes
// left by big attributes are given up before an op is refused.
func TestFreeSegmentsMakeRoomUnderPressure(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 24*mib)
	arenas := []*Arena{}
	for i := range uint64(4) {
		a := f.memory.NewArena(protocol.SegmentClient, 10+i, fmt.Sprint("client ", i), false)
		b, err := f.memory.Alloc(a, 3*mib)
		require.NoError(t, err)
		f.memory.Drop(b)
		arenas = append(arenas, a)
	}
	f.memory.CloseArena(arenas[0])
	_, err := f.memory.Alloc(arenas[1], 100*mib)
	requireStatus(t, protocol.StatusOutOfMemory, err)
	b, err := f.memory.Alloc(arenas[1], 20*mib)
	require.NoError(t, err)
	require.NotEmpty(t, f.retired)
	require.EqualValues(t, len(f.retired), f.header().RetiredCount)
	for _, id := range f.retired {
		require.Nil(t, f.memory.Segment(id))
	}
	f.memory.Drop(b)
	require.Zero(t, f.memory.TrimIdle())
	require.Zero(t, f.memory.TrimIdle(), "the last segment of an arena stays, warm")
	f.checkBooks()
}

// TestManySegmentsAreAllNoted: the page of the segment table that a new segment's
// entry needs may itself need a segment (rule S2).
func TestManySegmentsAreAllNoted(t *testing.T) {
	for _, delayed := range []bool{false, true} {
		f := newFixture(t, Config{}, 1<<40)
		f.delayed = delayed
		hold := func(a *Arena, size uint64) *Block {
			for {
				b, err := f.memory.Alloc(a, size)
				if err == nil {
					return b
				}
				require.ErrorIs(t, err, ErrRetry)
				require.True(t, f.settle())
			}
		}
		var blocks []*Block
		for len(f.memory.segments) < 60 { // a client each, since arenas' segments double
			a := f.memory.NewArena(protocol.SegmentClient, uint64(len(blocks)+1), "client", false)
			blocks = append(blocks, hold(a, 1000))
		}
		var metadata []*Block
		for { // leave no room for the next page
			lease, ok := f.store.meta.pool.Alloc(4096)
			if !ok {
				break
			}
			metadata = append(metadata, f.memory.block(f.store.meta, lease))
		}
		for range 100 {
			a := f.memory.NewArena(protocol.SegmentClient, uint64(len(blocks)+1), "client", false)
			blocks = append(blocks, hold(a, 1000))
		}
		f.settle()
		f.seal(1, protocol.ScopeAll)
		f.checkSegments()
		require.GreaterOrEqual(t, f.header().SegmentCount, uint64(160))
		for _, b := range append(blocks, metadata...) {
			f.memory.Drop(b)
		}
		f.checkBooks()
	}
}

// TestABlockDroppedTooOftenPanics: our own broken books are never passed over.
func TestABlockDroppedTooOftenPanics(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	b, err := f.memory.Alloc(f.store.broker, 10)
	require.NoError(t, err)
	f.memory.Drop(b.Hold())
	f.memory.Drop(b)
	require.Panics(t, func() { f.memory.Drop(b) })
}
