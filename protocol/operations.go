package protocol

import "structs"

// Operations that travel over the ring. "arguments" and "results" name the
// structs in the op's argument and result room; when Status is not OK the result
// room holds UTF-8 text instead.
const (
	// OpNop does nothing: it completes after all earlier ops of this client were looked at.
	OpNop = 1
	// OpQueryPaths makes a query of explicit paths, or extends the query in Handle.
	// Arguments: StringList. Results: uint64 path ids of this list. Completion: Handle, Count = prims of the query so far.
	OpQueryPaths = 2
	// OpQueryFilter makes a query of the prims that satisfy all predicates; without one, of every prim.
	// Handle is 0, or ClientHandle with a number that the client has not in use: then later ops may name it at once.
	// Arguments: FilterArguments, FilterPredicate[], then what they refer to. Completion: Handle, Count = prims,
	// Value = attributes, Epoch = the sealed state that was looked at.
	OpQueryFilter = 3
	// OpQueryRelease releases the query in Handle.
	OpQueryRelease = 4
	// OpIntern interns strings; Value is StringToken or StringPath.
	// Arguments: StringList. Results: uint64 ids.
	OpIntern = 5
	// OpWrite writes one or more attributes of the query in Handle at Ordinal, all or none.
	// Arguments: WriteArguments, WriteEntry[], then what the entries refer to.
	OpWrite = 6
	// OpMap opens a map session on the query in Handle at Ordinal.
	// Arguments: MapArguments. Results: the GroupDescriptor of a session of one group, which its owner has claimed;
	// nothing for a session of several. Completion: Handle = session, Count = groups.
	OpMap = 7
	// OpListGroups lists unclaimed groups of the session in Handle, or of every session where it is 0, in the order of
	// sessions and groups; the first Value of them are left out, and those that do not fit the results.
	// Arguments: none, or the attribute's name, not terminated. Results: GroupDescriptor[] without blocks.
	// Completion: Count = groups described, Value = unclaimed groups that there are.
	OpListGroups = 8
	// OpClaimGroup claims group Value of session Handle, or, where Value is AnyGroup, the first that is unclaimed: END
	// when there is none. Results: ClaimResults, then the attribute's name. Completion: Value = the group (rule M2).
	OpClaimGroup = 9
	// OpUnmapGroup hands group Value of session Handle back, which the caller has claimed. Arguments: none, or
	// UnmapArguments. With FlagAbort it gives the group up, unfilled: somebody else may claim it then.
	OpUnmapGroup = 10
	// OpUnmapAttribute ends the session in Handle: commits what the caller holds, or aborts with FlagAbort. It completes
	// when every group was unmapped, by whomever; other ops of the caller do not wait for that. Arguments: none, or, of a
	// session of one group that is still mapped, UnmapArguments.
	OpUnmapAttribute = 11
	// OpSeal advances the write floor to Ordinal; Value is a Scope.
	// Arguments: SealArguments, then a StringList for INCLUDE and EXCLUDE. Completion: Value = the floor, Epoch.
	OpSeal = 12
	// OpDelete deletes attributes of the query's prims at Ordinal. Arguments: StringList (empty: the prims).
	OpDelete = 13
	// OpDeclare states an attribute's schema and settings before anybody writes it. Arguments: DeclareArguments.
	OpDeclare = 14
	// OpPin asks the broker to store its epoch into pin slots whose attribute is stored (rule V2).
	// Arguments: uint32 pin slot indices. Completion: Epoch.
	OpPin = 15
	// OpArenaClosed tells that this process closed its import of the device arena whose segment id is Value (rule C6).
	OpArenaClosed = 16
	// OpSessionsClosed confirms that sessions of an earlier broker life are closed here (rule B1).
	OpSessionsClosed = 17
	// OpQueryPrims lists prims of the query in Handle from number Value on.
	// Results: uint64 path ids, as many as there are and as there is room for, at most QueryPageMax. Completion: Count = prims of the query.
	OpQueryPrims = 18
	// OpQueryAttributes lists the attributes that a filter found, from number Value on.
	// Results: uint64 token ids, as for OpQueryPrims. Completion: Count = attributes.
	OpQueryAttributes = 19
	// OpMirror asks for the rows of a version in other memory than they lie in: of the version of column Handle that was
	// born at epoch Ordinal, on device number Value, 0 for the host. The caller has a pin that covers the version; the copy
	// is made once, and is there as long as the version (rule C5). Results: MirrorResults.
	OpMirror = 20
)

