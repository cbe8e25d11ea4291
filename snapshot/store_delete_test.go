package snapshot

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

func (f *fixture) delete(ordinal uint64, q *Query, names ...string) {
	require.NoError(f.t, f.try(func() error { _, err := f.store.Delete(q, names, ordinal); return err }))
}

// TestDeleteAndWriteAgainThroughTheSameQuery: behaviour 147, 151, 153. What a query
// remembers of a layout is forgotten when rows of it die; the prim gets a row anew.
func TestDeleteAndWriteAgainThroughTheSameQuery(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(3)
	q, one := queryOf(p...), queryOf(p[1])
	put := func(q *Query, ordinal uint64, text string) {
		_, err := f.write(q, "a", bytesSchema(1), ordinal, []byte(text))
		require.NoError(t, err)
	}
	put(q, 1, "abc")
	put(q, 2, "def")
	put(one, 2, "x")
	f.seal(2, protocol.ScopeAll)
	put(one, 3, "y") // the query knows its row
	f.seal(3, protocol.ScopeAll)
	f.delete(4, one, "a")
	put(one, 5, "z")
	f.seal(4, protocol.ScopeAll)
	require.Equal(t, map[uint64]string{p[0]: "d", p[2]: "f"}, f.rowsAt(1, 3))
	require.Equal(t, map[uint64]string{p[0]: "d", p[1]: "y", p[2]: "f"}, f.rowsAt(1, 2), "reads below it see it still (behaviour 158)")
	f.seal(5, protocol.ScopeAll)
	require.Equal(t, map[uint64]string{p[0]: "d", p[1]: "z", p[2]: "f"}, f.rowsAt(1, 4))
	put(one, 6, "!")
	f.seal(6, protocol.ScopeAll)
	require.Equal(t, "!", f.rowsAt(1, 5)[p[1]])
	f.checkBooks()
}

// TestADeleteCopiesNothing: the block of the version before is that of the next.
func TestADeleteCopiesNothing(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 1<<30)
	p := f.paths(100)
	_, err := f.write(queryOf(p...), "a", bytesSchema(100), 1, make([]byte, 100*100))
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	place, copied := f.versionAt(1, 1).Block, f.store.counters.CopiedBytes
	f.delete(2, queryOf(p[7]))
	f.seal(2, protocol.ScopeAll)
	require.Equal(t, place, f.versionAt(1, 2).Block)
	require.Equal(t, copied, f.store.counters.CopiedBytes)
	require.NotContains(t, f.rowsAt(1, 2), p[7])
	f.checkBooks()
}

// TestAColumnIsAdoptedAgainAfterDeletes: rule L2. At half dead the rows move together;
// then the prims that are left are the whole column in order.
func TestAColumnIsAdoptedAgainAfterDeletes(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(40)
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	_, err := f.write(queryOf(p...), "a", bytesSchema(1), 1, make([]byte, 40))
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	f.delete(2, queryOf(p[:25]...), "a")
	f.seal(2, protocol.ScopeAll)
	require.Equal(t, 25, f.store.findColumn("a").layout.dead)
	m, err := f.open(f, arena, Target{Query: queryOf(p[25:]...), Name: "a", Ordinal: 3}, protocol.InitZero)
	require.NoError(t, err)
	out, err := f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, all, true, true) })
	require.NoError(t, err)
	f.store.EndSession(m)
	require.EqualValues(t, protocol.CompletionAdopted, out.Flags)
	v := f.versionAt(1, 3)
	require.EqualValues(t, 15, v.Rows)
	require.EqualValues(t, protocol.VersionAdopted, v.Flags)
	require.Len(t, f.rowsAt(1, 3), 15)
	require.Len(t, f.rowsAt(1, 1), 40)
	f.checkBooks()
}

