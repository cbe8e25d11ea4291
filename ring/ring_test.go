package ring

import (
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
)

// turn submits, drains, completes and polls n ops from first on.
func (p *pair) turn(t testing.TB, first uint64, n int) {
	t.Helper()
	for i := range n {
		e := op(first + uint64(i))
		require.NoError(t, p.client.Submit(&e))
	}
	drained := make([]protocol.SubmissionEntry, n+1)
	got, err := p.server.Drain(drained)
	require.NoError(t, err)
	require.Equal(t, n, got)
	for i, e := range drained[:n] {
		require.Equal(t, op(first+uint64(i)), e)
		c := done(e.OpID)
		p.server.Complete(&c)
	}
	var c protocol.CompletionEntry
	ok, err := p.client.Poll(&c)
	require.NoError(t, err)
	require.False(t, ok, "a completion is not visible before Flush")
	p.server.Flush()
	for i := range n {
		ok, err := p.client.Poll(&c)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, done(first+uint64(i)), c)
	}
	ok, err = p.client.Poll(&c)
	require.NoError(t, err)
	require.False(t, ok)
}

func TestOpsComeAndGoInOrderThroughManyTurnsOfTheRing(t *testing.T) {
	for _, sizes := range [][2]uint32{{1, 1}, {1, 4}, {4, 1}, {2, 4}, {4, 4}, {8, 2}} {
		p := newPair(t, sizes[0], sizes[1])
		most, id := int(min(sizes[0], sizes[1])), uint64(1)
		for turn := range 50 {
			n := 1 + turn%most
			p.turn(t, id, n)
			id += uint64(n)
		}
	}
}

// TestFullSubmissionRingRefusesAtOnce: submission never blocks (rule R6).
func TestFullSubmissionRingRefusesAtOnce(t *testing.T) {
	p := newPair(t, 2, 8)
	for id := uint64(1); id <= 2; id++ {
		e := op(id)
		require.NoError(t, p.client.Submit(&e))
	}
	e := op(3)
	require.ErrorIs(t, p.client.Submit(&e), ErrFull)
	n, err := p.server.Drain(make([]protocol.SubmissionEntry, 1))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, p.client.Submit(&e), "one entry was copied out, so one has room")
	require.ErrorIs(t, p.client.Submit(&e), ErrFull)
}

// TestOutstandingOpsNeverExceedTheCompletionRing is rule R1.
func TestOutstandingOpsNeverExceedTheCompletionRing(t *testing.T) {
	p := newPair(t, 8, 2)
	drained := make([]protocol.SubmissionEntry, 8)
	for id := uint64(1); id <= 2; id++ {
		e := op(id)
		require.NoError(t, p.client.Submit(&e))
	}
	e := op(3)
	require.ErrorIs(t, p.client.Submit(&e), ErrFull)
	_, err := p.server.Drain(drained)
	require.NoError(t, err)
	c := done(1)
	p.server.Complete(&c)
	p.server.Flush()
	require.ErrorIs(t, p.client.Submit(&e), ErrFull, "a completion that was not taken has no room to spare")
	require.Equal(t, 2, p.client.Outstanding())
	ok, err := p.client.Poll(&c)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, 1, p.client.Outstanding())
	require.NoError(t, p.client.Submit(&e))
	require.Equal(t, 1, p.server.Outstanding())
	n, err := p.server.Drain(drained)
	require.NoError(t, err, "an honest client at the limit is not corrupt")
	require.Equal(t, 1, n)
}

