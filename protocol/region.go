package protocol

import "structs"

// RegionHeader is the first 64 bytes of every shared object.
//
// The creator fills everything, then stores Version last; whoever maps the
// object loads Version first and believes nothing before it is VersionWord.
type RegionHeader struct {
	_ structs.HostLayout

	// Magic tells the sort of region (MagicDirectory, MagicChannel, MagicSegment, MagicDoorbell).
	Magic uint64
	// Version is VersionWord; 0 while the region is being made. Stored last by the creator.
	Version uint32
	// HeaderBytes is the size of the sort's own header, this one included.
	HeaderBytes uint32
	// SizeBytes is the size of the whole object.
	SizeBytes uint64
	// Generation is the stage's generation (its creation time in ns) that the object belongs to.
	Generation uint64
	// RegionID is a segment's id, a channel's incarnation, else 0.
	RegionID uint64
	// OwnerIncarnation is the client that may write a client segment or channel; 0 for the broker's.
	OwnerIncarnation uint64
	// Features are the feature bits of the creator.
	Features uint64
	// Reserved is 0.
	Reserved uint64
}

// Ref is a place: a segment and an offset from the segment's start. Segment 0
// is no place.
type Ref struct {
	_ structs.HostLayout

	// Segment is the segment's id, 0 for none.
	Segment uint64
	// OffsetBytes counts from the first byte of the segment, its header included.
	OffsetBytes uint64
}

// BlockRef is a contiguous run of bytes in a segment.
type BlockRef struct {
	_ structs.HostLayout

	// Segment is the segment's id, 0 for none.
	Segment uint64
	// OffsetBytes counts from the first byte of the segment, its header included.
	OffsetBytes uint64
	// LengthBytes is how many bytes are meant.
	LengthBytes uint64
}

// Sizes that both sides rely on.
const (
	// SegmentHeaderBytes is where the first block of a segment may lie.
	SegmentHeaderBytes = 4096
	// BlockAlignBytes is the alignment of every block (DLPack asks for 256).
	BlockAlignBytes = 256
	// DirectoryBytes is the size of the directory object.
	DirectoryBytes = 16384
	// DoorbellBytes is the size of the doorbell object.
	DoorbellBytes = 4096
	// Infinite is the birth of a slot in refill and the death of a living version.
	Infinite = 1<<64 - 1
	// All spells "every logical element" as a count; a count of 0 is refused.
	All = 1<<64 - 1
)

// Doorbell is the doorbell object: one page that every client may write and
// whose content the broker never believes (rule R3).
type Doorbell struct {
	_ structs.HostLayout

	// Header is the region's header.
	Header RegionHeader
	// Reserved fills the first 128 bytes.
	Reserved [64]byte
	// Rings is incremented by clients after they stored an SQ tail; the broker
	// sleeps on it as a futex word. Pairs with the broker's load before it
	// stores Sleeping.
	Rings uint32
	// ReservedTail fills the line.
	ReservedTail [124]byte
}

// Sorts of segments, in SegmentEntry.Sort and SegmentReply.Sort.
const (
	// SegmentBroker: only the broker writes; clients map it read-only.
	SegmentBroker = 1
	// SegmentClient: one client incarnation writes (its staging); others map it read-only.
	SegmentClient = 2
	// SegmentShared: staging of sessions of several groups; besides the owner who has claimed a group writes there (rule M2).
	// No version ever lies in one. Copies of versions of devices (rule C5) do, in segments without an owner, which only the
	// broker writes: no recovery uses such a segment again.
	SegmentShared = 3
	// SegmentOnDevice, together with one of them: an arena of device memory, which is imported and not mapped. It has no
	// RegionHeader (rule C1).
	SegmentOnDevice = 1 << 8
)

// States of a segment, in SegmentEntry.State.
const (
	// SegmentFree: the entry has never been used.
	SegmentFree = 0
	// SegmentLive: the segment may be mapped.
	SegmentLive = 1
	// SegmentRetired: whoever maps the segment unmaps it at the next call.
	SegmentRetired = 2
)
