package snapshot

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"callboard/protocol"
	"callboard/shm"
	"callboard/tensor"
)

// floorName is the reserved name of column 0.
const floorName = "@floor"

// Pin is what a reader stored in one of its slots.
type Pin struct {
	Epoch     uint64
	Attribute uint32
}

// PinSource is a channel whose pins the store must respect.
type PinSource interface {
	// AppendPins appends the pins that are set now.
	AppendPins([]Pin) []Pin
}

// Config is what a stage's operator decides.
type Config struct {
	Stage            string
	Host             string
	Generation       uint64
	Incarnation      uint64
	Retain           uint32 // versions that stay readable, the latest one included; 0: 4
	Handoff          uint32 // protocol.HandoffAdopt or HandoffCopy; HandoffDefault: adopt
	UnsealedBytesMax uint64 // 0: as much as there is memory, that of devices included
	PinnedBytesMax   uint64 // by one client (rule V7); 0: a quarter of the memory, that of devices included
	// CopyInlineBytes is the largest copy that is made at once; more becomes a Job (rule L1). 0: 64 KiB.
	CopyInlineBytes uint64
	// Devices are those that the broker serves, NoDevice why there are none.
	Devices  []*Device
	NoDevice string
	// Absent says of a device that has the number, and is not served now, which one it is and why; "" of a number that
	// no device has. nil: all that have one are served.
	Absent func(index uint32) string
	// OnSeal is told of every epoch that was published, in the loop. Its argument is
	// valid during the call.
	OnSeal func(*Sealed)
	// OnGroup is told of every group that waits to be filled, in the loop: when its session is
	// opened and before each further attempt.
	OnGroup func(m *Session, index uint32)
}

// Store is a stage's state: the process's own books and their picture in shared
// memory. One goroutine owns it; only readers in other processes see it at work.
type Store struct {
	config   Config
	memory   *Memory
	root     *protocol.DirectoryHeader
	broker   *Arena // versions
	small    *Arena // versions and captures that are small; made at the first
	meta     *Arena // everything that the directory refers to
	mirrors  *Arena // on the host, of versions of devices; made at the first
	epoch    uint64
	columns  []*column
	byName   map[string]*attribute
	layouts  map[uint64]*layout // by hash of their prims
	sources  []PinSource
	sessions map[uint64]*Session
	opening  map[any]*Arena // of sessions of several groups that met ErrRetry, by owner
	lent     []lent
	floors   floors
	excess   []*column // have versions beyond their retention
	lost     []*column // of another life's devices (rule B3), to be shown so by the next epoch
	broken   map[*Device]*breakage
	lagging  []*column // have spare blocks that may lag behind
	notes    []segmentNote

	attributes, segments table
	dictionary           dictionary
	records              records

	recordSlots      uint64
	lastLayout       uint64
	layoutGeneration uint64
	lastSession      uint64
	firstSlotPage    protocol.Ref // where the last new chain begins
	unsealedBytes    uint64

	reclaiming  bool
	noting      bool
	pinsUnknown bool // recovered, and not yet told of all channels: nothing is reclaimed

	inserts  byPrim[*capture] // unsealed INSERTs (rule O2)
	deletes  deletes
	active   []*sealing // seals whose copies are on their way
	withheld []*Session // aborted sessions that a seal on its way has rows of

	pins     []Pin // scratch
	victims  []victim
	incoming []incoming
	captures []*capture // free ones
	sealings []*sealing
	sealed   Sealed
	counters Counters
}

// Counters are running totals for `info` and the demo.
type Counters struct {
	Seals, Adopted, Scattered, AdoptRefused, CopiedBytes, Reclaimed, Writes, Deletes, Unmaps, Aborts uint64
}

// NewStore lays out the directory in root (DirectoryBytes long, zeros) and makes
// column 0. memory.Grow must answer at once here: the first metadata is made now.
func NewStore(c Config, root []byte, memory *Memory) (*Store, error) {
	s := newBooks(c, root, memory)
	c = s.config
	r := s.root
	r.Header = protocol.RegionHeader{Magic: protocol.MagicDirectory, HeaderBytes: uint32(sizeOf[protocol.DirectoryHeader]()),
		SizeBytes: uint64(len(root)), Generation: c.Generation}
	r.IdentityTag = protocol.IdentityTagOf(c.Generation)
	copy(r.StageName[:], c.Stage)
	s.begin()
	schema := floorSchema()
	if _, err := s.makeColumn(floorName, schema, 8, 1, protocol.HandoffCopy); err != nil {
		return nil, fmt.Errorf("laying out the directory: %w", err)
	}
	store32(&r.Header.Version, protocol.VersionWord)
	return s, nil
}