// Op flags, in SubmissionEntry.Flags.
const (
	// FlagNextOrdinal: the loop takes the attribute's floor + 1 instead of Ordinal (rule O8).
	FlagNextOrdinal = 1 << 0
	// FlagSeal: seal the attribute at the op's ordinal in the same step (INCLUDE scope).
	FlagSeal = 1 << 1
	// FlagAbort: nothing of the session becomes visible.
	FlagAbort = 1 << 2
	// FlagCopy: do not adopt, since views of the block are alive.
	FlagCopy = 1 << 3
)

// StringList is followed by Count entries: uint32 length, the bytes (UTF-8, no
// terminator), zero bytes up to a multiple of 4.
type StringList struct {
	_ structs.HostLayout

	// Count is the number of strings.
	Count uint32
	// TotalBytes is the size of the list, this header included.
	TotalBytes uint32
}

// Sorts of interned strings: Value of OpIntern, StringEntry.Sort.
const (
	// StringToken is a token: an attribute's name, a piece of text.
	StringToken = 1
	// StringPath is a prim's path; it starts with "/".
	StringPath = 2
)

// ClientHandle is the bit of query handles that the client chose (OpQueryFilter).
const ClientHandle = 1 << 63

// QueryPageMax is the most ids that one OpQueryPrims or OpQueryAttributes lists (rule L1).
const QueryPageMax = 8192

// FilterArguments start the arguments of OpQueryFilter.
type FilterArguments struct {
	_ structs.HostLayout

	// PredicateCount is the number of FilterPredicate structs that follow.
	PredicateCount uint32
	// Flags are Filter flags.
	Flags uint32
	// AttributesOffsetBytes is the argument offset of the StringList of the attributes to report; 0: all that the prims carry.
	AttributesOffsetBytes uint32
	// Reserved is 0.
	Reserved uint32
}

// FilterSealed, in FilterArguments.Flags: what is sealed counts alone, not what was
// accepted since (behaviour 233).
const FilterSealed = 1 << 0

// FilterPredicate is one condition on a prim.
type FilterPredicate struct {
	_ structs.HostLayout

	// Relation is one of the Filter operators.
	Relation uint32
	// NameBytes is the length of the name.
	NameBytes uint32
	// NameOffsetBytes is the argument offset of the attribute's name, or of "@path".
	NameOffsetBytes uint32
	// ValuesOffsetBytes is the argument offset of the StringList of values; 0: none.
	ValuesOffsetBytes uint32
}

// Operators of predicates. Values are texts; texts are compared by bytes (behaviour 243).
const (
	// FilterHas: the prim carries the attribute. No values.
	FilterHas = 1
	// FilterIn: the path, or the attribute's value, is one of the values.
	FilterIn = 2
	// FilterPrefix: the path begins with the value.
	FilterPrefix = 3
	// FilterContains: among the tokens of the attribute's row is one of the values.
	FilterContains = 4
	// FilterLess: the attribute's value is below the value.
	FilterLess = 5
	// FilterLessEqual: it is not above the value.
	FilterLessEqual = 6
	// FilterGreater: it is above the value.
	FilterGreater = 7
	// FilterGreaterEqual: it is not below the value.
	FilterGreaterEqual = 8
)

// Limits of a filter.
const (
	// FilterPredicatesMax bounds the predicates of one filter.
	FilterPredicatesMax = 256
	// FilterValuesMax bounds the values of one predicate.
	FilterValuesMax = 65536
)

// Schema says what an attribute's rows are (rule L4).
type Schema struct {
	_ structs.HostLayout

	// Kind is KindFixed or KindArray; 0 where the existing attribute decides.
	Kind uint32
	// Semantic is a semantic number; 0 is none, which on a write means "no opinion".
	Semantic uint32
	// DtypeCode is the DLPack type code.
	DtypeCode uint8
	// DtypeBits is the size of one lane in bits.
	DtypeBits uint8
	// DtypeLanes is the number of lanes, 1 to 255.
	DtypeLanes uint16
	// DeviceType is the DLPack device type: 1 CPU, 2 CUDA; 0, with DeviceID 0: where the existing attribute lies, on the
	// host where there is none.
	DeviceType uint32
	// DeviceID is the broker's index of the device, 0 for the host.
	DeviceID uint32
	// RowDimensions is the number of dimensions in RowShape, 0 to 6.
	RowDimensions uint32
	// RowShape is the shape of one row; unused dimensions are 0.
	RowShape [6]uint64
}

// Kinds of attributes.
const (
	// KindFixed: every row has the same number of elements.
	KindFixed = 1
	// KindArray: every row has a length of its own.
	KindArray = 2
)

// RowDimensionsMax is the most dimensions that a row may have.
const RowDimensionsMax = 6

