package protocol

import "structs"

// A channel is one client's own region, shared with the broker alone:
//
//	      0  ChannelHeader              written by the broker before the client sees it
//	   1024  ChannelControl             ring indices, doorbell words, pin high-water mark
//	   4096  SubmissionEntry[SqEntries] client writes, broker reads
//	      …  CompletionEntry[CqEntries] broker writes, client reads
//	      …  PinSlot[PinCount]          client writes, broker reads (and writes for op PIN)
//	      …  argument area              client writes, broker copies out once
//	      …  result area                the client gives out room, the broker fills it
//
// Each part starts on a multiple of 4096 bytes; the offsets stand in the header.
// The broker keeps its own copy of the header and never reads it back.

// ChannelHeader describes a channel's parts.
type ChannelHeader struct {
	_ structs.HostLayout

	// Header is the region's header; RegionID is the client's incarnation.
	Header RegionHeader
	// BrokerIncarnation is the life of the broker that made the rings.
	BrokerIncarnation uint64
	// RingGeneration grows when rings start anew (rule B1).
	RingGeneration uint64
	// SqOffsetBytes is where the submission entries start.
	SqOffsetBytes uint64
	// CqOffsetBytes is where the completion entries start.
	CqOffsetBytes uint64
	// PinOffsetBytes is where the pin slots start.
	PinOffsetBytes uint64
	// ArgumentOffsetBytes is where the argument area starts.
	ArgumentOffsetBytes uint64
	// ResultOffsetBytes is where the result area starts.
	ResultOffsetBytes uint64
	// ArgumentBytes is the size of the argument area.
	ArgumentBytes uint32
	// ResultBytes is the size of the result area.
	ResultBytes uint32
	// SqEntries is a power of two.
	SqEntries uint32
	// CqEntries is a power of two; outstanding ops never exceed it (rule R1).
	CqEntries uint32
	// PinCount is the number of pin slots.
	PinCount uint32
	// Flags are the granted Attach bits.
	Flags uint32
	// Name is the client's name, zero-padded.
	Name [64]byte
	// Reserved is 0.
	Reserved [48]byte
}

// ChannelControlOffset is where ChannelControl lies in a channel.
const ChannelControlOffset = 1024

// ChannelControl holds the words that change. Each line of 128 bytes has one
// writer. Ring indices count entries from 0 for ever; an index modulo the ring's
// size is its entry.
type ChannelControl struct {
	_ structs.HostLayout

	// SqTail: the client stores it after it filled entries; pairs with the broker's load in a drain.
	SqTail uint64
	// SqTailPad keeps the line.
	SqTailPad [120]byte
	// SqHead: the broker stores it after it copied entries out; pairs with the client's load before it reuses one.
	SqHead uint64
	// SqHeadPad keeps the line.
	SqHeadPad [120]byte
	// CqTail: the broker stores it after it filled entries; pairs with the client's load in a poll.
	CqTail uint64
	// CqTailPad keeps the line.
	CqTailPad [120]byte
	// CqHead: the client stores it after it copied entries out; pairs with the broker's load before it reuses one.
	CqHead uint64
	// CqHeadPad keeps the line.
	CqHeadPad [120]byte
	// ClientBell is the client's futex word: the broker adds 1 after CqTail, then looks at ClientSleeping.
	ClientBell uint32
	// ClientBellPad keeps the line.
	ClientBellPad [124]byte
	// ClientSleeping counts threads of the client that wait on ClientBell: each adds 1 before it waits, on the value that ClientBell had before it last looked at CqTail.
	ClientSleeping uint32
	// ClientSleepingPad keeps the line.
	ClientSleepingPad [124]byte
	// PinHighWater: the client stores it before it first uses a pin slot at or above it; the broker scans below it.
	PinHighWater uint32
	// PinReserved is 0.
	PinReserved uint32
	// PinnedBytes is how many bytes the client's library counts as pinned; for display.
	PinnedBytes uint64
	// PinHighWaterPad keeps the line.
	PinHighWaterPad [112]byte
}