// TestTombstonesMoveTheFrontier: rule O7. At least 65 536 deletes are kept; reads of
// changes from before those are refused, and no others.
func TestTombstonesMoveTheFrontier(t *testing.T) {
	f := newFixture(t, Config{Retain: 1}, 1<<30)
	h := &history{fixture: f}
	h.attachReader()
	const batch = 1 << 12
	var prims []uint64
	for i := range batch {
		prims = append(prims, uint64(i+1))
	}
	q := queryOf(prims...)
	list := NewPrimList(prims[:3])
	ordinal := uint64(0)
	for i := 0; i < tombstonesMax/batch+3; i++ {
		ordinal++
		_, err := f.run(func() (Outcome, *Job, error) {
			return f.store.Write(&Target{Query: q, Name: "a", Schema: bytesSchema(1), Ordinal: ordinal}, make([]byte, batch), batch, all, false)
		})
		require.NoError(t, err)
		ordinal++
		f.delete(ordinal, q, "a")
		f.seal(ordinal, protocol.ScopeAll)
	}
	column := h.readerColumns()[0]
	frontier := column.Frontier()
	require.EqualValues(t, 6, frontier, "the deletes of three seals went")
	_, err := h.reader.Tombstones(list, column, f.store.epoch, frontier-1, protocol.Infinite)
	requireStatus(t, protocol.StatusOutOfRange, err)
	stones, err := h.reader.Tombstones(list, column, f.store.epoch, frontier, protocol.Infinite)
	require.NoError(t, err)
	require.Len(t, stones, 3)
	require.Equal(t, ordinal, stones[0].Ordinal, "the last delete of each prim")
	stones, err = h.reader.Tombstones(list, column, f.store.epoch, ordinal, protocol.Infinite)
	require.NoError(t, err)
	require.Empty(t, stones)
}

// TestSeveralSchemasOfOneName: behaviour 28, 44, 46, 153; rules L6, O2.
func TestSeveralSchemasOfOneName(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(3)
	q := func(i int) *Query { return queryOf(p[i]) }
	refused := func(q *Query, rowBytes int, ordinal uint64) {
		t.Helper()
		_, err := f.write(q, "x", bytesSchema(rowBytes), ordinal, make([]byte, rowBytes))
		text := requireStatus(t, protocol.StatusInvalidArgument, err).Text
		require.Contains(t, text, `"x"`)
		require.Contains(t, text, "delete the attribute")
	}
	write := func(i, rowBytes int, ordinal uint64) {
		t.Helper()
		_, err := f.write(q(i), "x", bytesSchema(rowBytes), ordinal, bytes.Repeat([]byte{byte(ordinal)}, rowBytes))
		require.NoError(t, err)
	}
	write(0, 2, 1)
	write(1, 3, 1) // another prim: another column
	refused(q(0), 3, 1)
	refused(q(1), 2, 5)
	f.seal(1, protocol.ScopeAll)
	refused(q(1), 2, 5)
	require.Len(t, f.rowsAt(1, 1), 1)
	require.Len(t, f.rowsAt(2, 1), 1)
	require.Same(t, f.store.columns[1].attribute, f.store.columns[2].attribute)

	f.delete(4, q(0), "x")
	write(0, 3, 5)      // behaviour 153
	refused(q(0), 2, 4) // would make what was accepted at 5 wrong
	write(0, 2, 3)      // before the delete it is what it was
	refused(q(0), 2, 6)
	f.seal(5, protocol.ScopeAll)
	require.Empty(t, f.rowsAt(1, 2))
	require.Len(t, f.rowsAt(2, 2), 2)
	_, err := f.run(func() (Outcome, *Job, error) { // a schema that is open is the one that the prim carries
		return f.store.Write(&Target{Query: q(0), Name: "x", Ordinal: 6}, []byte("abc"), 1, all, false)
	})
	require.NoError(t, err)
	_, err = f.run(func() (Outcome, *Job, error) {
		return f.store.Write(&Target{Query: q(2), Name: "x", Ordinal: 6}, []byte("abc"), 1, all, false)
	})
	requireStatus(t, protocol.StatusInvalidArgument, err)
	f.seal(6, protocol.ScopeInclude, "x") // both columns of the name
	require.Equal(t, "abc", f.rowsAt(2, 3)[p[0]])
	f.checkBooks()
}