// floorSchema is that of column 0.
func floorSchema() protocol.Schema {
	return protocol.Schema{Kind: protocol.KindFixed, DtypeCode: 1, DtypeBits: 64, DtypeLanes: 1, DeviceType: 1}
}

// newBooks makes a store that knows nothing yet, over a directory that it leaves as it is.
func newBooks(c Config, root []byte, memory *Memory) *Store {
	s := &Store{config: c, memory: memory, root: at[protocol.DirectoryHeader](root, 0), byName: map[string]*attribute{}, inserts: byPrim[*capture]{},
		layouts: map[uint64]*layout{}, sessions: map[uint64]*Session{}, opening: map[any]*Arena{}}
	for _, d := range s.config.Devices {
		memory.devices = append(memory.devices, &space{device: d, LimitBytes: d.LimitBytes})
	}
	s.config.setDefaults(memory)
	s.broker = memory.NewArena(protocol.SegmentBroker, 0, "the stage's versions", false)
	s.meta = memory.NewArena(protocol.SegmentBroker, 0, "the directory", false)
	s.floors.byName = map[uint64]uint64{}
	r := s.root
	s.attributes = table{store: s, base: protocol.AttributePageBase, size: sizeOf[protocol.AttributeEntry](), refs: r.AttributePages[:]}
	s.segments = table{store: s, base: protocol.SegmentPageBase, size: sizeOf[protocol.SegmentEntry](), refs: r.SegmentPages[:]}
	s.dictionary = dictionary{store: s, ids: [2]map[string]uint64{{}, {}},
		table: table{store: s, base: protocol.StringPageBase, size: sizeOf[protocol.StringEntry](), refs: r.StringPages[:]}}
	s.records = newRecords(s)
	return s
}

// begin puts a life of the broker into the directory, and the store in charge of memory.
func (s *Store) begin() {
	r, c := s.root, &s.config
	store64(&r.Header.Features, Features)
	store64(&r.BrokerIncarnation, c.Incarnation)
	store64(&r.StartedNs, uint64(time.Now().UnixNano()))
	for _, sp := range s.memory.devices {
		sp.life = r.StartedNs
	}
	store64(&r.MemoryBytesMax, s.memory.LimitBytes)
	s.tellLimits()
	store32(&r.RetainDefault, c.Retain)
	store32(&r.HandoffDefaultMode, c.Handoff)
	host := [len(r.HostName)]byte{}
	copy(host[:], c.Host)
	if r.HostName != host {
		r.HostName = host
	}
	s.memory.table = s.noteSegment
	s.memory.Pressure = s.reclaimUnderPressure
	s.memory.Explain = s.explainMemory
}

// tellLimits puts the limits into the directory.
func (s *Store) tellLimits() {
	store64(&s.root.PinnedBytesMax, s.config.PinnedBytesMax)
	store64(&s.root.UnsealedBytesMax, s.config.UnsealedBytesMax)
}

// setDefaults fills in what the operator left open.
func (c *Config) setDefaults(m *Memory) {
	all := m.LimitBytes
	for _, d := range c.Devices {
		all += d.LimitBytes
	}
	if c.Retain == 0 {
		c.Retain = 4
	}
	if c.Handoff == protocol.HandoffDefault {
		c.Handoff = protocol.HandoffAdopt
	}
	if c.UnsealedBytesMax == 0 {
		c.UnsealedBytesMax = all
	}
	if c.PinnedBytesMax == 0 {
		c.PinnedBytesMax = all / 4
	}
	if c.CopyInlineBytes == 0 {
		c.CopyInlineBytes = 64 << 10
	}
}

// Features are the feature bits of this store.
const Features = protocol.FeatureFixed | protocol.FeatureArray | protocol.FeatureSelection | protocol.FeatureOverlays | protocol.FeatureDelete | protocol.FeatureFilter |
	protocol.FeatureRecovery

