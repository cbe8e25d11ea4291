package goclient

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	callboard "callboard/clients/go"
	"callboard/integration/harness"

	"github.com/stretchr/testify/require"
)

func paths(t *testing.T, s *callboard.Stage, q *callboard.Query) []string {
	t.Helper()
	texts, err := s.Resolve(q.Prims()...)
	require.NoError(t, err)
	return texts
}

// Behaviour 232–247 once through the whole way.
func TestQueryByFilter(t *testing.T) {
	b := harness.Start(t)
	s := b.Dial("filter")
	q := query(t, s, "/World/a", "/World/b", "/other")
	write(t, s, q, "x", []float32{1, 2, 3}, callboard.WriteOptions{Ordinal: 1})
	found := func(terms ...callboard.Term) *callboard.Query {
		t.Helper()
		q, err := s.Query(background, terms...)
		require.NoError(t, err)
		t.Cleanup(q.Release)
		return q
	}
	require.Equal(t, []string{"/World/a", "/World/b"}, paths(t, s, found(callboard.Has("x"), callboard.PathPrefix("/World/"))))
	require.Zero(t, found(callboard.Has("x"), callboard.SealedOnly()).Len(), "nothing is sealed")
	seal(t, s, 1)
	low := found(callboard.Less("x", "2.5"), callboard.Reporting("x", "y"))
	require.Equal(t, []float32{1, 2}, read[float32](t, s, low, "x"))
	r, err := low.Result(background)
	require.NoError(t, err)
	require.Equal(t, callboard.QueryResult{Query: low, Total: 2, Attributes: []string{"x"}}, r)
	require.Equal(t, low.Prims(), read[uint64](t, s, low, "@path"), "behaviour 271")

	_, err = s.Query(background, callboard.Contains("x", "a"))
	require.ErrorIs(t, err, callboard.ErrNotSupported)
	var e *callboard.Error
	require.ErrorAs(t, err, &e)
	require.Zero(t, e.OpID, "refused at submission (behaviour 242)")

	write(t, s, low, "y", []int8{7, 8}, callboard.WriteOptions{Ordinal: 2})
	require.Equal(t, []string{"/World/b"}, paths(t, s, found(callboard.In("y", "8", "9"))))
	low.Release()
	_, err = s.ReadAttributes(background, low, []string{"x"}, callboard.ReadOptions{})
	require.ErrorIs(t, err, callboard.ErrInvalidHandle)
}

// A query is used before it is made: its ops come after it, and its errors with them
// (behaviour 99, 140, 215).
func TestRunningQueryIsUsable(t *testing.T) {
	b := harness.Start(t)
	s := b.Dial("running")
	q := query(t, s, "/a", "/b")
	write(t, s, q, "x", []float32{1, 2}, callboard.WriteOptions{Ordinal: 1})
	seal(t, s, 1)
	running, err := s.SubmitQuery(callboard.Has("x"))
	require.NoError(t, err)
	defer running.Release()
	op, err := s.WriteAttribute(background, running, "y", []float32{3, 4}, callboard.WriteOptions{Ordinal: 1})
	require.ErrorIs(t, err, callboard.ErrFloorViolation, "what the directory decides comes at once")
	require.Nil(t, op)
	op, err = s.WriteAttribute(background, running, "y", []float32{3, 4}, callboard.WriteOptions{Ordinal: 2})
	require.NoError(t, err)
	insert, err := s.WriteAttribute(background, running, "z", []float32{5, 6}, callboard.WriteOptions{Ordinal: 2, Insert: true})
	require.NoError(t, err, "only the broker knows the prims")
	short, err := s.WriteAttribute(background, running, "z", []float32{5}, callboard.WriteOptions{Ordinal: 2})
	require.NoError(t, err)
	reading, err := s.ReadAttributes(background, running, []string{"x", "@path"}, callboard.ReadOptions{})
	require.NoError(t, err)
	require.Zero(t, running.Len())
	require.NoError(t, op.Wait(background))
	require.ErrorIs(t, insert.Wait(background), callboard.ErrAlreadyExists, "behaviour 99")
	require.ErrorIs(t, short.Wait(background), callboard.ErrInvalidArgument)
	names := []string{}
	for g, err := range reading.Groups() {
		require.NoError(t, err)
		names = append(names, g.Attribute())
		require.Equal(t, q.Prims(), g.Prims())
		g.Release()
	}
	reading.Release()
	require.Equal(t, []string{"x", "@path"}, names)
	require.Equal(t, 2, running.Len())

	failing, err := s.SubmitQuery(callboard.In("later", "no number"))
	require.NoError(t, err, "nobody knows the type yet")
	require.NoError(t, failing.Wait(background))
	failing.Release()
	over, cancel := context.WithCancel(background)
	cancel()
	polled, err := s.SubmitQuery(callboard.Has("x"))
	require.NoError(t, err)
	if err := polled.Wait(over); err != nil {
		require.ErrorIs(t, err, callboard.ErrTimeout)
		require.NoError(t, polled.Wait(background))
	}
	polled.Release()
}

