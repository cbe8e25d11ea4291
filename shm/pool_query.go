package shm

// SegmentFree tells whether nothing of segment id is leased. A segment that the pool
// does not have is not free.
func (p *Pool) SegmentFree(id uint64) bool {
	s := p.segments[id]
	return s != nil && s.leased == 0
}

// SegmentSizeFor is the length of the smallest segment that holds one block of size
// bytes behind a header of reserved bytes.
func SegmentSizeFor(size, reserved uint64) uint64 {
	return alignUp(reserved, PageAlign) + capacity(min(size, maxBlock), true)
}
