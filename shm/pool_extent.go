package shm

// An extent is a run of bytes in a segment: leased, or kept warm, or free. The extents
// of a segment follow each other without gaps, from the reserved header to the end:
//
//	segment 7: |header| leased 512 | free 1024 | warm 256 | leased 4096 | free … |
//
// They lie in one slice and refer to each other by index, so that the collector has
// nothing to follow and reuse takes no memory. Index 0 is never used and means "none".
type extent struct {
	offset, size uint64
	segment      *segment
	before       int32 // neighbour in the segment, by address
	after        int32
	up, down     int32 // neighbours in the list that it is in: free, warm or spare
	state        extentState
	pages        bool // leased or kept by AllocPages
}

type extentState uint8

const (
	spare  extentState = iota // this index holds no extent
	free                      // in bins[classOf(size)]; never beside another free one
	warm                      // in warm[pages][classOf(size)]: given back, first to be leased again
	leased                    // in no list
)

func (s extentState) String() string {
	return [...]string{"spare", "free", "warm", "leased"}[s]
}

// segment is the book-keeping of one segment.
type segment struct {
	id     uint64
	size   uint64
	leased uint64 // bytes of leased blocks in it
	first  int32  // its first extent

	// at finds the extent that starts at an offset: one leaf for each 1 MiB of the
	// segment in which any extent starts, one index for each 256 bytes of it.
	at []*leaf
}

const leafBytes = 1 << 20

type leaf [leafBytes / BlockAlign]int32

func (s *segment) lookup(offset uint64) int32 {
	if offset >= s.size || offset%BlockAlign != 0 {
		return 0
	}
	l := s.at[offset/leafBytes]
	if l == nil {
		return 0
	}
	return l[offset%leafBytes/BlockAlign]
}

func (s *segment) record(offset uint64, i int32) {
	l := s.at[offset/leafBytes]
	if l == nil {
		l = new(leaf)
		s.at[offset/leafBytes] = l
	}
	l[offset%leafBytes/BlockAlign] = i
}

// add puts a new extent into the segment's chain behind before (0: as the first).
func (p *Pool) add(s *segment, before int32, offset, size uint64) int32 {
	i := p.spares
	if i != 0 {
		p.spares = p.extents[i].down
	} else {
		i = int32(len(p.extents))
		p.extents = append(p.extents, extent{})
	}
	e := extent{offset: offset, size: size, segment: s, before: before}
	if before != 0 {
		e.after = p.extents[before].after
		p.extents[before].after = i
	} else {
		s.first = i
	}
	if e.after != 0 {
		p.extents[e.after].before = i
	}
	p.extents[i] = e
	s.record(offset, i)
	return i
}

// drop takes an extent that is in no list out of its chain.
func (p *Pool) drop(i int32) {
	e := p.extents[i]
	if e.before != 0 {
		p.extents[e.before].after = e.after
	} else {
		e.segment.first = e.after
	}
	if e.after != 0 {
		p.extents[e.after].before = e.before
	}
	e.segment.record(e.offset, 0)
	p.extents[i] = extent{down: p.spares}
	p.spares = i
}

func (p *Pool) push(head *int32, i int32) {
	e := &p.extents[i]
	e.up, e.down = 0, *head
	if e.down != 0 {
		p.extents[e.down].up = i
	}
	*head = i
}

func (p *Pool) unlink(head *int32, i int32) {
	e := &p.extents[i]
	if e.up != 0 {
		p.extents[e.up].down = e.down
	} else {
		*head = e.down
	}
	if e.down != 0 {
		p.extents[e.down].up = e.up
	}
	e.up, e.down = 0, 0
}

// release makes an extent free, as one with its free neighbours.
func (p *Pool) release(i int32) {
	if before := p.extents[i].before; before != 0 && p.extents[before].state == free {
		p.unbin(before)
		p.extents[before].size += p.extents[i].size
		p.drop(i)
		i = before
	}
	if after := p.extents[i].after; after != 0 && p.extents[after].state == free {
		p.unbin(after)
		p.extents[i].size += p.extents[after].size
		p.drop(after)
	}
	p.bin(i)
}

func (p *Pool) bin(i int32) {
	e := &p.extents[i]
	e.state, e.pages = free, false
	class := classOf(e.size)
	p.push(&p.bins[class], i)
	p.binned[class/64] |= 1 << (class % 64)
}

func (p *Pool) unbin(i int32) {
	class := classOf(p.extents[i].size)
	p.unlink(&p.bins[class], i)
	if p.bins[class] == 0 {
		p.binned[class/64] &^= 1 << (class % 64)
	}
}
