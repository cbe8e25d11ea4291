package snapshot

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// checkRagged counts what the rows of an array column refer to, and looks for every live
// row of every version in a block that is held (rule V8).
func (f *fixture) checkRagged(c *column, hold func(*Block)) {
	r := c.ragged
	if r == nil {
		for _, v := range c.versions {
			require.Empty(f.t, v.data)
		}
		return
	}
	live, held := map[*dataBlock]uint64{}, map[*dataBlock]bool{}
	for row := range r.rows {
		if e := &r.rows[row]; e.data != nil {
			live[e.data] += e.bytes
			require.Contains(f.t, e.data.rows[e.data.next:], uint32(row))
		} else {
			require.Zero(f.t, e.bytes)
		}
	}
	liveBytes, sizeBytes := uint64(0), uint64(0)
	for b, bytes := range live {
		require.Equal(f.t, bytes, b.live)
		require.False(f.t, b.left)
		require.Equal(f.t, b.thin && 2*b.live < b.size, 2*b.live < b.size)
		liveBytes, sizeBytes, held[b] = liveBytes+b.used(), sizeBytes+b.size, true
	}
	require.Equal(f.t, []uint64{liveBytes, sizeBytes}, []uint64{r.liveBytes, r.sizeBytes}, "bytes in use, and in all")
	for _, b := range r.sparse {
		require.True(f.t, b.thin)
	}
	for _, v := range c.versions {
		for _, b := range v.data {
			require.True(f.t, b.left)
			require.Zero(f.t, b.live)
			require.False(f.t, held[b], "a block has two keepers")
			held[b] = true
		}
	}
	for b := range held {
		hold(b.block)
	}
	for _, v := range c.versions {
		if v.rows == 0 {
			continue
		}
		head := sizeOf[protocol.LayoutHeader]()
		rows := slice[protocol.LayoutRow](v.layoutBlock.Bytes, head, int(v.rows))
		for row, ref := range liveRefs(slice[protocol.RowRef](v.block.Bytes, 0, int(v.rows)), rows, v.birth) {
			found := false
			for b := range held {
				place := &b.block.Ref
				found = found || b.first <= v.sequence && ref.Segment == place.Segment && ref.OffsetBytes >= place.OffsetBytes && ref.OffsetBytes+ref.LengthBytes <= place.OffsetBytes+b.size
			}
			require.True(f.t, found, "row %d of version %d of %s is in no block that is held", row, v.sequence, c.name)
			if v == c.latest() {
				e := &r.rows[row]
				require.Equal(f.t, ref.LengthBytes, e.bytes, "row %d of %s", row, c.name)
				require.Equal(f.t, e.data.block.Ref.Segment, ref.Segment, "row %d of %s", row, c.name)
				require.Less(f.t, ref.OffsetBytes-e.data.block.Ref.OffsetBytes, e.data.size, "row %d of %s", row, c.name)
			}
		}
	}
	if v := c.latest(); v != nil {
		require.Len(f.t, r.rows, int(v.rows))
	}
}

// writeRows writes one row of text to each prim.
func (f *fixture) writeRows(q *Query, name string, ordinal uint64, rows ...string) (Outcome, error) {
	t := Target{Query: q, Name: name, Schema: arraySchema(1), Ordinal: ordinal, ElementSizes: []uint64{}}
	var bytes []byte
	for _, row := range rows {
		bytes, t.ElementSizes = append(bytes, row...), append(t.ElementSizes, uint64(len(row)))
	}
	return f.run(func() (Outcome, *Job, error) {
		return f.store.Write(&t, bytes, uint64(len(rows)), tensor.Selection{Count: tensor.All}, false)
	})
}

// TestRowsOfTheirOwnLength: behaviour 20, 21, 29, 32.
func TestRowsOfTheirOwnLength(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	q := queryOf(f.paths(3)...)
	_, err := f.writeRows(q, "a", 1, "four", "", "xy")
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	require.Equal(t, []string{"four", "", "xy"}, valuesOf(f.rowsAt(1, 1), f.paths(3)))
	require.EqualValues(t, 3*refBytes, f.versionAt(1, 1).Block.LengthBytes)
	_, err = f.writeRows(queryOf(f.paths(2)...), "a", 2, "", "longer than before")
	require.NoError(t, err)
	f.seal(2, protocol.ScopeAll)
	require.Equal(t, []string{"", "longer than before", "xy"}, valuesOf(f.rowsAt(1, 2), f.paths(3)))
	require.Equal(t, []string{"four", "", "xy"}, valuesOf(f.rowsAt(1, 1), f.paths(3)))
	f.checkBooks()
}

