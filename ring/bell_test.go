package ring

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
)

// TestBellRungBetweenArmAndWaitEndsTheWaitAtOnce is the gap that rule R3 closes.
func TestBellRungBetweenArmAndWaitEndsTheWaitAtOnce(t *testing.T) {
	p := newPair(t, 4, 4)
	value := p.bell.Arm()
	p.bell.Ring()
	started := time.Now()
	require.NoError(t, p.bell.Wait(value, time.Minute))
	require.Less(t, time.Since(started), 30*time.Second)
}

func TestBellWaitHasAnEnd(t *testing.T) {
	p := newPair(t, 4, 4)
	require.NoError(t, p.bell.Wait(p.bell.Arm(), 3*time.Millisecond))
	p.bell.Disarm()
	require.NoError(t, p.bell.Wait(p.bell.Arm(), -1), "no time at all only compares")
}

// TestBellWrittenByALiarOnlyWakesTheSleeper: its content is never believed.
func TestBellWrittenByALiarOnlyWakesTheSleeper(t *testing.T) {
	p := newPair(t, 4, 4)
	value := p.bell.Arm()
	atomic.StoreUint32(p.bell.rings, 1<<32-1)
	require.NoError(t, p.bell.Wait(value, time.Minute))
	p.bell.Ring() // wraps
	p.turn(t, 1, 4)
}

// TestBellLosesNoRing: two ringers and a sleeper whose waits are long, so that one
// lost ring shows as a wait that came to its end.
func TestBellLosesNoRing(t *testing.T) {
	const each, long = 5000, 10 * time.Second
	p := newPair(t, 4, 4)
	var published atomic.Int64
	var ringers sync.WaitGroup
	for range 2 {
		ringers.Go(func() {
			for range each {
				published.Add(1)
				p.bell.Ring()
			}
		})
	}
	var seen, waits int64
	for seen < 2*each {
		value := p.bell.Arm()
		if now := published.Load(); now != seen {
			p.bell.Disarm()
			seen = now
			continue
		}
		waits++
		started := time.Now()
		require.NoError(t, p.bell.Wait(value, long))
		require.Less(t, time.Since(started), long, "a ring was lost after %d of %d", seen, 2*each)
		p.bell.Disarm()
	}
	ringers.Wait()
	t.Logf("%d waits for %d rings", waits, seen)
}

// TestClientWaitIsBoundedByOneTurn is rule R4.
func TestClientWaitIsBoundedByOneTurn(t *testing.T) {
	p := newPair(t, 4, 4)
	started := time.Now()
	rung, err := p.client.Wait(p.client.Listen(), time.Hour)
	require.NoError(t, err)
	require.False(t, rung)
	require.GreaterOrEqual(t, time.Since(started), TurnMax-time.Millisecond)
	require.Zero(t, p.control().ClientSleeping, "nobody sleeps any more")
	rung, err = p.client.Wait(p.client.Listen(), 0)
	require.NoError(t, err)
	require.False(t, rung, "timeout 0 polls")
}

// TestAnotherThreadTakesMyCompletionWhileILookAway: thread A listens, thread B
// takes the completion of A's op; A must not sleep on an empty ring.
func TestAnotherThreadTakesMyCompletionWhileILookAway(t *testing.T) {
	p := newPair(t, 4, 4)
	e := op(1)
	require.NoError(t, p.client.Submit(&e))
	heard := p.client.Listen()
	_, err := p.server.Drain(make([]protocol.SubmissionEntry, 1))
	require.NoError(t, err)
	c := done(1)
	p.server.Complete(&c)
	p.server.Flush()
	ok, err := p.client.Poll(&c)
	require.NoError(t, err)
	require.True(t, ok)
	rung, err := p.client.Wait(heard, TurnMax)
	require.NoError(t, err)
	require.True(t, rung)
}

// TestFlushWakesEveryThreadThatSleeps: each may wait for another op.
func TestFlushWakesEveryThreadThatSleeps(t *testing.T) {
	p := newPair(t, 4, 4)
	var sleepers sync.WaitGroup
	for range 3 {
		heard := p.client.Listen()
		sleepers.Go(func() {
			rung := false
			for turn := 0; !rung && turn < 100; turn++ {
				rung, _ = p.client.Wait(heard, time.Hour)
			}
			if !rung {
				t.Error("not rung within 100 turns")
			}
		})
	}
	for atomic.LoadUint32(&p.control().ClientSleeping) != 3 {
		time.Sleep(time.Millisecond)
	}
	e := op(1)
	require.NoError(t, p.client.Submit(&e))
	_, err := p.server.Drain(make([]protocol.SubmissionEntry, 1))
	require.NoError(t, err)
	c := done(1)
	p.server.Complete(&c)
	p.server.Flush()
	sleepers.Wait()
	require.Zero(t, p.control().ClientSleeping)
}
