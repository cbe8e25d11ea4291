package protocol

import "unsafe"

//go:generate go run ./abigen

// The build fails here when a hot struct moves: an array of one element has no index
// but 0, and a constant index is checked by the compiler. All other offsets are held
// by testdata/golden.txt, and in C by the header itself.
var (
	_ = [1]byte{}[unsafe.Sizeof(RegionHeader{})-64]
	_ = [1]byte{}[unsafe.Offsetof(RegionHeader{}.Version)-8]

	// The ring: an entry is one cache line.
	_ = [1]byte{}[unsafe.Sizeof(SubmissionEntry{})-64]
	_ = [1]byte{}[unsafe.Offsetof(SubmissionEntry{}.Opcode)-8]
	_ = [1]byte{}[unsafe.Offsetof(SubmissionEntry{}.Handle)-16]
	_ = [1]byte{}[unsafe.Offsetof(SubmissionEntry{}.Ordinal)-24]
	_ = [1]byte{}[unsafe.Offsetof(SubmissionEntry{}.Value)-32]
	_ = [1]byte{}[unsafe.Offsetof(SubmissionEntry{}.ArgumentOffsetBytes)-40]
	_ = [1]byte{}[unsafe.Offsetof(SubmissionEntry{}.ResultOffsetBytes)-48]
	_ = [1]byte{}[unsafe.Sizeof(CompletionEntry{})-64]
	_ = [1]byte{}[unsafe.Offsetof(CompletionEntry{}.Status)-8]
	_ = [1]byte{}[unsafe.Offsetof(CompletionEntry{}.ResultBytes)-12]
	_ = [1]byte{}[unsafe.Offsetof(CompletionEntry{}.Epoch)-40]
	_ = [1]byte{}[unsafe.Offsetof(CompletionEntry{}.Flags)-56]

	// The channel's words: each on its own 128 bytes (P6).
	_ = [1]byte{}[unsafe.Offsetof(ChannelControl{}.SqHead)-128]
	_ = [1]byte{}[unsafe.Offsetof(ChannelControl{}.CqTail)-256]
	_ = [1]byte{}[unsafe.Offsetof(ChannelControl{}.CqHead)-384]
	_ = [1]byte{}[unsafe.Offsetof(ChannelControl{}.ClientBell)-512]
	_ = [1]byte{}[unsafe.Offsetof(ChannelControl{}.ClientSleeping)-640]
	_ = [1]byte{}[unsafe.Offsetof(ChannelControl{}.PinHighWater)-768]
	_ = [1]byte{}[unsafe.Sizeof(ChannelHeader{})-256]
	_ = [1]byte{}[unsafe.Offsetof(Doorbell{}.Rings)-128]

	// What readers touch on every read.
	_ = [1]byte{}[unsafe.Sizeof(PinSlot{})-16]
	_ = [1]byte{}[unsafe.Offsetof(PinSlot{}.Attribute)-8]
	_ = [1]byte{}[unsafe.Sizeof(VersionSlot{})-128]
	_ = [1]byte{}[unsafe.Offsetof(VersionSlot{}.Death)-8]
	_ = [1]byte{}[unsafe.Offsetof(VersionSlot{}.Block)-16]
	_ = [1]byte{}[unsafe.Offsetof(VersionSlot{}.LayoutGeneration)-64]
	_ = [1]byte{}[unsafe.Offsetof(VersionSlot{}.StampNs)-120]
	_ = [1]byte{}[unsafe.Sizeof(SlotPage{})-4096]
	_ = [1]byte{}[unsafe.Offsetof(SlotPage{}.Slots)-128]
	_ = [1]byte{}[unsafe.Sizeof(AttributeEntry{})-256]
	_ = [1]byte{}[unsafe.Offsetof(AttributeEntry{}.Horizon)-128]
	_ = [1]byte{}[unsafe.Offsetof(DirectoryHeader{}.Epoch)-128]
	_ = [1]byte{}[unsafe.Offsetof(DirectoryHeader{}.HorizonAny)-256]
	_ = [1]byte{}[unsafe.Offsetof(DirectoryHeader{}.Sleeping)-384]
	_ = [1]byte{}[unsafe.Offsetof(DirectoryHeader{}.BrokerIncarnation)-512]
)
