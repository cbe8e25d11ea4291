package shm

import "math/bits"

const (
	// BlockAlign is the alignment and the least size of a block in bytes.
	BlockAlign = 256
	// PageAlign is the alignment of blocks from AllocPages and of whole segments.
	PageAlign = 4096
	// FirstSegment and LastSegment bound the ordinary segment sizes: 1 MiB, doubling.
	FirstSegment = 1 << 20
	LastSegment  = 64 << 20

	// largeBlock and above are rounded to pages only: a quarter of such a block is too
	// much to waste, and there are few of them.
	largeBlock = 32 << 20

	// maxBlock keeps all sums of sizes far from overflow, whatever a client asks for.
	maxBlock = 1 << 60

	classes = 224 // classOf(maxBlock) and some more
)

// Size classes go by units of BlockAlign: every multiple up to 4 units, then four steps
// to each doubling:
//
//	units  1 2 3 | 4 5 6 7 | 8 10 12 14 | 16 20 24 28 | 32 …
//	class  1 2 3 | 4 5 6 7 | 8  9 10 11 | 12 13 14 15 | 16 …
//
// So a block from 1 KiB on is at most a quarter longer than what was asked for.

// classOf gives the largest class that is not longer than size bytes, size ≥ BlockAlign.
func classOf(size uint64) int {
	units := size / BlockAlign
	if units < 4 {
		return int(units)
	}
	e := bits.Len64(units) - 1
	return (e-1)*4 + int(units>>(e-2)&3)
}

// capacity gives the length of the block that Alloc leases for size bytes.
func capacity(size uint64, pages bool) uint64 {
	if size >= largeBlock {
		return alignUp(size, PageAlign)
	}
	units := max((size+BlockAlign-1)/BlockAlign, 1)
	if units > 4 {
		units = alignUp(units, 1<<(bits.Len64(units)-3))
	}
	if pages {
		return alignUp(units*BlockAlign, PageAlign)
	}
	return units * BlockAlign
}

// alignUp rounds n up to a multiple of align, a power of two.
func alignUp(n, align uint64) uint64 { return (n + align - 1) &^ (align - 1) }
