package protocol

import "structs"

// The directory is what readers need to find data without the broker. The
// broker writes it, clients map it read-only (rule D7 of the design; rules
// V1–V9). Its root is one object of DirectoryBytes; everything that grows lies in
// broker segments and is reached by Ref.
//
//	root ─ AttributePages[k] ─▶ AttributeEntry ─ SlotPage ─▶ VersionSlot ─▶ block (rows)
//	  │                                                       └──────▶ LayoutHeader, LayoutRow
//	  ├─ StringPages[k] ─▶ StringEntry ─▶ bytes
//	  ├─ SegmentPages[k] ─▶ SegmentEntry
//	  └─ Records[0..1] ─ Pages[k] ─▶ RecordEntry
//
// Pages double: page k of a table holds base<<k entries (PagePlace). A page is
// filled with zeros, then its Ref is stored, then the table's count.

// DirectoryHeader is the root.
type DirectoryHeader struct {
	_ structs.HostLayout

	// Header is the region's header.
	Header RegionHeader
	// HeaderPad keeps the line.
	HeaderPad [64]byte

	// Epoch is the newest published epoch; 0 before the first seal. The broker
	// stores it last in a seal (rule V6); its low 32 bits are the futex word that
	// readers wait on.
	Epoch uint64
	// EpochPad keeps the line.
	EpochPad [120]byte
	// HorizonAny is the highest horizon of all attributes (rule V2); checked by pins of PinAll.
	HorizonAny uint64
	// HorizonPad keeps the line.
	HorizonPad [120]byte
	// Sleeping is 1 while the broker waits or is about to wait on the doorbell (rule R3).
	Sleeping uint32
	// SleepingPad keeps the line.
	SleepingPad [124]byte

	// BrokerIncarnation is this life of the broker.
	BrokerIncarnation uint64
	// StartedNs is when it started, Unix time.
	StartedNs uint64
	// PinnedBytesMax is how many bytes of distinct versions one client may pin (rule V7); it may change when a device comes.
	PinnedBytesMax uint64
	// MemoryBytesMax is the pool's limit.
	MemoryBytesMax uint64
	// UnsealedBytesMax is how many unsealed bytes may wait (rule O2); it may change when a device comes.
	UnsealedBytesMax uint64
	// IdentityTag is the upper 24 bits of every path and token id of this generation (rule L3).
	IdentityTag uint64
	// RetainDefault is how many versions an attribute keeps unless it says otherwise.
	RetainDefault uint32
	// HandoffDefaultMode is HandoffAdopt or HandoffCopy.
	HandoffDefaultMode uint32
	// AttributeCount is the number of columns, column 0 (the floors) included; stored after the entry is complete.
	AttributeCount uint32
	// RetiredCount grows by one with every retired segment.
	RetiredCount uint32
	// StringCount is the number of interned strings; stored after the entry is complete.
	StringCount uint64
	// SegmentCount is the number of segments ever made; id i has entry i-1.
	SegmentCount uint64
	// ReservedConfig is 0.
	ReservedConfig [40]byte
	// StageName is the stage's name, zero-padded.
	StageName [32]byte
	// HostName is the host token of the NATS subjects, zero-padded.
	HostName [64]byte
	// ReservedName is 0.
	ReservedName [296]byte

	// AttributePages hold AttributeEntry, base AttributePageBase.
	AttributePages [24]Ref
	// StringPages hold StringEntry, base StringPageBase.
	StringPages [28]Ref
	// SegmentPages hold SegmentEntry, base SegmentPageBase.
	SegmentPages [24]Ref
	// Records are the two recovery records (rule B2); a seal writes number Epoch modulo 2.
	Records [2]RecordHeader
}

// Bases of the doubling tables: page k holds base<<k entries.
const (
	// AttributePageBase is for AttributePages.
	AttributePageBase = 64
	// StringPageBase is for StringPages.
	StringPageBase = 256
	// SegmentPageBase is for SegmentPages.
	SegmentPageBase = 64
	// RecordPageBase is for RecordHeader.Pages.
	RecordPageBase = 256
)

