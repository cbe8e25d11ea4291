package shm

import (
	"fmt"
	"math/bits"
	"slices"
)

// Block is a piece of a segment. Length is what may be used: at least what was asked
// for. Blocks are plain values; the pool knows a block by Segment and Offset.
type Block struct {
	Segment uint64
	Offset  uint64 // bytes from the segment's beginning, a multiple of BlockAlign
	Length  uint64 // bytes, a multiple of BlockAlign
}

// Pool cuts blocks from segments and takes them back. It only keeps books: it neither
// makes nor maps nor touches memory, and nothing in shared memory depends on it.
//
// A block that comes back is kept warm as it is and leased again first, last in, first
// out: its pages are in the caches, first touch of fresh ones is ten times slower. When
// a request finds no room, all warm blocks melt into the free space around them, so
// "full" always means that no run of free bytes is long enough (field report B5).
//
// One goroutine owns a pool, the stage loop. What contradicts its books (a second Free,
// a block it never leased) is the caller's broken invariant and panics with numbers.
type Pool struct {
	reserved uint64
	segments map[uint64]*segment
	extents  []extent
	spares   int32 // list of unused indices of extents

	bins   [classes]int32         // lists of free extents, by the largest class that fits
	binned [classes/64 + 1]uint64 // which bins have any
	warm   [2][classes]int32      // lists of warm blocks: plain, and of whole pages
	warmed int                    // how many there are
	leases int                    // how many blocks are leased
}

// NewPool makes an empty pool. The first reserved bytes of each segment, rounded up to
// whole pages, are left alone: the segment's header.
func NewPool(reserved uint64) *Pool {
	return &Pool{
		reserved: alignUp(reserved, PageAlign),
		segments: make(map[uint64]*segment),
		extents:  make([]extent, 1),
	}
}

// Alloc leases a block of at least size bytes. false: there is no room; make a segment
// of NextSegmentSize(size) bytes outside the stage loop (rule S2), add it, ask again.
func (p *Pool) Alloc(size uint64) (Block, bool) { return p.alloc(size, false) }

// AllocPages is Alloc for a block of whole pages that starts on a page, for GUARD.
func (p *Pool) AllocPages(size uint64) (Block, bool) { return p.alloc(size, true) }

func (p *Pool) alloc(size uint64, pages bool) (Block, bool) {
	if size > maxBlock {
		return Block{}, false
	}
	length := capacity(size, pages)
	i := p.takeWarm(length, pages)
	if i == 0 {
		i = p.takeFree(length, pages)
	}
	if i == 0 && p.warmed > 0 {
		p.melt()
		i = p.takeFree(length, pages)
	}
	if i == 0 {
		return Block{}, false
	}
	e := &p.extents[i]
	e.state, e.pages = leased, pages
	e.segment.leased += e.size
	p.leases++
	return Block{Segment: e.segment.id, Offset: e.offset, Length: e.size}, true
}

func (p *Pool) takeWarm(length uint64, pages bool) int32 {
	if length >= largeBlock {
		return 0
	}
	head := p.warmList(length, pages)
	i := *head
	if i != 0 {
		p.unlink(head, i)
		p.warmed--
	}
	return i
}

func (p *Pool) warmList(length uint64, pages bool) *int32 {
	kind := 0
	if pages {
		kind = 1
	}
	return &p.warm[kind][classOf(length)]
}

// takeFree cuts length bytes from the smallest bin that has an extent with room.
func (p *Pool) takeFree(length uint64, pages bool) int32 {
	align := uint64(BlockAlign)
	if pages {
		align = PageAlign
	}
	for class := p.nextBin(classOf(length)); class < classes; class = p.nextBin(class + 1) {
		// For a class's own size the first one fits. Only whole pages and large blocks
		// look further.
		for i := p.bins[class]; i != 0; i = p.extents[i].down {
			e := &p.extents[i]
			start := alignUp(e.offset, align)
			if start+length <= e.offset+e.size {
				return p.cut(i, start, length)
			}
		}
	}
	return 0
}

func (p *Pool) nextBin(class int) int {
	for word := class / 64; word < len(p.binned); word++ {
		set := p.binned[word]
		if word == class/64 {
			set &= ^uint64(0) << (class % 64)
		}
		if set != 0 {
			return word*64 + bits.TrailingZeros64(set)
		}
	}
	return classes
}

// cut makes [start, start+length) of the free extent i an extent of its own, in no list.
func (p *Pool) cut(i int32, start, length uint64) int32 {
	p.unbin(i)
	e := p.extents[i]
	if start > e.offset {
		p.extents[i].size = start - e.offset
		p.bin(i)
		i = p.add(e.segment, i, start, e.offset+e.size-start)
	}
	if rest := p.extents[i].size - length; rest > 0 {
		p.extents[i].size = length
		p.bin(p.add(e.segment, i, start+length, rest))
	}
	return i
}

