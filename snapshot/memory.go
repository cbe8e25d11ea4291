package snapshot

import (
	"errors"

	"callboard/protocol"
	"callboard/shm"
)

// ErrRetry says that an operation could not start yet and changed nothing: memory
// is being made, or the column is busy. The loop tries it again later.
var ErrRetry = errors.New("snapshot: not yet")

// GrowRequest asks for one more segment of an arena. Whoever serves it works
// outside the loop (rule S2) and answers with Memory.Grown in the loop.
type GrowRequest struct {
	Arena     *Arena
	ID        uint64
	SizeBytes uint64
}

// Memory is all segments of a stage. The loop owns it.
type Memory struct {
	// LimitBytes bounds the sum of all segments.
	LimitBytes uint64
	// Grow is called to make a segment; it must not block.
	Grow func(GrowRequest)
	// Pressure is called when the limit is reached; it reports whether it freed anything.
	Pressure func() bool
	// Retired is called in the loop when a segment left service.
	Retired func(*Segment)
	// Explain says what the memory is used for, and Holders who keeps it, for errors.
	Explain func() string
	Holders func() string

	segments   map[uint64]*Segment
	totalBytes uint64
	nextID     uint64
	spares     []*Segment // segments of dead clients, warm, waiting for another (rule S5)
	spareBytes uint64
	table      func(*Segment, uint32) // writes the directory's entry
	cache      []*Block
}

// NewMemory makes an empty memory.
func NewMemory(limitBytes uint64) *Memory {
	return &Memory{LimitBytes: limitBytes, segments: map[uint64]*Segment{}, nextID: 1}
}

// NewArena makes an arena without segments.
func (m *Memory) NewArena(sort uint32, owner uint64, label string, wholePages bool) *Arena {
	return &Arena{Sort: sort, Owner: owner, Label: label, pool: shm.NewPool(protocol.SegmentHeaderBytes), segments: map[uint64]*Segment{}, pages: wholePages}
}

// Segment finds a live segment.
func (m *Memory) Segment(id uint64) *Segment { return m.segments[id] }

// add puts a mapped segment into service for arena a.
func (m *Memory) add(a *Arena, seg *Segment) {
	seg.arena, seg.Sort, seg.Owner = a, a.Sort, a.Owner
	if h := at[protocol.RegionHeader](seg.Bytes, 0); h.OwnerIncarnation != a.Owner {
		store64(&h.OwnerIncarnation, a.Owner) // a spare has a new owner
	}
	m.segments[seg.ID] = seg
	a.segments[seg.ID] = seg
	a.pool.AddSegment(seg.ID, uint64(len(seg.Bytes)))
	if m.table != nil {
		m.table(seg, protocol.SegmentLive)
	}
}

// Grown ends a GrowRequest: with a segment, or with the reason why not.
func (m *Memory) Grown(r GrowRequest, seg *Segment, failed *protocol.Error) {
	r.Arena.growing = false
	if failed != nil {
		m.totalBytes -= r.SizeBytes
		r.Arena.failed, r.Arena.wanted = failed, r.SizeBytes
		return
	}
	m.totalBytes += uint64(len(seg.Bytes)) - r.SizeBytes
	m.add(r.Arena, seg)
	if r.Arena.closed {
		m.spare(seg)
	}
}

// Alloc leases size bytes (at least one byte's worth of room). ErrRetry: a
// segment is being made. OUT_OF_MEMORY names what was asked for, the limit and
// who holds memory.
func (m *Memory) Alloc(a *Arena, size uint64) (*Block, error) {
	for {
		lease, ok := m.take(a, size)
		if ok {
			return m.block(a, lease), nil
		}
		if a.growing {
			return nil, ErrRetry
		}
		if a.Sort != protocol.SegmentBroker && m.reuse(a, size) {
			continue
		}
		need := a.pool.NextSegmentSize(size)
		exact := shm.SegmentSizeFor(size, protocol.SegmentHeaderBytes)
		if a.quarantined { // it has many segments for want of a word of its client, and the next life quarantines this one too
			need = min(need, max(exact, shm.FirstSegment))
		}
		if failed := a.failed; failed != nil {
			a.failed = nil
			if a.wanted > exact { // it was about something bigger: a small segment may still be had
				need = exact
			} else {
				if failed.Status == protocol.StatusOutOfMemory && m.relieve(need) {
					continue
				}
				return nil, protocol.Errorf(failed.Status, "%s needs %d bytes: %s%s", a.Label, size, failed.Text, m.holders())
			}
		}
		if m.totalBytes+need > m.LimitBytes {
			need = min(need, exact)
		}
		if m.totalBytes+need > m.LimitBytes {
			if a.beside != nil {
				if lease, ok := m.take(a.beside, size); ok {
					return m.block(a.beside, lease), nil
				}
			}
			if m.relieve(m.totalBytes + need - m.LimitBytes) {
				continue
			}
			return nil, protocol.Errorf(protocol.StatusOutOfMemory,
				"%s needs %d bytes in one piece; the largest that is free there has %d, and segments take %d of the limit of %d bytes already, so that none of %d fits%s",
				a.Label, size, a.pool.Stats().LargestFree, m.totalBytes, m.LimitBytes, need, m.holders())
		}
		m.totalBytes += need
		a.growing = true
		id := m.nextID // never used again
		m.nextID++
		m.Grow(GrowRequest{Arena: a, ID: id, SizeBytes: need})
		if a.growing {
			return nil, ErrRetry
		}
	}
}

// relieve gives up what nobody needs, in the order of how much it is missed: spares,
// free segments, retained versions. It tells whether anything was given up.
func (m *Memory) relieve(wantBytes uint64) bool {
	return m.dropSpares(wantBytes) || m.trim(0, anySegment) > 0 || (m.Pressure != nil && m.Pressure())
}

func anySegment(*Segment) bool { return true }

// holders is the end of an error about memory: what it is used for, and by whom.
func (m *Memory) holders() (text string) {
	if m.Explain != nil {
		text = m.Explain()
	}
	if m.Holders != nil {
		text += m.Holders()
	}
	return text
}

// Freed says that a retired segment of a device is no one's any more, so that its bytes
// may be had anew. In the loop, also in Retired.
func (m *Memory) Freed(seg *Segment) {}

// Usage sums up all arenas.
type Usage struct {
	LimitBytes, HeldBytes, FreeBytes, SpareBytes, LargestFreeBytes uint64
	Segments                                                       int
}

// Usage reports what is held and free.
func (m *Memory) Usage() Usage {
	u := Usage{LimitBytes: m.LimitBytes, HeldBytes: m.totalBytes, SpareBytes: m.spareBytes, Segments: len(m.segments)}
	seen := map[*Arena]bool{}
	for _, seg := range m.segments {
		if a := seg.arena; a != nil && !seen[a] {
			seen[a] = true
			s := a.pool.Stats()
			u.FreeBytes += s.Free
			u.LargestFreeBytes = max(u.LargestFreeBytes, s.LargestFree)
		}
	}
	u.FreeBytes += m.spareBytes
	return u
}
