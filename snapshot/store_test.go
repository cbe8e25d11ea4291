package snapshot

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

var all = tensor.Selection{Count: tensor.All}

// TestFloorsByScope is the table of behaviour 111 to 116: what each seal leaves as
// floors, and what it publishes.
func TestFloorsByScope(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	q := queryOf(f.paths(1)...)
	floors := func(a, b, unborn, global uint64) {
		t.Helper()
		require.Equal(t, []uint64{a, b, unborn}, []uint64{f.store.FloorOf("a"), f.store.FloorOf("b"), f.store.FloorOf("unborn")})
		if f.store.Epoch() > 0 {
			table, rows := f.floorsAt(f.store.Epoch())
			require.Equal(t, global, table.GlobalFloor)
			require.Equal(t, unborn, table.DefaultFloor)
			id := f.store.dictionary.ids[0]
			require.Equal(t, []uint64{a, b}, []uint64{max(table.DefaultFloor, rows[id["a"]]), max(table.DefaultFloor, rows[id["b"]])})
		}
	}
	for _, name := range []string{"a", "b"} {
		require.NoError(t, f.store.Declare(name, bytesSchema(1), 0, 0))
	}
	floors(0, 0, 0, 0)
	require.EqualValues(t, 6, f.seal(6, protocol.ScopeAll).Value) // behaviour 111
	floors(6, 6, 6, 6)
	out := f.seal(10, protocol.ScopeInclude, "a") // behaviour 112
	require.EqualValues(t, 10, out.Value)
	floors(10, 6, 6, 6)
	f.seal(10, protocol.ScopeExclude, "a") // behaviour 113
	floors(10, 10, 6, 10)
	require.NoError(t, f.store.Declare("c", bytesSchema(1), 0, 0))
	require.EqualValues(t, 6, f.store.FloorOf("c")) // behaviour 115: EXCLUDE leaves the unborn alone
	require.EqualValues(t, 12, f.seal(12, protocol.ScopeExclude).Value)
	floors(12, 12, 12, 12)
	_, err := f.write(q, "late", bytesSchema(1), 11, []byte{1}) // behaviour 114
	e := requireStatus(t, protocol.StatusFloorViolation, err)
	require.Contains(t, e.Text, "ordinal 11 is at or below the write floor 12")
	require.Nil(t, f.store.findColumn("late"))
	_, err = f.write(q, "late", bytesSchema(1), 13, []byte{1})
	require.NoError(t, err)

	epoch := f.store.Epoch() // behaviour 106: backwards and repeated seals succeed and move nothing
	for _, n := range []uint64{0, 4, 12} {
		require.Equal(t, epoch, f.seal(n, protocol.ScopeAll).Epoch)
	}
	require.Equal(t, epoch, f.seal(11, protocol.ScopeInclude, "a", "nobody").Epoch)
	floors(12, 12, 12, 12)

	_, _, err = f.store.Seal(20, protocol.ScopeAll, []string{"a"}, 0)
	requireStatus(t, protocol.StatusInvalidArgument, err)
	_, _, err = f.store.Seal(20, 7, nil, 0)
	requireStatus(t, protocol.StatusInvalidArgument, err)
	_, _, err = f.store.Seal(20, protocol.ScopeInclude, []string{"@floor"}, 0)
	requireStatus(t, protocol.StatusNotSupported, err)
	floors(12, 12, 12, 12)
	f.checkBooks()
}

// TestFloorsOfManyNamesThatNobodyWrote: the floor table grows within the seal that
// names them (rule V9).
func TestFloorsOfManyNamesThatNobodyWrote(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	var names []string
	for i := range 500 {
		names = append(names, fmt.Sprint("name", i))
	}
	require.EqualValues(t, 3, f.seal(3, protocol.ScopeInclude, names...).Value)
	table, rows := f.floorsAt(1)
	require.Len(t, rows, 500)
	require.Zero(t, table.DefaultFloor)
	f.seal(5, protocol.ScopeAll)
	_, rows = f.floorsAt(2)
	require.Empty(t, rows, "a seal of everything costs one row (rule V9)")
	f.checkBooks()
}

// TestOrdinalZeroIsNeverWritable: behaviour 101.
func TestOrdinalZeroIsNeverWritable(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	_, err := f.write(queryOf(f.paths(1)...), "a", bytesSchema(1), 0, []byte{1})
	requireStatus(t, protocol.StatusFloorViolation, err)
	_, err = f.write(queryOf(f.paths(1)...), "a", bytesSchema(1), ^uint64(0), []byte{1}) // behaviour 100
	require.NoError(t, err)
	f.seal(^uint64(0), protocol.ScopeAll)
	require.Equal(t, "\x01", f.rowsAt(1, 1)[f.paths(1)[0]])
	_, err = f.run(func() (Outcome, *Job, error) {
		return f.store.Write(&Target{Query: queryOf(f.paths(1)...), Name: "a", Schema: bytesSchema(1), Next: true}, []byte{1}, 1, all, true)
	})
	requireStatus(t, protocol.StatusFloorViolation, err)
}