// melt turns every warm block into free space.
func (p *Pool) melt() {
	for kind := range p.warm {
		for class := range p.warm[kind] {
			for head := &p.warm[kind][class]; *head != 0; {
				i := *head
				p.unlink(head, i)
				p.release(i)
			}
		}
	}
	p.warmed = 0
}

// Free takes a leased block back.
//
// Preconditions: b is what Alloc or AllocPages returned or Claim was given, and nobody
// uses it any more, readers and dead clients included.
func (p *Pool) Free(b Block) {
	s := p.segments[b.Segment]
	if s == nil {
		panic(fmt.Sprintf("shm: free of block %+v: the pool has no such segment", b))
	}
	i := s.lookup(b.Offset)
	if i == 0 {
		panic(fmt.Sprintf("shm: free of block %+v: no block begins there", b))
	}
	e := &p.extents[i]
	if e.state != leased || e.size != b.Length {
		panic(fmt.Sprintf("shm: free of block %+v: the pool has %d bytes there, which are %v", b, e.size, e.state))
	}
	s.leased -= e.size
	p.leases--
	if e.size >= largeBlock || e.size != capacity(e.size, e.pages) { // too long, or a claim of a length that nobody asks for
		p.release(i)
		return
	}
	e.state = warm
	p.push(p.warmList(e.size, e.pages), i)
	p.warmed++
}

// NextSegmentSize says how long a segment to make when Alloc has no room for size
// bytes: 1 MiB, doubling with the number of segments to 64 MiB, longer if the block
// needs it; a block that does not fit into 64 MiB gets a segment of its own.
func (p *Pool) NextSegmentSize(size uint64) uint64 {
	need := p.reserved + capacity(min(size, maxBlock), true)
	usual := uint64(FirstSegment) << min(len(p.segments), 6)
	for usual < need && usual < LastSegment {
		usual *= 2
	}
	return max(usual, need)
}

// AddSegment puts a segment of size bytes, a multiple of BlockAlign, to use. Its id is
// new to this pool.
func (p *Pool) AddSegment(id, size uint64) {
	if p.segments[id] != nil {
		panic(fmt.Sprintf("shm: segment %d is in the pool already", id))
	}
	if size > maxBlock || size%BlockAlign != 0 || size < p.reserved+BlockAlign {
		panic(fmt.Sprintf("shm: segment %d of %d bytes: expected a multiple of %d, at least %d", id, size, BlockAlign, p.reserved+BlockAlign))
	}
	s := &segment{id: id, size: size, at: make([]*leaf, (size+leafBytes-1)/leafBytes)}
	p.segments[id] = s
	p.bin(p.add(s, 0, p.reserved, size-p.reserved))
}

// FreeSegments lists, by id, the segments in which nothing is leased: what Trim may
// remove (rule S3: whole segments only).
func (p *Pool) FreeSegments() []uint64 {
	var ids []uint64
	for id, s := range p.segments {
		if s.leased == 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// RemoveSegment takes a segment out of the pool.
//
// Preconditions: it is in the pool, and nothing of it is leased.
func (p *Pool) RemoveSegment(id uint64) {
	s := p.segments[id]
	if s == nil {
		panic(fmt.Sprintf("shm: removal of segment %d, which the pool does not have", id))
	}
	if s.leased != 0 {
		panic(fmt.Sprintf("shm: removal of segment %d while %d bytes of it are leased", id, s.leased))
	}
	for i := s.first; i != 0; i = s.first {
		if e := &p.extents[i]; e.state == warm {
			p.unlink(p.warmList(e.size, e.pages), i)
			p.warmed--
		} else {
			p.unbin(i)
		}
		p.drop(i)
	}
	delete(p.segments, id)
}

// PoolStats tells how a pool is filled. All but the counts are bytes.
type PoolStats struct {
	Segments    int
	Blocks      int    // leased
	Held        uint64 // all segments, headers included
	Leased      uint64
	Free        uint64 // warm blocks included
	LargestFree uint64 // the longest run of free bytes
}

// Stats walks the pool's books; it is for people, not for the stage loop's every turn.
func (p *Pool) Stats() PoolStats {
	stats := PoolStats{Segments: len(p.segments), Blocks: p.leases}
	for _, s := range p.segments {
		stats.Held += s.size
		stats.Leased += s.leased
		run := uint64(0)
		for i := s.first; i != 0; i = p.extents[i].after {
			if e := &p.extents[i]; e.state == leased {
				run = 0
			} else {
				run += e.size
				stats.Free += e.size
			}
			stats.LargestFree = max(stats.LargestFree, run)
		}
	}
	return stats
}