// PinSlot is a reader's claim that keeps versions alive (rules V1, V2).
// The client stores Attribute first, Epoch last; a release stores Epoch = 0
// with a full barrier. The broker stores Epoch only for op PIN.
type PinSlot struct {
	_ structs.HostLayout

	// Epoch is the epoch that is read; 0 means free.
	Epoch uint64
	// Attribute is the column's index, or PinAll.
	Attribute uint32
	// Reserved is 0.
	Reserved uint32
}

// PinAll in PinSlot.Attribute pins every column.
const PinAll = 0xffffffff

// Default sizes of a channel (rule R1) and the bounds of what a client may ask for.
const (
	// SqEntriesDefault is the submission ring's size.
	SqEntriesDefault = 256
	// CqEntriesDefault is the completion ring's size.
	CqEntriesDefault = 512
	// RingEntriesMax bounds both.
	RingEntriesMax = 32768
	// PinCountDefault is the number of pin slots.
	PinCountDefault = 4096
	// PinCountMax bounds it.
	PinCountMax = 65536
	// ArgumentBytesDefault is the argument area's size.
	ArgumentBytesDefault = 1 << 20
	// ResultBytesDefault is the result area's size.
	ResultBytesDefault = 1 << 20
	// AreaBytesMax bounds both areas.
	AreaBytesMax = 64 << 20
	// InlineBytesMax is the largest payload that clients put into the argument area; larger ones are staged in a block.
	InlineBytesMax = 64 << 10
)

// SubmissionEntry is one operation as the client hands it over.
type SubmissionEntry struct {
	_ structs.HostLayout

	// OpID is the client's number for it, from 1, growing; echoed in the completion.
	OpID uint64
	// Opcode is one of the Op constants.
	Opcode uint32
	// Flags are Op flag bits.
	Flags uint32
	// Handle is a query or a session, as the opcode says.
	Handle uint64
	// Ordinal is the application's ordering key.
	Ordinal uint64
	// Value is the opcode's own operand.
	Value uint64
	// ArgumentOffsetBytes counts from the start of the argument area; 8-byte aligned.
	ArgumentOffsetBytes uint32
	// ArgumentBytes is the length of the arguments.
	ArgumentBytes uint32
	// ResultOffsetBytes counts from the start of the result area; 8-byte aligned.
	ResultOffsetBytes uint32
	// ResultBytes is the room for the results, or for the text of an error.
	ResultBytes uint32
	// Reserved is 0.
	Reserved uint64
}

// CompletionEntry is the outcome of one operation; each op has exactly one.
type CompletionEntry struct {
	_ structs.HostLayout

	// OpID echoes the submission.
	OpID uint64
	// Status is a Status.
	Status uint32
	// ResultBytes is how many bytes of results, or of text when Status is not OK, lie in the op's result room.
	ResultBytes uint32
	// Handle is the handle made, where the op makes one.
	Handle uint64
	// Value is the opcode's own result.
	Value uint64
	// Ordinal is the ordinal that the op ended up with (NEXT_ORDINAL), else the one submitted.
	Ordinal uint64
	// Epoch is the epoch that a seal published, else the current one.
	Epoch uint64
	// Count is the number of results, where the op has a list of them.
	Count uint64
	// Flags are Completion bits.
	Flags uint32
	// Reserved is 0.
	Reserved uint32
}

// Completion flags.
const (
	// CompletionSealedMaybe: BROKER_RESTARTED at or below the floor: it may have been sealed (rule B1).
	CompletionSealedMaybe = 1 << 0
	// CompletionAdopted: the block became the version itself.
	CompletionAdopted = 1 << 1
	// CompletionAdoptRefused: the block could have been adopted but live exports forbade it.
	CompletionAdoptRefused = 1 << 2
)