// Neither naming a million prims nor writing them for the first time nor a query over
// them keeps the ticks of another client waiting.
func TestMillionPrimsStallNobody(t *testing.T) {
	if testing.Short() {
		t.Skip("a million paths take seconds")
	}
	b := harness.Start(t, "--memory", "1GiB")
	s, other := b.Dial("big"), b.Dial("ticking")
	const n = 1_000_000
	names := make([]string, n)
	name := func(attempt int) {
		for i := range names {
			names[i] = fmt.Sprintf("/World/%d/prim%d", i%10, attempt*n+i)
		}
	}
	name(0)
	one := query(t, other, "/one")
	tick := func(ordinal uint64) time.Duration {
		start := time.Now()
		op, err := other.WriteAttribute(background, one, "tick", []uint64{ordinal}, callboard.WriteOptions{Ordinal: ordinal})
		require.NoError(t, err)
		require.NoError(t, op.Wait(background))
		op, err = other.AdvanceWriteFloor(ordinal, callboard.SealOptions{Scope: callboard.ScopeInclude, Attributes: []string{"tick"}})
		require.NoError(t, err)
		require.NoError(t, op.Wait(background))
		return time.Since(start)
	}
	ordinal, quiet := uint64(0), []time.Duration{}
	for range 500 {
		ordinal++
		quiet = append(quiet, tick(ordinal))
	}
	slices.Sort(quiet)
	at := func(d []time.Duration, percent int) time.Duration { return d[len(d)*percent/100] }
	// beside makes ticks until work is done, and tells how long each tick took.
	beside := func(what string, work func()) []time.Duration {
		done, busy := make(chan time.Duration), []time.Duration{}
		go func() {
			start := time.Now()
			work()
			done <- time.Since(start)
		}()
		for took := time.Duration(0); took == 0; {
			ordinal++
			busy = append(busy, tick(ordinal))
			select {
			case took = <-done:
				slices.Sort(busy)
				t.Logf("%s takes %v; ticks alone: p50 %v, p99 %v, max %v; meanwhile: %d ticks, p50 %v, p99 %v, max %v", what, took,
					at(quiet, 50), at(quiet, 99), quiet[len(quiet)-1], len(busy), at(busy, 50), at(busy, 99), busy[len(busy)-1])
			default:
			}
		}
		return busy
	}
	// calm wants most ticks beside some work to be short, in one of three attempts: a machine that is busy with something
	// else must not decide.
	calm := func(what string, percent int, limit time.Duration, work func(attempt int)) {
		t.Helper()
		var took time.Duration
		for attempt := range 3 {
			if took = at(beside(what, func() { work(attempt) }), percent); took < limit || t.Failed() {
				return
			}
		}
		t.Errorf("beside %s %d of 100 ticks took up to %v: expected less than %v", what, percent, took, limit)
	}
	var all *callboard.Query
	calm("naming a million prims", 90, 20*time.Millisecond, func(attempt int) {
		if attempt > 0 {
			name(attempt)
		}
		var err error
		if all, err = s.QueryFromPathList(background, names); err != nil {
			t.Error(err)
		}
	})
	// The seal stores a million rows of the layout in one step.
	calm("their first write", 99, 100*time.Millisecond, func(attempt int) {
		name := fmt.Sprintf("x%d", attempt)
		op, err := s.WriteAttribute(background, all, name, make([]float32, n), callboard.WriteOptions{Ordinal: 1})
		if err == nil {
			err = op.Wait(background)
		}
		if err == nil {
			if op, err = s.AdvanceWriteFloor(1, callboard.SealOptions{Scope: callboard.ScopeInclude, Attributes: []string{name}}); err == nil {
				err = op.Wait(background)
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
	calm("five queries over them", 90, 20*time.Millisecond, func(int) {
		for range 5 {
			q, err := s.Query(background, callboard.PathPrefix("/World/3/"))
			if err != nil {
				t.Error(err)
				break
			}
			if q.Len() != n/10 {
				t.Errorf("%d prims of %d", q.Len(), n/10)
			}
			q.Release()
		}
	})

	everything, err := s.Query(background)
	require.NoError(t, err)
	require.Equal(t, n+1, everything.Len(), "pages of a million ids")
	everything.Release()
}
