package ring

import (
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
)

// These tests are rule R5, seen from the ring: each plays a peer that stores words
// that cannot be true, and asserts which word is named, with value and limit.

// busy is a pair after five ops of which three completed and two were polled:
// SqTail 5, SqHead 5, CqTail 3, CqHead 2.
func busy(t *testing.T) *pair {
	p := newPair(t, 4, 4)
	p.turn(t, 1, 2)
	for id := uint64(3); id <= 5; id++ {
		e := op(id)
		require.NoError(t, p.client.Submit(&e))
	}
	_, err := p.server.Drain(make([]protocol.SubmissionEntry, 4))
	require.NoError(t, err)
	c := done(3)
	p.server.Complete(&c)
	p.server.Flush()
	return p
}

func (p *pair) drainError(t *testing.T) error {
	t.Helper()
	before := p.server.drained
	n, err := p.server.Drain(make([]protocol.SubmissionEntry, 4))
	require.Zero(t, n)
	require.Error(t, err)
	require.Equal(t, before, p.server.drained, "a refused drain takes nothing")
	_, err2 := p.server.Drain(make([]protocol.SubmissionEntry, 4))
	require.Equal(t, err, err2, "and says the same when asked again")
	return err
}

func TestCorruptSqTailBeyondTheRing(t *testing.T) {
	p := busy(t)
	p.control().SqTail = 10
	corrupt(t, p.drainError(t), "SqTail", 10, "at most", 9)
	p.control().SqTail = 1<<64 - 1
	corrupt(t, p.drainError(t), "SqTail", 1<<64-1, "at most", 9)
}

func TestCorruptSqTailGoesBackwards(t *testing.T) {
	p := busy(t)
	p.control().SqTail = 4
	corrupt(t, p.drainError(t), "SqTail", 4, "at least", 5)
	p.control().SqTail = 0
	corrupt(t, p.drainError(t), "SqTail", 0, "at least", 5)
}

// TestCorruptSqTailGoesBackToWhatWasDrained: the tail had been seen further ahead.
func TestCorruptSqTailGoesBackToWhatWasDrained(t *testing.T) {
	p := newPair(t, 4, 4)
	for id := uint64(1); id <= 3; id++ {
		e := op(id)
		require.NoError(t, p.client.Submit(&e))
	}
	_, err := p.server.Drain(make([]protocol.SubmissionEntry, 1))
	require.NoError(t, err)
	p.control().SqTail = 1
	corrupt(t, p.drainError(t), "SqTail", 1, "at least", 3)
}

// TestCorruptMoreOpsOutstandingThanCompletionsHaveRoom: the ring itself has room.
func TestCorruptMoreOpsOutstandingThanCompletionsHaveRoom(t *testing.T) {
	p := busy(t)
	p.control().SqTail = 7 // CqHead is 2, so at most 6
	corrupt(t, p.drainError(t), "SqTail", 7, "at most", 6)
}

func TestCorruptCqHeadBeyondWhatWasPublished(t *testing.T) {
	p := busy(t)
	p.control().SqTail, p.control().CqHead = 6, 4
	corrupt(t, p.drainError(t), "CqHead", 4, "at most", 3)
}

func TestCorruptCqHeadGoesBackwards(t *testing.T) {
	p := busy(t)
	p.control().SqTail, p.control().CqHead = 6, 1
	corrupt(t, p.drainError(t), "CqHead", 1, "at least", 2)
}