// WriteArguments starts the arguments of OpWrite.
type WriteArguments struct {
	_ structs.HostLayout

	// EntryCount is the number of WriteEntry structs that follow.
	EntryCount uint32
	// PrimMode is ModeUpsert or ModeInsert.
	PrimMode uint32
	// Reserved is 0.
	Reserved uint64
}

// WriteEntry is one attribute of a write. Offsets named "argument" count from
// the start of the op's arguments and are 8-byte aligned.
type WriteEntry struct {
	_ structs.HostLayout

	// Schema is what the payload is.
	Schema Schema
	// Payload is where the rows lie; Segment 0: OffsetBytes is an argument offset.
	Payload BlockRef
	// PayloadRows is the number of rows in the payload.
	PayloadRows uint64
	// NameOffsetBytes is the argument offset of the attribute's name.
	NameOffsetBytes uint32
	// NameBytes is the length of the name.
	NameBytes uint32
	// Selection says which logical elements are written from which rows.
	Selection Selection
	// ElementSizesOffsetBytes is the argument offset of uint64 row lengths in elements (array kind), else 0.
	ElementSizesOffsetBytes uint32
	// ElementSizesCount is the number of row lengths.
	ElementSizesCount uint32
	// Reserved is 0.
	Reserved [16]byte
}

// Selection names the logical elements of a query that a payload is for.
type Selection struct {
	_ structs.HostLayout

	// Count is the number of leading logical elements, or All; 0 is refused (behaviour 65).
	Count uint64
	// Sort is one of the Select constants.
	Sort uint32
	// WordsOffsetBytes is the argument offset of the index map (uint32) or mask (uint64).
	WordsOffsetBytes uint32
	// WordCount is the number of words there.
	WordCount uint32
	// Reserved is 0.
	Reserved uint32
}

// Sorts of selections.
const (
	// SelectRows: logical element i takes row i.
	SelectRows = 0
	// SelectIndexMap: logical element i takes row map[i] (gather, behaviour 70).
	SelectIndexMap = 1
	// SelectMask: logical element i takes row i where bit i is set.
	SelectMask = 2
)

// Prim modes.
const (
	// ModeUpsert makes prims that do not exist yet.
	ModeUpsert = 0
	// ModeInsert refuses prims that exist.
	ModeInsert = 1
)

// MapArguments are the arguments of OpMap.
type MapArguments struct {
	_ structs.HostLayout

	// Schema is what the session's rows are; Kind 0 takes the existing attribute's schema.
	Schema Schema
	// NameOffsetBytes is the argument offset of the attribute's name.
	NameOffsetBytes uint32
	// NameBytes is the length of the name.
	NameBytes uint32
	// PrimMode is ModeUpsert or ModeInsert.
	PrimMode uint32
	// Init is one of the Init constants.
	Init uint32
	// GroupRows splits the session into groups of so many rows; 0: one group.
	GroupRows uint64
	// ElementSizesOffsetBytes is the argument offset of uint64 row lengths (array kind), else 0.
	ElementSizesOffsetBytes uint32
	// ElementSizesCount is the number of row lengths.
	ElementSizesCount uint32
	// StagingType says in what memory the groups are filled: 0 where the attribute lies, else a DLPack device type,
	// 1 CPU or 2 CUDA. What is filled elsewhere than the attribute lies is copied at unmap (rule C5).
	StagingType uint32
	// StagingID is the broker's index of the device, 0 for the host.
	StagingID uint32
	// Reserved is 0.
	Reserved [16]byte
}

// What a mapped buffer holds at first (behaviour 180).
const (
	// InitNone: unspecified bytes.
	InitNone = 0
	// InitZero: zeros.
	InitZero = 1
	// InitCurrent: the sealed values.
	InitCurrent = 2
)

// UnmapArguments narrow what a group commits.
type UnmapArguments struct {
	_ structs.HostLayout

	// Selection counts logical elements from the group's first.
	Selection Selection
	// EventIndex is the group's event, recorded after the work that fills it was queued (rule C3).
	EventIndex uint32
	// EventUsed is 1 when EventIndex counts; 0: the rows are there already.
	EventUsed uint32
}

// SealArguments start the arguments of OpSeal.
type SealArguments struct {
	_ structs.HostLayout

	// StampNs is the application's time in ns; 0 takes the broker's clock (rule O3).
	StampNs uint64
	// Reserved is 0.
	Reserved uint64
}

// Scopes of a seal.
const (
	// ScopeAll: every attribute, those not yet born included.
	ScopeAll = 0
	// ScopeInclude: the attributes named.
	ScopeInclude = 1
	// ScopeExclude: every known attribute but those named.
	ScopeExclude = 2
)

