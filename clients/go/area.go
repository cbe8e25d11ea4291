package callboard

import (
	"slices"

	"callboard/protocol"
)

// area gives out room in a channel's argument or result area: first fit, free
// neighbours joined. The client alone decides here; the broker only checks that a
// room is inside. The caller serialises.
type area struct {
	size uint32
	free []room // by offset, never adjacent
}

// room is a piece of an area, a multiple of roomAlign long.
type room struct{ offset, size uint32 }

const roomAlign = 64

func newArea(size uint32) area { return area{size: size, free: []room{{0, size}}} }

// take leases size bytes; ok is false when no gap is large enough now.
func (a *area) take(size int) (r room, ok bool) {
	need := (uint64(size) + roomAlign - 1) &^ (roomAlign - 1)
	if need == 0 {
		return room{}, true
	}
	for i, gap := range a.free {
		if uint64(gap.size) < need {
			continue
		}
		r = room{gap.offset, uint32(need)}
		if a.free[i] = (room{gap.offset + r.size, gap.size - r.size}); a.free[i].size == 0 {
			a.free = slices.Delete(a.free, i, i+1)
		}
		return r, true
	}
	return room{}, false
}

// give returns a room.
func (a *area) give(r room) {
	if r.size == 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(a.free, r.offset, func(gap room, offset uint32) int { return int(int64(gap.offset) - int64(offset)) })
	a.free = slices.Insert(a.free, i, r)
	if i+1 < len(a.free) && r.offset+r.size == a.free[i+1].offset {
		a.free[i].size += a.free[i+1].size
		a.free = slices.Delete(a.free, i+1, i+2)
	}
	if i > 0 && a.free[i-1].offset+a.free[i-1].size == a.free[i].offset {
		a.free[i-1].size += a.free[i].size
		a.free = slices.Delete(a.free, i, i+1)
	}
}

// leaseFor takes both rooms of an operation, or none.
func (c *client) leaseFor(arguments, results int) (a, r room, err error) {
	if uint64(arguments) > uint64(c.arguments.size) || uint64(results) > uint64(c.results.size) {
		return a, r, fail(protocol.StatusNotSupported, "%d bytes of arguments and %d of results do not fit this channel's areas of %d and %d; use smaller pieces",
			arguments, results, c.arguments.size, c.results.size)
	}
	a, ok := c.arguments.take(arguments)
	if !ok {
		return a, r, fail(protocol.StatusQueueFull, "%d bytes of arguments find no room beside those of %d operations in progress; wait for some", arguments, len(c.ops))
	}
	if r, ok = c.results.take(results); !ok {
		c.arguments.give(a)
		return a, r, fail(protocol.StatusQueueFull, "%d bytes of results find no room beside those of %d operations in progress; wait for some", results, len(c.ops))
	}
	return a, r, nil
}