func TestDrainTakesWhatFitsAndLeavesTheRest(t *testing.T) {
	p := newPair(t, 8, 8)
	for id := uint64(1); id <= 5; id++ {
		e := op(id)
		require.NoError(t, p.client.Submit(&e))
	}
	two := make([]protocol.SubmissionEntry, 2)
	for _, want := range []int{2, 2, 1, 0} {
		require.Equal(t, want > 0, p.server.Pending())
		n, err := p.server.Drain(two)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	n, err := p.server.Drain(nil)
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestCompletingTwiceIsOurOwnMistakeAndPanicsWithNumbers(t *testing.T) {
	p := newPair(t, 2, 2)
	e := op(1)
	require.NoError(t, p.client.Submit(&e))
	_, err := p.server.Drain(make([]protocol.SubmissionEntry, 1))
	require.NoError(t, err)
	c := done(1)
	p.server.Complete(&c)
	require.PanicsWithValue(t, "ring: completing op 1, but all 1 ops that were drained have their completion",
		func() { p.server.Complete(&c) })
}

// TestRoundTripAllocatesNothing: neither side, sleepers and rings of the bell included.
func TestRoundTripAllocatesNothing(t *testing.T) {
	p := newPair(t, 4, 4)
	drained := make([]protocol.SubmissionEntry, 4)
	arguments := make([]byte, 0, 64)
	id := uint64(0)
	p.control().ClientSleeping = 1 // so that Flush makes its system call
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		id++
		e := op(id)
		value := p.bell.Arm() // so that Submit makes its own
		if p.client.Submit(&e) != nil || !p.server.Pending() {
			panic("not submitted")
		}
		if p.bell.Wait(value, 0) != nil {
			panic("waited")
		}
		p.bell.Disarm()
		n, err := p.server.Drain(drained)
		if n != 1 || err != nil {
			panic("not drained")
		}
		arguments, _ = p.server.CopyArguments(arguments, drained[0].ArgumentOffsetBytes, drained[0].ArgumentBytes)
		c := done(drained[0].OpID)
		heard := p.client.Listen()
		p.server.Complete(&c)
		p.server.Flush()
		if rung, err := p.client.Wait(heard, TurnMax); !rung || err != nil {
			panic("not rung")
		}
		if ok, err := p.client.Poll(&c); !ok || err != nil {
			panic("not polled")
		}
	}))
}

// B1: rings begin anew with everything in flight: leftovers are not consumed, and both
// sides go on from nothing. Sleepers and pins are the client's and stay.
func TestRestartedRingsHaveNothingInThem(t *testing.T) {
	p := newPair(t, 4, 4)
	p.turn(t, 1, 3)
	for id := uint64(4); id <= 6; id++ {
		e := op(id)
		require.NoError(t, p.client.Submit(&e))
	}
	_, err := p.server.Drain(make([]protocol.SubmissionEntry, 1))
	require.NoError(t, err)
	c := done(4)
	p.server.Complete(&c)
	p.server.Flush() // and nobody polls it
	pins, err := NewPinTable(p.mem, p.layout)
	require.NoError(t, err)
	slot, err := pins.Acquire()
	require.NoError(t, err)
	pins.Store(slot, 3, 17)
	p.control().ClientSleeping = 2
	bell := p.control().ClientBell

	require.NoError(t, p.layout.Restart(p.mem, Identity{Incarnation: 7, Generation: 9, BrokerIncarnation: 8, RingGeneration: 2, Name: "test"}))
	l, id, err := ReadHeader(p.mem)
	require.NoError(t, err)
	require.Equal(t, p.layout, l)
	require.Equal(t, Identity{Incarnation: 7, Generation: 9, BrokerIncarnation: 8, RingGeneration: 2, Name: "test"}, id)
	require.EqualValues(t, 2, p.control().ClientSleeping)
	require.Equal(t, bell, p.control().ClientBell)
	p.client.Restart()
	require.Zero(t, p.client.Outstanding())
	p.server, err = NewServer(p.mem, p.layout)
	require.NoError(t, err)
	require.False(t, p.server.Pending())
	p.control().ClientSleeping = 0
	p.turn(t, 7, 4)
	p.turn(t, 11, 4)

	scan, err := NewPins(p.mem, p.layout)
	require.NoError(t, err)
	found := 0
	require.NoError(t, scan.Scan(func(at int, epoch uint64, attribute uint32) {
		require.Equal(t, slot, at)
		require.EqualValues(t, 17, epoch)
		require.EqualValues(t, 3, attribute)
		found++
	}))
	require.Equal(t, 1, found)
	pins.Unpin(slot)
	require.Zero(t, pins.Epoch(slot))
	attribute, err := scan.Store(uint32(slot), 18)
	require.NoError(t, err)
	require.EqualValues(t, 3, attribute, "for another OpPin")
}
