package control

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// EventVersion is the version of every JSON document of this package. It rises only when an old reader would
// misunderstand; added fields do not raise it.
const EventVersion = 1

// Kind is the fourth token of an event's subject.
type Kind string

// The kinds of events.
const (
	KindGroup  Kind = "group"
	KindCommit Kind = "commit"
	KindClient Kind = "client"
	KindHealth Kind = "health"
)

// Identity says whose events these are; it does not change while a broker lives.
type Identity struct {
	Host       string
	Stage      string
	Generation uint64 // the stage's memory: its creation time in ns
	Broker     uint64 // the broker's incarnation: random
	Version    string // the broker's own version, semver, e.g. "0.1.0"
}

// Source begins every JSON document, event or answer: who says this, and of which state. 64-bit values are decimal strings
// in JSON, because many readers keep numbers as float64.
type Source struct {
	Version    int    `json:"version"`
	Host       string `json:"host"`
	Stage      string `json:"stage"`
	Generation uint64 `json:"generation,string"`
	Broker     uint64 `json:"broker,string"`
	Epoch      uint64 `json:"epoch,string"`   // of an event: the newest sealed epoch when it was noted
	TimeNS     int64  `json:"time_ns,string"` // wall clock when said, ns since 1970
}

// Source fills in everything of a document's beginning, with the time of now.
func (i Identity) Source(epoch uint64) Source {
	return Source{
		Version: EventVersion, Host: i.Host, Stage: i.Stage, Generation: i.Generation, Broker: i.Broker,
		Epoch: epoch, TimeNS: time.Now().UnixNano(),
	}
}

// Header begins every event. The announcer fills it in.
type Header struct {
	Source
	Seq     uint64 `json:"seq,string"`      // from 1 per broker incarnation, over all its events
	PrevSeq uint64 `json:"prev_seq,string"` // seq of the event before on the same subject; 0: this is its first
	Dropped uint64 `json:"dropped,string"`  // events this incarnation knows to have lost so far
}

func (h *Header) header() *Header { return h }

// event is any pointer to a struct that embeds Header.
type event interface{ header() *Header }

// DType is a DLPack element type with its name, e.g. {2, 32, 3, "float32x3"}.
type DType struct {
	Code  uint8  `json:"code"`
	Bits  uint8  `json:"bits"`
	Lanes uint16 `json:"lanes"`
	Name  string `json:"name"`
}

// Device is where a block lies. IPC handles are never announced: they travel over the attach socket only (rule C2). Of an
// attribute only Type, ID and UUID are told; of a group also where its rows are to be put, once it is claimed.
type Device struct {
	Type       int32   `json:"type"`           // DLPack device type: 1 CPU, 2 CUDA
	ID         int32   `json:"id"`             // the broker's index of the device; clients find theirs by UUID
	UUID       string  `json:"uuid,omitempty"` // as NVIDIA's tools write it, "GPU-…"; absent while it is not served
	Arena      uint32  `json:"arena,omitempty"`
	Generation uint64  `json:"arena_generation,string,omitempty"`
	Event      *uint32 `json:"event,omitempty"` // index of the group's interprocess event (rule C3)
}

// Block is where a group's bytes are. A co-producer gets the segment's descriptor only with its claim.
type Block struct {
	Segment     uint32 `json:"segment"`
	OffsetBytes uint64 `json:"offset_bytes,string"`
	LengthBytes uint64 `json:"length_bytes,string"`
}

// QueryInfo describes the session's query; its handle belongs to the owner alone.
type QueryInfo struct {
	Handle    uint64 `json:"handle,string"`
	Prims     uint64 `json:"prims,string"`      // in the whole query
	FirstPrim uint64 `json:"first_prim,string"` // position of the group's first prim in the query
	Text      string `json:"text,omitempty"`    // for people: a filter, or the first paths
}

