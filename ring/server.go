package ring

import (
	"fmt"
	"sync/atomic"

	"callboard/protocol"
	"callboard/shm"
)

// Server is the broker's side of a channel's rings. One goroutine, the loop, uses it.
//
// It believes its own counters only. What it writes to shared memory it never
// reads back, and each index of the client's is checked before it is used.
//
// Counts: SqTail ≥ drained ≥ completed ≥ published ≥ CqHead.
type Server struct {
	Areas
	parts  parts
	layout Layout

	tailSeen  uint64 // the highest SqTail seen: it never goes back
	headSeen  uint64 // the highest CqHead seen: it never goes back
	drained   uint64 // our SqHead: entries copied out
	completed uint64 // completions written
	published uint64 // our CqTail: completions that the client may see
	lastOpID  uint64 // op ids grow
}

// NewServer takes a channel whose rings have not been used. l is the broker's own
// layout, from NewLayout and not from shared memory. mem must stay mapped while
// the Server is used.
func NewServer(mem []byte, l Layout) (*Server, error) {
	p, err := partsOf(mem, &l)
	if err != nil {
		return nil, err
	}
	return &Server{Areas: Areas{p.arguments, p.results}, parts: p, layout: l}, nil
}

// Layout is the channel's layout.
func (s *Server) Layout() Layout { return s.layout }

// Outstanding is how many drained ops have no completion yet.
func (s *Server) Outstanding() int { return int(s.drained - s.completed) }

// Pending is whether Drain would find something, if only an error. The loop asks
// it between Bell.Arm and Bell.Wait.
func (s *Server) Pending() bool { return atomic.LoadUint64(&s.parts.control.SqTail) != s.drained }

// Drain copies up to len(dst) entries out, in the order of submission (rule R7),
// and returns how many. What it returns is a copy that the client cannot change,
// and well-formed (Layout.CheckEntry) with growing op ids.
//
// On error dst[:n] are the entries before the bad one and the session must end
// (rule R5). Error: *CorruptError, for a tail that went back or is further ahead
// than the ring is long, more ops outstanding than completions have room, a head
// beyond what was published, and a malformed entry.
func (s *Server) Drain(dst []protocol.SubmissionEntry) (n int, err error) {
	tail := atomic.LoadUint64(&s.parts.control.SqTail) // pairs with the store in Client.Submit
	if tail == s.drained && tail == s.tailSeen {
		return 0, nil
	}
	acquireEdge(edgeSqTail)
	if err := s.checkIndices(tail); err != nil {
		return 0, err
	}
	for n < len(dst) && s.drained != tail {
		dst[n] = s.parts.submissions[s.drained&uint64(s.layout.SqEntries-1)]
		if err = s.layout.CheckEntry(&dst[n]); err != nil {
			break
		}
		if dst[n].OpID <= s.lastOpID {
			err = atLeast("OpID", dst[n].OpID, s.lastOpID+1)
			break
		}
		s.lastOpID = dst[n].OpID
		s.drained++
		n++
	}
	if n > 0 {
		releaseEdge(edgeSqHead)
		atomic.StoreUint64(&s.parts.control.SqHead, s.drained) // pairs with the load in Client.lookAtSqHead
	}
	return n, err
}

// checkIndices checks both words of the client's. CqHead is loaded after SqTail:
// the client stored it before, so an honest one is at most CqEntries behind.
func (s *Server) checkIndices(tail uint64) error {
	head := atomic.LoadUint64(&s.parts.control.CqHead) // pairs with the store in Client.Poll
	acquireEdge(edgeCqHead)
	switch {
	case tail < s.tailSeen:
		return atLeast("SqTail", tail, s.tailSeen)
	case tail-s.drained > uint64(s.layout.SqEntries):
		return atMost("SqTail", tail, s.drained+uint64(s.layout.SqEntries))
	case head < s.headSeen:
		return atLeast("CqHead", head, s.headSeen)
	case head > s.published:
		return atMost("CqHead", head, s.published)
	case tail-head > uint64(s.layout.CqEntries):
		// So completions up to tail have room, and Complete need not ask (rule R1).
		return atMost("SqTail", tail, head+uint64(s.layout.CqEntries))
	}
	s.tailSeen, s.headSeen = tail, head
	return nil
}

// Complete writes the completion of one op; the client sees it after Flush. Ops
// may complete in any order, each once. There is always room.
// Panics when there is nothing outstanding: an op was completed twice.
func (s *Server) Complete(e *protocol.CompletionEntry) {
	if s.completed == s.drained {
		panic(fmt.Sprintf("ring: completing op %d, but all %d ops that were drained have their completion", e.OpID, s.drained))
	}
	s.parts.completions[s.completed&uint64(s.layout.CqEntries-1)] = *e
	s.completed++
}

// Flush publishes what Complete wrote, rings the client's bell and wakes its
// threads if any sleeps (see Client.Wait). Without new completions it does nothing.
func (s *Server) Flush() {
	if s.published == s.completed {
		return
	}
	s.published = s.completed
	releaseEdge(edgeCqTail)
	control := s.parts.control
	atomic.StoreUint64(&control.CqTail, s.published) // pairs with the load in Client.Poll
	atomic.AddUint32(&control.ClientBell, 1)
	if atomic.LoadUint32(&control.ClientSleeping) != 0 {
		// A failed wake costs the client one bounded turn; the loop has nothing to do about it.
		_, _ = shm.FutexWake(&control.ClientBell, wakeAll)
	}
}
