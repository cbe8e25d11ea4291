package goclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	callboard "callboard/clients/go"
	"callboard/clients/go/workers"
	"callboard/integration/harness"

	"github.com/stretchr/testify/require"
)

// split opens a session of several groups on /p0 … of "x", uint64.
func split(t *testing.T, s *callboard.Stage, prims int, groupRows, ordinal uint64) (*callboard.MapSession, *callboard.Query) {
	t.Helper()
	paths := make([]string, prims)
	for i := range paths {
		paths[i] = fmt.Sprintf("/p%d", i)
	}
	q, err := s.QueryFromPathList(background, paths)
	require.NoError(t, err)
	m, err := s.MapAttribute(background, q, "x", callboard.MapOptions{Ordinal: ordinal, DType: uint64s(t), GroupRows: groupRows, Init: callboard.InitZero})
	require.NoError(t, err)
	return m, q
}

func uint64s(t *testing.T) callboard.DType {
	t.Helper()
	d, err := callboard.ParseDType("uint64")
	require.NoError(t, err)
	return d
}

// number writes 100 × its place in the query to each row.
func number(g *callboard.MapGroup) error {
	rows, err := callboard.Values[uint64](g)
	for i := range rows {
		rows[i] = uint64(100 * (g.First() + i))
	}
	return err
}

func requireNumbered(t *testing.T, s *callboard.Stage, q *callboard.Query) {
	t.Helper()
	r, err := s.ReadAttributes(background, q, []string{"x"}, callboard.ReadOptions{})
	require.NoError(t, err)
	defer r.Release()
	g, err := r.Group("x")
	require.NoError(t, err)
	defer g.Release()
	values, err := callboard.Values[uint64](g)
	require.NoError(t, err)
	require.Len(t, g.Prims(), q.Len())
	for i := range g.Prims() {
		require.EqualValues(t, 100*i, values[g.Row(i)])
	}
}

// Behaviour 138, 175: the owner claims all groups itself, one by one; each names its run of the prims.
func TestSessionOfSeveralGroups(t *testing.T) {
	s := harness.Start(t).Dial("owner")
	m, q := split(t, s, 7, 3, 1)
	defer m.Abort()
	_, err := m.Bytes()
	require.ErrorIs(t, err, callboard.ErrInvalidArgument)
	n := 0
	var last *callboard.MapGroup
	for g, err := range m.Groups(background) {
		require.NoError(t, err)
		require.Equal(t, n, g.Index())
		require.Equal(t, q.Prims()[3*n:min(3*n+3, 7)], g.Prims())
		require.NoError(t, number(g))
		if n != 1 { // what is not handed back goes with the session
			_, err := g.Unmap()
			require.NoError(t, err)
			_, err = m.UnmapGroup(g)
			require.ErrorIs(t, err, callboard.ErrInvalidHandle, "behaviour 188")
		}
		n, last = n+1, g
	}
	require.Equal(t, 3, n)
	_, err = last.Bytes()
	require.ErrorIs(t, err, callboard.ErrInvalidHandle)
	require.NoError(t, m.Commit(background))
	seal(t, s, 1)
	requireNumbered(t, s, q)
}

