package snapshot

import (
	"callboard/protocol"
	"callboard/shm"
)

// Recovered is what a recovery found.
type Recovered struct {
	Store *Store
	// Arenas are those of clients, by incarnation. What is not live in them stays
	// quarantined until Memory.ReleaseQuarantine or CloseArena (rule B1).
	Arenas map[uint64]*Arena
	Epoch  uint64
	// RolledForward: a seal had committed its record, but not yet shown its epoch.
	RolledForward     bool
	Columns, Versions int // without column 0; of all columns
	// Unused segments are not taken into service: they were retired, nobody refers to
	// them yet, or they hold nothing and have lost their headers. Nobody may read them any
	// more; whoever made them removes them.
	Unused []*Segment
	// Lost names the attributes whose rows lay in device memory, which went with the broker
	// (rule B3). The next epoch, whatever it is of, shows them without prims.
	Lost []string
}

// Recover makes a Store out of what another life of the broker left (rules B2, D9): the
// directory in root, and all segments of the generation, of which ID and Bytes are set,
// both mapped writable. memory is empty.
//
// Sealed data stays where it is, bit by bit, and readers may run all the time. What was
// sealed is there; a seal that was under way is there as a whole, or not at all; what
// was not sealed is gone. Nothing is reclaimed before the first seal or
// Store.PinsComplete: every channel that may hold pins must be known by then.
//
// First everything is read, bound-checked and compared with the newest valid recovery
// record. An error says what cannot be trusted; then nothing was written. After that
// only words that are not as they should be are stored, the epoch first of all. A
// recovery that is killed can be begun again.
func Recover(c Config, root []byte, memory *Memory, segments []*Segment) (*Recovered, error) {
	if uint64(len(root)) != protocol.DirectoryBytes {
		return nil, corrupt("it has %d bytes, not %d", len(root), protocol.DirectoryBytes)
	}
	r := &recovery{store: newBooks(c, root, memory), byID: map[uint64]*found{}, layouts: map[*Block]*layout{}}
	r.config, r.root = &r.store.config, r.store.root
	var err error
	if fault := shm.Guard(func() { err = r.read(segments) }); fault != nil {
		return nil, corrupt("it cannot be read: %v", fault)
	}
	if err != nil {
		return nil, err
	}
	return r.apply(), nil
}

// PinsComplete says that every channel found after a recovery is known: from now on
// versions are reclaimed, first of all those that nobody keeps any more. Attributes that
// are lost are shown so, by an epoch, where there is memory for it at once.
func (s *Store) PinsComplete() {
	s.pinsUnknown = false
	_ = s.ShowLost() // else the first seal does
	s.reclaim(false)
}

// recovery is a Recover on its way. read finds and checks; all that it wants to change
// in shared memory waits in edits.
type recovery struct {
	store  *Store
	config *Config
	root   *protocol.DirectoryHeader

	segments []*found // as given
	byID     map[uint64]*found
	unused   []*Segment
	texts    []extent // that strings lie in

	record  int    // the record that is believed; −1: nothing was ever sealed
	epoch   uint64 // that of the record
	entries []protocol.RecordEntry
	owned   []bool // entries that belong to some slot
	weak    []weakVersion
	layouts map[*Block]*layout
	edits   []edit
	retired []*protocol.SegmentEntry // marked live, but the object is gone or is no segment
	gone    *Arena                   // of versions that lay on devices
	goneMax uint64                   // the highest segment that one of them names
	lost    []string

	retiredCount uint32
}

// edit is a word that is not as it should be.
type edit struct {
	word  *uint64
	value uint64
}

func (r *recovery) edit(word *uint64, value uint64) {
	if *word != value {
		r.edits = append(r.edits, edit{word, value})
	}
}

func (r *recovery) read(segments []*Segment) error {
	for _, step := range []func() error{
		r.readHeader,
		func() error { return r.readSegments(segments) },
		r.readRecords,
		r.readStrings,
		r.readColumns,
		r.readWeak,
		r.finishColumns,
		r.readFloors,
		r.checkOwned,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	r.planRecords()
	return nil
}

func (r *recovery) readHeader() error {
	h, c := &r.root.Header, r.config
	switch stage := cString(r.root.StageName[:]); {
	case h.Magic != protocol.MagicDirectory:
		return corrupt("its magic is %#x, not %#x", h.Magic, uint64(protocol.MagicDirectory))
	case h.Version != protocol.VersionWord:
		return protocol.Errorf(protocol.StatusIncompatibleVersion, "the directory has version %s, this broker %s: it cannot be recovered, start a new generation",
			protocol.VersionText(h.Version), protocol.VersionText(protocol.VersionWord))
	case h.SizeBytes != protocol.DirectoryBytes:
		return corrupt("it says that it has %d bytes, not %d", h.SizeBytes, protocol.DirectoryBytes)
	case h.Generation != c.Generation:
		return corrupt("it is of generation %d, not %d", h.Generation, c.Generation)
	case r.root.IdentityTag != protocol.IdentityTagOf(c.Generation):
		return corrupt("its identity tag is %#x, that of generation %d is %#x", r.root.IdentityTag, c.Generation, protocol.IdentityTagOf(c.Generation))
	case stage != c.Stage:
		return corrupt("it is of stage %q, not %q", stage, c.Stage)
	}
	return nil
}

func cString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// apply makes what was read the truth. It cannot fail.
func (r *recovery) apply() *Recovered {
	s, m := r.store, r.store.memory
	out := &Recovered{Store: s, Arenas: map[uint64]*Arena{}, Epoch: r.epoch, RolledForward: r.epoch != r.root.Epoch,
		Columns: len(s.columns) - 1, Unused: r.unused, Lost: r.lost}
	if out.RolledForward {
		store64(&r.root.Epoch, r.epoch) // before anything else: rule B2
	}
	for _, e := range r.edits {
		store64(e.word, e.value)
	}
	for _, e := range r.retired {
		store32(&e.State, protocol.SegmentRetired)
	}
	if r.root.RetiredCount < r.retiredCount { // readers that miss it would keep the segments mapped
		store32(&r.root.RetiredCount, r.retiredCount)
	}
	for _, f := range r.segments {
		f.serve(s, out.Arenas)
		m.nextID = max(m.nextID, f.seg.ID+1)
	}
	for _, seg := range r.unused {
		m.nextID = max(m.nextID, seg.ID+1)
	}
	m.nextID = max(m.nextID, r.root.SegmentCount+1, r.goneMax+1)
	s.begin()
	s.epoch, s.pinsUnknown = r.epoch, true
	// Handles of sessions of another life are none of this one.
	s.lastSession = r.config.Incarnation >> 32 << 31
	for _, f := range r.segments {
		if f.entry == nil {
			s.notes = append(s.notes, segmentNote{f.seg.ID, uint64(len(f.seg.Bytes)), f.seg.Owner, f.seg.Sort, protocol.SegmentLive})
		}
	}
	if n := len(s.notes); n > 0 && s.notes[n-1].id <= s.segments.room() { // else the first seal writes them, and makes their page
		s.writeNotes()
	}
	for _, c := range s.columns {
		s.closeGone(c) // another life may have been ended between the epoch and this
		s.noteExcess(c)
		out.Versions += len(c.versions)
	}
	s.wake() // whoever slept through the roll forward, or was to be woken by a broker that died
	return out
}