// data are the data blocks that an array column holds.
func (f *fixture) data(name string) (blocks int, bytes uint64) {
	c, seen := f.store.findColumn(name), map[*dataBlock]bool{}
	for i := range c.ragged.rows {
		seen[c.ragged.rows[i].data] = true
	}
	for _, v := range c.versions {
		for _, b := range v.data {
			seen[b] = true
		}
	}
	delete(seen, nil)
	for b := range seen {
		bytes += b.size
	}
	return len(seen), bytes
}

// TestDataBlocksAreGivenBack: rule V8. What a pinned version shows stays while a thousand
// seals come and go; when the reader lets go, so does everything that was only its.
func TestDataBlocksAreGivenBack(t *testing.T) {
	f := newFixture(t, Config{Retain: 2}, 1<<30)
	prims := f.paths(4)
	q := queryOf(prims...)
	pins := &pinSet{}
	f.store.AddPins(pins)
	row := func(i, k int) string { return strings.Repeat(fmt.Sprint(i, "/", k, " "), 1+(i+k)%50) }
	want := map[uint64][]string{}
	rows := []string{row(0, 0), row(0, 1), row(0, 2), row(0, 3)}
	_, err := f.writeRows(q, "a", 1, rows...)
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	for i := 2; i <= 1000; i++ {
		k := i % 3 // the last row stays as it was
		rows[k] = row(i, k)
		_, err := f.writeRows(queryOf(prims[k]), "a", uint64(i), rows[k])
		require.NoError(t, err)
		if i == 400 {
			_, err := f.run(func() (Outcome, *Job, error) {
				out, err := f.store.Delete(queryOf(prims[2]), nil, 400)
				return out, nil, err
			})
			require.NoError(t, err)
		}
		f.seal(uint64(i), protocol.ScopeAll)
		if i == 100 || i == 500 {
			pins.pins = append(pins.pins, Pin{Epoch: uint64(i), Attribute: 1})
			want[uint64(i)] = valuesOf(f.rowsAt(1, uint64(i)), prims)
		}
		for epoch, values := range want {
			require.Equal(t, values, valuesOf(f.rowsAt(1, epoch), prims), "epoch %d after seal %d", epoch, i)
		}
		blocks, _ := f.data("a")
		require.LessOrEqual(t, blocks, 4*(2+len(pins.pins)), "a block for each row of each version that is there, at most")
		if i%100 == 0 {
			f.checkBooks()
		}
	}
	pins.pins = nil
	f.seal(1001, protocol.ScopeAll) // looks for pins
	blocks, _ := f.data("a")
	require.LessOrEqual(t, blocks, 4*2)
	_, err = f.run(func() (Outcome, *Job, error) { out, err := f.store.Delete(q, nil, 1002); return out, nil, err })
	require.NoError(t, err)
	for ordinal := uint64(1002); ordinal < 1006; ordinal++ {
		_, err := f.writeRows(queryOf(prims[0]), "a", ordinal+1, "")
		require.NoError(t, err)
		f.seal(ordinal+1, protocol.ScopeAll)
	}
	blocks, bytes := f.data("a")
	require.Zero(t, blocks, "all rows are empty or gone")
	require.Zero(t, bytes)
	f.checkBooks()
}

