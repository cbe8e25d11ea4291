package snapshot

import (
	"fmt"
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// cycle is a producer's tick: columns are mapped and unmapped in place, or written
// from arguments, then one seal.
type cycle struct {
	*fixture
	arena   *Arena
	targets []Target
	bytes   []byte
	ordinal uint64
}

func newCycle(t testing.TB, config Config, columns, rows, rowBytes int) *cycle {
	c := &cycle{fixture: newFixture(t, config, 1<<30), bytes: make([]byte, rows*rowBytes)}
	c.arena = c.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	q := queryOf(c.paths(rows)...)
	for i := range columns {
		c.targets = append(c.targets, Target{Query: q, Name: fmt.Sprint("column", i), Schema: bytesSchema(rowBytes)})
	}
	return c
}

// adopt maps a column and hands it back.
func (c *cycle) adopt(i int) {
	t := &c.targets[i]
	t.Ordinal = c.ordinal
	m, _, err := c.store.Map(c, c.arena, t, protocol.InitNone, 0)
	if err == nil {
		_, _, err = c.store.UnmapGroup(m, 0, tensor.Selection{Count: tensor.All}, true, false)
		c.store.EndSession(m)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// scatter writes a column's first prim; before the first time, all of them.
func (c *cycle) scatter(i int, rows uint64) {
	t := &c.targets[i]
	t.Ordinal = c.ordinal
	if _, _, err := c.store.Write(t, c.bytes, rows, tensor.Selection{Count: rows}, false); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cycle) sealAll() {
	if _, err := c.store.Seal(c.ordinal, protocol.ScopeAll, nil, 1); err != nil {
		c.t.Fatal(err)
	}
	c.ordinal++
}

func (c *cycle) tick(adopted bool) {
	for i := range c.targets {
		if adopted {
			c.adopt(i)
		} else {
			c.scatter(i, 1)
		}
	}
	c.sealAll()
}

func (c *cycle) warm(adopted bool) {
	c.ordinal = 1
	for i := range c.targets {
		c.scatter(i, c.targets[i].Query.Size())
	}
	c.sealAll()
	for range 64 {
		c.tick(adopted)
	}
}

// TestAWarmTickTakesNoMemory: nothing is allocated on unmap, write and seal once
// warm, but the session that a map makes.
func TestAWarmTickTakesNoMemory(t *testing.T) {
	for _, adopted := range []bool{true, false} {
		c := newCycle(t, Config{Retain: 4, CopyInlineBytes: 1 << 30}, 4, 4, 64)
		c.warm(adopted)
		limit := 0
		if adopted {
			limit = len(c.targets) // a Session each
		}
		require.LessOrEqual(t, testing.AllocsPerRun(200, func() { c.tick(adopted) }), float64(limit), "adopted %v", adopted)
	}
}

func benchmarkTick(b *testing.B, columns, rows, rowBytes int, adopted bool) {
	c := newCycle(b, Config{Retain: 4, CopyInlineBytes: 1 << 30}, columns, rows, rowBytes)
	c.warm(adopted)
	b.ReportAllocs()
	for b.Loop() {
		c.tick(adopted)
	}
}

func BenchmarkSealOneAdopted1MiB(b *testing.B)       { benchmarkTick(b, 1, 1, 1<<20, true) }
func BenchmarkSealOneScattered64B(b *testing.B)      { benchmarkTick(b, 1, 1, 64, false) }
func BenchmarkSealSixteenAdopted64B(b *testing.B)    { benchmarkTick(b, 16, 1, 64, true) }
func BenchmarkSealSixteenScattered4KiB(b *testing.B) { benchmarkTick(b, 16, 64, 64, false) }
