package snapshot

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// TestRandomSubsetsTouchNothingElse: behaviour 18. Random prims, from one to all of
// them and in any order, are written again and again, in memory that goes round; every
// other row keeps every bit, and what a reader holds does as well.
func TestRandomSubsetsTouchNothingElse(t *testing.T) {
	const n, rowBytes = 100_000, 12
	last := uint64(80)
	if raceEnabled {
		last = 20
	}
	for _, retain := range []uint32{1, 4} {
		random := rand.New(rand.NewPCG(1, uint64(retain)))
		f := newFixture(t, Config{Retain: retain, CopyInlineBytes: 1 << 40}, 1<<30)
		prims := make([]uint64, n)
		for i := range prims {
			prims[i] = uint64(i + 1) // nobody resolves them
		}
		want := randomBytes(random, n*rowBytes)
		write := func(q *Query, ordinal uint64, rows []byte) {
			target := Target{Query: q, Name: "a", Schema: bytesSchema(rowBytes), Ordinal: ordinal}
			_, _, err := f.store.Write(&target, rows, uint64(len(rows)/rowBytes), tensor.Selection{Count: tensor.All}, false)
			require.NoError(t, err)
			_, _, err = f.store.Seal(ordinal, protocol.ScopeAll, nil, 1)
			require.NoError(t, err)
		}
		write(queryOf(prims...), 1, want)
		reader := &pinSet{}
		f.store.AddPins(reader)
		var held []byte
		wantOrdinals := slices.Repeat([]uint64{1}, n)
		var queries []*Query // some come again: their rows are moved in another order then
		var rowsOf [][]int
		for ordinal := uint64(2); ordinal < last; ordinal++ {
			if len(queries) == 0 || random.IntN(3) == 0 {
				count := int(math.Exp(random.Float64()*math.Log(n))) + 1 // as many digits are as likely
				some := random.Perm(n)[:min(count, n)]
				some = append(some, some[:random.IntN(len(some))]...) // of prims that come twice the last row counts
				q := NewQuery()
				for _, row := range some {
					q.Add(prims[row])
				}
				queries, rowsOf = append(queries, q), append(rowsOf, some)
			}
			which := random.IntN(len(queries))
			some := rowsOf[which]
			rows := randomBytes(random, len(some)*rowBytes)
			for i, row := range some {
				copy(want[row*rowBytes:][:rowBytes], rows[i*rowBytes:])
				wantOrdinals[row] = ordinal
			}
			write(queries[which], ordinal, rows)
			show := func(epoch uint64) []byte {
				v := f.versionAt(1, epoch)
				return f.bytes(v.Block.Segment, v.Block.OffsetBytes, n*rowBytes)
			}
			require.True(t, bytes.Equal(want, show(f.store.Epoch())), "ordinal %d, %d rows", ordinal, len(some))
			latest := f.versionAt(1, f.store.Epoch())
			if latest.RowOrdinals.Segment != 0 {
				require.Equal(t, wantOrdinals, slice[uint64](f.bytes(latest.RowOrdinals.Segment, latest.RowOrdinals.OffsetBytes, n*8), 0, n), "ordinal %d", ordinal)
			} else {
				require.Equal(t, slices.Repeat([]uint64{latest.OrdinalHighest}, n), wantOrdinals, "ordinal %d", ordinal)
			}
			if len(reader.pins) > 0 {
				require.True(t, bytes.Equal(held, show(reader.pins[0].Epoch)), "ordinal %d: what is pinned changed", ordinal)
			}
			if ordinal%20 == 0 {
				reader.pins, held = []Pin{{f.store.Epoch(), protocol.PinAll}}, append(held[:0], want...)
			}
		}
		f.checkBooks()
	}
}

func randomBytes(random *rand.Rand, n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(random.Uint32())
	}
	return out
}