// TestAdoptedDataStaysWhereItIs: rules S4 and M1, design D6. Elements of a session are
// never copied, whichever of its rows are committed; with copy they are.
func TestAdoptedDataStaysWhereItIs(t *testing.T) {
	for _, adopt := range []bool{true, false} {
		f := newFixture(t, Config{Retain: 1}, 1<<30)
		arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
		prims := f.paths(3)
		sizes := []uint64{100_000, 0, 300_000}
		m, err := f.open(f, arena, Target{Query: queryOf(prims...), Name: "a", Schema: arraySchema(1), Ordinal: 1, ElementSizes: sizes}, protocol.InitZero)
		require.NoError(t, err)
		place := m.Group(0).Block
		require.EqualValues(t, 400_000, place.LengthBytes)
		copy(m.groups[0].block.Bytes[100_000:], "third")
		out, err := f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, all, adopt, true) })
		require.NoError(t, err)
		f.store.EndSession(m)
		v := f.versionAt(1, 1)
		refs := slice[protocol.RowRef](f.bytes(v.Block.Segment, v.Block.OffsetBytes, v.Block.LengthBytes), 0, 3)
		require.Equal(t, "third", f.rowsAt(1, 1)[prims[2]][:5])
		require.Equal(t, protocol.RowRef{}, refs[1])
		copied := f.attribute(1).CopiedBytes
		if !adopt {
			require.EqualValues(t, protocol.CompletionAdoptRefused, out.Flags)
			require.NotEqual(t, place.Segment, refs[2].Segment)
			require.GreaterOrEqual(t, copied, place.LengthBytes)
			continue
		}
		require.EqualValues(t, protocol.CompletionAdopted, out.Flags)
		require.Equal(t, protocol.RowRef{Segment: place.Segment, OffsetBytes: place.OffsetBytes + 100_000, LengthBytes: 300_000}, refs[2])
		require.NotEqual(t, place.Segment, v.Block.Segment, "tables are the stage's own")
		require.LessOrEqual(t, copied, uint64(3*refBytes))
		require.EqualValues(t, protocol.VersionAdopted, v.Flags)
		f.memory.CloseArena(arena) // its owner dies
		require.Zero(t, f.memory.spareBytes, "rows lie in it")
		_, err = f.writeRows(queryOf(prims...), "a", 2, "x", "y", "z")
		require.NoError(t, err)
		f.seal(2, protocol.ScopeAll)
		require.NotZero(t, f.memory.spareBytes, "nothing does any more (rule S5)")
		f.checkBooks()
	}
}

// TestDeadBytesAreBounded: what rows left behind never outweighs what they have by more
// than a few seals wrote, and half of the block that is being emptied: what was moved
// counts twice until it is. Rows that are moved have not changed.
func TestDeadBytesAreBounded(t *testing.T) {
	const rowBytes, count = 64 << 10, 256
	f := newFixture(t, Config{Retain: 1, CopyInlineBytes: 1 << 30}, 1<<30)
	prims := f.paths(count)
	row := func(stamp int) string { return strings.Repeat(fmt.Sprintf("%07d|", stamp), rowBytes/8) }
	want := make([]string, count)
	ordinals := make([]uint64, count)
	for i := range want {
		want[i], ordinals[i] = row(i), 1
	}
	_, err := f.writeRows(queryOf(prims...), "a", 1, want...) // 16 MiB in one block
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	r, random := f.store.findColumn("a").ragged, rand.New(rand.NewPCG(1, 2))
	moved := 0
	for ordinal := uint64(2); ordinal < 400; ordinal++ {
		was := map[int]*dataBlock{}
		for i := range r.rows {
			was[i] = r.rows[i].data
		}
		k := random.IntN(count - 8)
		for i := range 8 {
			want[k+i], ordinals[k+i] = row(int(ordinal)), ordinal
		}
		_, err := f.writeRows(queryOf(prims[k:k+8]...), "a", ordinal, want[k:k+8]...)
		require.NoError(t, err)
		f.seal(ordinal, protocol.ScopeAll)
		for i := range r.rows {
			if r.rows[i].data != was[i] && (i < k || i >= k+8) {
				moved++
			}
		}
		require.LessOrEqual(t, r.sizeBytes-r.liveBytes, r.liveBytes+r.liveBytes/2+2*compactBytesMin, "dead bytes after seal %d", ordinal)
		for i, o := range f.ordinalsAt(1, ordinal) {
			require.Equal(t, ordinals[slices.Index(prims, i)], o, "a row that moved has not changed (rule O7)")
		}
	}
	require.NotZero(t, moved)
	require.Equal(t, want, valuesOf(f.rowsAt(1, f.store.Epoch()), prims))
	_, held := f.data("a")
	require.LessOrEqual(t, held, uint64(3*count*rowBytes))
	f.checkBooks()
}

