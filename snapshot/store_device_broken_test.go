package snapshot

import (
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// breakDevice makes a fake device fail from now on and tells the store; rows is how many were
// given up, -1 while seals on their way hold some.
func (f *fixture) breakDevice() (rows *int) {
	f.fakes.devices[0].fail = errDriver
	rows = new(int)
	*rows = -1
	f.step(func() {
		for range 2 { // it may be said again
			f.store.LoseDevice(&f.fakes.devices[0].Device, errDriver, func(n uint64) {
				require.Equal(f.t, -1, *rows, "told once")
				*rows = int(n)
			})
		}
	})
	return rows
}

// begin is run for an op that stays on its way: its end is called with its error, or nil.
func (f *fixture) begin(op func() (Outcome, *Job, error)) (failed *error) {
	f.t.Helper()
	failed = new(error)
	*failed = ErrRetry
	require.NoError(f.t, f.try(func() error {
		_, job, err := op()
		if err == nil {
			require.NotNil(f.t, job, "the op did not become a job")
			f.jobs = append(f.jobs, &fixtureJob{job: job, then: func(Outcome) { *failed = nil }, fail: func(e error) { *failed = e }})
		}
		return err
	}))
	return failed
}

// TestADeviceThatBreaks: rule C4. What waits for its seal there is given up, adopted or not; one seal fails of it, and
// then host attributes go on. The column keeps its version, and deletes still reach it.
func TestADeviceThatBreaks(t *testing.T) {
	for _, scope := range []uint64{protocol.ScopeAll, protocol.ScopeInclude} {
		f := newDeviceFixture(t, Config{Retain: 2})
		p := f.paths(6)
		arena := f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
		var names []string
		if scope == protocol.ScopeInclude {
			names = []string{"a", "host", "adopted", "other"}
		}
		require.NoError(t, f.write4("a", 1, p, "abcdef", all))
		f.seal(1, protocol.ScopeAll)
		host := func(ordinal uint64, bytes string) {
			_, err := f.write(queryOf(p...), "host", bytesSchema(1), ordinal, []byte(bytes))
			require.NoError(t, err)
		}
		host(2, "ABCDEF")
		require.NoError(t, f.write4("a", 2, p[:2], "xy", all))
		require.NoError(t, f.write4("a", 4, p[2:3], "z", all))
		f.delete(2, queryOf(p[5:]...), "a")
		_, err := f.write(queryOf(p...), "other", onDevice(bytesSchema(1), 1), 2, []byte("opqrst"))
		require.NoError(t, err)
		m, err := f.open(owner, arena, Target{Query: queryOf(p[:2]...), Name: "adopted", Schema: onDevice(bytesSchema(4), 0), Ordinal: 2}, protocol.InitZero)
		require.NoError(t, err)
		_, err = f.unmap(nil, m, all, true, false)
		require.NoError(t, err)
		mapped, err := f.open(owner, arena, Target{Query: queryOf(p[:1]...), Name: "a", Ordinal: 5}, protocol.InitZero)
		require.NoError(t, err)

		require.Equal(t, 5, *f.breakDevice())
		f.checkBooks()
		seal := func(ordinal uint64) error {
			_, err := f.run(func() (Outcome, *Job, error) { return f.store.Seal(ordinal, scope, names, 1) })
			return err
		}
		text := requireStatus(t, protocol.StatusInternal, seal(2)).Text
		require.Contains(t, text, `"a"`)
		require.Contains(t, text, "ordinal 2")
		require.Contains(t, text, "700")
		require.EqualValues(t, 1, f.store.Epoch())
		require.NoError(t, seal(2), "once")
		require.Equal(t, "ABCDEF", f.valuesAt("host", p))
		require.Equal(t, "abcde.", f.valuesAt("a", p), "its version, and what was deleted")
		require.Equal(t, "......", f.valuesAt("adopted", p))
		require.Equal(t, "opqrst", f.valuesAt("other", p), "another device goes on")
		host(4, "GHIJKL")
		require.NoError(t, seal(4), "what was given up is told of once for each attribute")
		require.Equal(t, "GHIJKL", f.valuesAt("host", p))

		require.ErrorContains(t, f.write4("a", 5, p, "ghijkl", all), "700")
		_, err = f.unmap(nil, mapped, all, true, false)
		require.ErrorContains(t, err, "700")
		_, err = f.run(func() (Outcome, *Job, error) {
			return f.store.Write(&Target{Query: queryOf(p...), Name: "a", Ordinal: 5}, make([]byte, 24), 6, all, true)
		})
		require.ErrorContains(t, err, "700")
		f.delete(6, queryOf(p[1:5]...), "a") // most of its rows are dead now, and stay where they are
		require.NoError(t, seal(6))
		f.delete(7, queryOf(p[:1]...), "a")
		copies := f.fakes.devices[0].copies
		require.NoError(t, seal(7))
		require.Equal(t, "......", f.valuesAt("a", p))
		require.Equal(t, copies, f.fakes.devices[0].copies)
		require.Zero(t, f.store.unsealedBytes)
		f.store.ReleaseLent(owner)
		f.checkBooks()
	}
}

// TestADeviceThatBreaksUnderWhatIsOnItsWay: rule C4. A seal and a write that are being copied end by themselves: what
// the seal had taken is given up when it has failed, and nobody's seal fails of it again.
func TestADeviceThatBreaksUnderWhatIsOnItsWay(t *testing.T) {
	f := newDeviceFixture(t, Config{Retain: 2})
	p := f.paths(4)
	require.NoError(t, f.write4("a", 1, p, "abcd", all))
	f.seal(1, protocol.ScopeAll)
	require.NoError(t, f.write4("a", 2, p[:1], "x", all))
	require.NoError(t, f.write4("a", 2, p[1:2], "y", all))
	_, err := f.write(queryOf(p...), "host", bytesSchema(1), 2, []byte("ABCD"))
	require.NoError(t, err)
	sealed := f.begin(func() (Outcome, *Job, error) { return f.store.Seal(2, protocol.ScopeAll, nil, 1) })
	written := f.begin(func() (Outcome, *Job, error) {
		return f.store.Write(&Target{Query: queryOf(p...), Name: "a", Ordinal: 3}, make([]byte, 16), 4, all, false)
	})
	rows := f.breakDevice()
	require.Equal(t, -1, *rows, "the seal has some of them")
	f.endJob()
	require.ErrorContains(t, *sealed, "700")
	require.Equal(t, 2, *rows)
	f.endJob()
	require.ErrorContains(t, *written, "700")
	require.EqualValues(t, 1, f.store.Epoch())
	f.checkBooks()
	f.seal(3, protocol.ScopeAll)
	require.Equal(t, "ABCD", f.valuesAt("host", p))
	require.Equal(t, "abcd", f.valuesAt("a", p))
	require.Zero(t, f.store.unsealedBytes)
	f.checkBooks()
}

// TestADeviceThatBreaksAfterTheCopies: rule C4. What a seal on its way has copied before is whole, and published; a write
// that was copied fails all the same, since nothing could be made of it. A seal that is aborted has told nobody.
func TestADeviceThatBreaksAfterTheCopies(t *testing.T) {
	for _, abort := range []bool{false, true} {
		f := newDeviceFixture(t, Config{Retain: 2})
		p := f.paths(4)
		require.NoError(t, f.write4("a", 1, p, "abcd", all))
		f.seal(1, protocol.ScopeAll)
		require.NoError(t, f.write4("a", 2, p[:1], "x", all))
		var jobs []*Job
		for _, op := range []func() (Outcome, *Job, error){
			func() (Outcome, *Job, error) { return f.store.Seal(2, protocol.ScopeAll, nil, 1) },
			func() (Outcome, *Job, error) {
				return f.store.Write(&Target{Query: queryOf(p...), Name: "a", Ordinal: 3}, make([]byte, 16), 4, all, false)
			},
		} {
			require.NoError(t, f.try(func() error {
				_, job, err := op()
				jobs = append(jobs, job)
				return err
			}))
		}
		for _, job := range jobs {
			job.Run()
		}
		rows := f.breakDevice()
		f.step(func() {
			if abort {
				jobs[0].Abort()
				return
			}
			_, err := jobs[0].Finish()
			require.NoError(t, err)
		})
		f.step(func() {
			_, err := jobs[1].Finish()
			require.ErrorContains(t, err, "700")
		})
		f.checkBooks()
		if abort {
			require.Equal(t, 1, *rows)
			_, err := f.run(func() (Outcome, *Job, error) { return f.store.Seal(3, protocol.ScopeAll, nil, 1) })
			requireStatus(t, protocol.StatusInternal, err)
		} else {
			require.Zero(t, *rows)
		}
		f.seal(3, protocol.ScopeAll)
		require.Equal(t, map[bool]string{false: "xbcd", true: "abcd"}[abort], f.valuesAt("a", p))
		f.checkBooks()
	}
}

// TestASessionOfSeveralGroupsEndsWithItsDevice: rules C4, M2. What some of its groups brought is given up with the rest,
// and its owner hears of it.
func TestASessionOfSeveralGroupsEndsWithItsDevice(t *testing.T) {
	f := newShares(t, 4, Config{Retain: 2})
	f.fixture = newFixtureOf(t, Config{Retain: 2}, 1<<30, newFakes(t, 1<<30))
	f.arena = f.memory.NewArena(protocol.SegmentClient, 7, "client", false)
	f.prims = f.paths(4)
	var m *Session
	require.NoError(t, f.try(func() (err error) {
		m, _, err = f.store.Map(owner, f.arena, &Target{Query: queryOf(f.prims...), Name: "a", Schema: onDevice(bytesSchema(4), 0), Ordinal: 1, StagingType: tensor.DeviceCPU}, protocol.InitZero, 2)
		return err
	}))
	_, err := f.claim(anna, m, 0)
	require.NoError(t, err)
	_, err = f.run(func() (Outcome, *Job, error) { return f.store.UnmapGroup(m, 0, all, true, false) })
	require.NoError(t, err)
	require.NoError(t, f.store.Failed(m))
	require.Equal(t, 2, *f.breakDevice())
	require.ErrorContains(t, f.store.Failed(m), "700")
	f.store.EndSession(m)
	f.store.ReleaseLent(owner)
	f.checkBooks()
}
