package snapshot

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"callboard/protocol"
	"callboard/tensor"
)

// benchmarkRandomRows maps, unmaps and seals random rows of 12 bytes, one of so many sets
// of rows in turn, and before each commit makes the bare scatter that nothing can beat: what
// disturbs the machine disturbs both. It reports the ratio of their medians. ahead: blocks
// catch up while the clock stands.
func benchmarkRandomRows(b *testing.B, retain uint32, total, rows, sets int, ahead bool) {
	const rowBytes = 12
	f := newFixture(b, Config{Retain: retain, CopyInlineBytes: 1 << 40}, 4<<30)
	prims := make([]uint64, total)
	for i := range prims {
		prims[i] = uint64(i + 1)
	}
	random := rand.New(rand.NewPCG(1, 2))
	var queries []*Query
	var places [][]uint32
	for range sets {
		q := NewQuery()
		var rowOf []uint32
		for _, i := range random.Perm(total)[:rows] {
			q.Add(prims[i])
			rowOf = append(rowOf, uint32(i))
		}
		queries, places = append(queries, q), append(places, rowOf)
	}
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	payload, column := make([]byte, rows*rowBytes), make([]byte, total*rowBytes)
	ordinal := uint64(0)
	commit := func(q *Query, bytes []byte) time.Duration {
		ordinal++
		m, _, err := f.store.Map(f, arena, &Target{Query: q, Name: "a", Schema: bytesSchema(rowBytes), Ordinal: ordinal}, protocol.InitNone, 0)
		if err != nil {
			b.Fatal(err)
		}
		copy(m.groups[0].block.Bytes, bytes)
		started := time.Now()
		if _, _, err = f.store.UnmapGroup(m, 0, tensor.Selection{Count: tensor.All}, true, false); err == nil {
			_, _, err = f.store.Seal(ordinal, protocol.ScopeAll, nil, 1)
		}
		if err != nil {
			b.Fatal(err)
		}
		took := time.Since(started)
		f.store.EndSession(m)
		for ahead && f.store.CatchUp() {
		}
		return took
	}
	commit(queryOf(prims...), column)
	for n := range max(12, 3*sets) { // until blocks go round, and each query has come twice
		commit(queries[n%sets], payload)
	}
	var commits, scatters []time.Duration
	for n := 0; b.Loop(); n++ {
		started := time.Now()
		if err := tensor.CopyRows(column, payload, rowBytes, places[n%sets], nil); err != nil {
			b.Fatal(err)
		}
		scatters = append(scatters, time.Since(started))
		commits = append(commits, commit(queries[n%sets], payload))
	}
	slices.Sort(commits)
	slices.Sort(scatters)
	middle := len(commits) / 2
	b.ReportMetric(float64(commits[middle])/float64(rows), "ns/row")
	b.ReportMetric(float64(commits[middle])/float64(scatters[middle]), "÷scatter")
}

// BenchmarkRandomRows is of a million rows.
func BenchmarkRandomRows(b *testing.B) {
	for _, rows := range []int{1000, 10_000, 100_000} {
		for _, sets := range []int{1, 16} {
			for _, retain := range []uint32{1, 4} {
				for _, ahead := range []bool{false, true} {
					b.Run(fmt.Sprintf("%d/sets=%d/retain=%d/ahead=%v", rows, sets, retain, ahead), func(b *testing.B) {
						benchmarkRandomRows(b, retain, 1_000_000, rows, sets, ahead)
					})
				}
			}
		}
	}
}