// TestDeletesLeaveNoDeadWeight: deletes alone change no row, but they move what is left.
func TestDeletesLeaveNoDeadWeight(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 1<<30)
	prims := f.paths(12)
	want := make([]string, len(prims))
	for i := range want {
		want[i] = strings.Repeat(fmt.Sprint(i), 1000)
	}
	_, err := f.writeRows(queryOf(prims...), "a", 1, want...)
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	for i, last := range []int{7, 8} { // fewer than make the layout move
		_, err = f.run(func() (Outcome, *Job, error) {
			out, err := f.store.Delete(queryOf(prims[i:last]...), nil, uint64(2+i))
			return out, nil, err
		})
		require.NoError(t, err)
		f.seal(uint64(2+i), protocol.ScopeAll)
	}
	_, held := f.data("a")
	require.EqualValues(t, len(strings.Join(want[8:], "")), held, "what was left lies in a block of its own")
	require.Equal(t, want[8:], valuesOf(f.rowsAt(1, 3), prims[8:]))
	for _, ordinal := range f.ordinalsAt(1, 3) {
		require.EqualValues(t, 1, ordinal)
	}
	f.checkBooks()
}

// TestASharedRowIsOneRow: an index map that names a source row often shares its bytes.
func TestASharedRowIsOneRow(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 1<<30)
	prims := f.paths(50)
	big := strings.Repeat("big", 10_000)
	target := Target{Query: queryOf(prims...), Name: "a", Schema: arraySchema(1), Ordinal: 1, ElementSizes: []uint64{uint64(len(big)), 1}}
	sel := tensor.Selection{Count: tensor.All, IndexMap: make([]uint32, 50)}
	sel.IndexMap[3] = 1
	_, err := f.run(func() (Outcome, *Job, error) { return f.store.Write(&target, []byte(big+"x"), 2, sel, true) })
	require.NoError(t, err)
	require.LessOrEqual(t, f.attribute(1).CopiedBytes, uint64(len(big)+1+50*refBytes))
	for prim, value := range f.rowsAt(1, 1) {
		if prim == prims[3] {
			require.Equal(t, "x", value)
		} else {
			require.Equal(t, big, value)
		}
	}
	for i := range prims { // to the last one that shares it
		_, err := f.writeRows(queryOf(prims[i]), "a", uint64(i+2), "own")
		require.NoError(t, err)
		f.seal(uint64(i+2), protocol.ScopeAll)
	}
	_, held := f.data("a")
	require.EqualValues(t, 150, held)
	f.checkBooks()
}

// TestRowsOfAQueryThatComesAgainAreEachTheirOwn: the rows of a query that is used again are walked in rising order, whatever
// the query's is. Each is accounted with its own length: a block of data goes with its last row, and not before (rule V8).
func TestRowsOfAQueryThatComesAgainAreEachTheirOwn(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 1<<30)
	prims := f.paths(4)
	_, err := f.writeRows(queryOf(prims...), "a", 1, "w", "x", "y", "z")
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	backwards := queryOf(prims[3], prims[2], prims[1], prims[0])
	for ordinal := uint64(2); ordinal < 5; ordinal++ {
		_, err = f.writeRows(backwards, "a", ordinal, "", "", "", fmt.Sprint("long", ordinal))
		require.NoError(t, err)
		f.seal(ordinal, protocol.ScopeAll)
		f.checkBooks()
	}
	_, err = f.writeRows(queryOf(prims[3]), "a", 5, "the end")
	require.NoError(t, err)
	f.seal(5, protocol.ScopeAll)
	require.Equal(t, []string{"long4", "", "", "the end"}, valuesOf(f.rowsAt(1, f.store.Epoch()), prims))
	f.checkBooks()
}

// TestWrongElementSizesNameBothNumbers: behaviour 22, 182.
func TestWrongElementSizesNameBothNumbers(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	q := queryOf(f.paths(3)...)
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	for text, c := range map[string]struct {
		schema protocol.Schema
		sizes  []uint64
		status protocol.Status
	}{
		"element_sizes has 2 entries: the payload has 3 rows":                     {arraySchema(2), []uint64{1, 2}, protocol.StatusInvalidArgument},
		"element_sizes add up to 10 bytes: the payload has 12":                    {arraySchema(2), []uint64{1, 2, 2}, protocol.StatusInvalidArgument},
		"element_sizes has 3 entries but the kind is fixed":                       {bytesSchema(4), []uint64{1, 1, 1}, protocol.StatusInvalidArgument},
		"12 bytes: they do not divide into 3 rows of whole elements of 8 bytes":   {arraySchema(8), nil, protocol.StatusInvalidArgument},
		fmt.Sprint(uint64(1)<<63, " elements of 2 bytes in row 1: more than any"): {arraySchema(2), []uint64{1, 1 << 63, 2}, protocol.StatusOutOfMemory},
	} {
		target := Target{Query: q, Name: "a", Schema: c.schema, Ordinal: 1, ElementSizes: c.sizes}
		_, err := f.run(func() (Outcome, *Job, error) { return f.store.Write(&target, make([]byte, 12), 3, all, false) })
		require.Contains(t, requireStatus(t, c.status, err).Text, text)
	}
	for text, target := range map[string]Target{
		"element_sizes has 2 entries for 3 prims":           {Schema: arraySchema(2), ElementSizes: []uint64{1, 2}},
		"element_sizes has 0 entries for 3 prims":           {Schema: arraySchema(2)},
		"element_sizes has 1 entries but the kind is fixed": {Schema: bytesSchema(2), ElementSizes: []uint64{1}},
	} {
		target.Query, target.Name, target.Ordinal = q, "a", 1
		_, err := f.open(f, arena, target, 0)
		require.Contains(t, requireStatus(t, protocol.StatusInvalidArgument, err).Text, text)
	}
	require.Nil(t, f.store.findColumn("a"))
	f.checkBooks()
}

