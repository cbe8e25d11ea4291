package snapshot

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"callboard/protocol"

	"github.com/stretchr/testify/require"
)

// aheadFixture is a column of n rows, written so that row i is of byte 1 throughout.
type aheadFixture struct {
	*fixture
	prims   []uint64
	bytes   int
	ordinal uint64
	want    []byte   // a byte for each row
	stamps  []uint64 // an ordinal for each row
}

func newAhead(t testing.TB, config Config, n, rowBytes int) *aheadFixture {
	f := &aheadFixture{fixture: newFixture(t, config, 1<<30), bytes: rowBytes}
	for i := range n {
		f.prims = append(f.prims, uint64(i+1))
	}
	f.want, f.stamps = make([]byte, n), make([]uint64, n)
	every := make([]int, n)
	for i := range every {
		every[i] = i
	}
	f.write(every)
	return f
}

// write writes rows and seals.
func (f *aheadFixture) write(rows []int) { f.writeQuery(f.query(rows), rows) }

func (f *aheadFixture) query(rows []int) *Query {
	q := NewQuery()
	for _, row := range rows {
		q.Add(f.prims[row])
	}
	return q
}

// writeQuery writes the rows of q, which may have been written before, and seals.
func (f *aheadFixture) writeQuery(q *Query, rows []int) {
	f.ordinal++
	var payload []byte
	for _, row := range rows {
		f.want[row], f.stamps[row] = byte(f.ordinal), f.ordinal
		payload = append(payload, slices.Repeat([]byte{byte(f.ordinal)}, f.bytes)...)
	}
	target := Target{Query: q, Name: "a", Schema: bytesSchema(f.bytes), Ordinal: f.ordinal}
	f.finish(f.store.Write(&target, payload, uint64(len(rows)), all, false))
	f.finish(f.store.Seal(f.ordinal, protocol.ScopeAll, nil, 1))
	f.check()
}

func (f *aheadFixture) finish(_ Outcome, job *Job, err error) {
	require.NoError(f.t, err)
	if job != nil {
		require.False(f.t, f.store.CatchUp() && len(f.store.active) > 0, "a seal's Job reads what this would change")
		job.Run()
		_, err = job.Finish()
		require.NoError(f.t, err)
	}
}

func (f *aheadFixture) column() *column { return f.store.findColumn("a") }

// check compares the last version with what was written.
func (f *aheadFixture) check() {
	v := f.column().latest()
	for row, value := range f.want {
		require.Equal(f.t, slices.Repeat([]byte{value}, f.bytes), v.block.Bytes[row*f.bytes:][:f.bytes], "row %d", row)
		stamp := v.highest
		if v.ordinals != nil {
			stamp = slice[uint64](v.ordinals.Bytes, 0, len(f.want))[row]
		}
		require.Equal(f.t, f.stamps[row], stamp, "row %d", row)
	}
}

