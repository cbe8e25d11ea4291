package ring

import (
	"fmt"
	"math/bits"

	"callboard/protocol"
)

// PageBytes is the alignment of a channel's parts. It is part of the layout and
// not the machine's page size.
const PageBytes = 4096

// RoomAlignBytes is the alignment of every offset into an area.
const RoomAlignBytes = 8

// Layout says where a channel's parts lie. It is a plain value: the broker makes
// it with NewLayout and keeps it; a client gets it from ReadHeader. Neither side
// looks at the header again, so a peer that rewrites it moves nothing.
type Layout struct {
	// SqOffset is where the submission entries start. Offsets count bytes from the start of the channel.
	SqOffset uint64
	// CqOffset is where the completion entries start.
	CqOffset uint64
	// PinOffset is where the pin slots start.
	PinOffset uint64
	// ArgumentOffset is where the argument area starts.
	ArgumentOffset uint64
	// ResultOffset is where the result area starts.
	ResultOffset uint64
	// TotalBytes is the size of the channel.
	TotalBytes uint64
	// SqEntries is the submission ring's size, a power of two.
	SqEntries uint32
	// CqEntries is the completion ring's size, a power of two, and the most ops that may be outstanding.
	CqEntries uint32
	// PinCount is the number of pin slots.
	PinCount uint32
	// ArgumentBytes is the argument area's size, a multiple of PageBytes.
	ArgumentBytes uint32
	// ResultBytes is the result area's size, a multiple of PageBytes.
	ResultBytes uint32
}

// NewLayout lays out a channel from the sizes that a client asks for; 0 takes the
// default of package protocol. Ring sizes must be powers of two; area sizes are
// rounded up to whole pages. Errors wrap ErrLayout and name the size and its bound.
func NewLayout(sqEntries, cqEntries, pinCount, argumentBytes, resultBytes uint32) (Layout, error) {
	l := Layout{
		SqEntries:     orDefault(sqEntries, protocol.SqEntriesDefault),
		CqEntries:     orDefault(cqEntries, protocol.CqEntriesDefault),
		PinCount:      orDefault(pinCount, protocol.PinCountDefault),
		ArgumentBytes: orDefault(argumentBytes, protocol.ArgumentBytesDefault),
		ResultBytes:   orDefault(resultBytes, protocol.ResultBytesDefault),
	}
	if err := l.checkSizes(); err != nil {
		return Layout{}, fmt.Errorf("%w: %s is %d, expected %s %d", ErrLayout, err.Word, err.Value, err.Expect, err.Limit)
	}
	// After the check: rounding cannot overflow below the bound, and the bound is whole pages.
	l.ArgumentBytes = uint32(roundUp(uint64(l.ArgumentBytes)))
	l.ResultBytes = uint32(roundUp(uint64(l.ResultBytes)))

	end := uint64(PageBytes) // the header and the control words
	place := func(sizeBytes uint64) uint64 {
		start := end
		end = roundUp(start + sizeBytes)
		return start
	}
	l.SqOffset = place(uint64(l.SqEntries) * submissionBytes)
	l.CqOffset = place(uint64(l.CqEntries) * completionBytes)
	l.PinOffset = place(uint64(l.PinCount) * pinBytes)
	l.ArgumentOffset = place(uint64(l.ArgumentBytes))
	l.ResultOffset = place(uint64(l.ResultBytes))
	l.TotalBytes = end
	return l, nil
}

// CheckEntry says whether an entry is well-formed (rule R5): a known opcode, an op
// id, argument and result rooms that lie in their areas. It looks at nothing but
// the entry, so e must be a copy that the peer cannot change.
func (l *Layout) CheckEntry(e *protocol.SubmissionEntry) error {
	switch {
	case e.OpID == 0:
		return atLeast("OpID", 0, 1)
	case e.Opcode == 0:
		return atLeast("Opcode", 0, protocol.OpNop)
	case e.Opcode > opcodeLast:
		return atMost("Opcode", uint64(e.Opcode), opcodeLast)
	}
	if err := checkRoom("ArgumentOffsetBytes", "ArgumentBytes", e.ArgumentOffsetBytes, e.ArgumentBytes, l.ArgumentBytes); err != nil {
		return err
	}
	return checkRoom("ResultOffsetBytes", "ResultBytes", e.ResultOffsetBytes, e.ResultBytes, l.ResultBytes)
}

