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
	if _, _, err := c.store.Seal(c.ordinal, protocol.ScopeAll, nil, 1); err != nil {
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

// newSparse is a column of so many bytes in rows of 4 KiB, and a write of some of them,
// spread out, with what comes from arguments.
func newSparse(t testing.TB, sizeBytes, rows int) (tick func()) {
	const rowBytes = 4096
	f := newFixture(t, Config{Retain: 4, CopyInlineBytes: 1 << 40}, 4<<30)
	prims := make([]uint64, sizeBytes/rowBytes)
	for i := range prims {
		prims[i] = uint64(i + 1) // nobody resolves them
	}
	data := make([]byte, sizeBytes)
	everything := Target{Query: queryOf(prims...), Name: "a", Schema: bytesSchema(rowBytes), Ordinal: 1}
	ordinal := uint64(1)
	some := NewQuery()
	for i := range rows {
		some.Add(prims[i*(len(prims)/rows)])
	}
	write := func(target *Target, bytes []byte) {
		target.Ordinal = ordinal
		if _, _, err := f.store.Write(target, bytes, uint64(len(bytes)/rowBytes), all, false); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.store.Seal(ordinal, protocol.ScopeAll, nil, 1); err != nil {
			t.Fatal(err)
		}
		ordinal++
	}
	write(&everything, data)
	part := Target{Query: some, Name: "a", Schema: bytesSchema(rowBytes)}
	tick = func() { write(&part, data[:rows*rowBytes]) }
	for range 12 { // until blocks go round
		tick()
	}
	return tick
}

// TestACommitCopiesWhatChanged: design D6, rule O7. Whatever the size of a column, the
// bytes that a commit copies are those that changed since its block was last used.
func TestACommitCopiesWhatChanged(t *testing.T) {
	const rows, rowBytes = 4, 64
	for _, n := range []int{100, 10_000} {
		f := newFixture(t, Config{Retain: 3}, 1<<30)
		p := f.paths(n)
		_, err := f.write(queryOf(p...), "a", bytesSchema(rowBytes), 1, make([]byte, n*rowBytes))
		require.NoError(t, err)
		f.seal(1, protocol.ScopeAll)
		for ordinal := uint64(2); ordinal < 40; ordinal++ {
			before := f.store.counters.CopiedBytes
			some := p[int(ordinal)*rows%(n-rows):][:rows]
			_, err := f.write(queryOf(some...), "a", bytesSchema(rowBytes), ordinal, make([]byte, rows*rowBytes))
			require.NoError(t, err)
			f.seal(ordinal, protocol.ScopeAll)
			if ordinal > 10 {
				// captured, scattered, and the four versions before caught up with
				require.LessOrEqual(t, f.store.counters.CopiedBytes-before, uint64((2+4)*rows*rowBytes), "ordinal %d of %d rows", ordinal, n)
			}
		}
		f.checkBooks()
	}
}

func benchmarkSparse(b *testing.B, sizeBytes int) {
	tick := newSparse(b, sizeBytes, 64)
	b.ReportAllocs()
	for b.Loop() {
		tick()
	}
}

// The same 256 KiB change in columns of 16 MiB and 256 MiB.
func BenchmarkCommit256KiBOf16MiB(b *testing.B)  { benchmarkSparse(b, 16<<20) }
func BenchmarkCommit256KiBOf256MiB(b *testing.B) { benchmarkSparse(b, 256<<20) }

// benchmarkRagged is a tick that writes some of a hundred thousand rows of 64 bytes.
func benchmarkRagged(b *testing.B, changed int) {
	const count, rowBytes = 100_000, 64
	f := newFixture(b, Config{Retain: 4, CopyInlineBytes: 1 << 40}, 4<<30)
	prims := make([]uint64, count)
	for i := range prims {
		prims[i] = uint64(i + 1) // nobody resolves them
	}
	ordinal, queries := uint64(0), []*Query{queryOf(prims...)}
	if changed < count {
		for i := range 16 {
			queries = append(queries, queryOf(prims[i*5000:][:changed]...))
		}
	}
	write := func(q *Query) {
		ordinal++
		rows := q.Size()
		t := Target{Query: q, Name: "rows", Schema: arraySchema(1), Ordinal: ordinal}
		if _, _, err := f.store.Write(&t, make([]byte, rows*rowBytes), rows, all, true); err != nil {
			b.Fatal(err)
		}
	}
	for _, q := range queries {
		write(q)
	}
	b.ReportAllocs()
	for b.Loop() {
		write(queries[len(queries)-1-int(ordinal)%max(1, len(queries)-1)])
	}
}

func BenchmarkSealRagged100kRowsAll(b *testing.B)  { benchmarkRagged(b, 100_000) }
func BenchmarkSealRagged100kRows1000(b *testing.B) { benchmarkRagged(b, 1000) }

// BenchmarkWriteUnderDeletes writes one row, and seals it in the same step or not, while so many deletes wait for a seal
// of all: of other prims, or of the same one.
func BenchmarkWriteUnderDeletes(b *testing.B) {
	for _, same := range []bool{false, true} {
		for _, deletes := range []int{1, 1000, 100_000} {
			for _, seal := range []bool{false, true} {
				b.Run(fmt.Sprintf("same=%v/%d/seal=%v", same, deletes, seal), func(b *testing.B) {
					f := newFixture(b, Config{Retain: 1}, 1<<30)
					p := f.paths(2)
					q := queryOf(p[0])
					for i := range deletes {
						prim := p[1] + uint64(i)
						if same {
							prim = p[0]
						}
						f.delete(1<<40+uint64(i), queryOf(prim))
					}
					t := Target{Query: q, Name: "a", Schema: bytesSchema(8)}
					row := make([]byte, 8)
					write := func() {
						if t.Ordinal++; !seal {
							t.Ordinal = 1 // in the place of the one before
						}
						if _, _, err := f.store.Write(&t, row, 1, tensor.Selection{Count: 1}, seal); err != nil {
							b.Fatal(err)
						}
					}
					write()
					b.ResetTimer()
					for range b.N {
						write()
					}
				})
			}
		}
	}
}

// BenchmarkInsertUnderCaptures inserts a prim and deletes it again with all that it carries, while so many writes of
// other prims wait for their seal.
func BenchmarkInsertUnderCaptures(b *testing.B) {
	for _, captures := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprint(captures), func(b *testing.B) {
			f := newFixture(b, Config{}, 1<<30)
			prim := f.paths(1)[0]
			write := func(ordinal uint64, insert bool) {
				prim++
				t := Target{Query: queryOf(prim), Name: "a", Schema: bytesSchema(8), Ordinal: ordinal, Insert: insert}
				if _, _, err := f.store.Write(&t, make([]byte, 8), 1, tensor.Selection{Count: 1}, false); err != nil {
					b.Fatal(err)
				}
			}
			for i := range captures {
				write(uint64(i+1), false)
			}
			ordinal := uint64(captures)
			for b.Loop() {
				ordinal++
				write(ordinal, true)
				if _, err := f.store.Delete(queryOf(prim), nil, ordinal); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
