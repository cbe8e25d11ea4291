package snapshot

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"callboard/protocol"
	"callboard/ring"
	"callboard/shm"
)

// Reader is the other half of this package: it finds sealed data in the directory
// that a Store writes, without asking the broker (design D7). All methods may be
// called by any number of goroutines.
//
//	NewReader ─▶ Columns("pose") ─▶ Pin ─▶ Pinned.Version, Pinned.Floors ─▶ PrimList.Rows ─▶ bytes in place
//
// What it reads is another process's memory. Every place is checked against the
// segment it names and every number is loaded once before it is used: whatever the
// directory holds, a method returns a value or an error with the numbers, and no
// byte outside the mappings is touched. Errors about the directory's own content
// have status INTERNAL.
type Reader struct {
	root     *protocol.DirectoryHeader
	segments func(id uint64) ([]byte, error)
	pins     *ring.PinTable

	// PinByBroker serves rule V2's last resort, operation PIN: the broker stores its
	// epoch into the slots, whose attributes are stored and whose epochs are 0, and
	// the epoch is returned. On error the slots are given up for ever, since the
	// broker may still store into them. Set before the first Pin; without it a Pin
	// that needs it fails with TIMEOUT.
	PinByBroker func(slots []uint32) (epoch uint64, err error)

	table    atomic.Pointer[columnTable]
	growing  sync.Mutex // serialises additions to table and to slot chains
	accounts accounts
}

// turnMax bounds one wait (rule R4): after it, a client looks at its socket.
const turnMax = 100 * time.Millisecond

// NewReader takes the mapped directory object, whole, and a resolver from segment
// ids to mappings. A mapping must hold the segment from its first byte, start on a
// multiple of 8, and stay as long as the Reader or a pin uses it. pins are the
// client's own slots.
//
// Errors: INCOMPATIBLE_VERSION naming both versions; INTERNAL for a directory that
// is not one, or whose size is not what it states.
func NewReader(root []byte, segments func(id uint64) ([]byte, error), pins *ring.PinTable) (*Reader, error) {
	h, err := shm.View[protocol.DirectoryHeader](root, 0)
	if err != nil {
		return nil, corrupt("the directory has %d bytes: %v", len(root), err)
	}
	// The version comes first: before it is there, nothing else may be believed.
	version := atomic.LoadUint32(&h.Header.Version)
	if h.Header.Magic != protocol.MagicDirectory {
		return nil, corrupt("the directory's magic is %#x, expected %#x", h.Header.Magic, uint64(protocol.MagicDirectory))
	}
	if version>>16 != protocol.ABIMajor {
		return nil, protocol.Errorf(protocol.StatusIncompatibleVersion, "the broker's directory has version %s, this library speaks %s: use the same major version on both sides",
			protocol.VersionText(version), protocol.VersionText(protocol.VersionWord))
	}
	if h.Header.SizeBytes != uint64(len(root)) {
		return nil, corrupt("the directory says it has %d bytes, %d are mapped", h.Header.SizeBytes, len(root))
	}
	r := &Reader{root: h, segments: segments, pins: pins}
	r.accounts.held = map[versionKey]holding{}
	r.table.Store(&columnTable{byName: map[string][]*Column{}})
	return r, nil
}

// Generation is the stage's generation, to compare with the other regions'.
func (r *Reader) Generation() uint64 { return r.root.Header.Generation }

// BrokerIncarnation is the life of the broker that serves the stage, or did last.
func (r *Reader) BrokerIncarnation() uint64 { return atomic.LoadUint64(&r.root.BrokerIncarnation) }

// StartedNs tells lives of the broker apart as arenas of device memory do (rule B3).
func (r *Reader) StartedNs() uint64 { return atomic.LoadUint64(&r.root.StartedNs) }

// Epoch is the newest published epoch; 0 before the first seal.
func (r *Reader) Epoch() uint64 { return atomic.LoadUint64(&r.root.Epoch) }

// RetiredCount grows by one with every segment that left service; whoever maps
// segments then looks through Segment for those to unmap.
func (r *Reader) RetiredCount() uint32 { return atomic.LoadUint32(&r.root.RetiredCount) }

// PinnedBytesMax is how many bytes of distinct versions one client may pin (rule V7); it grows
// when a device comes.
func (r *Reader) PinnedBytesMax() uint64 { return atomic.LoadUint64(&r.root.PinnedBytesMax) }

// Directory is a copy of the root's plain fields, for display. The tables and the
// recovery records in it mean nothing outside the mapping.
func (r *Reader) Directory() protocol.DirectoryHeader {
	d := protocol.DirectoryHeader{
		BrokerIncarnation: r.root.BrokerIncarnation, StartedNs: r.StartedNs(), PinnedBytesMax: r.PinnedBytesMax(),
		MemoryBytesMax: r.root.MemoryBytesMax, UnsealedBytesMax: atomic.LoadUint64(&r.root.UnsealedBytesMax), IdentityTag: r.root.IdentityTag,
		RetainDefault: r.root.RetainDefault, HandoffDefaultMode: r.root.HandoffDefaultMode,
		AttributeCount: atomic.LoadUint32(&r.root.AttributeCount), RetiredCount: r.RetiredCount(),
		StringCount: atomic.LoadUint64(&r.root.StringCount), SegmentCount: atomic.LoadUint64(&r.root.SegmentCount),
		StageName: r.root.StageName, HostName: r.root.HostName, Epoch: r.Epoch(), HorizonAny: atomic.LoadUint64(&r.root.HorizonAny),
	}
	d.Header.Generation, d.Header.Features, d.Header.SizeBytes = r.root.Header.Generation, r.root.Header.Features, r.root.Header.SizeBytes
	return d
}

// Segment tells about a segment; ok is false for an id that was never given out.
func (r *Reader) Segment(id uint64) (e protocol.SegmentEntry, ok bool, err error) {
	if id == 0 || id > atomic.LoadUint64(&r.root.SegmentCount) {
		return e, false, nil
	}
	p, err := entry[protocol.SegmentEntry](r, "segment", protocol.SegmentPageBase, r.root.SegmentPages[:], id-1)
	if err != nil {
		return e, false, err
	}
	e = protocol.SegmentEntry{Segment: p.Segment, SizeBytes: p.SizeBytes,
		OwnerIncarnation: atomic.LoadUint64(&p.OwnerIncarnation), State: atomic.LoadUint32(&p.State), Sort: p.Sort}
	return e, e.State != protocol.SegmentFree, nil
}

// WaitEpoch waits for an epoch above after: one turn of at most timeout and of at
// most 100 ms, after which the caller looks at its socket and comes again (rule
// R4). It returns the newest epoch, whether or not that is above after; 0 or less
// does not wait.
func (r *Reader) WaitEpoch(after uint64, timeout time.Duration) (uint64, error) {
	epoch := r.Epoch()
	if epoch > after || timeout <= 0 {
		return epoch, nil
	}
	// A seal between the load and the wait changes the low half, unless 2^32 seals do.
	err := shm.FutexWait(low32(&r.root.Epoch), uint32(epoch), min(timeout, turnMax))
	if err != nil && !errors.Is(err, shm.ErrAgain) && !errors.Is(err, shm.ErrTimeout) {
		return 0, corrupt("waiting for an epoch above %d: %v", after, err)
	}
	return r.Epoch(), nil
}

// corrupt is the error about a directory whose content cannot be true.
func corrupt(format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.StatusInternal, format+"; the directory is damaged: restart the broker and report this", args...)
}