// GroupEvent says that a map group exists and is waiting to be filled: all that a co-producer needs to claim it.
// The slices belong to the announcer once the event is handed over.
type GroupEvent struct {
	Header
	Attribute  string    `json:"attribute"`
	Column     uint32    `json:"column"`
	DType      DType     `json:"dtype"`
	RowShape   []uint64  `json:"row_shape"` // plain numbers: a dimension is far below 2^53
	Semantic   string    `json:"semantic"`
	Kind       string    `json:"kind"` // "fixed" or "array"
	Ordinal    uint64    `json:"ordinal,string"`
	Owner      uint64    `json:"owner,string"` // incarnation of the client whose session it is
	Session    uint64    `json:"session,string"`
	GroupIndex uint32    `json:"group_index"` // from 0
	GroupCount uint32    `json:"group_count"`
	Prims      uint64    `json:"prims,string"` // in this group
	Query      QueryInfo `json:"query"`
	PrimMode   string    `json:"prim_mode"`
	Attempt    uint32    `json:"attempt"` // from 1; rises when a claimer died (M2)
	Device     Device    `json:"device"`
	Block      Block     `json:"block"`

	// Gone, if set, tells that the group was handed back or given up. The announcer asks before it sends: a group
	// that nobody can claim any more is not announced. It may be called from any goroutine.
	Gone func() bool `json:"-"`
}

// Change is what one commit, or several coalesced ones, did to one column.
type Change struct {
	Attribute        string `json:"attribute"`
	Column           uint32 `json:"column"`
	Floor            uint64 `json:"floor,string"` // the attribute's write floor afterwards
	OrdinalLowest    uint64 `json:"ordinal_lowest,string"`
	OrdinalHighest   uint64 `json:"ordinal_highest,string"`
	Rows             uint64 `json:"rows,string"` // written; 0: only the floor moved, and the ordinals mean nothing
	Adopted          bool   `json:"adopted"`     // of the newest commit in this event
	LayoutGeneration uint64 `json:"layout_generation,string"`
}

// CommitEvent says that a new epoch is readable.
type CommitEvent struct {
	Header
	Floor     uint64   `json:"floor,string"` // global write floor
	FromEpoch uint64   `json:"from_epoch,string"`
	Count     uint64   `json:"count,string"`    // commits in this event; above 1 they were coalesced
	StampNS   uint64   `json:"stamp_ns,string"` // time of the newest seal, the application's or the broker's
	Changed   []Change `json:"changed"`
	Omitted   uint32   `json:"omitted"` // changed columns that did not fit into the event: describe tells
}

// Happenings of a client.
const (
	ClientJoin       = "join"
	ClientLeave      = "leave"
	ClientDied       = "died"
	ClientReattached = "reattached"
)

// ClientEvent says that a client came or went.
type ClientEvent struct {
	Header
	Event       string `json:"event"`
	Incarnation uint64 `json:"incarnation,string"`
	Name        string `json:"name"`
	Language    string `json:"language"`
	PID         int32  `json:"pid"` // for display only: of the client's own pid namespace
	Reason      string `json:"reason"`
}

// Levels of a HealthEvent.
const (
	LevelInfo    = "info"
	LevelWarning = "warning"
	LevelError   = "error"
)

// Codes that this package itself announces; the broker has more.
const (
	HealthGap = "gap" // numbers: dropped (since the last such event), dropped_total
	HealthBye = "bye" // the last event of an incarnation that ends in order
)

// HealthEvent is for operators: what is wrong, or was.
type HealthEvent struct {
	Header
	Level   string            `json:"level"`
	Code    string            `json:"code"`
	Text    string            `json:"text"`
	Numbers map[string]Number `json:"numbers"`
}

// Number is a 64-bit integer inside a map, a decimal string in JSON like all others.
type Number int64

// MarshalJSON writes the decimal string.
func (n Number) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, strconv.FormatInt(int64(n), 10)), nil
}

// UnmarshalJSON reads the decimal string; a bare number is refused, as it is for every other 64-bit field.
func (n *Number) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("64-bit number %s: expected a decimal string", clip(string(data)))
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("64-bit number %q: expected a decimal string", clip(text))
	}
	*n = Number(value)
	return nil
}