// AttributeEntry is one column: one schema of one name (rule L6). Indices are
// never given to another column.
type AttributeEntry struct {
	_ structs.HostLayout

	// NameID is the token id of the name.
	NameID uint64
	// State is AttributeFree or AttributeLive; stored last.
	State uint32
	// Flags are Attribute bits.
	Flags uint32
	// Schema is the column's schema; never changes.
	Schema Schema
	// RowBytes is the size of one row (fixed kind).
	RowBytes uint64
	// Retain is how many versions stay readable.
	Retain uint32
	// Handoff is HandoffAdopt or HandoffCopy.
	Handoff uint32
	// TombstonesNext is the ring that is about to replace Tombstones, for the recovery of a broker that was killed
	// meanwhile; Segment 0: none. Readers ignore it.
	TombstonesNext BlockRef

	// Horizon: no reader may start to read a version that died at or before it; only rises (rules V2, V3).
	Horizon uint64
	// SlotPages is the first SlotPage.
	SlotPages Ref
	// LatestSlot is the place in the chain of the newest version: a hint, checked like any slot.
	LatestSlot uint64
	// VersionCount counts versions published.
	VersionCount uint64
	// AdoptedCount counts versions that were adopted.
	AdoptedCount uint64
	// ScatteredCount counts versions that were scattered or copied.
	ScatteredCount uint64
	// AdoptRefusedCount counts adoptions that live exports forbade (rule M1).
	AdoptRefusedCount uint64
	// CopiedBytes counts bytes that the broker copied for this column.
	CopiedBytes uint64
	// Tombstones is where TombstoneCapacity entries TombstoneRow lie, used as a ring (rule O7); Segment 0: nothing was deleted yet.
	Tombstones Ref
	// TombstoneCount is the number of deletes ever; delete i lies in entry i modulo TombstoneCapacity. Stored after the entry.
	TombstoneCount uint64
	// TombstoneCapacity is the ring's size, a power of two.
	TombstoneCapacity uint64
	// FrontierOrdinal is the retention frontier: changes above it are known exactly (behaviour 119).
	FrontierOrdinal uint64
	// ReservedTail is 0.
	ReservedTail [16]byte
}

// States of a column.
const (
	// AttributeFree: never used.
	AttributeFree = 0
	// AttributeLive: in use.
	AttributeLive = 1
)

// FloorColumn is the index of the column that holds the floors (rule V9).
const FloorColumn = 0

// SlotsPerPage is the number of version slots in a SlotPage.
const SlotsPerPage = 31

// SlotPage is a link in an attribute's chain of version slots; a chain grows
// without limit and never shrinks.
type SlotPage struct {
	_ structs.HostLayout

	// Next is the next page; Segment 0 at the end. OffsetBytes is stored before Segment.
	Next Ref
	// Attribute is the column's index.
	Attribute uint64
	// FirstSlot is the place in the chain of Slots[0].
	FirstSlot uint64
	// FirstRecord is the index in the recovery records of Slots[0]; the others follow.
	FirstRecord uint64
	// Reserved is 0.
	Reserved [88]byte
	// Slots are the versions; a slot that was never used has birth Infinite.
	Slots [SlotsPerPage]VersionSlot
}

// VersionSlot is one version of one column (rule V4). Refill: Birth = Infinite,
// Death = Infinite, the other fields, Birth last. A reader loads Birth, Death,
// the other fields, Birth again, and skips the slot when Birth is above its epoch
// or has changed.
type VersionSlot struct {
	_ structs.HostLayout

	// Birth is the epoch that published the version, and the slot's sequence word; Infinite: none.
	Birth uint64
	// Death is the epoch that replaced it; Infinite while it lives.
	Death uint64
	// Block holds the rows (fixed kind), the table of RowRef (array kind), the FloorTable (column 0).
	Block BlockRef
	// Rows is the number of rows; rows beyond it in the layout are not of this version.
	Rows uint64
	// OrdinalLowest is the lowest ordinal written in it (rule O4).
	OrdinalLowest uint64
	// OrdinalHighest is the highest ordinal written in it.
	OrdinalHighest uint64
	// LayoutGeneration changes exactly when membership or the row map changes.
	LayoutGeneration uint64
	// Layout is where the LayoutHeader lies.
	Layout Ref
	// RowOrdinals is where uint64 ordinals, one a row, lie; Segment 0: all rows are of OrdinalHighest.
	RowOrdinals Ref
	// ArenaGeneration is the life of the broker that made the arena, its StartedNs (rule B3); 0 for host memory.
	ArenaGeneration uint64
	// Flags are Version bits.
	Flags uint32
	// DeviceNumber is 0 for host memory, else 1 + the broker's index of the device: Block.Segment is an arena there (rule C1).
	DeviceNumber uint32
	// StampNs is the seal's time in ns.
	StampNs uint64
}

