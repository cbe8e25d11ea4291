package snapshot

import (
	"bytes"
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// TestAFirstWriteOfManyPrimsIsPlannedBesideTheLoop: rule L1. The row map of many new prims
// is made by the Job of the write; the seal takes it over. A prim that comes twice, a
// write that joins and a delete in the same seal make no use of it.
func TestAFirstWriteOfManyPrimsIsPlannedBesideTheLoop(t *testing.T) {
	const n, rowBytes = 200, 4
	for _, mapped := range []bool{false, true} {
		for _, then := range []string{"", "twice", "join", "delete"} {
			f := newFixture(t, Config{CopyInlineBytes: 1000}, 1<<30)
			prims := f.paths(n)
			q, want := queryOf(prims...), bytes.Repeat([]byte("abcd"), n)
			data := bytes.Clone(want)
			if then == "twice" {
				q.Add(prims[3])
				data = append(data, "last"...)
				copy(want[3*rowBytes:], "last")
			}
			if mapped {
				m, err := f.open(f, f.memory.NewArena(protocol.SegmentClient, 7, "client", false), Target{Query: q, Name: "a", Schema: bytesSchema(rowBytes), Ordinal: 1}, protocol.InitNone)
				require.NoError(t, err)
				copy(m.groups[0].block.Bytes, data)
				_, err = f.run(func() (Outcome, *Job, error) {
					return f.store.UnmapGroup(m, 0, tensor.Selection{Count: tensor.All}, true, false)
				})
				require.NoError(t, err)
				f.store.EndSession(m)
			} else {
				_, err := f.write(q, "a", bytesSchema(rowBytes), 1, data)
				require.NoError(t, err)
			}
			c := f.store.columns[1]
			require.Equal(t, then != "twice", c.pending[0].rows != nil, "%v %s", mapped, then)
			switch then {
			case "join":
				_, err := f.write(queryOf(prims[5]), "a", bytesSchema(rowBytes), 1, []byte("join"))
				require.NoError(t, err)
				copy(want[5*rowBytes:], "join")
			case "delete":
				_, err := f.store.Delete(queryOf(prims[7]), []string{"a"}, 1)
				require.NoError(t, err)
			}
			f.seal(1, protocol.ScopeAll)
			v := f.versionAt(1, f.store.Epoch())
			require.Equal(t, string(want), string(f.bytes(v.Block.Segment, v.Block.OffsetBytes, n*rowBytes)), "%v %s", mapped, then)
			_, lives := c.layout.rows[prims[7]]
			require.Equal(t, then != "delete", lives)
			require.Equal(t, prims, c.layout.prims)
			for row, prim := range prims {
				if got, ok := c.layout.rows[prim]; ok {
					require.EqualValues(t, row, got)
				}
			}
			require.Equal(t, mapped && (then == "" || then == "delete"), c.latest().adopted, "%v %s", mapped, then)
			f.checkBooks()
		}
	}
}
