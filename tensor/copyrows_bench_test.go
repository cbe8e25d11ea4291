package tensor

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkCopyRows moves a million rows. The orders are the two extremes: no
// two neighbours (a shuffle) and nothing but neighbours in runs of 1000.
func BenchmarkCopyRows(b *testing.B) {
	const rows = 1 << 20
	orders := map[string]func() []uint32{
		"random": func() []uint32 { return shuffled(rows) },
		"runs":   func() []uint32 { return inRuns(rows, 1000) },
		"pairs":  func() []uint32 { return inRuns(rows, 2) },
	}
	for _, size := range []int{4, 12, 64, 48} {
		for _, name := range []string{"random", "pairs", "runs"} {
			b.Run(fmt.Sprintf("%dB/%s", size, name), func(b *testing.B) {
				order := orders[name]()
				dst, src := make([]byte, rows*size), make([]byte, rows*size)
				b.SetBytes(int64(len(src)))
				for b.Loop() {
					if err := CopyRows(dst, src, size, order, nil); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
			})
		}
	}
}

// BenchmarkCheckRows is the cost of the bounds check alone.
func BenchmarkCheckRows(b *testing.B) {
	order := shuffled(1 << 20)
	for b.Loop() {
		if err := checkRows("target row", order, uint64(len(order))); err != nil {
			b.Fatal(err)
		}
	}
}

func shuffled(n int) []uint32 {
	order := make([]uint32, n)
	for i := range order {
		order[i] = uint32(i)
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}

// inRuns shuffles whole runs, so that neighbours stay neighbours inside one.
func inRuns(n, run int) []uint32 {
	order := make([]uint32, 0, n)
	for _, start := range shuffled(n / run) {
		for i := range run {
			order = append(order, start*uint32(run)+uint32(i))
		}
	}
	return order
}
