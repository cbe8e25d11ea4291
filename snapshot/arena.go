package snapshot

import (
	"fmt"

	"callboard/protocol"
	"callboard/shm"
)

// Segment is one mapped shared-memory object that blocks are cut from.
type Segment struct {
	ID    uint64
	Sort  uint32 // protocol.SegmentBroker, SegmentClient or SegmentShared; with SegmentOnDevice it is device memory
	Owner uint64 // the client that may write it; 0 for the broker
	Bytes []byte // the whole object, header included; of device memory a reservation of its size, without access
	// Base is the device's address of the first byte, of device memory; Device is where that
	// is, and set by the store.
	Base   uint64
	Device *Device
	arena  *Arena
	idle   bool // nothing of it was leased since TrimIdle looked last
}

// Arena is the memory of one writer: the broker's versions, the broker's
// metadata, or one client's staging.
type Arena struct {
	Sort  uint32
	Owner uint64
	// Label names the arena in errors.
	Label string

	space    *space // nil: of a life that is over; then it has no pool either
	pool     *shm.Pool
	beside   *Arena   // of the same sort: used before anything is given up for a new segment
	devices  []*Arena // the same writer's on devices
	segments map[uint64]*Segment
	blocks   int // leased now
	growing  bool
	failed   *protocol.Error // what the last attempt to grow met, not yet told anybody
	wanted   uint64          // how many bytes that attempt was for
	closed   bool            // the owner is dead; segments go when their last block does
	pages    bool            // lease whole pages (GUARD)
	fresh    bool            // segments of others are not used again here

	// What the client of another life of the broker may still write to: all that was not
	// live then, and what was and is given back (rule B1).
	quarantined bool
	quarantine  []*Block
}

// own tells whether the arena is the stage's own: only the broker writes there.
func (a *Arena) own() bool { return a.Sort&^protocol.SegmentOnDevice == protocol.SegmentBroker }

// segmentSizes are how long the next segment is for a block of size bytes: usually, and at
// least.
func (a *Arena) segmentSizes(size uint64) (usual, least uint64) {
	if a.space.device == nil {
		return a.pool.NextSegmentSize(size), shm.SegmentSizeFor(size, protocol.SegmentHeaderBytes)
	}
	whole := func(n uint64) uint64 { return (n + ArenaAlign - 1) &^ (ArenaAlign - 1) }
	return whole(a.pool.NextSegmentSize(size)), whole(shm.SegmentSizeFor(size, 0))
}

// WholePages says whether blocks are leased as whole pages from now on (GUARD).
func (a *Arena) WholePages(on bool) { a.pages = on }

// Block is a leased run of bytes. It goes back to its arena with the last
// reference.
type Block struct {
	Ref   protocol.BlockRef // LengthBytes is the room, at least what was asked for
	Bytes []byte            // of device memory without access, for its length
	base  uint64            // of device memory: the address of the first byte
	arena *Arena
	lease shm.Block
	refs  int
	found bool // leased by another life of the broker
}

func (m *Memory) take(a *Arena, size uint64) (shm.Block, bool) {
	if a.pages {
		return a.pool.AllocPages(size)
	}
	return a.pool.Alloc(size)
}

func (m *Memory) block(a *Arena, lease shm.Block) *Block {
	seg := a.segments[lease.Segment]
	if seg == nil {
		panic(fmt.Sprintf("snapshot: pool of %s leased from segment %d, which it does not have", a.Label, lease.Segment))
	}
	var b *Block
	if n := len(m.cache); n > 0 {
		b, m.cache = m.cache[n-1], m.cache[:n-1]
	} else {
		b = new(Block)
	}
	*b = Block{
		Ref:   protocol.BlockRef{Segment: lease.Segment, OffsetBytes: lease.Offset, LengthBytes: lease.Length},
		Bytes: seg.Bytes[lease.Offset : lease.Offset+lease.Length : lease.Offset+lease.Length],
		base:  seg.Base + lease.Offset, arena: a, lease: lease, refs: 1,
	}
	a.blocks++
	seg.idle = false
	return b
}

// in tells whether there is a block, and whether it lies in a segment.
func (b *Block) in(segment uint64) bool { return b != nil && b.Ref.Segment == segment }

// device is where the block lies; nil: in the host's memory, or nowhere any more.
func (b *Block) device() *Device {
	if b.arena.space == nil {
		return nil
	}
	return b.arena.space.device
}

// life is the ArenaGeneration of what lies in the block.
func (b *Block) life() uint64 {
	if b.arena.space == nil {
		return 0
	}
	return b.arena.space.life
}

// place is where length bytes from an offset of the block on lie.
func (b *Block) place(offset, length uint64) Place {
	if b.device() != nil {
		return Place{Address: b.base + offset, block: b}
	}
	return Place{Host: b.Bytes[offset:][:length], block: b}
}

// Hold adds a reference.
func (b *Block) Hold() *Block { b.refs++; return b }

// Drop takes a reference away; the last one gives the block back.
func (m *Memory) Drop(b *Block) {
	if b == nil {
		return
	}
	if b.refs--; b.refs > 0 {
		return
	}
	if b.refs < 0 {
		panic(fmt.Sprintf("snapshot: block %d+%d of %s was dropped %d times too often", b.Ref.Segment, b.Ref.OffsetBytes, b.arena.Label, -b.refs))
	}
	a, id := b.arena, b.Ref.Segment
	if a.pool == nil {
		return // its memory went with another life of the broker
	}
	if b.found && a.quarantined {
		b.refs = 1
		a.quarantine = append(a.quarantine, b)
		return
	}
	a.pool.Free(b.lease)
	a.blocks--
	b.Bytes = nil
	m.cache = append(m.cache, b)
	if a.closed && a.pool.SegmentFree(id) {
		m.spare(a.segments[id])
	}
}
