//go:build !nogpu

package cudaipc_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/cudaipc"
	"callboard/integration/cudaemu"
)

func events(t *testing.T, th *cudaipc.Thread, count int) *cudaipc.Events {
	p, err := cudaipc.NewEvents(th, count)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// Field report F11: there are as many as were made, and no more.
func TestEventsAreAFixedPool(t *testing.T) {
	p := events(t, thread(t), 2)
	one, err := p.Lease()
	require.NoError(t, err)
	two, err := p.Lease()
	require.NoError(t, err)
	require.NotEqual(t, one.Index, two.Index)
	_, err = p.Lease()
	require.ErrorIs(t, err, cudaipc.ErrNoEvents)
	require.Equal(t, cudaipc.EventsStats{Leased: 2}, p.Stats())

	p.Return(one.Index)
	again, err := p.Lease()
	require.NoError(t, err)
	require.Equal(t, one, again)

	// A retired one is never leased again: another takes its place.
	require.NoError(t, p.Retire(again.Index))
	require.Panics(t, func() { p.Return(again.Index) })
	_, err = p.Export(again.Index)
	require.ErrorIs(t, err, cudaipc.ErrStale)
	require.ErrorIs(t, p.Opened(again.Index, 1), cudaipc.ErrStale)
	next, err := p.Lease()
	require.NoError(t, err)
	require.Equal(t, uint32(2), next.Index)
	p.Return(next.Index)
	p.Return(two.Index)
	require.Panics(t, func() { p.Return(two.Index) }, "twice")
	require.NoError(t, p.Close())
	_, err = p.Lease()
	require.ErrorIs(t, err, cudaipc.ErrClosed)
}

// Field report F1: what a producer queued is there when its event has completed, and the
// event can be recorded again, by another one (F13).
func TestProducersRecordWhatTheBrokerMade(t *testing.T) {
	th := thread(t)
	base, x := exported(t, th)
	p := events(t, th, 1)
	for round := range byte(3) {
		lease, err := p.Lease()
		require.NoError(t, err)
		event, err := p.Export(lease.Index)
		require.NoError(t, err)
		require.NoError(t, p.Opened(lease.Index, uint64(round)))
		c := startClient(t, "CUDAEMU_DELAY_US=20000")
		c.do(call{Verb: "open", Export: x, Key: "a"})
		c.do(call{Verb: "open", Export: event, Key: "e"})
		c.do(call{Verb: "fill", Key: "a", Bytes: 256, Value: 40 + round, Event: "e"})
		require.NoError(t, th.WaitFor(lease.Event, soon(), nil))
		require.Equal(t, 40+round, bytesOf(t, th, base, 1)[0])
		p.Return(lease.Index)
		c.kill()
		require.NoError(t, p.ClientGone(uint64(round)))
	}
}

// A producer dies and its event never completes. The event is kept while any process has it
// open, for destroying it would be undefined, and goes with the last of them.
func TestEventOfADeadProducerIsRetiredAndDestroyedWhenNobodyHasItOpen(t *testing.T) {
	if !emulate(t) {
		return
	}
	th := thread(t)
	_, x := exported(t, th)
	p := events(t, th, 1)
	lease, err := p.Lease()
	require.NoError(t, err)
	event, err := p.Export(lease.Index)
	require.NoError(t, err)
	producer, other := startClient(t, "CUDAEMU_STALL_EVENTS=1"), startClient(t)
	for id, c := range []*client{producer, other} {
		require.NoError(t, p.Opened(lease.Index, uint64(id)))
		c.do(call{Verb: "open", Export: event, Key: "e"})
	}
	producer.do(call{Verb: "open", Export: x, Key: "a"})
	producer.do(call{Verb: "fill", Key: "a", Bytes: 256, Value: 1, Event: "e"})

	require.ErrorIs(t, th.WaitFor(lease.Event, time.Now().Add(20*time.Millisecond), func() bool { return true }), cudaipc.ErrDeadline)
	producer.kill()
	require.ErrorIs(t, th.WaitFor(lease.Event, soon(), func() bool { return false }), cudaipc.ErrProducerDied)
	require.NoError(t, p.Retire(lease.Index))
	require.Equal(t, cudaipc.EventsStats{Free: 1, Retired: 1}, p.Stats())
	require.NoError(t, p.ClientGone(0))
	require.Equal(t, 1, p.Stats().Retired, "the other one has it open")
	require.EqualValues(t, 2, ownEvents(t))
	other.kill()
	require.NoError(t, p.ClientGone(1))
	require.Equal(t, cudaipc.EventsStats{Free: 1}, p.Stats())
	require.EqualValues(t, 1, ownEvents(t))
}

// ownEvents is how many events the emulated driver has of this process.
func ownEvents(t *testing.T) uint64 {
	t.Helper()
	processes, err := cudaemu.Report(os.Getenv("CUDAEMU_DIR"))
	require.NoError(t, err)
	for _, p := range processes {
		if p.PID == os.Getpid() {
			return p.Counts.Events
		}
	}
	t.Fatal("this process is not in the report")
	return 0
}

// A pool that cannot be made whole leaves nothing.
func TestEventsThatCannotBeMadeLeaveNothing(t *testing.T) {
	if !emulate(t, "CUDAEMU_FAIL=cuIpcGetEventHandle:3:801") {
		return
	}
	th := thread(t)
	_, err := cudaipc.NewEvents(th, 5)
	require.ErrorIs(t, err, cudaipc.ErrNotSupported)
	require.ErrorContains(t, err, "event 3 of 5")
	nothingHeld(t)
}