// M2: claims, listing, giving up, and what the owner's unmap waits for.
func TestClaims(t *testing.T) {
	b := harness.Start(t)
	s, w, reader := b.Dial("owner"), b.Dial("worker"), b.Dial("reader")
	m, q := split(t, s, 100, 1, 1) // more groups than one answer lists
	defer m.Abort()
	list, err := w.ListGroups(background, "x")
	require.NoError(t, err)
	require.Len(t, list, 100)
	require.Equal(t, callboard.OpenGroup{Session: list[0].Session, Index: 99, Ordinal: 1, First: 99, Rows: 1, Attempt: 1}, list[99])
	other, err := w.ListGroups(background, "y")
	require.NoError(t, err)
	require.Empty(t, other)

	g, err := w.ClaimGroup(background, list[5].Session, 5)
	require.NoError(t, err)
	require.Equal(t, "x", g.Attribute())
	require.EqualValues(t, 1, g.Ordinal())
	require.Equal(t, q.Prims()[5:6], g.Prims())
	_, err = reader.ClaimGroup(background, list[5].Session, 5)
	require.ErrorIs(t, err, callboard.ErrInvalidHandle)
	g.GiveUp()
	g.GiveUp()
	_, err = g.Bytes()
	require.ErrorIs(t, err, callboard.ErrInvalidHandle)
	again, err := reader.ClaimGroup(background, list[5].Session, 5)
	require.NoError(t, err)
	require.Equal(t, 2, again.Attempt())
	require.NoError(t, number(again))
	op, err := again.Unmap()
	require.NoError(t, err)
	require.NoError(t, op.Wait(background))

	end, err := m.UnmapAttribute()
	require.NoError(t, err)
	short, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, end.Wait(short), callboard.ErrTimeout, "99 groups are nobody's")
	done := errors.New("done")
	n := 0
	err = w.WorkOn(background, "x", callboard.WorkOptions{}, func(g *callboard.MapGroup) error {
		if n++; n == 50 {
			return done
		}
		return number(g)
	})
	require.ErrorIs(t, err, done, "an error of fill ends the work and gives the group back")
	ctx, stop := context.WithCancel(background)
	finished := make(chan error)
	go func() { finished <- w.WorkOn(ctx, "x", callboard.WorkOptions{}, number) }()
	require.NoError(t, end.Wait(background))
	stop()
	require.ErrorIs(t, <-finished, context.Canceled)
	seal(t, s, 1)
	requireNumbered(t, s, q)
	_, err = w.ClaimGroup(background, list[0].Session, callboard.AnyGroup)
	require.ErrorIs(t, err, callboard.ErrInvalidHandle, "the session has ended")
}

// M3: Abort ends a session whose commit waits for others; nothing of it becomes visible.
func TestAbortWhileOthersFill(t *testing.T) {
	b := harness.Start(t)
	s, w := b.Dial("owner"), b.Dial("worker")
	m, q := split(t, s, 4, 2, 1)
	list, err := w.ListGroups(background, "")
	require.NoError(t, err)
	g, err := w.ClaimGroup(background, list[0].Session, callboard.AnyGroup)
	require.NoError(t, err)
	op, err := g.Unmap()
	require.NoError(t, err)
	require.NoError(t, op.Wait(background))
	g, err = w.ClaimGroup(background, list[0].Session, callboard.AnyGroup)
	require.NoError(t, err)
	_, err = w.ClaimGroup(background, list[0].Session, callboard.AnyGroup)
	require.ErrorIs(t, err, callboard.ErrEnd)
	short, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, m.Commit(short), callboard.ErrTimeout)
	m.Abort()
	m.Abort()
	require.NoError(t, number(g), "its memory is there until it learns of the end")
	op, err = g.Unmap()
	require.NoError(t, err)
	require.ErrorIs(t, op.Wait(background), callboard.ErrInvalidHandle)
	seal(t, s, 1)
	r, err := s.ReadAttributes(background, q, []string{"x"}, callboard.ReadOptions{})
	require.NoError(t, err)
	defer r.Release()
	_, err = r.Group("x")
	require.ErrorIs(t, err, callboard.ErrNotFound)
}

// Work sharing over a NATS queue group: three workers, one of which starts late, and one session after the other.
func TestWorkersShareByAnnouncements(t *testing.T) {
	b := harness.Start(t)
	s := b.Dial("owner")
	ctx, stop := context.WithCancel(background)
	var group sync.WaitGroup
	var mutex sync.Mutex
	filled := map[string]int{}
	worker := func(name string) {
		w := b.Dial(name)
		group.Go(func() {
			err := workers.WorkOn(ctx, w, "x", func(g *callboard.MapGroup) error {
				mutex.Lock()
				filled[name]++
				mutex.Unlock()
				time.Sleep(time.Millisecond)
				return number(g)
			})
			if !errors.Is(err, context.Canceled) {
				panic(err)
			}
		})
	}
	for _, name := range []string{"one", "two", "three"} {
		worker(name)
	}
	for ordinal := uint64(1); ordinal <= 5; ordinal++ {
		m, q := split(t, s, 40, 2, ordinal)
		require.NoError(t, m.Commit(background))
		seal(t, s, ordinal)
		requireNumbered(t, s, q)
	}
	stop()
	group.Wait()
	require.Equal(t, 100, filled["one"]+filled["two"]+filled["three"])
}
