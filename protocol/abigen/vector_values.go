package main

import "callboard/protocol"

// One small story runs through the vectors: client "cameras" of stage "world" writes
// and maps attribute "position" of prims /World/A and /World/B. Numbers that mean
// different things differ, so that two fields that change places are noticed.
const (
	generation   = 0x0123456789abcdef
	client       = 0xc11e47c11e47c11e
	broker       = 0xb40ce4b40ce4b40c
	tag          = 0xabcdef
	pathA        = tag<<40 | 1
	pathB        = tag<<40 | 2
	position     = tag<<40 | 3
	mib          = 1 << 20
	floorBefore  = 41
	channelBytes = 6402048 // 4096 + 128*64 + 1024*64 + 2048*16 + 2 MiB + 4 MiB
	ordinal      = 42
)

var vec3 = protocol.Schema{
	Kind: protocol.KindFixed, Semantic: 7, DtypeCode: 2, DtypeBits: 32, DtypeLanes: 3,
	DeviceType: 1, RowDimensions: 2, RowShape: [6]uint64{4, 5},
}

var ragged = protocol.Schema{
	Kind: protocol.KindArray, Semantic: 9, DtypeCode: 0, DtypeBits: 16, DtypeLanes: 1,
	DeviceType: 1, RowDimensions: 1, RowShape: [6]uint64{8},
}

var onDevice = protocol.Schema{
	Kind: protocol.KindFixed, Semantic: 3, DtypeCode: 1, DtypeBits: 8, DtypeLanes: 4,
	DeviceType: 2, DeviceID: 6, RowDimensions: 6, RowShape: [6]uint64{2, 3, 4, 5, 6, 7},
}

func region(magic uint64, headerBytes uint32, sizeBytes, id, owner uint64) protocol.RegionHeader {
	return protocol.RegionHeader{
		Magic: magic, Version: protocol.VersionWord, HeaderBytes: headerBytes, SizeBytes: sizeBytes,
		Generation: generation, RegionID: id, OwnerIncarnation: owner,
		Features: protocol.FeatureFixed | protocol.FeatureArray | protocol.FeatureSelection,
	}
}

func message(sort, sizeBytes uint32) protocol.MessageHeader {
	return protocol.MessageHeader{Magic: protocol.MagicMessage, Version: protocol.VersionWord, Type: sort, SizeBytes: sizeBytes}
}

func name64(s string) (out [64]byte) { copy(out[:], s); return }
func name32(s string) (out [32]byte) { copy(out[:], s); return }

func sixteen(first byte) (out [16]byte) {
	for i := range out {
		out[i] = first + byte(i)
	}
	return
}

func sixtyFour(first byte) (out [64]byte) {
	for i := range out {
		out[i] = first + byte(i)
	}
	return
}

func refusal(s string) (out [488]byte) { copy(out[:], s); return }

func slot() protocol.VersionSlot {
	return protocol.VersionSlot{
		Birth: 17, Death: protocol.Infinite,
		Block: protocol.BlockRef{Segment: 3, OffsetBytes: 4096, LengthBytes: 480},
		Rows:  2, OrdinalLowest: floorBefore, OrdinalHighest: ordinal, LayoutGeneration: 5,
		Layout:          protocol.Ref{Segment: 4, OffsetBytes: 8192},
		RowOrdinals:     protocol.Ref{Segment: 6, OffsetBytes: 12288},
		ArenaGeneration: 19, Flags: protocol.VersionAdopted, DeviceNumber: 11, StampNs: 1_500_000_000,
	}
}

func slotPage() protocol.SlotPage {
	page := protocol.SlotPage{
		Next: protocol.Ref{Segment: 2, OffsetBytes: 20480}, Attribute: 1, FirstSlot: 31, FirstRecord: 93,
	}
	for i := range page.Slots {
		page.Slots[i].Birth, page.Slots[i].Death = protocol.Infinite, protocol.Infinite
	}
	page.Slots[0] = slot()
	return page
}

