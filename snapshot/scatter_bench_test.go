package snapshot

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"callboard/protocol"
	"callboard/tensor"
)

// benchmarkRandomRows writes random rows of 12 bytes, one commit each, beside the bare
// scatter that nothing can beat. ahead: blocks catch up while the clock stands.
func benchmarkRandomRows(b *testing.B, retain uint32, total, rows int, bare, ahead bool) {
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
		if ahead {
			b.StopTimer()
			for f.store.CatchUp() {
			}
			b.StartTimer()
		}
	}
}

// BenchmarkRandomRows is of a million rows.
func BenchmarkRandomRows(b *testing.B) {
	for _, rows := range []int{1000, 10_000, 100_000, 1_000_000} {
		for name, c := range map[string]struct {
			retain      uint32
			bare, ahead bool
		}{"bare": {bare: true}, "retain=1": {retain: 1}, "retain=4": {retain: 4}, "ahead": {retain: 1, ahead: true}} {
			b.Run(fmt.Sprintf("%d/%s", rows, name), func(b *testing.B) { benchmarkRandomRows(b, c.retain, 1_000_000, rows, c.bare, c.ahead) })
		}
	}
}
