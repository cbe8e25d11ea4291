package snapshot

import (
	"errors"
	"fmt"

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
	space // the host's
	// Grow is called to make a segment; it must not block.
	Grow func(GrowRequest)
	// Pressure is called when a limit is reached, the host's or a device's; it reports
	// whether it freed anything there.
	Pressure func(*Device) bool
	// Retired is called in the loop when a segment left service.
	Retired func(*Segment)
	// Explain says what the host's or a device's memory is used for, and Holders who keeps
	// it, for errors.
	Explain func(*Device) string
	Holders func() string

	devices  []*space
	segments map[uint64]*Segment
	nextID   uint64
	table    func(*Segment, uint32) // writes the directory's entry
	cache    []*Block
}

// space is the memory of the host or of one device.
type space struct {
	// LimitBytes bounds the sum of all segments.
	LimitBytes uint64

	device     *Device // nil: the host
	life       uint64  // of a device: ArenaGeneration of what lies there
	totalBytes uint64
	openBytes  uint64     // of them: retired, and not freed, since clients have it open (rule C6)
	spares     []*Segment // segments of dead clients, warm, waiting for another (rule S5)
	spareBytes uint64
}

// NewMemory makes an empty memory.
func NewMemory(limitBytes uint64) *Memory {
	return &Memory{space: space{LimitBytes: limitBytes}, segments: map[uint64]*Segment{}, nextID: 1}
}

// on is the space of a device; nil: the host's.
func (m *Memory) on(d *Device) *space {
	if d == nil {
		return &m.space
	}
	for _, sp := range m.devices {
		if sp.device == d {
			return sp
		}
	}
	panic(fmt.Sprintf("snapshot: device %d is none of the %d that this memory has", d.Index, len(m.devices)))
}

// NewArena makes an arena without segments.
func (m *Memory) NewArena(sort uint32, owner uint64, label string, wholePages bool) *Arena {
	return &Arena{Sort: sort, Owner: owner, Label: label, space: &m.space, pool: shm.NewPool(protocol.SegmentHeaderBytes), segments: map[uint64]*Segment{}, pages: wholePages}
}

// Segment finds a live segment.
func (m *Memory) Segment(id uint64) *Segment { return m.segments[id] }

// add puts a mapped segment into service for arena a.
func (m *Memory) add(a *Arena, seg *Segment) {
	seg.arena, seg.Sort, seg.Owner, seg.Device = a, a.Sort, a.Owner, a.space.device
	if seg.Device == nil {
		if h := at[protocol.RegionHeader](seg.Bytes, 0); h.OwnerIncarnation != a.Owner {
			store64(&h.OwnerIncarnation, a.Owner) // a spare has a new owner
		}
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
	sp := r.Arena.space
	r.Arena.growing = false
	if failed != nil {
		sp.totalBytes -= r.SizeBytes
		r.Arena.failed, r.Arena.wanted = failed, r.SizeBytes
		return
	}
	sp.totalBytes += uint64(len(seg.Bytes)) - r.SizeBytes
	m.add(r.Arena, seg)
	if r.Arena.closed {
		m.spare(seg)
	}
}

// Alloc leases size bytes (at least one byte's worth of room). ErrRetry: a
// segment is being made. OUT_OF_MEMORY names what was asked for, the limit and
// who holds memory.
func (m *Memory) Alloc(a *Arena, size uint64) (*Block, error) {
	sp := a.space
	for {
		lease, ok := m.take(a, size)
		if ok {
			return m.block(a, lease), nil
		}
		if a.growing {
			return nil, ErrRetry
		}
		if !a.own() && !a.fresh && m.reuse(a, size) {
			continue
		}
		need, exact := a.segmentSizes(size)
		if a.quarantined { // it has many segments for want of a word of its client, and the next life quarantines this one too
			need = min(need, max(exact, shm.FirstSegment))
		}
		if failed := a.failed; failed != nil {
			a.failed = nil
			if a.wanted > exact { // it was about something bigger: a small segment may still be had
				need = exact
			} else {
				if failed.Status == protocol.StatusOutOfMemory && m.relieve(sp, need) {
					continue
				}
				who := "" // of use only where others could give memory back
				if failed.Status == protocol.StatusOutOfMemory {
					who = m.holders(sp)
				}
				return nil, protocol.Errorf(failed.Status, "no %d bytes for %s: %s%s", size, a.Label, failed.Text, who)
			}
		}
		if sp.totalBytes+need > sp.LimitBytes {
			need = min(need, exact)
		}
		if sp.totalBytes+need > sp.LimitBytes {
			if a.beside != nil {
				if lease, ok := m.take(a.beside, size); ok {
					return m.block(a.beside, lease), nil
				}
			}
			if m.relieve(sp, sp.totalBytes+need-sp.LimitBytes) {
				continue
			}
			return nil, protocol.Errorf(protocol.StatusOutOfMemory,
				"no %d bytes in one piece for %s: the largest that is free there has %d, and segments take %d of the limit of %d bytes already, so that none of %d fits%s",
				size, a.Label, a.pool.Stats().LargestFree, sp.totalBytes, sp.LimitBytes, need, m.holders(sp))
		}
		sp.totalBytes += need
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
func (m *Memory) relieve(sp *space, wantBytes uint64) bool {
	here := func(seg *Segment) bool { return seg.Device == sp.device }
	return m.dropSpares(sp, wantBytes) || m.trim(0, here) > 0 || (m.Pressure != nil && m.Pressure(sp.device))
}

// holders is the end of an error about memory: what it is used for, and by whom.
func (m *Memory) holders(sp *space) (text string) {
	if m.Explain != nil {
		text = m.Explain(sp.device)
	}
	if m.Holders != nil {
		text += m.Holders()
	}
	return text
}

// Freed says that a retired segment of a device is no one's any more, so that its bytes
// may be had anew. In the loop, also in Retired.
func (m *Memory) Freed(seg *Segment) {
	sp, size := m.on(seg.Device), uint64(len(seg.Bytes))
	if m.segments[seg.ID] != nil || sp.openBytes < size {
		panic(fmt.Sprintf("snapshot: segment %d of %d bytes is freed; %d bytes are retired and not freed", seg.ID, size, sp.openBytes))
	}
	sp.openBytes -= size
	sp.totalBytes -= size
}

// Usage sums up all arenas of the host, or of a device.
type Usage struct {
	LimitBytes, HeldBytes, FreeBytes, SpareBytes, LargestFreeBytes uint64
	Segments                                                       int
}

// Usage reports what is held and free of the host's memory.
func (m *Memory) Usage() Usage { return m.usage(&m.space) }

func (m *Memory) usage(sp *space) Usage {
	u := Usage{LimitBytes: sp.LimitBytes, HeldBytes: sp.totalBytes, SpareBytes: sp.spareBytes}
	seen := map[*Arena]bool{}
	for _, seg := range m.segments {
		if seg.Device != sp.device {
			continue
		}
		u.Segments++
		if a := seg.arena; a != nil && !seen[a] {
			seen[a] = true
			s := a.pool.Stats()
			u.FreeBytes += s.Free
			u.LargestFreeBytes = max(u.LargestFreeBytes, s.LargestFree)
		}
	}
	u.FreeBytes += sp.spareBytes
	return u
}