// TestOrdinalsAheadInAnyOrder: rule O1; behaviour 105, 107, 109. Each ordinal is an
// overlay of its own; a seal applies those that it covers in the order of ordinals, and
// those of one ordinal as they were submitted.
func TestOrdinalsAheadInAnyOrder(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(3)
	q, one := queryOf(p[:2]...), queryOf(p[1])
	put := func(q *Query, ordinal uint64, text string) {
		_, err := f.write(q, "a", bytesSchema(1), ordinal, []byte(text))
		require.NoError(t, err)
	}
	put(q, 6, "ef")
	put(one, 4, "x") // lower than one that was there first
	put(q, 5, "cd")
	put(one, 5, "Y") // the second of its ordinal
	put(queryOf(p[2]), 7, "g")
	require.EqualValues(t, 4, f.store.Describe().Columns[0].Unsealed)
	f.seal(4, protocol.ScopeAll)
	require.Equal(t, map[uint64]string{p[1]: "x"}, f.rowsAt(1, 1))
	f.seal(5, protocol.ScopeAll)
	require.Equal(t, map[uint64]string{p[0]: "c", p[1]: "Y"}, f.rowsAt(1, 2))
	require.Equal(t, map[uint64]uint64{p[0]: 5, p[1]: 5}, f.ordinalsAt(1, 2))
	f.seal(9, protocol.ScopeAll) // two ordinals, one version
	require.Equal(t, map[uint64]string{p[0]: "e", p[1]: "f", p[2]: "g"}, f.rowsAt(1, 3))
	require.Equal(t, map[uint64]uint64{p[0]: 6, p[1]: 6, p[2]: 7}, f.ordinalsAt(1, 3))
	v := f.versionAt(1, 3)
	require.Equal(t, []uint64{6, 7}, []uint64{v.OrdinalLowest, v.OrdinalHighest})
	f.checkBooks()
}

// TestAQueryAsLongAsTheColumnThatNamesAPrimTwice: behaviour 18, 91. It does not cover the
// column, however long it is; one that does, in another order, needs nothing of before.
func TestAQueryAsLongAsTheColumnThatNamesAPrimTwice(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(3)
	write := func(ordinal uint64, text string, prims ...uint64) {
		_, err := f.write(queryOf(prims...), "a", bytesSchema(1), ordinal, []byte(text))
		require.NoError(t, err)
		f.seal(ordinal, protocol.ScopeAll)
	}
	write(1, "abc", p...)
	write(2, "xyz", p[0], p[2], p[0])
	require.Equal(t, []string{"z", "b", "y"}, valuesOf(f.rowsAt(1, 2), p))
	require.Equal(t, map[uint64]uint64{p[0]: 2, p[1]: 1, p[2]: 2}, f.ordinalsAt(1, 2))
	write(3, "rst", p[2], p[0], p[1])
	require.Equal(t, []string{"s", "t", "r"}, valuesOf(f.rowsAt(1, 3), p))
	require.Zero(t, f.versionAt(1, 3).RowOrdinals.Segment, "one ordinal for all")
	f.checkBooks()
}

// TestManySmallWritesOfOneOrdinalShareABlock: behaviour 327. A write for each prim costs
// its bytes, not a block each.
func TestManySmallWritesOfOneOrdinalShareABlock(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(500)
	for i, prim := range p {
		_, err := f.write(queryOf(prim), "a", bytesSchema(8), 1, fmt.Appendf(nil, "%8d", i))
		require.NoError(t, err)
	}
	require.LessOrEqual(t, len(f.store.findColumn("a").pending), 8)
	f.seal(1, protocol.ScopeAll)
	rows := f.rowsAt(1, 1)
	require.Len(t, rows, 500)
	for i, prim := range p {
		require.Equal(t, fmt.Sprintf("%8d", i), rows[prim])
	}
	f.checkBooks()
}