func TestCorruptEntries(t *testing.T) {
	for name, c := range map[string]struct {
		change       func(*protocol.SubmissionEntry)
		word, expect string
		value, limit uint64
	}{
		"op id 0":          {func(e *protocol.SubmissionEntry) { e.OpID = 0 }, "OpID", "at least", 0, 1},
		"op id again":      {func(e *protocol.SubmissionEntry) { e.OpID = 5 }, "OpID", "at least", 5, 7},
		"opcode 0":         {func(e *protocol.SubmissionEntry) { e.Opcode = 0 }, "Opcode", "at least", 0, 1},
		"unknown opcode":   {func(e *protocol.SubmissionEntry) { e.Opcode = opcodeLast + 1 }, "Opcode", "at most", opcodeLast + 1, opcodeLast},
		"argument offset":  {func(e *protocol.SubmissionEntry) { e.ArgumentOffsetBytes = 4104 }, "ArgumentOffsetBytes", "at most", 4104, 4096},
		"argument length":  {func(e *protocol.SubmissionEntry) { e.ArgumentOffsetBytes, e.ArgumentBytes = 4088, 9 }, "ArgumentBytes", "at most", 9, 8},
		"sum that wraps":   {func(e *protocol.SubmissionEntry) { e.ArgumentOffsetBytes, e.ArgumentBytes = 8, 1<<32-8 }, "ArgumentBytes", "at most", 1<<32 - 8, 4088},
		"misaligned":       {func(e *protocol.SubmissionEntry) { e.ArgumentOffsetBytes = 12 }, "ArgumentOffsetBytes", "a multiple of", 12, 8},
		"result offset":    {func(e *protocol.SubmissionEntry) { e.ResultOffsetBytes = 1<<32 - 8 }, "ResultOffsetBytes", "at most", 1<<32 - 8, 4096},
		"result length":    {func(e *protocol.SubmissionEntry) { e.ResultOffsetBytes, e.ResultBytes = 0, 4097 }, "ResultBytes", "at most", 4097, 4096},
		"result misplaced": {func(e *protocol.SubmissionEntry) { e.ResultOffsetBytes = 1 }, "ResultOffsetBytes", "a multiple of", 1, 8},
	} {
		t.Run(name, func(t *testing.T) {
			p := busy(t)
			good, bad := op(6), op(7)
			c.change(&bad)
			_, err := p.client.Poll(new(protocol.CompletionEntry))
			require.NoError(t, err) // makes room for two
			require.NoError(t, p.client.Submit(&good))
			require.NoError(t, p.client.Submit(&bad))
			dst := make([]protocol.SubmissionEntry, 4)
			n, err := p.server.Drain(dst)
			corrupt(t, err, c.word, c.value, c.expect, c.limit)
			require.Equal(t, 1, n, "the entry before the bad one was taken")
			require.Equal(t, good, dst[0])
		})
	}
}

// TestClientChangesAnEntryAfterDrainInVain: the copy is what counts (invariant K3).
func TestClientChangesAnEntryAfterDrainInVain(t *testing.T) {
	p := newPair(t, 4, 4)
	e := op(1)
	require.NoError(t, p.client.Submit(&e))
	dst := make([]protocol.SubmissionEntry, 1)
	_, err := p.server.Drain(dst)
	require.NoError(t, err)
	p.client.parts.submissions[0].ArgumentOffsetBytes = 1 << 31
	require.Equal(t, op(1), dst[0])
}

// TestClientRewritesTheHeaderInVain: both sides keep their layout (invariant K4).
func TestClientRewritesTheHeaderInVain(t *testing.T) {
	p := newPair(t, 4, 4)
	for i := range protocol.ChannelControlOffset {
		p.mem[i] = 0xff
	}
	p.turn(t, 1, 4)
}

func TestCorruptBrokerCqTailBeyondTheOps(t *testing.T) {
	p := busy(t)
	for _, tail := range []uint64{6, 1 << 40, 1<<64 - 1} {
		p.control().CqTail = tail
		_, err := p.client.Poll(new(protocol.CompletionEntry))
		corrupt(t, err, "CqTail", tail, "at most", 5)
	}
}

func TestCorruptBrokerCqTailGoesBackwards(t *testing.T) {
	p := busy(t)
	p.control().CqTail = 1
	_, err := p.client.Poll(new(protocol.CompletionEntry))
	corrupt(t, err, "CqTail", 1, "at least", 2)
}

func TestCorruptBrokerSqHead(t *testing.T) {
	p := newPair(t, 4, 8)
	p.turn(t, 1, 4)
	for id := uint64(5); id <= 8; id++ {
		e := op(id)
		require.NoError(t, p.client.Submit(&e))
	}
	e := op(9)
	p.control().SqHead = 9
	corrupt(t, p.client.Submit(&e), "SqHead", 9, "at most", 8)
	p.control().SqHead = 3
	corrupt(t, p.client.Submit(&e), "SqHead", 3, "at least", 4)
	require.Equal(t, 4, p.client.Outstanding(), "nothing was submitted")
}
