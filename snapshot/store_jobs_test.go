package snapshot

import (
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// start begins an op that must end with a Job.
func (f *fixture) start(op func() (Outcome, *Job, error)) *Job {
	_, job, err := op()
	require.NoError(f.t, err)
	require.NotNil(f.t, job)
	return job
}

// TestSealsAroundACopy: rule L1, behaviour 104 and 105. A seal waits for the copies
// that it covers and for no other; one at the end of a copy finds room for its
// floors, however many seals came between.
func TestSealsAroundACopy(t *testing.T) {
	f := newFixture(t, Config{CopyInlineBytes: 10}, 1<<30)
	p := f.paths(40)
	small, big := queryOf(p[0]), queryOf(p...)
	rows := make([]byte, 40)
	for i := range rows {
		rows[i] = byte('A' + i)
	}
	write := func(name string, ordinal uint64, seal bool) func() (Outcome, *Job, error) {
		return func() (Outcome, *Job, error) {
			return f.store.Write(&Target{Query: big, Name: name, Schema: bytesSchema(1), Ordinal: ordinal}, rows, 40, all, seal)
		}
	}
	sealing := []*Job{f.start(write("a", 5, true)), f.start(write("b", 6, true))}
	plain := f.start(write("c", 7, false))

	_, _, err := f.store.Seal(7, protocol.ScopeAll, nil, 0)
	require.ErrorIs(t, err, ErrRetry)
	_, _, err = f.store.Seal(5, protocol.ScopeInclude, []string{"a"}, 0)
	require.ErrorIs(t, err, ErrRetry)
	_, _, err = f.store.Seal(6, protocol.ScopeExclude, []string{"a"}, 0)
	require.ErrorIs(t, err, ErrRetry)
	require.Zero(t, f.store.Epoch())
	// The column itself is not busy: what comes later stands behind the copy, but not at
	// an ordinal that a seal on its way covers (rule O1).
	more := f.start(write("c", 8, false))
	_, _, err = write("a", 5, false)()
	require.ErrorIs(t, err, ErrRetry)
	plainA := f.start(write("a", 30, false))

	f.seal(4, protocol.ScopeAll)
	f.seal(9, protocol.ScopeExclude, "a", "b", "c")
	for i := range uint64(200) {
		f.seal(i+10, protocol.ScopeInclude, "x", string(rune('k'+i%10))+"name")
	}
	require.Nil(t, f.rowsAt(1, f.store.Epoch()))
	_, err = f.write(small, "d", bytesSchema(1), 5, []byte("d"))
	require.NoError(t, err)
	for _, j := range append(sealing, plain, more, plainA) {
		j.Run()
		f.step(func() {
			_, err := j.Finish()
			require.NoError(t, err)
		})
	}
	require.EqualValues(t, 5, f.store.FloorOf("a"))
	require.EqualValues(t, 6, f.store.FloorOf("b"))
	require.EqualValues(t, 4, f.store.FloorOf("c"))
	e := f.store.Epoch()
	require.Equal(t, "A", f.rowsAt(1, e)[p[0]])
	require.Equal(t, "B", f.rowsAt(2, e)[p[1]])
	require.Nil(t, f.rowsAt(3, e))
	f.seal(7, protocol.ScopeInclude, "c")
	require.Equal(t, "C", f.rowsAt(3, e+1)[p[2]])
	require.Len(t, f.store.findColumn("c").pending, 1)
	require.Len(t, f.store.findColumn("a").pending, 1)
	f.checkBooks()
}

// TestACopyThatMeetsAFault: Abort makes nothing visible and keeps nothing.
func TestACopyThatMeetsAFault(t *testing.T) {
	f := newFixture(t, Config{CopyInlineBytes: 10}, 1<<30)
	p := f.paths(40)
	arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	rows := make([]byte, 40)
	_, err := f.write(queryOf(p[:4]...), "a", bytesSchema(1), 1, []byte("abcd"))
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	require.NoError(t, f.store.Declare("joins", bytesSchema(1), 0, 0))
	before := f.visible()
	for _, name := range []string{"a", "joins"} {
		for _, seal := range []bool{false, true} {
			m, err := f.open(f, arena, Target{Query: queryOf(p...), Name: name, Schema: bytesSchema(1), Next: true}, 0)
			require.NoError(t, err)
			job := f.start(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, all, false, seal) })
			f.store.AbortSessions(f) // the client is gone as well
			job.Abort()
			job = f.start(func() (Outcome, *Job, error) {
				return f.store.Write(&Target{Query: queryOf(p...), Name: name, Schema: bytesSchema(1), Next: true}, rows, 40, all, seal)
			})
			job.Run()
			job.Abort()
		}
	}
	require.Equal(t, before, f.visible())
	f.checkBooks()
	_, err = f.write(queryOf(p[:4]...), "new", bytesSchema(1), 2, []byte("efgh")) // shares a's layout still
	require.NoError(t, err)
	f.seal(2, protocol.ScopeAll)
	require.Same(t, f.store.findColumn("a").layout, f.store.findColumn("new").layout)
	require.Len(t, f.rowsAt(1, 2), 4)
	f.checkBooks()
}