// TestInsert: behaviour 93 to 98, 186; rules O2, R6. INSERT is about the prim, whatever
// attribute it carries, sealed or only accepted; of two exactly one succeeds.
func TestInsert(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(4)
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	put := func(name string, ordinal uint64, insert bool, prims ...uint64) error {
		_, err := f.run(func() (Outcome, *Job, error) {
			return f.store.Write(&Target{Query: queryOf(prims...), Name: name, Schema: bytesSchema(1), Ordinal: ordinal, Insert: insert}, make([]byte, len(prims)), uint64(len(prims)), all, false)
		})
		return err
	}
	exists := func(err error) {
		t.Helper()
		require.Contains(t, requireStatus(t, protocol.StatusAlreadyExists, err).Text, "prim /p")
	}
	require.NoError(t, put("a", 5, true, p[0], p[1])) // behaviour 93
	exists(put("a", 5, true, p[1]))                   // behaviour 98: the other one of the race
	exists(put("b", 5, true, p[2], p[0]))             // behaviour 96: another attribute
	exists(put("b", 9, true, p[0]))
	exists(put("b", 4, false, p[0])) // would make an accepted INSERT wrong (rule O2)
	require.NoError(t, put("b", 5, false, p[0]))
	require.Nil(t, f.rowsAt(1, 1))
	f.seal(5, protocol.ScopeAll)
	exists(put("a", 6, true, p[0], p[3])) // behaviour 94
	_, err := f.open(f, arena, Target{Query: queryOf(p[0]), Name: "c", Schema: bytesSchema(1), Ordinal: 6, Insert: true}, 0)
	exists(err) // behaviour 186
	require.Zero(t, arena.blocks)
	m, err := f.open(f, arena, Target{Query: queryOf(p[3]), Name: "c", Schema: bytesSchema(1), Ordinal: 6, Insert: true}, 0)
	require.NoError(t, err)
	require.NoError(t, put("a", 7, false, p[3])) // somebody is faster
	_, _, err = f.store.UnmapGroup(m, 0, all, true, false)
	exists(err)
	f.store.EndSession(m)
	_, err = f.store.Delete(queryOf(p[0]), nil, 8)
	require.NoError(t, err)
	require.NoError(t, put("a", 9, true, p[0]), "it is gone by then")
	exists(put("a", 7, true, p[0]))
	f.seal(9, protocol.ScopeAll)
	require.Empty(t, f.store.inserts)
	f.checkBooks()
}

// TestAnInsertIsKnownUntilItIsSealed: rule O2. Of a prim that was deleted between them several INSERTs may wait; that
// one of them is sealed or taken back leaves the others. An INSERT below another is refused like any write there.
func TestAnInsertIsKnownUntilItIsSealed(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(2)
	one, both := queryOf(p[0]), queryOf(p...)
	put := func(q *Query, name string, ordinal uint64, insert bool) error {
		_, err := f.run(func() (Outcome, *Job, error) {
			return f.store.Write(&Target{Query: q, Name: name, Schema: bytesSchema(1), Ordinal: ordinal, Insert: insert}, make([]byte, q.Size()), q.Size(), all, false)
		})
		return err
	}
	exists := func(err error) {
		t.Helper()
		require.Contains(t, requireStatus(t, protocol.StatusAlreadyExists, err).Text, "prim /p0")
	}
	require.NoError(t, put(both, "a", 2, true))
	require.NoError(t, put(both, "a", 2, false), "other values of the same INSERT")
	f.delete(3, both)
	require.NoError(t, put(one, "b", 5, true))
	f.delete(7, one, "b")
	exists(put(one, "c", 4, true)) // it would be there at 5
	require.NoError(t, put(one, "c", 8, true))

	f.seal(5, protocol.ScopeInclude, "b")
	exists(put(one, "d", 7, false)) // the one at 8
	f.seal(8, protocol.ScopeInclude, "c")
	exists(put(one, "d", 1, false)) // the one at 2 waits still
	require.NoError(t, put(one, "d", 2, false))
	f.delete(9, one)

	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	var m *Session
	require.NoError(t, f.try(func() (err error) {
		m, _, err = f.store.Map(f, arena, &Target{Query: both, Name: "e", Schema: bytesSchema(1), Ordinal: 10, Insert: true}, protocol.InitZero, 1)
		return err
	}))
	_, err := f.run(func() (Outcome, *Job, error) {
		_, _, job, err := f.store.Claim(f, m.ID, 0)
		return Outcome{}, job, err
	})
	require.NoError(t, err)
	_, err = f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, all, true, false) })
	require.NoError(t, err)
	exists(put(one, "d", 9, false))
	f.store.AbortSession(m)
	require.NoError(t, put(one, "d", 9, false), "the one at 10 was taken back")
	exists(put(one, "d", 1, false))
	f.seal(10, protocol.ScopeAll)
	require.Empty(t, f.store.inserts)
	f.checkBooks()
}