// metadata leases memory for the directory; its blocks live as long as the stage
// unless they are layouts or floors.
func (s *Store) metadata(size uint64) (*Block, error) { return s.memory.Alloc(s.meta, size) }

// segmentNote is an entry of the segment table that is to be written.
type segmentNote struct {
	id, sizeBytes, owner uint64
	sort, state          uint32
}

// noteSegment writes the directory's entry of a segment, now or, when a page for it
// cannot be made now, with a later one. Meanwhile readers ask the socket.
func (s *Store) noteSegment(seg *Segment, state uint32) {
	s.notes = append(s.notes, segmentNote{seg.ID, uint64(len(seg.Bytes)), seg.Owner, seg.Sort, state})
	s.writeNotes()
}

// writeNotes writes the entries that wait, in order. Making a page for one may make
// a segment, whose note then joins the others.
func (s *Store) writeNotes() {
	if s.noting {
		return
	}
	s.noting = true
	defer func() { s.noting = false }()
	for len(s.notes) > 0 {
		n := s.notes[0]
		raw, err := s.segments.entry(n.id - 1)
		if err != nil {
			return
		}
		s.notes = slices.Delete(s.notes, 0, 1)
		e := at[protocol.SegmentEntry](raw, 0)
		e.Segment, e.SizeBytes, e.Sort = n.id, n.sizeBytes, n.sort
		store64(&e.OwnerIncarnation, n.owner)
		store32(&e.State, n.state)
		if n.id > s.root.SegmentCount {
			store64(&s.root.SegmentCount, n.id)
		}
		if n.state == protocol.SegmentRetired {
			store32(&s.root.RetiredCount, s.root.RetiredCount+1)
		}
	}
}

// count adds to a counter in shared memory that only the store writes.
func count(word *uint64, n uint64) { store64(word, *word+n) }

// Epoch is the newest published epoch.
func (s *Store) Epoch() uint64 { return s.epoch }

// EpochWord is the futex word of the epoch.
func (s *Store) EpochWord() *uint32 { return low32(&s.root.Epoch) }

// Sleeping is the word that tells clients that the broker sleeps (rule R3).
func (s *Store) Sleeping() *uint32 { return &s.root.Sleeping }

// AddPins registers a channel before its client may pin.
func (s *Store) AddPins(p PinSource) { s.sources = append(s.sources, p) }

// RemovePins forgets a channel whose process is proven dead (rule I3).
func (s *Store) RemovePins(p PinSource) {
	for i, other := range s.sources {
		if other == p {
			s.sources = append(s.sources[:i], s.sources[i+1:]...)
			s.reclaim(false)
			return
		}
	}
}

// Intern gives the id of a token or a path.
func (s *Store) Intern(sort uint32, text string) (uint64, error) {
	if sort != protocol.StringToken && sort != protocol.StringPath {
		return 0, protocol.Errorf(protocol.StatusInvalidArgument, "string sort is %d: expected %d (token) or %d (path)", sort, protocol.StringToken, protocol.StringPath)
	}
	return s.dictionary.intern(sort, text)
}

// Find gives the id of a token or a path that was interned already.
func (s *Store) Find(sort uint32, text string) (id uint64, ok bool) {
	id, ok = s.dictionary.ids[sort-protocol.StringToken][text]
	return id, ok
}

// Text resolves an id.
func (s *Store) Text(id uint64) (string, bool) { return s.dictionary.text(id) }

// StatusError turns any error into one with a Status.
func StatusError(err error) *protocol.Error {
	var own *protocol.Error
	if errors.As(err, &own) {
		return own
	}
	var te *tensor.Error
	if errors.As(err, &te) {
		status := protocol.StatusInvalidArgument
		switch te.Code {
		case tensor.NotSupported:
			status = protocol.StatusNotSupported
		case tensor.OutOfMemory:
			status = protocol.StatusOutOfMemory
		}
		return &protocol.Error{Status: status, Text: te.Text}
	}
	var full *shm.NoSpaceError
	if errors.As(err, &full) {
		return &protocol.Error{Status: protocol.StatusOutOfMemory, Text: full.Error()}
	}
	return &protocol.Error{Status: protocol.StatusInternal, Text: err.Error()}
}
