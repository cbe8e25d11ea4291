package ring

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"callboard/protocol"
	"callboard/shm"
)

// TurnMax bounds one Wait (rule R4): after it, a client looks at its socket.
const TurnMax = 100 * time.Millisecond

// spins is how often Wait looks at the bell before it sleeps. Where two cores
// serve client and broker, spinning takes the core that the answer needs.
var spins = func() int {
	if runtime.NumCPU() <= 2 {
		return 0
	}
	return 2000
}()

// Client is the client's side of a channel's rings.
//
// Locking: one goroutine at a time may be in Submit and one in Poll; the two may
// differ. Listen and Wait may be called by any number at once.
//
// Each op has exactly one completion, so both rings count the same ops: the
// number outstanding is SqTail - CqHead, and the completion ring has room for
// every completion as long as that is at most CqEntries (rule R1).
type Client struct {
	Areas
	parts  parts
	layout Layout
	bell   *Bell

	submitted  atomic.Uint64 // our copy of SqTail; only Submit stores it
	taken      atomic.Uint64 // our copy of CqHead; only Poll stores it
	sqHeadSeen uint64        // Submit's last look at SqHead, at most submitted
	cqTailSeen uint64        // Poll's last look at CqTail, from taken to submitted
}

// NewClient takes a channel whose rings have not been used. mem is the mapping
// that l was read from; it must stay mapped while the Client is used.
func NewClient(mem []byte, l Layout, bell *Bell) (*Client, error) {
	p, err := partsOf(mem, &l)
	if err != nil {
		return nil, err
	}
	return &Client{Areas: Areas{p.arguments, p.results}, parts: p, layout: l, bell: bell}, nil
}

// Layout is the channel's layout.
func (c *Client) Layout() Layout { return c.layout }

// Outstanding is how many ops have been submitted whose completion was not taken.
func (c *Client) Outstanding() int {
	taken := c.taken.Load() // first: it never passes submitted
	return int(c.submitted.Load() - taken)
}

// Submit hands one op to the broker and rings its bell. The entry is copied; the
// arguments it names must be in place. It never blocks (rule R6).
// Errors: ErrFull; *CorruptError when the broker's index cannot be true.
func (c *Client) Submit(e *protocol.SubmissionEntry) error {
	tail := c.submitted.Load()
	if tail-c.taken.Load() >= uint64(c.layout.CqEntries) {
		return ErrFull
	}
	if tail-c.sqHeadSeen >= uint64(c.layout.SqEntries) {
		if err := c.lookAtSqHead(tail); err != nil {
			return err
		}
	}
	c.parts.submissions[tail&uint64(c.layout.SqEntries-1)] = *e
	// Before SqTail: a completion of this op must not look like one too many to Poll.
	c.submitted.Store(tail + 1)
	releaseEdge(edgeSqTail)
	atomic.StoreUint64(&c.parts.control.SqTail, tail+1) // pairs with the load in Server.Drain
	c.bell.Ring()
	return nil
}

// Restart follows Layout.Restart: the broker has set all indices to 0. Nobody is in Submit
// or Poll meanwhile; Listen and Wait go on.
func (c *Client) Restart() {
	c.submitted.Store(0)
	c.taken.Store(0)
	c.sqHeadSeen, c.cqTailSeen = 0, 0
}

// lookAtSqHead refreshes sqHeadSeen; ErrFull when that gives no room.
func (c *Client) lookAtSqHead(tail uint64) error {
	head := atomic.LoadUint64(&c.parts.control.SqHead) // pairs with the store in Server.Drain
	acquireEdge(edgeSqHead)
	// Differences of indices wrap as the indices do; a head that went back is a huge difference.
	if head-c.sqHeadSeen > tail-c.sqHeadSeen {
		if head < c.sqHeadSeen {
			return atLeast("SqHead", head, c.sqHeadSeen)
		}
		return atMost("SqHead", head, tail)
	}
	c.sqHeadSeen = head
	if tail-head >= uint64(c.layout.SqEntries) {
		return ErrFull
	}
	return nil
}

// Poll takes the next completion; ok is false when there is none yet. dst is the
// caller's copy; its ResultBytes is the broker's claim, to be checked against the
// room that the op has.
// Error: *CorruptError when the broker's index cannot be true.
func (c *Client) Poll(dst *protocol.CompletionEntry) (ok bool, err error) {
	head := c.taken.Load()
	if head == c.cqTailSeen {
		tail := atomic.LoadUint64(&c.parts.control.CqTail) // pairs with the store in Server.Flush
		if tail == head {
			return false, nil
		}
		acquireEdge(edgeCqTail)
		// No more completions than ops: that is at most CqEntries, and never back.
		if limit := c.submitted.Load(); tail-head > limit-head {
			if tail < head {
				return false, atLeast("CqTail", tail, head)
			}
			return false, atMost("CqTail", tail, limit)
		}
		c.cqTailSeen = tail
	}
	*dst = c.parts.completions[head&uint64(c.layout.CqEntries-1)]
	releaseEdge(edgeCqHead)
	atomic.StoreUint64(&c.parts.control.CqHead, head+1) // pairs with the load in Server.Drain
	// After CqHead: a Submit that counts on the new room must find the broker told of it.
	c.taken.Store(head + 1)
	return true, nil
}

// Listen returns the value to Wait on. To wait for an op:
//
//	for {
//		heard := c.Listen()
//		// lock; Poll until there is no more; is my op done? unlock
//		c.Wait(heard, time left)
//		// look at the socket after a turn without a ring
//	}
//
// Listen comes before the look: another thread may take the completion of this
// thread's op at any time, and then only the value tells that something came.
func (c *Client) Listen() uint32 { return atomic.LoadUint32(&c.parts.control.ClientBell) }

// Wait sleeps until the broker flushes completions after Listen returned heard,
// at most the shorter of timeout and TurnMax. rung is whether it did.
//
// No flush is lost: the broker stores CqTail, adds to ClientBell, then looks at
// ClientSleeping; we read ClientBell, looked at CqTail, now add to ClientSleeping,
// and the kernel compares ClientBell once more. Either it has changed, or the
// broker has yet to look at ClientSleeping and finds us.
func (c *Client) Wait(heard uint32, timeout time.Duration) (rung bool, err error) {
	return c.sleep(heard, min(timeout, TurnMax))
}

// sleep is Wait of any length.
func (c *Client) sleep(heard uint32, timeout time.Duration) (rung bool, err error) {
	word := &c.parts.control.ClientBell
	for range spins {
		if atomic.LoadUint32(word) != heard {
			return true, nil
		}
	}
	if timeout > 0 {
		atomic.AddUint32(&c.parts.control.ClientSleeping, 1)
		err = unlessExpected(shm.FutexWait(word, heard, timeout))
		atomic.AddUint32(&c.parts.control.ClientSleeping, math.MaxUint32) // minus 1
	}
	return atomic.LoadUint32(word) != heard, err
}

// wakeAll is for FutexWake: each sleeping thread may wait for another op.
const wakeAll = math.MaxInt32