// TestDeletesAndAppendsAreNotQuadratic: a prim more, or less, costs what it costs in a
// small column.
func TestDeletesAndAppendsAreNotQuadratic(t *testing.T) {
	if raceEnabled {
		t.Log("left out under the race detector: its costs are not the store's")
		return
	}
	cost := func(n int) time.Duration {
		f := newFixture(t, Config{Retain: 1, CopyInlineBytes: 1 << 40}, 1<<30)
		s := f.store
		ordinal := uint64(1)
		begin := time.Now()
		for i := range n {
			one := queryOf(uint64(i + 1))
			_, _, err := s.Write(&Target{Query: one, Name: "a", Schema: bytesSchema(8), Ordinal: ordinal}, make([]byte, 8), 1, tensor.Selection{Count: 1}, true)
			require.NoError(t, err)
			ordinal++
		}
		for i := range n {
			_, err := s.Delete(queryOf(uint64(i+1)), []string{"a"}, ordinal)
			require.NoError(t, err)
			_, _, err = s.Seal(ordinal, protocol.ScopeAll, nil, 1)
			require.NoError(t, err)
			ordinal++
		}
		require.Empty(t, f.rowsAt(1, s.epoch))
		return time.Since(begin) / time.Duration(n)
	}
	text := ""
	for range 5 { // a machine that is busy with something else must not decide
		small, large := cost(1000), cost(30_000)
		text = fmt.Sprintf("a prim costs %v among 1000 and %v among 30000", small, large)
		if t.Log(text); large < 4*small+10*time.Microsecond {
			return
		}
	}
	t.Error(text)
}

// TestADeleteReachesWhatIsWrittenLaterBelowIt: behaviour 147; rule O1. The order is that
// of ordinals, whatever was accepted first, for attributes and schemas that the delete
// could not know too; a write at its own ordinal that came after it stays.
func TestADeleteReachesWhatIsWrittenLaterBelowIt(t *testing.T) {
	for _, names := range [][]string{{"a"}, {}} {
		f := newFixture(t, Config{}, 1<<30)
		p := f.paths(3)
		put := func(q *Query, name string, size int, ordinal uint64, text string) {
			_, err := f.write(q, name, bytesSchema(size), ordinal, []byte(text))
			require.NoError(t, err)
		}
		rows := func(name string, size int) map[uint64]string {
			for _, c := range f.store.columns[1:] {
				if c.name == name && c.rowBytes == uint64(size) {
					return f.rowsAt(c.index, f.store.Epoch())
				}
			}
			return nil
		}
		both, other := queryOf(p[0], p[1]), queryOf(p[2])
		f.delete(5, both, names...)
		put(both, "a", 1, 3, "xy")         // below it
		put(other, "a", 1, 3, "z")         // not its prims
		put(queryOf(p[1]), "a", 1, 7, "w") // above it
		put(both, "b", 2, 3, "kkll")
		f.seal(4, protocol.ScopeAll)
		require.Equal(t, map[uint64]string{p[0]: "x", p[1]: "y", p[2]: "z"}, rows("a", 1), "the delete is above")
		f.seal(6, protocol.ScopeAll)
		require.Equal(t, map[uint64]string{p[2]: "z"}, rows("a", 1))
		if len(names) == 0 {
			require.Empty(t, rows("b", 2), "all that the prims carry")
		} else {
			require.Len(t, rows("b", 2), 2)
		}
		f.seal(7, protocol.ScopeAll)
		require.Equal(t, map[uint64]string{p[1]: "w", p[2]: "z"}, rows("a", 1))
		require.Empty(t, f.store.deletes.list, "nobody can write below it any more")
		require.Zero(t, f.store.unsealedBytes)

		// Another schema of the name, and the delete's own ordinal: what is accepted after it stays.
		f.delete(9, queryOf(p[1]), names...)
		put(queryOf(p[0]), "a", 1, 9, "o") // another prim, joins nothing that the delete takes
		put(queryOf(p[1]), "a", 2, 9, "nn")
		put(queryOf(p[1]), "c", 1, 8, "m")
		f.seal(9, protocol.ScopeAll)
		require.Equal(t, map[uint64]string{p[0]: "o", p[2]: "z"}, rows("a", 1))
		require.Equal(t, map[uint64]string{p[1]: "nn"}, rows("a", 2))
		if len(names) == 0 {
			require.Empty(t, rows("c", 1))
		} else {
			require.Equal(t, map[uint64]string{p[1]: "m"}, rows("c", 1))
		}
		f.checkBooks()
	}
}