// Version flags.
const (
	// VersionAdopted: the block is a producer's own.
	VersionAdopted = 1 << 0
)

// LayoutHeader starts a layout: which prim has which row. LayoutRow entries
// follow. A layout only gains rows (rule L2); a version says how many are its own.
type LayoutHeader struct {
	_ structs.HostLayout

	// LayoutID is the layout's number within the generation.
	LayoutID uint64
	// Capacity is the number of rows that there is room for.
	Capacity uint64
	// Reserved is 0.
	Reserved [48]byte
}

// LayoutRow is one row of a layout.
type LayoutRow struct {
	_ structs.HostLayout

	// PathID is the prim's path.
	PathID uint64
	// Birth is the epoch from which the row is there.
	Birth uint64
	// Death is the epoch from which it is not; Infinite while it is.
	Death uint64
}

// RowRef is one row of an array-kind version.
type RowRef struct {
	_ structs.HostLayout

	// Segment is the segment's id; 0 with LengthBytes 0: an empty row.
	Segment uint64
	// OffsetBytes counts from the first byte of the segment.
	OffsetBytes uint64
	// LengthBytes is the row's size.
	LengthBytes uint64
}

// TombstoneRow is one delete of one prim (rule O7). The broker stores Epoch =
// Infinite, the other fields, then Epoch; a reader loads Epoch, the others, Epoch
// again, and skips the entry when it changed or is above the reader's epoch.
type TombstoneRow struct {
	_ structs.HostLayout

	// PathID is the prim.
	PathID uint64
	// Ordinal is the ordinal of the delete.
	Ordinal uint64
	// Epoch is the epoch that shows it.
	Epoch uint64
}

// FloorTable is the block of column 0's versions: the floors of one epoch (rule V9).
type FloorTable struct {
	_ structs.HostLayout

	// GlobalFloor is the lowest floor of all known attributes (behaviour 112).
	GlobalFloor uint64
	// DefaultFloor is the last floor that was sealed for ALL: that of every name without a row (behaviour 114).
	DefaultFloor uint64
	// StampNs is the time of the seal, the application's or the broker's.
	StampNs uint64
	// Count is the number of FloorRow that follow.
	Count uint64
	// Reserved is 0.
	Reserved [32]byte
}

// FloorRow is the floor of one attribute name.
type FloorRow struct {
	_ structs.HostLayout

	// NameID is the attribute's token id.
	NameID uint64
	// Floor is its write floor.
	Floor uint64
}

// StringEntry is one interned string. Entry i has id IdentityTag<<40 | i+1.
type StringEntry struct {
	_ structs.HostLayout

	// Bytes is where the text lies: UTF-8, no terminator.
	Bytes Ref
	// LengthBytes is its length.
	LengthBytes uint32
	// Sort is StringToken or StringPath.
	Sort uint32
	// Hash is HashString of the text.
	Hash uint64
}

// SegmentEntry tells about segment i+1.
type SegmentEntry struct {
	_ structs.HostLayout

	// Segment is the id.
	Segment uint64
	// SizeBytes is the size of the object.
	SizeBytes uint64
	// OwnerIncarnation is the client that may write it, 0 for the broker.
	OwnerIncarnation uint64
	// State is one of the Segment states.
	State uint32
	// Sort is SegmentBroker, SegmentClient or SegmentShared; with SegmentOnDevice it is a device arena (rule C1).
	Sort uint32
}