// TestASealOnItsWayKeepsTheFloorsItWasPromised: rules O1, V9. Another seal that needs a larger table of floors and finds
// no memory fails alone; the one whose copy is on its way ends as it was promised.
func TestASealOnItsWayKeepsTheFloorsItWasPromised(t *testing.T) {
	f := newFixture(t, Config{CopyInlineBytes: 10}, 1<<30)
	q := queryOf(f.paths(40)...)
	copying := f.start(func() (Outcome, *Job, error) {
		return f.store.Write(&Target{Query: q, Name: "a", Schema: bytesSchema(1), Ordinal: 5}, make([]byte, 40), 40, all, true)
	})
	seal := func(name string) error {
		_, _, err := f.store.Seal(1, protocol.ScopeInclude, []string{name}, 0)
		return err
	}
	floors, names := &f.store.floors, 0
	next := func() uint64 { return floorTableBytes(len(floors.byName) + 1 + floors.names) }
	for ; len(floors.spares) == 0 || uint64(len(floors.spares[0].Bytes)) >= next(); names++ {
		require.NoError(t, seal(fmt.Sprint("n", names)))
	}
	f.refuse = protocol.Errorf(protocol.StatusOutOfMemory, "no space")
	for {
		if _, err := f.store.metadata(next()); err != nil {
			break
		}
	}
	requireStatus(t, protocol.StatusOutOfMemory, seal("one more"))
	copying.Run()
	_, err := copying.Finish()
	require.NoError(t, err)
	require.EqualValues(t, 5, f.store.FloorOf("a"))
	require.Len(t, f.rowsAt(1, f.store.Epoch()), 40)
}

// TestUnsealedBytesHaveALimit: rule O2. Adopted blocks wait as well; what is sealed
// in the same step does not.
func TestUnsealedBytesHaveALimit(t *testing.T) {
	f := newFixture(t, Config{UnsealedBytesMax: 4096}, 1<<30)
	q := queryOf(f.paths(1)...)
	_, err := f.write(q, "a", bytesSchema(4000), 1, make([]byte, 4000))
	require.NoError(t, err)
	_, err = f.write(q, "a", bytesSchema(4000), 1, make([]byte, 4000)) // takes the place of the first
	require.NoError(t, err)
	_, err = f.write(q, "b", bytesSchema(1000), 1, make([]byte, 1000))
	require.Contains(t, requireStatus(t, protocol.StatusQueueFull, err).Text, "1000 more exceed the limit of 4096")
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	unmap := func(seal bool) (Outcome, error) {
		m, err := f.open(f, arena, Target{Query: q, Name: "c", Schema: bytesSchema(1000), Next: true}, protocol.InitZero)
		require.NoError(t, err)
		defer f.store.EndSession(m)
		return f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, all, true, seal) })
	}
	_, err = unmap(false)
	requireStatus(t, protocol.StatusQueueFull, err)
	require.Nil(t, f.store.findColumn("c"))
	out, err := unmap(true)
	require.NoError(t, err)
	require.EqualValues(t, protocol.CompletionAdopted, out.Flags)
	f.seal(1, protocol.ScopeAll)
	_, err = f.write(q, "b", bytesSchema(1000), 2, make([]byte, 1000))
	require.NoError(t, err)
	f.checkBooks()
}

// TestEmptyQuery: behaviour 19. A seal that comes with it is a seal all the same.
func TestEmptyQuery(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	write := func(seal bool) Outcome {
		out, err := f.run(func() (Outcome, *Job, error) {
			return f.store.Write(&Target{Query: NewQuery(), Name: "a", Schema: bytesSchema(4), Ordinal: 3}, nil, 0, all, seal)
		})
		require.NoError(t, err)
		return out
	}
	write(false)
	require.Nil(t, f.store.findColumn("a"))
	require.Zero(t, f.store.Epoch())
	require.EqualValues(t, 1, write(true).Epoch)
	require.EqualValues(t, 3, f.store.FloorOf("a"))
	_, err := f.run(func() (Outcome, *Job, error) {
		return f.store.Write(&Target{Query: NewQuery(), Name: "a", Schema: bytesSchema(4), Ordinal: 3}, nil, 0, all, false)
	})
	requireStatus(t, protocol.StatusFloorViolation, err) // admission is checked all the same
	f.checkBooks()
}

