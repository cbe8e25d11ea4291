package snapshot

import (
	"math/rand/v2"
	"testing"

	"callboard/protocol"
	"callboard/tensor"
)

// benchmarkRandomRows writes random rows of 12 bytes, one commit each, beside the bare
// scatter that nothing can beat.
func benchmarkRandomRows(b *testing.B, retain uint32, total, rows int, bare bool) {
	const rowBytes = 12
	f := newFixture(b, Config{Retain: retain, CopyInlineBytes: 1 << 40}, 4<<30)
	prims := make([]uint64, total)
	for i := range prims {
		prims[i] = uint64(i + 1)
	}
	random := rand.New(rand.NewPCG(1, 2))
	var queries []*Query
	var places [][]uint32
	for range 7 {
		q := NewQuery()
		var rowOf []uint32
		for _, i := range random.Perm(total)[:rows] {
			q.Add(prims[i])
			rowOf = append(rowOf, uint32(i))
		}
		queries, places = append(queries, q), append(places, rowOf)
	}
	data, column := make([]byte, total*rowBytes), make([]byte, total*rowBytes)
	if bare {
		for n := 0; b.Loop(); n++ {
			if err := tensor.CopyRows(column, data[:rows*rowBytes], rowBytes, places[n%len(places)], nil); err != nil {
				b.Fatal(err)
			}
		}
		return
	}
	ordinal := uint64(0)
	write := func(q *Query, bytes []byte) {
		ordinal++
		if _, _, err := f.store.Write(&Target{Query: q, Name: "a", Schema: bytesSchema(rowBytes), Ordinal: ordinal}, bytes, uint64(len(bytes)/rowBytes), all, false); err != nil {
			b.Fatal(err)
		}
		if _, _, err := f.store.Seal(ordinal, protocol.ScopeAll, nil, 1); err != nil {
			b.Fatal(err)
		}
	}
	write(queryOf(prims...), data)
	for n := range 21 { // until blocks go round, and each query has come twice
		write(queries[n%len(queries)], data[:rows*rowBytes])
	}
	for n := 0; b.Loop(); n++ {
		write(queries[n%len(queries)], data[:rows*rowBytes])
	}
}

const million = 1_000_000

func BenchmarkRandomRows1k(b *testing.B)          { benchmarkRandomRows(b, 1, million, 1000, false) }
func BenchmarkRandomRows1kBare(b *testing.B)      { benchmarkRandomRows(b, 1, million, 1000, true) }
func BenchmarkRandomRows10k(b *testing.B)         { benchmarkRandomRows(b, 1, million, 10_000, false) }
func BenchmarkRandomRows10kRetain4(b *testing.B)  { benchmarkRandomRows(b, 4, million, 10_000, false) }
func BenchmarkRandomRows10kBare(b *testing.B)     { benchmarkRandomRows(b, 1, million, 10_000, true) }
func BenchmarkRandomRows100k(b *testing.B)        { benchmarkRandomRows(b, 1, million, 100_000, false) }
func BenchmarkRandomRows100kRetain4(b *testing.B) { benchmarkRandomRows(b, 4, million, 100_000, false) }
func BenchmarkRandomRows100kBare(b *testing.B)    { benchmarkRandomRows(b, 1, million, 100_000, true) }
func BenchmarkRandomRowsAll(b *testing.B)         { benchmarkRandomRows(b, 4, million, million, false) }
func BenchmarkRandomRowsAllBare(b *testing.B)     { benchmarkRandomRows(b, 4, million, million, true) }
