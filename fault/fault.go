package fault

// Fault names a mistake.
type Fault string

// The mistakes, each with what is wrong.
const (
	// MaskInverted writes the elements whose bit is not set.
	MaskInverted Fault = "mask-inverted"
	// MapScattered takes an index map for the rows to write to.
	MapScattered Fault = "map-scattered"
	// RowsShortened loses the last element of each array row.
	RowsShortened Fault = "rows-shortened"
	// ClaimedTwice gives a group to whoever asks.
	ClaimedTwice Fault = "claimed-twice"
	// LastTermAlone filters by the last predicate only.
	LastTermAlone Fault = "last-term-alone"
	// CountTrails addresses the last elements instead of the leading ones.
	CountTrails Fault = "count-trails"
	// FloorOffByOne accepts writes at the floor.
	FloorOffByOne Fault = "floor-off-by-one"
	// DefaultFloorForgotten lets a seal of everything leave out what is not born yet.
	DefaultFloorForgotten Fault = "default-floor-forgotten"
	// FloorsStale publishes the floors of the seal before.
	FloorsStale Fault = "floors-stale"
	// NextOrdinalSkips leaves an ordinal out.
	NextOrdinalSkips Fault = "next-ordinal-skips"
	// SameOrdinalReversed lets the first write of an ordinal win.
	SameOrdinalReversed Fault = "same-ordinal-reversed"
	// SealTooFar seals the ordinal behind, too.
	SealTooFar Fault = "seal-too-far"
	// IncludeIsAll seals everything.
	IncludeIsAll Fault = "include-is-all"
	// ExcludeForgotten seals what is excluded.
	ExcludeForgotten Fault = "exclude-forgotten"
	// InsertIsUpsert lets INSERT write prims that exist.
	InsertIsUpsert Fault = "insert-is-upsert"
	// BatchInParts keeps the entries of a batch before the one that is refused.
	BatchInParts Fault = "batch-in-parts"
	// SchemaUnchecked lets a prim carry a name in two schemas.
	SchemaUnchecked Fault = "schema-unchecked"
	// SemanticLost forgets what an attribute means.
	SemanticLost Fault = "semantic-lost"
	// InitCurrentZero gives zeros for the sealed values.
	InitCurrentZero Fault = "init-current-zero"
	// DeleteIgnored accepts deletes and does nothing.
	DeleteIgnored Fault = "delete-ignored"
	// TombstoneDropped remembers no delete.
	TombstoneDropped Fault = "tombstone-dropped"
	// RowOrdinalsStale does not note which ordinal wrote a row.
	RowOrdinalsStale Fault = "row-ordinals-stale"
	// DirtyRangeLost leaves rows of a recycled block as they were.
	DirtyRangeLost Fault = "dirty-range-lost"
	// GenerationAlways calls every version a new layout.
	GenerationAlways Fault = "generation-always"
	// RetainOneLess gives retained versions back too early.
	RetainOneLess Fault = "retain-one-less"
	// QueryUnordered sorts the prims of a query.
	QueryUnordered Fault = "query-unordered"
	// PinsIgnored uses blocks anew that a reader looks at.
	PinsIgnored Fault = "pins-ignored"
)

// All lists them.
var All = []Fault{MaskInverted, MapScattered, RowsShortened, ClaimedTwice, LastTermAlone, CountTrails, FloorOffByOne, DefaultFloorForgotten, FloorsStale, NextOrdinalSkips, SameOrdinalReversed,
	SealTooFar, IncludeIsAll, ExcludeForgotten, InsertIsUpsert, BatchInParts, SchemaUnchecked, SemanticLost, InitCurrentZero, DeleteIgnored,
	TombstoneDropped, RowOrdinalsStale, DirtyRangeLost, GenerationAlways, RetainOneLess, QueryUnordered, PinsIgnored}

// Tag is the build tag, Env the variable that names the fault of a process.
const (
	Tag = "callboard_faults"
	Env = "CALLBOARD_FAULT"
)