// TestPrimsThatAreNotAddressedDoNotAppear: behaviour 63, 82 and 92 on a new column.
func TestPrimsThatAreNotAddressedDoNotAppear(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(4)
	put := func(name string, payload string, sel tensor.Selection) {
		_, err := f.run(func() (Outcome, *Job, error) {
			return f.store.Write(&Target{Query: queryOf(p...), Name: name, Schema: bytesSchema(1), Next: true}, []byte(payload), uint64(len(payload)), sel, true)
		})
		require.NoError(t, err)
	}
	put("count", "ab", tensor.Selection{Count: 2})
	put("mask", "abcd", tensor.Selection{Count: 4, Mask: []uint64{0b1010}})
	put("map", "xyz", tensor.Selection{Count: 3, IndexMap: []uint32{2, 0, 1}}) // behaviour 70
	require.Equal(t, map[uint64]string{p[0]: "a", p[1]: "b"}, f.rowsAt(1, 3))
	require.Equal(t, map[uint64]string{p[1]: "b", p[3]: "d"}, f.rowsAt(2, 3))
	require.Equal(t, map[uint64]string{p[0]: "z", p[1]: "x", p[2]: "y"}, f.rowsAt(3, 3))
	put("count", "wxyz", tensor.Selection{Count: 4, Mask: []uint64{0b1000}})
	require.Equal(t, map[uint64]string{p[0]: "a", p[1]: "b", p[3]: "z"}, f.rowsAt(1, 4))
	put("none", "abcd", tensor.Selection{Count: 4, Mask: []uint64{0}})
	require.Nil(t, f.store.findColumn("none"))
}

// TestWrongWritesNameWhatIsWrongAndChangeNothing: behaviour 6, 8, 44, 64, 74, 86, 114, 224.
func TestWrongWritesNameWhatIsWrongAndChangeNothing(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	q := queryOf(f.paths(3)...)
	_, err := f.write(q, "a", bytesSchema(2), 1, []byte("aabbcc"))
	require.NoError(t, err)
	floatSchema, array, cuda, wide := bytesSchema(2), bytesSchema(1), bytesSchema(2), bytesSchema(2)
	floatSchema.DtypeCode, floatSchema.DtypeBits = tensor.CodeFloat, 32
	array.Kind, cuda.DeviceType, wide.RowDimensions = protocol.KindArray, 2, 9
	for _, c := range []struct {
		name   string
		schema protocol.Schema
		rows   uint64
		sel    tensor.Selection
		status protocol.Status
		text   string
	}{
		{"a", bytesSchema(2), 2, all, protocol.StatusInvalidArgument, "2 rows: expected 3"},
		{"a", bytesSchema(2), 4, all, protocol.StatusInvalidArgument, "4 rows: expected 3"},
		{"a", bytesSchema(2), 9, tensor.Selection{Count: 3, IndexMap: []uint32{0, 8, 0}}, protocol.StatusInvalidArgument, "9 rows of 2 bytes"},
		{"a", bytesSchema(2), 3, tensor.Selection{Count: 4}, protocol.StatusInvalidArgument, "count is 4: the set has 3"},
		{"a", bytesSchema(2), 3, tensor.Selection{}, protocol.StatusInvalidArgument, "count is 0"},
		{"a", bytesSchema(2), 3, tensor.Selection{Count: 3, IndexMap: []uint32{0, 3, 0}}, protocol.StatusInvalidArgument, "index map entry 1 is 3"},
		{"a", bytesSchema(2), 1, tensor.Selection{Count: 3, Mask: []uint64{1}}, protocol.StatusInvalidArgument, "a mask leaves out targets"},
		{"a", bytesSchema(3), 1, all, protocol.StatusInvalidArgument, "row_shape is (3,) but the attribute holds (2,)"},
		{"a", floatSchema, 1, all, protocol.StatusInvalidArgument, "element type is float32"},
		{"b", array, 3, all, protocol.StatusInvalidArgument, "8 bytes: they do not divide into 3 rows"}, // behaviour 22
		{"b", cuda, 3, all, protocol.StatusNotSupported, "cuda"},
		{"b", wide, 3, all, protocol.StatusInvalidArgument, "9 dimensions"},
		{"b", protocol.Schema{}, 3, all, protocol.StatusInvalidArgument, "element type is needed"}, // behaviour 177
		{"@path", bytesSchema(1), 3, all, protocol.StatusNotSupported, "reserved"},                 // behaviour 273
		{"", bytesSchema(1), 3, all, protocol.StatusInvalidArgument, "empty"},
		{"b\x00", bytesSchema(1), 3, all, protocol.StatusInvalidArgument, "NUL"},
		{strings.Repeat("b", 5000), bytesSchema(1), 3, all, protocol.StatusInvalidArgument, "5000 bytes"},
	} {
		_, err := f.run(func() (Outcome, *Job, error) {
			return f.store.Write(&Target{Query: q, Name: c.name, Schema: c.schema, Ordinal: 1}, make([]byte, 8), c.rows, c.sel, false)
		})
		require.Contains(t, requireStatus(t, c.status, err).Text, c.text)
	}
	f.seal(1, protocol.ScopeAll)
	require.Equal(t, []string{"aa", "bb", "cc"}, valuesOf(f.rowsAt(1, 1), f.paths(3)))
	require.EqualValues(t, 2, f.header().AttributeCount)
	f.checkBooks()
}