func record(epoch uint64) protocol.RecordHeader {
	r := protocol.RecordHeader{
		Epoch: epoch, EntryCount: 124, EntrySum: 0xfeedfacecafebeef + epoch, AttributeCount: 2, StringCount: 3,
		SegmentCount: 6, LayoutGeneration: 5,
	}
	r.Checksum = protocol.RecordChecksum(&r)
	r.Pages[0] = protocol.Ref{Segment: 1, OffsetBytes: 65536 + epoch*256}
	return r
}

func directory() protocol.DirectoryHeader {
	d := protocol.DirectoryHeader{
		Header: region(protocol.MagicDirectory, 3136, protocol.DirectoryBytes, 0, 0),
		Epoch:  17, HorizonAny: 13, Sleeping: 1, BrokerIncarnation: broker, StartedNs: 1_400_000_000,
		PinnedBytesMax: 256 * mib, MemoryBytesMax: 4096 * mib, UnsealedBytesMax: 512 * mib, IdentityTag: tag,
		RetainDefault: 8, HandoffDefaultMode: protocol.HandoffAdopt, AttributeCount: 2, RetiredCount: 9,
		StringCount: 3, SegmentCount: 6, StageName: name32("world"), HostName: name64("bench-1"),
		Records: [2]protocol.RecordHeader{record(16), record(17)},
	}
	d.AttributePages[0] = protocol.Ref{Segment: 1, OffsetBytes: 4096}
	d.AttributePages[23] = protocol.Ref{Segment: 5, OffsetBytes: 4352}
	d.StringPages[0] = protocol.Ref{Segment: 1, OffsetBytes: 24576}
	d.StringPages[27] = protocol.Ref{Segment: 5, OffsetBytes: 24832}
	d.SegmentPages[0] = protocol.Ref{Segment: 1, OffsetBytes: 32768}
	d.SegmentPages[23] = protocol.Ref{Segment: 5, OffsetBytes: 33024}
	return d
}