// TestRowsAfterARowlessWholeWriteOfTheSameSeal: a write of all rows, all empty, and a
// later one of some that are not, sealed in one step: the second is applied in the
// table of the first, which has no data.
func TestRowsAfterARowlessWholeWriteOfTheSameSeal(t *testing.T) {
	f := newFixture(t, Config{Retain: 2}, 1<<30)
	prims := f.paths(3)
	_, err := f.writeRows(queryOf(prims...), "text", 1, "", "", "")
	require.NoError(t, err)
	_, err = f.writeRows(queryOf(prims[1]), "text", 2, "word")
	require.NoError(t, err)
	out := f.seal(2, protocol.ScopeAll)
	require.Equal(t, map[uint64]string{prims[0]: "", prims[1]: "word", prims[2]: ""}, f.rowsAt(1, out.Epoch))
	f.checkBooks()
}

// TestARestartedBrokerKnowsWhoseDataIsWhose: rules B2 and V8. A pinned version that is
// older than what was reclaimed keeps its rows through a restart, and they go with it.
func TestARestartedBrokerKnowsWhoseDataIsWhose(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 1<<30)
	prims := f.paths(3)
	pins := &pinSet{}
	f.store.AddPins(pins)
	_, err := f.writeRows(queryOf(prims...), "a", 1, "first", "", "third and longest of all")
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	pins.pins = []Pin{{Epoch: 1, Attribute: protocol.PinAll}}
	for ordinal := uint64(2); ordinal < 8; ordinal++ {
		_, err := f.writeRows(queryOf(prims[:2]...), "a", ordinal, strings.Repeat("x", int(ordinal)*40), "second")
		require.NoError(t, err)
		f.seal(ordinal, protocol.ScopeAll)
	}
	require.EqualValues(t, 7, f.attribute(1).Horizon, "what came between is gone, so the pinned version is past the horizon")
	want, now := valuesOf(f.rowsAt(1, 1), prims), valuesOf(f.rowsAt(1, 7), prims)

	var scratch [][]byte
	root, segments := f.picture(nil).copies(&scratch)
	after := &fixture{t: t, root: root, memory: NewMemory(1 << 30)}
	after.memory.Grow = func(r GrowRequest) { after.grown(r) }
	r, err := Recover(Config{Generation: 12345, Stage: "default", Incarnation: 9 << 32, Retain: 1}, root, after.memory, segments)
	require.NoError(t, err)
	after.store = r.Store
	after.store.AddPins(pins)
	after.store.PinsComplete()
	require.Equal(t, want, valuesOf(after.rowsAt(1, 1), prims))
	require.Equal(t, now, valuesOf(after.rowsAt(1, 7), prims))
	after.checkBooks()
	for ordinal := uint64(8); ordinal < 12; ordinal++ { // what is free is used
		_, err := after.writeRows(queryOf(prims...), "a", ordinal, strings.Repeat("y", 3000), strings.Repeat("z", 300), "")
		require.NoError(t, err)
		after.seal(ordinal, protocol.ScopeAll)
		require.Equal(t, want, valuesOf(after.rowsAt(1, 1), prims))
		after.checkBooks()
	}
	pins.pins = nil
	after.seal(12, protocol.ScopeAll)
	blocks, _ := after.data("a")
	require.Equal(t, 1, blocks)
	after.checkBooks()
}