func valuesOf(rows map[uint64]string, prims []uint64) (values []string) {
	for _, p := range prims {
		values = append(values, rows[p])
	}
	return values
}

// TestARefusedWriteLeavesNoPrimsAndNoColumn: an op that runs out of memory half-way
// has made nothing that a later seal would show.
func TestARefusedWriteLeavesNoPrimsAndNoColumn(t *testing.T) {
	f := newFixture(t, Config{Retain: 1, UnsealedBytesMax: 1 << 40}, 6<<20)
	p := f.paths(3)
	_, err := f.write(queryOf(p[:2]...), "a", bytesSchema(100), 1, make([]byte, 200))
	require.NoError(t, err)
	f.refuse = protocol.Errorf(protocol.StatusOutOfMemory, "the disk is full")
	big := uint64(4 << 20)
	_, err = f.write(queryOf(p...), "big", bytesSchema(int(big)), 1, make([]byte, 3*big))
	require.Contains(t, requireStatus(t, protocol.StatusOutOfMemory, err).Text, "limit")
	sel := tensor.Selection{Count: 3, IndexMap: []uint32{0, 0, 0}}
	_, err = f.run(func() (Outcome, *Job, error) { // one prim more, in a column that is broadcast
		return f.store.Write(&Target{Query: queryOf(p...), Name: "a", Schema: bytesSchema(100), Ordinal: 1}, make([]byte, 100), 1, sel, false)
	})
	require.NoError(t, err, "it fits the block")
	require.Nil(t, f.store.findColumn("big"))
	f.refuse = nil
	_, err = f.write(queryOf(p[:2]...), "big", bytesSchema(3), 1, []byte("aaabbb")) // behaviour 44: nothing stands in its way
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	require.Len(t, f.rowsAt(1, 1), 3)
	require.Equal(t, map[uint64]string{p[0]: "aaa", p[1]: "bbb"}, f.rowsAt(2, 1))

	// A column that gains a prim and is refused keeps adopting its own rows.
	wide := bytesSchema(1 << 19)
	_, err = f.write(queryOf(p[0]), "wide", wide, 2, make([]byte, 1<<19))
	require.NoError(t, err)
	f.seal(2, protocol.ScopeAll)
	f.refuse = protocol.Errorf(protocol.StatusOutOfMemory, "the disk is full")
	many := queryOf(p...)
	_, err = f.run(func() (Outcome, *Job, error) {
		return f.store.Write(&Target{Query: many, Name: "wide", Schema: wide, Ordinal: 3}, make([]byte, 1<<19), 1, sel, false)
	})
	require.Contains(t, requireStatus(t, protocol.StatusOutOfMemory, err).Text, "the disk is full")
	f.seal(3, protocol.ScopeAll)
	require.Len(t, f.rowsAt(3, f.store.Epoch()), 1)
	require.Len(t, f.store.findColumn("wide").layout.prims, 1)
	f.checkBooks()
}

// TestLayoutsAreSharedUntilOneGrows: rule L2, behaviour 118.
func TestLayoutsAreSharedUntilOneGrows(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(20)
	n := uint64(0)
	write := func(name string, prims ...uint64) {
		n++
		_, err := f.write(queryOf(prims...), name, bytesSchema(1), n, bytes.Repeat([]byte{byte('a' + n)}, len(prims)))
		require.NoError(t, err)
		f.seal(n, protocol.ScopeAll)
	}
	layout := func(name string) *layout { return f.store.findColumn(name).layout }
	generation := func(name string) uint64 { return f.store.findColumn(name).latest().generation }
	write("a", p[:3]...)
	write("b", p[:3]...)
	write("c", p[1], p[0], p[2])
	require.Same(t, layout("a"), layout("b"))
	require.NotSame(t, layout("a"), layout("c"), "another order is another layout")
	g := generation("a")
	require.Equal(t, g, generation("b"))
	write("a", p[1])
	require.Equal(t, g, generation("a"), "values change, membership does not")

	pinned := &pinSet{pins: []Pin{{f.store.Epoch(), protocol.PinAll}}}
	f.store.AddPins(pinned)
	before := f.rowsAt(1, f.store.Epoch())
	write("a", p[5], p[0]) // grows: its own from now on
	require.NotSame(t, layout("a"), layout("b"))
	require.Greater(t, generation("a"), g)
	require.Equal(t, g, generation("b"))
	write("d", p[0], p[1], p[2], p[5]) // joins what a has become
	require.Same(t, layout("a"), layout("d"))
	write("b", p[7]) // alone now: grows in place
	write("b", p[8:20]...)
	require.Len(t, layout("b").prims, 16)
	require.Equal(t, before, f.rowsAt(1, pinned.pins[0].Epoch), "a pinned version keeps its rows")
	write("e", p[:3]...)
	require.NotSame(t, layout("b"), layout("e"), "b has other rows than when it was joined")
	require.Equal(t, map[uint64]string{p[0]: "g", p[1]: "g", p[2]: "g", p[5]: "g"}, f.rowsAt(4, f.store.Epoch()))
	require.Equal(t, map[uint64]string{p[0]: "f", p[1]: "e", p[2]: "b", p[5]: "f"}, f.rowsAt(1, f.store.Epoch()))
	f.checkBooks()
}

