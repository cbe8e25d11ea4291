package protocol

// The ABI's version. A change of the major number is refused at attach with
// both versions named; a minor number only adds.
//
// 1.0: first layout. Holds what fixed and array kinds, index maps, masks,
// overlays, row ordinals and device memory need, so that adding them moves no
// offset.
const (
	// ABIMajor changes when an older peer would read something wrong.
	ABIMajor = 1
	// ABIMinor changes when something was added that an older peer can ignore.
	ABIMinor = 0
	// VersionWord is what RegionHeader.Version and MessageHeader.Version hold.
	VersionWord = ABIMajor<<16 | ABIMinor
)

// Magic numbers: the first eight bytes of a region (read as text they name it)
// and the first four bytes of a message.
const (
	// MagicDirectory reads "CBDDIREC".
	MagicDirectory = 0x4345524944444243
	// MagicChannel reads "CBDCHANL".
	MagicChannel = 0x4c4e414843444243
	// MagicSegment reads "CBDSEGMT".
	MagicSegment = 0x544d474553444243
	// MagicDoorbell reads "CBDDOORB".
	MagicDoorbell = 0x42524f4f44444243
	// MagicMessage reads "CBDM".
	MagicMessage = 0x4d444243
)

// Feature bits, in RegionHeader.Features, HelloRequest.Features and
// HelloReply.Features. A peer uses only what both sides set.
const (
	// FeatureFixed: attributes of fixed kind.
	FeatureFixed = 1 << 0
	// FeatureArray: attributes of array (ragged) kind.
	FeatureArray = 1 << 1
	// FeatureOverlays: more than one unsealed ordinal for each attribute.
	FeatureOverlays = 1 << 2
	// FeatureRecovery: sealed data survives a restart of the broker.
	FeatureRecovery = 1 << 3
	// FeatureDevice: device memory.
	FeatureDevice = 1 << 4
	// FeatureSelection: count, index map and mask on writes and unmaps.
	FeatureSelection = 1 << 5
	// FeatureDelete: deletes and tombstones.
	FeatureDelete = 1 << 6
	// FeatureFilter: queries by filter, and lists of what they found.
	FeatureFilter = 1 << 7
)

// VersionText formats a version word as "major.minor".
func VersionText(word uint32) string {
	return itoa(word>>16) + "." + itoa(word&0xffff)
}

func itoa(v uint32) string {
	var buf [10]byte
	i := len(buf)
	for {
		i--
		buf[i] = byte('0' + v%10)
		if v /= 10; v == 0 {
			return string(buf[i:])
		}
	}
}