// DeclareArguments are the arguments of OpDeclare.
type DeclareArguments struct {
	_ structs.HostLayout

	// Schema is the attribute's schema.
	Schema Schema
	// NameOffsetBytes is the argument offset of the attribute's name.
	NameOffsetBytes uint32
	// NameBytes is the length of the name.
	NameBytes uint32
	// Retain is how many versions stay readable; 0 for the stage's default.
	Retain uint32
	// Handoff is one of the Handoff constants.
	Handoff uint32
}

// How a mapped block becomes a version.
const (
	// HandoffDefault: as the stage says.
	HandoffDefault = 0
	// HandoffAdopt: a whole column's block becomes the version.
	HandoffAdopt = 1
	// HandoffCopy: the broker always copies.
	HandoffCopy = 2
)

// GroupDescriptor tells where a map group lies.
type GroupDescriptor struct {
	_ structs.HostLayout

	// Session is the session's handle.
	Session uint64
	// Ordinal is the session's ordinal; 0 when it is taken at unmap (rule O8).
	Ordinal uint64
	// Block is the group's memory: Rows rows, one after the other; its length may be 0 of kind array.
	Block BlockRef
	// Rows is the number of rows.
	Rows uint64
	// FirstPrim is the first logical element of the query that the group covers.
	FirstPrim uint64
	// PrimCount is the number of logical elements.
	PrimCount uint64
	// GroupIndex is the group's number within the session.
	GroupIndex uint32
	// Attempt counts from 1; a dead claimer's group comes back as the next attempt (rule M2).
	Attempt uint32
	// Column is the column's index, or NoColumn while the attribute does not exist.
	Column uint32
	// State is one of the Group constants.
	State uint32
	// ElementSizesOffsetBytes is a result offset of uint64 row lengths (array kind), else 0; 0 too where they lie behind
	// the path ids.
	ElementSizesOffsetBytes uint32
	// DeviceNumber is 0 for host memory, else 1 + the broker's index of the device: Block.Segment is an arena there (rule C1).
	DeviceNumber uint32
	// ArenaGeneration is the life of the broker that made the arena (rule B3); 0 for host memory.
	ArenaGeneration uint64
	// EventIndex is the event to record before unmap where DeviceNumber is not 0 (rule C3).
	EventIndex uint32
	// Reserved is 0.
	Reserved uint32
	// LeaseBytes is the room that the block has; at least Block.LengthBytes.
	LeaseBytes uint64
	// PrimsOffsetBytes says where the group's PrimCount path ids lie, uint64, counted from Block.OffsetBytes and within
	// LeaseBytes, or from the beginning of PrimsSegment; 0 where only the session's owner fills groups. Of kind array as
	// many row lengths follow them, uint64 in elements.
	PrimsOffsetBytes uint64
	// PrimsSegment is the segment of host memory where the path ids lie when DeviceNumber is not 0; 0 where they lie in
	// the block, or nowhere.
	PrimsSegment uint64
}

// ClaimResults are what a claimant needs to fill its group. NameBytes bytes of the attribute's name follow.
type ClaimResults struct {
	_ structs.HostLayout

	// Group tells where the group lies.
	Group GroupDescriptor
	// Schema is what its rows are.
	Schema Schema
	// NameBytes is the length of the name.
	NameBytes uint32
	// GroupCount is the number of the session's groups.
	GroupCount uint32
}

// MirrorResults tell where a version's rows lie in other memory.
type MirrorResults struct {
	_ structs.HostLayout

	// Block holds the rows, as many as the version has.
	Block BlockRef
	// ArenaGeneration is as in GroupDescriptor.
	ArenaGeneration uint64
	// DeviceNumber is as in GroupDescriptor.
	DeviceNumber uint32
	// Reserved is 0.
	Reserved [20]byte
}

// AnyGroup, as Value of OpClaimGroup, is whichever group is unclaimed.
const AnyGroup = 0xffffffffffffffff

// GroupsMax is the most groups that a session may have.
const GroupsMax = 4096

// NoColumn is the index of no column.
const NoColumn = 0xffffffff

// States of a group.
const (
	// GroupUnclaimed: anybody may claim it.
	GroupUnclaimed = 0
	// GroupClaimed: one client fills it.
	GroupClaimed = 1
	// GroupUnmapped: it was handed back.
	GroupUnmapped = 2
)

// Limits of names and lists.
const (
	// NameBytesMax bounds an attribute's name and a token.
	NameBytesMax = 1024
	// PathBytesMax bounds a path.
	PathBytesMax = 4096
	// StageNameBytesMax bounds a stage's name: 1 to 32 of [A-Za-z0-9_-] (rule L5).
	StageNameBytesMax = 32
)