// TestAQueryThatWasTheWholeColumnUntilItGrew: what a query remembers of a layout stays
// true when somebody else's prims join it.
func TestAQueryThatWasTheWholeColumnUntilItGrew(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(3)
	q := queryOf(p[:2]...)
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	put := func(q *Query, text string) uint32 {
		m, err := f.open(f, arena, Target{Query: q, Name: "a", Schema: bytesSchema(1), Next: true}, protocol.InitNone)
		require.NoError(t, err)
		defer f.store.EndSession(m)
		copy(m.groups[0].block.Bytes, text)
		out, err := f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, all, true, true) })
		require.NoError(t, err)
		return out.Flags
	}
	put(q, "ab")
	require.EqualValues(t, protocol.CompletionAdopted, put(q, "cd"))
	put(queryOf(p[2]), "x")
	require.Zero(t, put(q, "ef"), "it is not the whole column any more")
	require.Equal(t, []string{"e", "f", "x"}, valuesOf(f.rowsAt(1, 4), p))
}

// TestAQueryThatGrowsBetweenMapAndUnmap: a session is for the prims that it was
// opened with (behaviour 194, 245).
func TestAQueryThatGrowsBetweenMapAndUnmap(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(3)
	q := queryOf(p[:2]...)
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	m, err := f.open(f, arena, Target{Query: q, Name: "a", Schema: bytesSchema(1), Ordinal: 1}, protocol.InitNone)
	require.NoError(t, err)
	copy(m.groups[0].block.Bytes, "xy")
	q.Add(p[2])
	_, err = f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, all, true, true) })
	require.NoError(t, err)
	f.store.EndSession(m)
	require.Equal(t, map[uint64]string{p[0]: "x", p[1]: "y"}, f.rowsAt(1, 1))
	f.checkBooks()
}

// TestAdoptThenScatterPaysOneCopy: rule S4, field report E18. The adopted block is never written to.
func TestAdoptThenScatterPaysOneCopy(t *testing.T) {
	f := newFixture(t, Config{Retain: 3}, 1<<30)
	p := f.paths(100)
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	m, err := f.open(f, arena, Target{Query: queryOf(p...), Name: "a", Schema: bytesSchema(8), Ordinal: 1}, protocol.InitZero)
	require.NoError(t, err)
	place := m.Group(0).Block
	out, err := f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, all, true, false) })
	require.NoError(t, err)
	require.EqualValues(t, protocol.CompletionAdopted, out.Flags)
	f.seal(1, protocol.ScopeAll)
	require.Equal(t, place, f.versionAt(1, 1).Block, "the block is the version")
	require.EqualValues(t, protocol.VersionAdopted, f.versionAt(1, 1).Flags)
	require.Zero(t, f.store.counters.CopiedBytes)
	_, err = f.write(queryOf(p[3]), "a", bytesSchema(8), 2, []byte("12345678"))
	require.NoError(t, err)
	f.seal(2, protocol.ScopeAll)
	require.EqualValues(t, 8+808, f.attribute(1).CopiedBytes, "captured, then put into a copy of the column")
	require.Equal(t, string(make([]byte, 8)), f.rowsAt(1, 1)[p[3]])
	require.Equal(t, "12345678", f.rowsAt(1, 2)[p[3]])
	require.Zero(t, f.versionAt(1, 2).Flags)

	// Adopted while unsealed and then scattered into at the same ordinal.
	m, err = f.open(f, arena, Target{Query: queryOf(p...), Name: "a", Schema: bytesSchema(8), Ordinal: 3}, protocol.InitCurrent)
	require.NoError(t, err)
	data := m.groups[0].block.Bytes
	_, err = f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, all, true, false) })
	require.NoError(t, err)
	_, err = f.write(queryOf(p[4]), "a", bytesSchema(8), 3, []byte("abcdefgh"))
	require.NoError(t, err)
	require.Equal(t, make([]byte, 8), data[4*8:5*8], "a producer's block is not written to by us")
	f.seal(3, protocol.ScopeAll)
	require.Equal(t, "12345678", f.rowsAt(1, 3)[p[3]])
	require.Equal(t, "abcdefgh", f.rowsAt(1, 3)[p[4]])
}