// TestASessionThatEndsWhileItIsFilled: its block goes back when the fill has ended.
func TestASessionThatEndsWhileItIsFilled(t *testing.T) {
	f := newFixture(t, Config{CopyInlineBytes: 10}, 1<<30)
	q := queryOf(f.paths(40)...)
	_, err := f.write(q, "a", bytesSchema(1), 1, make([]byte, 40))
	require.NoError(t, err)
	f.seal(1, protocol.ScopeAll)
	for _, init := range []uint32{protocol.InitZero, protocol.InitCurrent} {
		arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
		m, job, err := f.store.Map(f, arena, &Target{Query: q, Name: "a", Ordinal: 2}, init, 0)
		require.NoError(t, err)
		require.NotNil(t, job)
		_, err = f.store.FindSession(f, m.ID)
		require.ErrorIs(t, err, ErrRetry)
		require.Equal(t, 1, f.store.AbortSessions(f))
		f.memory.CloseArena(arena)
		require.Equal(t, 1, arena.blocks)
		job.Run()
		if init == protocol.InitZero {
			job.Abort()
		} else {
			_, err = job.Finish()
			require.NoError(t, err)
		}
		require.Zero(t, arena.blocks)
		require.Empty(t, arena.segments)
	}
	f.checkBooks()
}

// TestLayoutsWhileSealsAreOnTheirWay: two columns that share a layout grow it, and a
// third joins it, all before the first seal has ended (rule L2).
func TestLayoutsWhileSealsAreOnTheirWay(t *testing.T) {
	f := newFixture(t, Config{CopyInlineBytes: 40}, 1<<30)
	p := f.paths(30)
	for _, name := range []string{"a", "b"} {
		_, err := f.write(queryOf(p[:20]...), name, bytesSchema(1), 1, make([]byte, 20))
		require.NoError(t, err)
	}
	f.seal(1, protocol.ScopeAll)
	require.Equal(t, 2, f.store.findColumn("a").layout.users)
	for _, name := range []string{"c", "d"} {
		_, err := f.write(queryOf(p[:4]...), name, bytesSchema(30), 2, make([]byte, 120))
		require.NoError(t, err)
	}
	f.seal(2, protocol.ScopeAll)
	write := func(name string, prims []uint64, text string) *Job {
		return f.start(func() (Outcome, *Job, error) {
			sel := tensor.Selection{Count: uint64(len(prims)), IndexMap: make([]uint32, len(prims))}
			return f.store.Write(&Target{Query: queryOf(prims...), Name: name, Schema: bytesSchema(30), Ordinal: 3}, []byte(text + "000000000000000000000000000000")[:30], 1, sel, true)
		})
	}
	_, err := f.write(queryOf(p[:7]...), "alone", bytesSchema(30), 3, make([]byte, 7*30))
	require.NoError(t, err)
	jobs := []*Job{
		write("c", p[2:9], "c"), // a clone, while d is there
		write("d", p[3:8], "d"), // a clone as well
		write("e", p[:4], "e"),  // joins what c and d still share
		write("f", p[10:], "f"), // new
		write("g", p[10:], "g"), // the same, but f's is not there yet
		write("h", p[:4], "h"),  // joins
	}
	jobs = append(jobs,
		write("alone", p[5:8], "a"), // grows in place
		write("i", p[:7], "i"),      // would have joined
	)
	for _, i := range []int{7, 6, 1, 0, 3, 2, 5, 4} {
		jobs[i].Run()
		f.step(func() {
			_, err := jobs[i].Finish()
			require.NoError(t, err)
		})
	}
	f.seal(3, protocol.ScopeAll)
	e := f.store.Epoch()
	for name, want := range map[string]int{"c": 9, "d": 8, "e": 4, "f": 20, "g": 20, "h": 4, "i": 7, "alone": 8} {
		rows := f.rowsAt(f.store.findColumn(name).index, e)
		require.Len(t, rows, want, name)
		marked := 0
		for _, row := range rows {
			if row[0] == name[0] {
				marked++
			}
		}
		require.Equal(t, map[string]int{"c": 7, "d": 5, "e": 4, "f": 20, "g": 20, "h": 4, "i": 7, "alone": 3}[name], marked, name)
	}
	f.checkBooks()
}