// TestASealAfterAPauseCopiesOnlyWhatIsNew: rule O7. What a spare block lacked was copied
// when there was nothing else to do, in pieces that the loop may make at once (rule L1).
func TestASealAfterAPauseCopiesOnlyWhatIsNew(t *testing.T) {
	for name, c := range map[string]struct {
		n, bytes int
		rows     []int
	}{
		"lone rows":                              {1000, 64, []int{3, 500, 7, 900}},
		"a run":                                  {1000, 64, []int{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21}},
		"a run, of which four are more than all": {40, 64, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
		"both":                                   {1000, 64, []int{1, 10, 11, 12, 13, 14, 999}},
		"more than it is worth":                  {1000, 4, []int{1, 30, 70, 100, 130, 160, 190, 220, 250, 280, 310, 340, 370, 400, 430, 460, 490, 520, 550, 580, 610, 640, 670, 700, 730, 760, 790, 820, 850, 880, 910, 913, 916, 919, 922, 925, 928, 931, 934, 937, 940, 943, 946, 949, 952, 955, 958, 961, 964, 967, 970, 973, 976, 979, 982, 985, 988, 991, 994, 997, 2, 4, 6, 8}},
	} {
		for _, retain := range []uint32{1, 4} {
			t.Run(fmt.Sprint(name, ", retain ", retain), func(t *testing.T) {
				f := newAhead(t, Config{Retain: retain, CopyInlineBytes: 256}, c.n, c.bytes)
				for range 12 {
					f.write(c.rows)
					pieces := 0
					for f.store.CatchUp() {
						pieces++
						require.Less(t, pieces, 1000, "no end")
					}
					require.False(t, f.store.Lags())
				}
				before := f.store.counters.CopiedBytes
				f.write(c.rows)
				require.EqualValues(t, 2*len(c.rows)*c.bytes, f.store.counters.CopiedBytes-before, "captured, and put into the block")
				for f.store.CatchUp() {
				}
				require.Equal(t, f.column().sequence(), f.column().newestSpare().sequence)
			})
		}
	}
}

// TestAPauseThatEndsEarly: whatever piece of a spare block is copied when the next seal
// comes, whatever it writes, however many it is behind: what is sealed is right (rule O7).
func TestAPauseThatEndsEarly(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3, uint64(rand.Int64())} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 5))
			n, bytes := 20+random.IntN(200), []int{1, 12, 64, 100}[random.IntN(4)]
			f := newAhead(t, Config{Retain: 1 + uint32(random.IntN(4)), CopyInlineBytes: 200 + uint64(random.IntN(2000))}, n, bytes)
			pins := &pinSet{}
			f.store.AddPins(pins)
			var known []*Query // some of the writes are of the same rows again and again
			var rowsOf [][]int
			for range 300 {
				if len(known) > 0 && random.IntN(2) == 0 {
					again := random.IntN(len(known))
					for range 1 + random.IntN(5) {
						f.writeQuery(known[again], rowsOf[again])
						for range random.IntN(3) {
							f.store.CatchUp()
						}
					}
				}
				var rows []int
				switch count := 1 + random.IntN(n/3); random.IntN(3) {
				case 0:
					for i := range count {
						rows = append(rows, n/4+i)
					}
				default:
					rows = random.Perm(n)[:count]
				}
				if random.IntN(20) == 0 {
					rows = random.Perm(n) // all of them
				}
				q := f.query(rows)
				f.writeQuery(q, rows)
				if len(known) < 4 {
					known, rowsOf = append(known, q), append(rowsOf, rows)
				}
				switch random.IntN(6) {
				case 0: // a reader holds a version: its block must stay as it is
					pins.pins = append(pins.pins, Pin{Epoch: f.store.Epoch(), Attribute: protocol.PinAll})
				case 1:
					pins.pins = pins.pins[:0]
				}
				held := map[*version][]byte{}
				for _, v := range f.column().versions {
					held[v] = slices.Clone(v.block.Bytes)
				}
				for range random.IntN(8) {
					f.store.CatchUp()
				}
				for v, was := range held {
					require.Equal(t, was, v.block.Bytes, "a version is written to")
				}
			}
		})
	}
}

// TestRowsThatAJobMustCopyAreLeftToIt: a row larger than what the loop copies at once
// stays as it is until the seal's Job comes (rule L1).
func TestRowsThatAJobMustCopyAreLeftToIt(t *testing.T) {
	f := newAhead(t, Config{Retain: 1, CopyInlineBytes: 1000}, 12, 1001)
	for i := range 5 {
		f.write([]int{i})
		require.False(t, f.store.CatchUp())
	}
}

// TestNothingIsCopiedAheadWhereAllIsWritten: who writes all rows each time needs no block
// that is up to date.
func TestNothingIsCopiedAheadWhereAllIsWritten(t *testing.T) {
	f := newAhead(t, Config{Retain: 1, Handoff: protocol.HandoffCopy}, 40, 64)
	for range 5 {
		f.write(rand.Perm(40))
		require.False(t, f.store.CatchUp())
		require.False(t, f.store.Lags())
	}
}

// TestCopyingAheadTakesNoMemory: as seals do, once warm.
func TestCopyingAheadTakesNoMemory(t *testing.T) {
	c := newCycle(t, Config{Retain: 2}, 4, 64, 64)
	c.warm(false)
	worked := 0
	require.Zero(t, testing.AllocsPerRun(200, func() {
		c.tick(false)
		for c.store.CatchUp() {
			worked++
		}
	}))
	require.Positive(t, worked)
}

// TestWhoWritesTheSameRowsAgainPaysForTheseOnly: rule O7. Rows that a commit overwrites anyway
// are not caught up with, whatever share of the column they are and however many versions the
// block is behind; who then writes others finds all that it needs.
func TestWhoWritesTheSameRowsAgainPaysForTheseOnly(t *testing.T) {
	const n, rowBytes = 1000, 64
	for _, retain := range []uint32{1, 4} {
		for _, count := range []int{5, 100, 600} {
			t.Run(fmt.Sprintf("%d rows, retain %d", count, retain), func(t *testing.T) {
				f := newAhead(t, Config{Retain: retain, CopyInlineBytes: 1 << 30}, n, rowBytes)
				some, others := rand.Perm(n)[:count], rand.Perm(n)[:count]
				q, r := f.query(some), f.query(others)
				for range 3 {
					copied := func(q *Query, rows []int) uint64 {
						before := f.store.counters.CopiedBytes
						f.writeQuery(q, rows)
						return f.store.counters.CopiedBytes - before
					}
					for range 12 {
						copied(q, some)
					}
					require.EqualValues(t, 2*count*rowBytes, copied(q, some), "captured, and put into the block")
					require.Greater(t, copied(r, others), uint64(2*count*rowBytes), "the block is from before the last of these")
					copied(r, others)
				}
				f.checkBooks()
			})
		}
	}
}
