package shm

import "fmt"

// Claim leases the very bytes of b, for a pool that takes over segments in which
// something lies already: a broker that starts again claims what its directory refers
// to, and all else is free. Offset and Length are multiples of BlockAlign.
//
// It refuses, with the numbers, what is not wholly free: another claim, a leased block,
// the segment's header, the end of the segment. Claims in the order of their offsets are
// fast. A claimed block is freed like any other; since its length need not be one that
// Alloc gives, it melts into the free space around it unless it is.
func (p *Pool) Claim(b Block) error {
	s := p.segments[b.Segment]
	if s == nil {
		return fmt.Errorf("shm: claim of block %+v: the pool has no such segment", b)
	}
	if b.Length == 0 || b.Offset%BlockAlign != 0 || b.Length%BlockAlign != 0 {
		return fmt.Errorf("shm: claim of block %+v: expected multiples of %d, and some length", b, BlockAlign)
	}
	if b.Offset < p.reserved || b.Offset > s.size || b.Length > s.size-b.Offset {
		return fmt.Errorf("shm: claim of block %+v: blocks of its segment lie between %d and %d", b, p.reserved, s.size)
	}
	i := s.covering(b.Offset)
	e := &p.extents[i]
	if e.state != free || b.Offset+b.Length > e.offset+e.size {
		return fmt.Errorf("shm: claim of block %+v: the pool has %d bytes at %d there, which are %v", b, e.size, e.offset, e.state)
	}
	i = p.cut(i, b.Offset, b.Length)
	p.extents[i].state = leased
	s.leased += b.Length
	p.leases++
	return nil
}

// covering is the extent in which an offset of the segment, behind its header, lies.
func (s *segment) covering(offset uint64) int32 {
	for unit := offset / BlockAlign; ; unit-- {
		l := s.at[unit*BlockAlign/leafBytes]
		if l == nil {
			unit -= unit % (leafBytes / BlockAlign) // nothing begins in this leaf
			continue
		}
		if i := l[unit%(leafBytes/BlockAlign)]; i != 0 {
			return i
		}
	}
}