// vectors are the files of protocol/testdata/vectors, in the order of the protocol.
var vectors = []vector{
	{"doorbell", "The doorbell after 1234 rings.", []any{protocol.Doorbell{
		Header: region(protocol.MagicDoorbell, 256, protocol.DoorbellBytes, 0, 0), Rings: 1234,
	}}},
	{"hello_request", "A Go client asks to take up its channel again after a restart of the broker.", []any{protocol.HelloRequest{
		Header: message(protocol.MessageHelloRequest, 256), Features: protocol.FeatureFixed | protocol.FeatureDelete,
		Incarnation: client, Generation: generation, Flags: protocol.AttachGuard | protocol.AttachReadOnly,
		Language: protocol.LanguageGo, Pid: 4711, SqEntries: 128, CqEntries: 1024, PinCount: 2048,
		ArgumentBytes: 2 * mib, ResultBytes: 4 * mib, Name: name64("cameras"),
	}}},
	{"hello_reply", "The broker grants it.", []any{protocol.HelloReply{
		Header: message(protocol.MessageHelloReply, 256), Features: protocol.FeatureFixed, Incarnation: client,
		Generation: generation, BrokerIncarnation: broker, ChannelBytes: channelBytes, DirectoryBytes: protocol.DirectoryBytes,
		DoorbellBytes: protocol.DoorbellBytes, RingGeneration: 2, Reattached: 1, DeviceCount: 8,
	}}},
	{"segment_request", "The client asks for segment 3.", []any{protocol.SegmentRequest{
		Header: message(protocol.MessageSegmentRequest, 32), Segment: 3,
	}}},
	{"segment_reply", "The client's own staging segment, writable.", []any{protocol.SegmentReply{
		Header: message(protocol.MessageSegmentReply, 56), Segment: 3, SizeBytes: 64 * mib, OwnerIncarnation: client,
		Status: uint32(protocol.StatusOK), Sort: protocol.SegmentClient, Writable: 1,
	}}},
	{"error_reply", "An attach is refused: the peer speaks another major version.", []any{protocol.ErrorReply{
		Header: message(protocol.MessageErrorReply, 512), Status: uint32(protocol.StatusIncompatibleVersion),
		BrokerVersion: protocol.VersionWord, Text: refusal("this broker speaks 1.0, the client 2.0: update the broker"),
	}}},
	{"takeover_request", "A starting broker asks the running one to leave.", []any{protocol.TakeoverRequest{
		Header: message(protocol.MessageTakeoverRequest, 32), Generation: generation,
	}}},
	{"takeover_reply", "The running broker stays: another user asked.", []any{protocol.TakeoverReply{
		Header: message(protocol.MessageTakeoverReply, 32), Generation: generation, Status: uint32(protocol.StatusAccessDenied),
	}}},
	{"device_request", "The client asks for the handle of event 12.", []any{protocol.DeviceRequest{
		Header: message(protocol.MessageDeviceRequest, 32), Sort: protocol.DeviceEvent, Index: 12,
	}}},
	{"device_reply", "The handle of arena 11 on device 6.", []any{protocol.DeviceReply{
		Header: message(protocol.MessageDeviceReply, 128), Status: uint32(protocol.StatusOK), Sort: protocol.DeviceArena,
		Index: 11, DeviceID: 6, ArenaGeneration: 19, SizeBytes: 1024 * mib, Uuid: sixteen(0xa0), Handle: sixtyFour(0x80),
	}}},
	{"channel_header", "A channel with rings of unequal size.", []any{protocol.ChannelHeader{
		Header: region(protocol.MagicChannel, 256, channelBytes, client, client), BrokerIncarnation: broker, RingGeneration: 2,
		SqOffsetBytes: 4096, CqOffsetBytes: 12288, PinOffsetBytes: 77824, ArgumentOffsetBytes: 110592,
		ResultOffsetBytes: 2207744, ArgumentBytes: 2 * mib, ResultBytes: 4 * mib, SqEntries: 128, CqEntries: 1024,
		PinCount: 2048, Flags: protocol.AttachGuard, Name: name64("cameras"),
	}}},
	{"channel_control", "Five ops submitted, four taken, three completed, two seen; one thread sleeps.", []any{protocol.ChannelControl{
		SqTail: 5, SqHead: 4, CqTail: 3, CqHead: 2, ClientBell: 77, ClientSleeping: 1, PinHighWater: 6, PinnedBytes: 960,
	}}},
	{"pin_slot", "Epoch 17 of every column, then a free slot.", []any{
		protocol.PinSlot{Epoch: 17, Attribute: protocol.PinAll}, protocol.PinSlot{Attribute: 1},
	}},
	{"submission_entry", "A write of query 21 at ordinal 42, sealed in the same step, then a claim of group 1.", []any{
		protocol.SubmissionEntry{
			OpID: 5, Opcode: protocol.OpWrite, Flags: protocol.FlagSeal, Handle: 21, Ordinal: ordinal,
			ArgumentOffsetBytes: 64, ArgumentBytes: 184, ResultOffsetBytes: 128, ResultBytes: 256,
		},
		protocol.SubmissionEntry{
			OpID: 6, Opcode: protocol.OpClaimGroup, Handle: 22, Value: 1, ResultOffsetBytes: 384, ResultBytes: 128,
		},
	}},
	{"completion_entry", "A write that was sealed and adopted, then one that was refused with 57 bytes of text.", []any{
		protocol.CompletionEntry{
			OpID: 5, Status: uint32(protocol.StatusOK), Handle: 22, Value: floorBefore, Ordinal: ordinal, Epoch: 17, Count: 2,
			Flags: protocol.CompletionAdopted,
		},
		protocol.CompletionEntry{
			OpID: 6, Status: uint32(protocol.StatusFloorViolation), ResultBytes: 57, Ordinal: floorBefore, Epoch: 18,
			Flags: protocol.CompletionSealedMaybe | protocol.CompletionAdoptRefused,
		},
	}},
	{"string_list", "Two paths and an empty string; 17 bytes take 3 bytes of padding, an empty one none.", []any{
		protocol.StringList{Count: 3, TotalBytes: 52},
		[]uint32{8}, text{"/World/A", 4}, []uint32{17}, text{"/World/B/subprim1", 4}, []uint32{0},
	}},
	{"filter_arguments", "Sealed prims that carry position and whose path is one of two; of what they carry only position is reported.", []any{
		protocol.FilterArguments{PredicateCount: 2, Flags: protocol.FilterSealed, AttributesOffsetBytes: 64},
		protocol.FilterPredicate{Relation: protocol.FilterHas, NameBytes: 8, NameOffsetBytes: 48},
		protocol.FilterPredicate{Relation: protocol.FilterIn, NameBytes: 5, NameOffsetBytes: 56, ValuesOffsetBytes: 84},
		text{"position", 8}, text{"@path", 8},
		protocol.StringList{Count: 1, TotalBytes: 20}, []uint32{8}, text{"position", 4},
		protocol.StringList{Count: 2, TotalBytes: 32}, []uint32{8}, text{"/World/A", 4}, []uint32{8}, text{"/World/B", 4},
	}},
	{"write_arguments", "Both prims get vectors of three float32 from rows that lie in staging segment 3.", []any{
		protocol.WriteArguments{EntryCount: 1, PrimMode: protocol.ModeInsert},
		protocol.WriteEntry{
			Schema: vec3, Payload: protocol.BlockRef{Segment: 3, OffsetBytes: 4096, LengthBytes: 480}, PayloadRows: 2,
			NameOffsetBytes: 176, NameBytes: 8, Selection: protocol.Selection{Count: protocol.All},
		},
		text{"position", 8},
	}},
	{"write_ragged", "Rows of unequal length, gathered by an index map, payload within the arguments.", []any{
		protocol.WriteArguments{EntryCount: 1, PrimMode: protocol.ModeUpsert},
		protocol.WriteEntry{
			Schema: ragged, Payload: protocol.BlockRef{OffsetBytes: 216, LengthBytes: 80}, PayloadRows: 2,
			NameOffsetBytes: 176, NameBytes: 5,
			Selection:               protocol.Selection{Count: 4, Sort: protocol.SelectIndexMap, WordsOffsetBytes: 184, WordCount: 4},
			ElementSizesOffsetBytes: 200, ElementSizesCount: 2,
		},
		text{"words", 8}, []uint32{1, 0, 1, 0}, []uint64{3, 2},
	}},
	{"map_arguments", "A map session in device memory, two rows a group, filled with what is sealed.", []any{protocol.MapArguments{
		Schema: onDevice, NameOffsetBytes: 128, NameBytes: 8, PrimMode: protocol.ModeInsert, Init: protocol.InitCurrent,
		GroupRows: 2, ElementSizesOffsetBytes: 136, ElementSizesCount: 3, StagingType: 2, StagingID: 6,
	}, text{"position", 8}, []uint64{4, 5, 6}}},
	{"unmap_arguments", "Only elements 0 and 2 of the group are committed.", []any{protocol.UnmapArguments{
		Selection:  protocol.Selection{Count: 3, Sort: protocol.SelectMask, WordsOffsetBytes: 32, WordCount: 1},
		EventIndex: 12, EventUsed: 1,
	}, []uint64{5}}},
	{"seal_arguments", "A seal with the application's time, for one attribute by name.", []any{
		protocol.SealArguments{StampNs: 1_500_000_000},
		protocol.StringList{Count: 1, TotalBytes: 20}, []uint32{8}, text{"position", 4},
	}},
	{"declare_arguments", "An attribute that keeps 16 versions and is always copied.", []any{protocol.DeclareArguments{
		Schema: vec3, NameOffsetBytes: 88, NameBytes: 8, Retain: 16, Handoff: protocol.HandoffCopy,
	}, text{"position", 8}}},
	{"group_descriptor", "Group 1 of session 22, claimed again after its first claimer died.", []any{protocol.GroupDescriptor{
		Session: 22, Ordinal: ordinal, Block: protocol.BlockRef{Segment: 3, OffsetBytes: 4608, LengthBytes: 480},
		Rows: 2, FirstPrim: 4, PrimCount: 3, GroupIndex: 1, Attempt: 5, Column: protocol.NoColumn, State: protocol.GroupUnmapped,
		ElementSizesOffsetBytes: 160, DeviceNumber: 11, ArenaGeneration: 19, EventIndex: 12, LeaseBytes: 8192, PrimsOffsetBytes: 512,
	}}},
	{"mirror_results", "A version's rows are on device 10, too.", []any{protocol.MirrorResults{
		Block: protocol.BlockRef{Segment: 7, OffsetBytes: 4096, LengthBytes: 480}, ArenaGeneration: 19, DeviceNumber: 11,
	}}},
	{"claim_results", "The second of five groups of \"position\", claimed.", []any{protocol.ClaimResults{
		Group: protocol.GroupDescriptor{
			Session: 22, Ordinal: ordinal, Block: protocol.BlockRef{Segment: 3, OffsetBytes: 4608, LengthBytes: 480},
			Rows: 2, FirstPrim: 4, PrimCount: 2, GroupIndex: 1, Attempt: 1, Column: 1, State: protocol.GroupClaimed, LeaseBytes: 8192, PrimsOffsetBytes: 480,
		},
		Schema: vec3, NameBytes: 8, GroupCount: 5,
	}, text{"position", 8}}},
	{"directory_header", "The root at epoch 17, with first and last pages of every table.", []any{directory()}},
	{"attribute_entry", "Column 1, \"position\", of which 12 versions were published.", []any{protocol.AttributeEntry{
		NameID: position, State: protocol.AttributeLive, Schema: vec3, RowBytes: 240, Retain: 8, Handoff: protocol.HandoffAdopt,
		TombstonesNext: protocol.BlockRef{Segment: 2, OffsetBytes: 32768, LengthBytes: 1536},
		Horizon:        13, SlotPages: protocol.Ref{Segment: 2, OffsetBytes: 16384}, LatestSlot: 31, VersionCount: 12, AdoptedCount: 7,
		ScatteredCount: 5, AdoptRefusedCount: 3, CopiedBytes: 1200,
	}}},
	{"version_slot", "A living version of two rows, adopted, with ordinals of its own for each row.", []any{slot()}},
	{"slot_page", "The second page of column 1: one version, the other slots never used.", []any{slotPage()}},
	{"layout_header", "Two prims; the second was deleted at epoch 18.", []any{
		protocol.LayoutHeader{LayoutID: 5, Capacity: 64},
		protocol.LayoutRow{PathID: pathA, Birth: 15, Death: protocol.Infinite},
		protocol.LayoutRow{PathID: pathB, Birth: 16, Death: 18},
	}},
	{"row_ref", "Rows of an array-kind version: 48 bytes, then an empty one.", []any{
		protocol.RowRef{Segment: 3, OffsetBytes: 5120, LengthBytes: 48}, protocol.RowRef{},
	}},
	{"tombstones", "Prim B was deleted at ordinal 17, shown by epoch 18; then an entry that is being written.", []any{
		protocol.TombstoneRow{PathID: pathB, Ordinal: 17, Epoch: 18}, protocol.TombstoneRow{PathID: pathA, Ordinal: 19, Epoch: protocol.Infinite},
	}},
	{"floor_table", "Two attributes have a floor of their own, any other name that of the last seal for ALL.", []any{
		protocol.FloorTable{GlobalFloor: 40, DefaultFloor: floorBefore, StampNs: 1_500_000_000, Count: 2},
		protocol.FloorRow{NameID: position, Floor: ordinal}, protocol.FloorRow{NameID: tag<<40 | 4, Floor: 40},
	}},
	{"string_entry", "The path /World/A and the token \"position\".", []any{
		protocol.StringEntry{
			Bytes: protocol.Ref{Segment: 1, OffsetBytes: 40960}, LengthBytes: 8, Sort: protocol.StringPath, Hash: protocol.HashString("/World/A"),
		},
		protocol.StringEntry{
			Bytes: protocol.Ref{Segment: 1, OffsetBytes: 40968}, LengthBytes: 8, Sort: protocol.StringToken, Hash: protocol.HashString("position"),
		},
	}},
	{"segment_entry", "The client's staging segment, in use.", []any{protocol.SegmentEntry{
		Segment: 3, SizeBytes: 64 * mib, OwnerIncarnation: client, State: protocol.SegmentLive, Sort: protocol.SegmentClient,
	}}},
	{"record_entry", "Slot 31 of column 1 in the recovery record, then a free entry.", []any{
		protocol.RecordEntry{
			AttributeSlot: 1<<32 | 31, Birth: 17, Death: protocol.Infinite,
			Block: protocol.BlockRef{Segment: 3, OffsetBytes: 4096, LengthBytes: 480}, Rows: 2, LayoutGeneration: 5,
		},
		protocol.RecordEntry{},
	}},
}
