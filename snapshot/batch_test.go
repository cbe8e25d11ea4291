package snapshot

import (
	"testing"

	"callboard/protocol"

	"github.com/stretchr/testify/require"
)

// batchOf writes "<name><i>" style rows of one byte for each attribute.
func batchOf(q *Query, ordinal uint64, rows map[string]string) (entries []Entry) {
	for _, name := range []string{"a", "b", "c", "d"} {
		if text, ok := rows[name]; ok {
			entries = append(entries, Entry{Target: Target{Query: q, Name: name, Schema: bytesSchema(1), Ordinal: ordinal}, Bytes: []byte(text), Rows: uint64(len(text)), Selection: all})
		}
	}
	return entries
}

// TestBatchIsAllOrNone: behaviour 198–201. A bad entry, wherever it stands, leaves
// the others unwritten; a good batch appears as one.
func TestBatchIsAllOrNone(t *testing.T) {
	for _, config := range []Config{{}, {CopyInlineBytes: 1}} {
		f := newFixture(t, config, 1<<30)
		f.delayed = true
		q := queryOf(f.paths(3)...)
		batch := func(seal bool, ordinal uint64, rows map[string]string, spoil func([]Entry)) (Outcome, error) {
			entries := batchOf(q, ordinal, rows)
			if spoil != nil {
				spoil(entries)
			}
			return f.run(func() (Outcome, *Job, error) { return f.store.WriteBatch(entries, seal) })
		}
		_, err := batch(false, 1, map[string]string{"a": "abc", "b": "def", "c": "ghi"}, nil)
		require.NoError(t, err)
		require.Equal(t, f.store.findColumn("a").layout, f.store.findColumn("c").layout, "written together: one layout")
		f.settle()
		f.seal(1, protocol.ScopeAll)
		at := func(c uint32) map[uint64]string { return f.rowsAt(c, f.store.Epoch()) }
		require.Equal(t, map[uint64]string{q.prims[0]: "d", q.prims[1]: "e", q.prims[2]: "f"}, at(2))

		for i := range 3 {
			_, err = batch(false, 2, map[string]string{"a": "xxx", "b": "xxx", "c": "xxx", "d": "xxx"}, func(e []Entry) { e[i].Rows = 2; e[i].Bytes = e[i].Bytes[:2] })
			requireStatus(t, protocol.StatusInvalidArgument, err)
		}
		_, err = batch(false, 2, map[string]string{"a": "xxx", "b": "xxx"}, func(e []Entry) { e[1].Target.Name = "a" })
		require.Contains(t, requireStatus(t, protocol.StatusInvalidArgument, err).Text, "twice")
		require.Nil(t, f.store.findColumn("d"), "nothing was made")
		f.settle()
		f.seal(2, protocol.ScopeAll)
		require.Equal(t, "a", at(1)[q.prims[0]])

		before := f.store.Epoch()
		out, err := batch(true, 3, map[string]string{"a": "rst", "b": "uvw"}, nil)
		require.NoError(t, err)
		f.settle()
		require.Equal(t, before+1, f.store.Epoch(), "one epoch for all")
		require.LessOrEqual(t, out.Epoch, f.store.Epoch())
		require.Equal(t, "r", at(1)[q.prims[0]])
		require.Equal(t, "u", at(2)[q.prims[0]])
		require.EqualValues(t, 2, f.store.FloorOf("c"))
		require.EqualValues(t, 3, f.store.FloorOf("b"))
		f.checkBooks()
	}
}