// opcodeLast is the highest opcode of this version.
const opcodeLast = protocol.OpMirror

// checkRoom checks [offset, offset+size) against an area. The subtraction comes
// after the first comparison, so that no sum can wrap.
func checkRoom(offsetWord, sizeWord string, offset, size, areaBytes uint32) error {
	switch {
	case offset%RoomAlignBytes != 0:
		return multiple(offsetWord, uint64(offset), RoomAlignBytes)
	case offset > areaBytes:
		return atMost(offsetWord, uint64(offset), uint64(areaBytes))
	case size > areaBytes-offset:
		return atMost(sizeWord, uint64(size), uint64(areaBytes-offset))
	}
	return nil
}

// checkSizes checks the five sizes against the bounds of package protocol.
func (l *Layout) checkSizes() *CorruptError {
	for _, size := range [...]struct {
		word       string
		value, max uint32
		power      bool
	}{
		{"SqEntries", l.SqEntries, protocol.RingEntriesMax, true},
		{"CqEntries", l.CqEntries, protocol.RingEntriesMax, true},
		{"PinCount", l.PinCount, protocol.PinCountMax, false},
		{"ArgumentBytes", l.ArgumentBytes, protocol.AreaBytesMax, false},
		{"ResultBytes", l.ResultBytes, protocol.AreaBytesMax, false},
	} {
		switch {
		case size.value == 0:
			return atLeast(size.word, 0, 1)
		case size.value > size.max:
			return atMost(size.word, uint64(size.value), uint64(size.max))
		case size.power && bits.OnesCount32(size.value) != 1:
			// The next one up; a value between powers is below the largest.
			return &CorruptError{size.word, uint64(size.value), "a power of two such as", 1 << bits.Len32(size.value)}
		}
	}
	return nil
}

// check verifies a layout that came from a header against the bytes that are
// mapped: parts in order, on page boundaries, apart from each other, inside.
func (l *Layout) check(mappedBytes uint64) error {
	if err := l.checkSizes(); err != nil {
		return err
	}
	if l.TotalBytes != mappedBytes {
		return exactly("SizeBytes", l.TotalBytes, mappedBytes)
	}
	end := uint64(PageBytes)
	for _, part := range [...]struct {
		word          string
		offset, bytes uint64
	}{
		{"SqOffsetBytes", l.SqOffset, uint64(l.SqEntries) * submissionBytes},
		{"CqOffsetBytes", l.CqOffset, uint64(l.CqEntries) * completionBytes},
		{"PinOffsetBytes", l.PinOffset, uint64(l.PinCount) * pinBytes},
		{"ArgumentOffsetBytes", l.ArgumentOffset, uint64(l.ArgumentBytes)},
		{"ResultOffsetBytes", l.ResultOffset, uint64(l.ResultBytes)},
	} {
		switch {
		case part.offset%PageBytes != 0:
			return multiple(part.word, part.offset, PageBytes)
		case part.offset < end:
			return atLeast(part.word, part.offset, end)
		case part.bytes > mappedBytes || part.offset > mappedBytes-part.bytes:
			return atMost(part.word, part.offset, mappedBytes-min(part.bytes, mappedBytes))
		}
		end = part.offset + part.bytes // both are at most mappedBytes
	}
	return nil
}

func orDefault(value, byDefault uint32) uint32 {
	if value == 0 {
		return byDefault
	}
	return value
}

func roundUp(sizeBytes uint64) uint64 { return (sizeBytes + PageBytes - 1) &^ (PageBytes - 1) }