// TestADeleteAboveAWriteThatSealsItself: the write is sealed with its op, the delete above it comes with its own seal.
func TestADeleteAboveAWriteThatSealsItself(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	one := queryOf(f.paths(1)...)
	f.delete(5, one)
	target := Target{Query: one, Name: "a", Schema: bytesSchema(1), Ordinal: 3}
	_, err := f.run(func() (Outcome, *Job, error) { return f.store.Write(&target, []byte("x"), 1, all, true) })
	require.NoError(t, err)
	require.Len(t, f.rowsAt(1, f.store.Epoch()), 1)
	f.seal(5, protocol.ScopeAll)
	require.Empty(t, f.rowsAt(1, f.store.Epoch()))
	require.Empty(t, f.store.deletes.list)
	f.checkBooks()
}

// TestADeleteThatASealOnItsWayCovers: rules L1, O1. A write that comes while a seal copies does not bring a delete back
// that this seal covers: it would stay behind, and the next seal would take what was written after it. When the copy
// fails, the delete is ahead of what comes then.
func TestADeleteThatASealOnItsWayCovers(t *testing.T) {
	for _, fails := range []bool{false, true} {
		f := newFixture(t, Config{CopyInlineBytes: 1}, 1<<30)
		p := f.paths(2)
		write := func(q *Query, ordinal uint64, seal bool) *Job {
			return f.start(func() (Outcome, *Job, error) {
				return f.store.Write(&Target{Query: q, Name: "a", Schema: bytesSchema(2), Ordinal: ordinal}, make([]byte, 2*q.Size()), q.Size(), all, seal)
			})
		}
		end := func(j *Job) {
			f.jobs = append(f.jobs, &fixtureJob{job: j})
			f.endJob()
		}
		f.delete(3, queryOf(p...), "a")
		sealing := write(queryOf(p[0]), 3, true)
		end(write(queryOf(p[1]), 4, false))
		if fails {
			f.step(sealing.Abort)
			f.checkBooks()
			end(write(queryOf(p[1]), 2, true))
			f.seal(3, protocol.ScopeAll)
			require.Empty(t, f.rowsAt(1, f.store.Epoch()), "the delete is above it")
		} else {
			end(sealing)
			require.Len(t, f.rowsAt(1, f.store.Epoch()), 1)
		}
		f.seal(4, protocol.ScopeAll)
		want := map[bool]int{false: 2, true: 1}
		require.Len(t, f.rowsAt(1, f.store.Epoch()), want[fails], "what was written after the delete")
		f.checkBooks()
	}
}

// TestAWriteLooksAtDeletesOfItsOwnPrims: however many deletes are not sealed, a write looks at those of its prims that
// its column has not met, and a seal at those that its floors pass.
func TestAWriteLooksAtDeletesOfItsOwnPrims(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	p := f.paths(1000)
	looked := func(name string, ordinal uint64, seal bool, prims ...uint64) (n int) {
		t.Helper()
		_, err := f.run(func() (Outcome, *Job, error) {
			q := queryOf(prims...)
			return f.store.Write(&Target{Query: q, Name: name, Schema: bytesSchema(1), Ordinal: ordinal}, make([]byte, len(prims)), q.Size(), all, seal)
		})
		require.NoError(t, err)
		for _, r := range f.store.deletes.list {
			if r.asked == f.store.deletes.asks {
				n++
			}
		}
		return n
	}
	for i, prim := range p[1:] {
		f.delete(uint64(1000+i), queryOf(prim))
	}
	for i := range uint64(50) {
		f.delete(500+i, queryOf(p[0]))
	}
	require.Equal(t, 50, looked("a", 1, false, p[0]))
	require.Zero(t, looked("a", 1, false, p[0]), "it has met them")
	require.Zero(t, looked("a", 999, false, p[0]))
	require.Equal(t, 1, looked("a", 2, false, p[0], p[1]))
	require.Equal(t, 51, looked("b", 2, false, p[0], p[1]), "another column")
	f.delete(600, queryOf(p[0], p[1]))
	require.Equal(t, 1, looked("b", 3, false, p[0], p[1]))
	require.Zero(t, looked("b", 4, true, p[0], p[1]))
	f.checkBooks()

	d := &f.store.deletes
	require.Equal(t, 1050, len(d.list)-d.gone)
	f.seal(549, protocol.ScopeAll)
	require.Equal(t, 1000, len(d.list)-d.gone)
	require.Len(t, d.about[p[0]].all, 1)
	f.seal(5000, protocol.ScopeExclude, "a")
	require.Equal(t, 1000, len(d.list)-d.gone, "they reach what is written to a")
	f.checkBooks()
	f.seal(5000, protocol.ScopeAll)
	require.Zero(t, len(d.list))
	require.Nil(t, d.about)
	f.checkBooks()
}