// TestWhatIsNotAdopted: rule M1. A refusal is counted where adoption was possible.
func TestWhatIsNotAdopted(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(3)
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	require.NoError(t, f.store.Declare("copied", bytesSchema(1), 0, protocol.HandoffCopy))
	put := func(name string, q *Query, sel tensor.Selection, adopt bool) uint32 {
		m, err := f.open(f, arena, Target{Query: q, Name: name, Schema: bytesSchema(1), Next: true}, protocol.InitZero)
		require.NoError(t, err)
		defer f.store.EndSession(m)
		out, err := f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, sel, adopt, true) })
		require.NoError(t, err)
		return out.Flags
	}
	whole := queryOf(p...)
	require.EqualValues(t, protocol.CompletionAdopted, put("a", whole, all, true))
	require.EqualValues(t, protocol.CompletionAdopted, put("a", whole, tensor.Selection{Count: 3}, true))
	require.EqualValues(t, protocol.CompletionAdoptRefused, put("a", whole, all, false))
	require.EqualValues(t, 1, f.attribute(1+f.store.findColumn("copied").index).AdoptRefusedCount)
	for _, q := range []*Query{queryOf(p[0], p[1]), queryOf(p[1], p[0], p[2]), queryOf(p[0], p[1], p[2], p[2])} {
		require.Zero(t, put("a", q, all, true))
	}
	require.Zero(t, put("a", whole, tensor.Selection{Count: 2}, true))
	require.Zero(t, put("a", whole, tensor.Selection{Count: 3, Mask: []uint64{7}}, true))
	require.Zero(t, put("a", whole, tensor.Selection{Count: 3, IndexMap: []uint32{0, 1, 2}}, true))
	require.Zero(t, put("copied", whole, all, true))
	require.EqualValues(t, protocol.CompletionAdopted, put("a", queryOf(append(slices.Clone(p), f.paths(4)[3])...), all, true), "it covers the column and more")
	f.checkBooks()
}

// TestMapSessions: behaviour 177, 184, 187, 192.
func TestMapSessions(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	q := queryOf(f.paths(2)...)
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	_, err := f.open(f, arena, Target{Query: q, Name: "new", Ordinal: 1}, 0)
	requireStatus(t, protocol.StatusInvalidArgument, err)
	_, err = f.open(f, arena, Target{Query: q, Name: "a", Schema: bytesSchema(1), Ordinal: 0}, 0)
	requireStatus(t, protocol.StatusFloorViolation, err)
	_, err = f.open(f, arena, Target{Query: q, Name: "a", Schema: bytesSchema(1), Ordinal: 1}, 9)
	require.Contains(t, requireStatus(t, protocol.StatusInvalidArgument, err).Text, "init is 9")
	huge := bytesSchema(1)
	huge.RowDimensions, huge.RowShape[0] = 1, 1<<62
	_, err = f.open(f, arena, Target{Query: q, Name: "a", Schema: huge, Ordinal: 1}, 0)
	requireStatus(t, protocol.StatusOutOfMemory, err)

	m, err := f.open(f, arena, Target{Query: q, Name: "a", Schema: bytesSchema(1), Ordinal: 1}, 0)
	require.NoError(t, err)
	require.Nil(t, f.store.findColumn("a"), "nothing exists before it is unmapped")
	_, err = f.store.FindSession("somebody else", m.ID)
	requireStatus(t, protocol.StatusInvalidHandle, err)
	_, _, err = f.store.UnmapGroup(m, 1, all, true, false)
	requireStatus(t, protocol.StatusInvalidHandle, err)
	f.seal(1, protocol.ScopeAll)
	_, _, err = f.store.UnmapGroup(m, 0, all, true, false) // the floor moved meanwhile
	requireStatus(t, protocol.StatusFloorViolation, err)
	require.True(t, m.Done())
	require.Zero(t, m.Group(0).Block)
	f.store.EndSession(m)
	f.store.EndSession(m)

	_, err = f.open(f, arena, Target{Query: q, Name: "a", Schema: bytesSchema(1), Ordinal: 2}, 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, f.store.SessionsOf(f))
	require.Equal(t, 1, f.store.AbortSessions(f)) // its owner died
	require.EqualValues(t, 0, f.store.SessionsOf(f))
	_, err = f.write(q, "a", bytesSchema(1), 2, []byte("xy"))
	require.NoError(t, err)
	f.checkBooks()
}
