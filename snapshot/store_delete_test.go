package snapshot

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

func (f *fixture) delete(ordinal uint64, q *Query, names ...string) {
	require.NoError(f.t, f.try(func() error { _, err := f.store.Delete(q, names, ordinal); return err }))
}

// TestDeleteAndWriteAgainThroughTheSameQuery: behaviour 147, 151, 153. What a query
// remembers of a layout is forgotten when rows of it die; the prim gets a row anew.
func TestDeleteAndWriteAgainThroughTheSameQuery(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(3)
	q, one := queryOf(p...), queryOf(p[1])
	put := func(q *Query, ordinal uint64, text string) {
		_, err := f.write(q, "a", bytesSchema(1), ordinal, []byte(text))
		require.NoError(t, err)
	}
	put(q, 1, "abc")
	put(q, 2, "def")
	put(one, 2, "x")
	f.seal(2, protocol.ScopeAll)
	put(one, 3, "y") // the query knows its row
	f.seal(3, protocol.ScopeAll)
	f.delete(4, one, "a")
	put(one, 5, "z")
	f.seal(4, protocol.ScopeAll)
	require.Equal(t, map[uint64]string{p[0]: "d", p[2]: "f"}, f.rowsAt(1, 3))
	require.Equal(t, map[uint64]string{p[0]: "d", p[1]: "y", p[2]: "f"}, f.rowsAt(1, 2), "reads below it see it still (behaviour 158)")
	f.seal(5, protocol.ScopeAll)
	require.Equal(t, map[uint64]string{p[0]: "d", p[1]: "z", p[2]: "f"}, f.rowsAt(1, 4))
	put(one, 6, "!")
	f.seal(6, protocol.ScopeAll)
	require.Equal(t, "!", f.rowsAt(1, 5)[p[1]])
	f.checkBooks()
}

// TestADeleteCopiesNothing: the block of the version before is that of the next.
func TestADeleteCopiesNothing(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 1<<30)
	p := f.paths(100)
	_, err := f.write(queryOf(p...), "a", bytesSchema(100), 1, make([]byte, 100*100))
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	place, copied := f.versionAt(1, 1).Block, f.store.counters.CopiedBytes
	f.delete(2, queryOf(p[7]))
	f.seal(2, protocol.ScopeAll)
	require.Equal(t, place, f.versionAt(1, 2).Block)
	require.Equal(t, copied, f.store.counters.CopiedBytes)
	require.NotContains(t, f.rowsAt(1, 2), p[7])
	f.checkBooks()
}

// TestAColumnIsAdoptedAgainAfterDeletes: rule L2. At half dead the rows move together;
// then the prims that are left are the whole column in order.
func TestAColumnIsAdoptedAgainAfterDeletes(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(40)
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	_, err := f.write(queryOf(p...), "a", bytesSchema(1), 1, make([]byte, 40))
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	f.delete(2, queryOf(p[:25]...), "a")
	f.seal(2, protocol.ScopeAll)
	require.Equal(t, 25, f.store.findColumn("a").layout.dead)
	m, err := f.open(f, arena, Target{Query: queryOf(p[25:]...), Name: "a", Ordinal: 3}, protocol.InitZero)
	require.NoError(t, err)
	out, err := f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, all, true, true) })
	require.NoError(t, err)
	f.store.EndSession(m)
	require.EqualValues(t, protocol.CompletionAdopted, out.Flags)
	v := f.versionAt(1, 3)
	require.EqualValues(t, 15, v.Rows)
	require.EqualValues(t, protocol.VersionAdopted, v.Flags)
	require.Len(t, f.rowsAt(1, 3), 15)
	require.Len(t, f.rowsAt(1, 1), 40)
	f.checkBooks()
}

// TestTombstonesMoveTheFrontier: rule O7. At least 65 536 deletes are kept; reads of
// changes from before those are refused, and no others.
func TestTombstonesMoveTheFrontier(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 1<<30)
	h := &history{fixture: f}
	h.attachReader()
	const batch = 1 << 12
	var prims []uint64
	for i := range batch {
		prims = append(prims, uint64(i+1))
	}
	q := queryOf(prims...)
	list := NewPrimList(prims[:3])
	ordinal := uint64(0)
	for i := 0; i < tombstonesMax/batch+3; i++ {
		ordinal++
		_, err := f.run(func() (Outcome, *Job, error) {
			return f.store.Write(&Target{Query: q, Name: "a", Schema: bytesSchema(1), Ordinal: ordinal}, make([]byte, batch), batch, all, false)
		})
		require.NoError(t, err)
		ordinal++
		f.delete(ordinal, q, "a")
		f.seal(ordinal, protocol.ScopeAll)
	}
	column := h.readerColumns()[0]
	frontier := column.Frontier()
	require.EqualValues(t, 6, frontier, "the deletes of three seals went")
	_, err := h.reader.Tombstones(list, column, f.store.epoch, frontier-1, protocol.Infinite)
	requireStatus(t, protocol.StatusOutOfRange, err)
	stones, err := h.reader.Tombstones(list, column, f.store.epoch, frontier, protocol.Infinite)
	require.NoError(t, err)
	require.Len(t, stones, 3)
	require.Equal(t, ordinal, stones[0].Ordinal, "the last delete of each prim")
	stones, err = h.reader.Tombstones(list, column, f.store.epoch, ordinal, protocol.Infinite)
	require.NoError(t, err)
	require.Empty(t, stones)
}