// RecordHeader is a recovery record's head (rule B2). Checksum is stored last
// and commits the record; it is RecordChecksum over the header's own words and
// the sum of RecordEntryHash over the entries.
type RecordHeader struct {
	_ structs.HostLayout

	// Epoch is the epoch that the record describes.
	Epoch uint64
	// EntryCount is how many entries are in use or have been.
	EntryCount uint64
	// EntrySum is the sum of RecordEntryHash over entries 0 to EntryCount-1.
	EntrySum uint64
	// AttributeCount, StringCount, SegmentCount, LayoutGeneration are the tables' sizes at that epoch.
	AttributeCount uint64
	// StringCount is the number of strings.
	StringCount uint64
	// SegmentCount is the number of segments.
	SegmentCount uint64
	// LayoutGeneration is the last one given out.
	LayoutGeneration uint64
	// Checksum commits the record.
	Checksum uint64
	// Pages hold RecordEntry, base RecordPageBase.
	Pages [24]Ref
}

// RecordEntry tells about one version slot that is not free: also about dead
// versions that are not reclaimed. All zero: the slot is free.
type RecordEntry struct {
	_ structs.HostLayout

	// AttributeSlot is the column's index << 32 | the slot's place in the chain.
	AttributeSlot uint64
	// Birth is the version's birth; 0 marks a free entry.
	Birth uint64
	// Death is the version's death.
	Death uint64
	// Block is the version's block.
	Block BlockRef
	// Rows is the number of rows.
	Rows uint64
	// LayoutGeneration is that of the version.
	LayoutGeneration uint64
}

// PagePlace tells where entry i of a doubling table lies: page k and the place
// in it. Page k holds base<<k entries.
func PagePlace(base, i uint64) (page int, place uint64) {
	for n := base; i >= n; n <<= 1 {
		i -= n
		page++
	}
	return page, i
}

// StringID is the id of entry i of the string table (rule L3): the generation's
// tag in the upper 24 bits, i+1 in the lower 40. It is never 0.
func StringID(tag, i uint64) uint64 { return tag<<40 | (i + 1) }

// StringIndex is the inverse of StringID; ok is false for 0 and for the id of
// another generation.
func StringIndex(tag, id uint64) (i uint64, ok bool) {
	low := id & (1<<40 - 1)
	if low == 0 || id>>40 != tag&(1<<24-1) {
		return 0, false
	}
	return low - 1, true
}

// IdentityTagOf is the 24-bit tag of a generation: its number mixed, never 0.
func IdentityTagOf(generation uint64) uint64 {
	if tag := mix(generation) >> 40; tag != 0 {
		return tag
	}
	return 1
}

// HashString is FNV-1a, 64 bits, of the text (Fowler, Noll, Vo).
func HashString(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := 0; i < len(s); i++ {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return h
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	x ^= x >> 31
	return x
}

// RecordEntryHash is the hash of a record's entry at index i; 0 for a free entry,
// so that a sum over many needs only the changed ones (rule B2).
func RecordEntryHash(i uint64, e *RecordEntry) uint64 {
	if e.Birth == 0 {
		return 0
	}
	h := mix(i + 0x9e3779b97f4a7c15)
	for _, w := range [...]uint64{e.AttributeSlot, e.Birth, e.Death, e.Block.Segment,
		e.Block.OffsetBytes, e.Block.LengthBytes, e.Rows, e.LayoutGeneration} {
		h = mix(h ^ w)
	}
	return h
}

// RecordChecksum is the checksum of a record's header, Checksum and Pages left
// out; never 0.
func RecordChecksum(r *RecordHeader) uint64 {
	h := uint64(0x43424452) // "CBDR" with R first: any fixed start will do
	for _, w := range [...]uint64{r.Epoch, r.EntryCount, r.EntrySum, r.AttributeCount,
		r.StringCount, r.SegmentCount, r.LayoutGeneration} {
		h = mix(h ^ w)
	}
	if h == 0 {
		return 1
	}
	return h
}