// TestRememberedDeletesAreBounded: a stage whose attributes are all sealed by name never
// seals a delete of everything for names that may come; that must not take memory for ever.
func TestRememberedDeletesAreBounded(t *testing.T) {
	f := newFixture(t, Config{}, 1<<30)
	q := queryOf(make([]uint64, 1<<18)...)
	for ordinal := uint64(1); ordinal < 50; ordinal++ {
		f.delete(ordinal, q)
	}
	require.LessOrEqual(t, f.store.deletes.prims, rememberedMax)
	require.Zero(t, f.store.unsealedBytes)
}

// TestYoungStagesAgreeWithTheNaiveStore: behaviour 147, 153; rules O1, L6. Stages that have nothing yet: attributes and schemas are born under deletes
// that were accepted before, in any order of ordinals.
func TestYoungStagesAgreeWithTheNaiveStore(t *testing.T) {
	stages := uint64(400)
	if raceEnabled {
		stages = 40
	}
	for seed := range stages {
		random := rand.New(rand.NewPCG(seed, 1))
		f := newFixture(t, Config{}, 1<<30)
		n := &naive{floors: map[string]uint64{}, epochs: map[uint64]*naiveEpoch{}}
		p := f.paths(3)
		for range 14 {
			name, size := string(rune('a'+random.IntN(3))), 1+random.IntN(2)
			from := random.IntN(3)
			prims := p[from : from+1+random.IntN(3-from)]
			ordinal := n.floor(name) + 1 + uint64(random.IntN(4))
			switch random.IntN(6) {
			case 0, 1:
				var names []string
				if random.IntN(2) == 0 {
					names = []string{name}
				}
				if _, err := f.store.Delete(queryOf(prims...), names, ordinal); err == nil {
					n.delete(naiveDelete{naiveOp{ordinal: ordinal, prims: prims}, names})
				}
			case 2:
				f.seal(ordinal, protocol.ScopeInclude, name)
				n.seal(ordinal, protocol.ScopeInclude, []string{name})
			default:
				seal, insert := random.IntN(5) == 0, random.IntN(8) == 0
				var values []string
				for range prims {
					values = append(values, string(bytes.Repeat([]byte{byte('a' + random.IntN(26))}, size)))
				}
				want := n.admits(name, size, ordinal, insert, prims)
				target := Target{Query: queryOf(prims...), Name: name, Schema: bytesSchema(size), Ordinal: ordinal, Insert: insert}
				_, err := f.run(func() (Outcome, *Job, error) {
					return f.store.Write(&target, []byte(strings.Join(values, "")), uint64(len(prims)), all, seal)
				})
				if want != protocol.StatusOK {
					requireStatus(t, want, err)
					continue
				}
				require.NoError(t, err, "seed %d", seed)
				n.column(name, size, 4).accept(naiveOp{ordinal, insert, prims, values})
				if seal {
					n.seal(ordinal, protocol.ScopeInclude, []string{name})
				}
			}
		}
		f.seal(100, protocol.ScopeAll)
		n.seal(100, protocol.ScopeAll, nil)
		require.Len(t, f.store.columns, len(n.columns)+1, "seed %d", seed)
		for _, c := range n.columns {
			want := n.epochs[n.epoch].values(c.index)
			if want == nil {
				want = map[uint64]string{}
			}
			require.Equal(t, want, f.rowsAt(c.index, f.store.Epoch()), "seed %d: %s of %d bytes", seed, c.name, c.rowBytes)
		}
		require.Empty(t, f.store.deletes.list)
		require.Zero(t, f.store.unsealedBytes)
		f.checkBooks()
	}
}