// TestSeveralSchemasOfOneName: behaviour 28, 44, 46, 153; rules L6, O2.
func TestSeveralSchemasOfOneName(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(3)
	q := func(i int) *Query { return queryOf(p[i]) }
	refused := func(q *Query, rowBytes int, ordinal uint64) {
		t.Helper()
		_, err := f.write(q, "x", bytesSchema(rowBytes), ordinal, make([]byte, rowBytes))
		text := requireStatus(t, protocol.StatusInvalidArgument, err).Text
		require.Contains(t, text, `"x"`)
		require.Contains(t, text, "delete the attribute")
	}
	write := func(i, rowBytes int, ordinal uint64) {
		t.Helper()
		_, err := f.write(q(i), "x", bytesSchema(rowBytes), ordinal, bytes.Repeat([]byte{byte(ordinal)}, rowBytes))
		require.NoError(t, err)
	}
	write(0, 2, 1)
	write(1, 3, 1) // another prim: another column
	refused(q(0), 3, 1)
	refused(q(1), 2, 5)
	f.seal(1, protocol.ScopeAll)
	refused(q(1), 2, 5)
	require.Len(t, f.rowsAt(1, 1), 1)
	require.Len(t, f.rowsAt(2, 1), 1)
	require.Same(t, f.store.columns[1].attribute, f.store.columns[2].attribute)

	f.delete(4, q(0), "x")
	write(0, 3, 5)      // behaviour 153
	refused(q(0), 2, 4) // would make what was accepted at 5 wrong
	write(0, 2, 3)      // before the delete it is what it was
	refused(q(0), 2, 6)
	f.seal(5, protocol.ScopeAll)
	require.Empty(t, f.rowsAt(1, 2))
	require.Len(t, f.rowsAt(2, 2), 2)
	_, err := f.run(func() (Outcome, *Job, error) { // a schema that is open is the one that the prim carries
		return f.store.Write(&Target{Query: q(0), Name: "x", Ordinal: 6}, []byte("abc"), 1, all, false)
	})
	require.NoError(t, err)
	_, err = f.run(func() (Outcome, *Job, error) {
		return f.store.Write(&Target{Query: q(2), Name: "x", Ordinal: 6}, []byte("abc"), 1, all, false)
	})
	requireStatus(t, protocol.StatusInvalidArgument, err)
	f.seal(6, protocol.ScopeInclude, "x") // both columns of the name
	require.Equal(t, "abc", f.rowsAt(2, 3)[p[0]])
	f.checkBooks()
}

// TestDeletesAndAppendsAreNotQuadratic: a prim more, or less, costs what it costs in a
// small column.
func TestDeletesAndAppendsAreNotQuadratic(t *testing.T) {
	cost := func(n int) time.Duration {
		f := newFixture(t, Config{Retain: 1, CopyInlineBytes: 1 << 40}, 1<<30)
		s := f.store
		ordinal := uint64(1)
		begin := time.Now()
		for i := range n {
			one := queryOf(uint64(i + 1))
			_, _, err := s.Write(&Target{Query: one, Name: "a", Schema: bytesSchema(8), Ordinal: ordinal}, make([]byte, 8), 1, tensor.Selection{Count: 1}, true)
			require.NoError(t, err)
			ordinal++
		}
		for i := range n {
			_, err := s.Delete(queryOf(uint64(i+1)), []string{"a"}, ordinal)
			require.NoError(t, err)
			_, _, err = s.Seal(ordinal, protocol.ScopeAll, nil, 1)
			require.NoError(t, err)
			ordinal++
		}
		require.Empty(t, f.rowsAt(1, s.epoch))
		return time.Since(begin) / time.Duration(n)
	}
	text := ""
	for range 5 { // a machine that is busy with something else must not decide
		small, large := cost(1000), cost(30_000)
		text = fmt.Sprintf("a prim costs %v among 1000 and %v among 30000", small, large)
		if t.Log(text); large < 4*small+10*time.Microsecond {
			return
		}
	}
	t.Error(text)
}
