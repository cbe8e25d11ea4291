package snapshot

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"callboard/protocol"
)

// pinTries is after how many attempts a reader asks the broker to pin (rule V2).
const pinTries = 16

// Pinned is one consistent view: versions of some columns, or of all, and the
// floors, at one epoch. Everyone who shows its bytes shares it by Hold and Release;
// the last Release gives the pins back, natively and from any goroutine.
//
// A Pinned is made by Reader.Pin or PinAll in memory of the caller's and must not
// be copied. After the last Release the same memory may be pinned anew.
type Pinned struct {
	reader  *Reader
	epoch   uint64
	ordinal uint64 // that PinAt was as of; 0: none
	all     bool
	refs    atomic.Int32
	slots   []int // pin slots, in the order of columns, the floors last

	columns  []*Column
	versions []Version // by columns; Column nil: none at this epoch
	floors   Version

	// owned by reader.accounts
	counted      []versionKey
	since        time.Time
	older, newer *Pinned

	mutex sync.Mutex // of lookups through a pin of everything
}

// Pin pins the versions of columns, and the floors, at the newest epoch (rule V2)
// and finds them. Before the first seal, and for no columns, the view is of an
// empty stage or of the floors alone. A warm call takes no memory.
//
// Errors: LIMIT when the client pins too much or has no pin slots left; what the
// resolver says of a segment; INTERNAL. Nothing is pinned then.
func (r *Reader) Pin(p *Pinned, columns ...*Column) error {
	p.begin(r, false)
	p.columns = append(p.columns, columns...)
	if err := r.pinEpoch(p, len(columns)+1); err != nil || p.epoch == 0 {
		return err
	}
	for i, c := range columns {
		v, err := r.lookUp(p, c)
		if err != nil {
			p.drop()
			return err
		}
		p.versions[i] = v
	}
	return r.finishPin(p)
}

// PinNamed pins all columns of names, as Pin does, or as PinAt of the moment where one is given; Columns tells them. A
// column that came since they were looked up may have its first version at the pinned epoch, in one seal with those of
// others: then all is done again.
//
// Errors: those of Columns, Pin and PinAt.
func (r *Reader) PinNamed(p *Pinned, m *Moment, names ...string) error {
	for {
		count := atomic.LoadUint32(&r.root.AttributeCount)
		var columns []*Column
		for _, name := range names {
			more, err := r.Columns(name)
			if err != nil {
				return err
			}
			columns = append(columns, more...)
		}
		var err error
		if m == nil {
			err = r.Pin(p, columns...)
		} else {
			err = r.PinAt(p, *m, columns...)
		}
		if err != nil || atomic.LoadUint32(&r.root.AttributeCount) == count { // it rises before the epoch does
			return err
		}
		p.Release()
	}
}

// PinAll pins everything at the newest epoch (rule O6); columns are looked up
// with Find while it is held. Errors: as for Pin.
func (r *Reader) PinAll(p *Pinned) error {
	p.begin(r, true)
	if err := r.pinEpoch(p, 1); err != nil || p.epoch == 0 {
		return err
	}
	return r.finishPin(p)
}

func (p *Pinned) begin(r *Reader, all bool) {
	if n := p.refs.Load(); n != 0 {
		panic(fmt.Sprintf("snapshot: a pin that %d views hold is pinned anew", n))
	}
	p.reader, p.all, p.epoch, p.ordinal = r, all, 0, 0
	p.slots, p.columns, p.versions, p.counted = p.slots[:0], p.columns[:0], p.versions[:0], p.counted[:0]
	p.floors = Version{}
}

// pinEpoch takes n pin slots and stores pins in them that pass the check of rule
// V2. Epoch 0 in p afterwards: nothing was ever sealed, and nothing is pinned.
func (r *Reader) pinEpoch(p *Pinned, n int) error {
	t, err := r.columns()
	if err != nil {
		return err
	}
	p.versions = slices.Grow(p.versions, len(p.columns))[:len(p.columns)]
	clear(p.versions)
	if r.Epoch() == 0 {
		p.refs.Store(1)
		return nil
	}
	if len(t.list) == 0 {
		return corrupt("the epoch is %d but there is no column of floors", r.Epoch())
	}
	if !p.all {
		p.columns = append(p.columns, t.list[protocol.FloorColumn])
	}
	for range n {
		slot, err := r.pins.Acquire()
		if err != nil {
			r.releaseSlots(p)
			return protocol.Errorf(protocol.StatusLimit, "%d pin slots are needed: %v", n, err)
		}
		p.slots = append(p.slots, slot)
	}
	for try := 0; ; try++ {
		if try == pinTries {
			return r.pinByBroker(p)
		}
		epoch := r.Epoch()
		for i, slot := range p.slots {
			r.pins.Store(slot, p.attribute(i), epoch)
		}
		// Only now the horizons: the broker raises one, then looks for pins. Whoever
		// comes second sees the other.
		if r.safe(p, epoch) {
			p.epoch = epoch
			p.refs.Store(1)
			return nil
		}
		for i, slot := range p.slots {
			r.pins.Store(slot, p.attribute(i), 0)
		}
	}
}

// attribute is what pin slot i of p pins.
func (p *Pinned) attribute(i int) uint32 {
	if p.all {
		return protocol.PinAll
	}
	return p.columns[i].Index
}

func (r *Reader) safe(p *Pinned, epoch uint64) bool {
	if p.all {
		return atomic.LoadUint64(&r.root.HorizonAny) <= epoch
	}
	for _, c := range p.columns {
		if atomic.LoadUint64(&c.entry.Horizon) > epoch {
			return false
		}
	}
	return true
}

func (r *Reader) pinByBroker(p *Pinned) error {
	if r.PinByBroker == nil {
		r.releaseSlots(p)
		return protocol.Errorf(protocol.StatusTimeout, "pinning %s: the broker gave up versions during each of %d attempts, and this reader cannot ask it to pin; try again, or serve with a larger --retain", p.describe(), pinTries)
	}
	named := make([]uint32, len(p.slots))
	for i, slot := range p.slots {
		named[i] = uint32(slot)
	}
	epoch, err := r.PinByBroker(named)
	if err != nil {
		p.slots = p.slots[:0] // the broker may still store into them: they are lost
		return fmt.Errorf("pinning by the broker: %w", err)
	}
	for _, slot := range p.slots {
		if got := r.pins.Epoch(slot); got != epoch || epoch == 0 {
			r.releaseSlots(p)
			return corrupt("operation PIN answered epoch %d but pin slot %d holds %d", epoch, slot, got)
		}
	}
	p.epoch = epoch
	p.refs.Store(1)
	return nil
}

// lookUp finds the version of c at p's epoch; the pin must hold.
func (r *Reader) lookUp(p *Pinned, c *Column) (Version, error) {
	if c.Unreadable != nil {
		return Version{}, c.Unreadable
	}
	s, ok, err := r.find(c, p.epoch)
	if err != nil || !ok {
		return Version{}, err
	}
	return r.version(c, &s)
}

// finishPin finds the floors and counts what p holds.
func (r *Reader) finishPin(p *Pinned) error {
	floors := r.table.Load().list[protocol.FloorColumn]
	s, ok, err := r.find(floors, p.epoch)
	if err == nil && !ok {
		err = corrupt("no floors are there for epoch %d", p.epoch)
	}
	if err == nil {
		p.floors, err = r.version(floors, &s)
	}
	if err == nil {
		err = r.accounts.open(r, p)
	}
	if err != nil {
		p.drop()
	}
	return err
}

// drop ends a pin that nobody has seen yet.
func (p *Pinned) drop() {
	p.refs.Store(0)
	p.reader.releaseSlots(p)
}

func (r *Reader) releaseSlots(p *Pinned) {
	for _, slot := range p.slots {
		r.pins.Release(slot)
	}
	p.slots = p.slots[:0]
}

// Hold adds a holder. The caller must be one itself.
func (p *Pinned) Hold() {
	if p.refs.Add(1) < 2 {
		panic("snapshot: a pin that nobody holds any more is held anew")
	}
}

// Release takes a holder away and tells whether it was the last: then the pins are
// given back, and nothing found through p may be read any more.
func (p *Pinned) Release() (last bool) {
	switch n := p.refs.Add(-1); {
	case n > 0:
		return false
	case n < 0:
		panic(fmt.Sprintf("snapshot: a pin was released %d times too often", -n))
	}
	if p.epoch != 0 {
		// The account first: the broker may give the memory to others right after.
		p.reader.accounts.close(p.reader, p)
		p.reader.releaseSlots(p)
	}
	return true
}

// Epoch is the epoch that is shown; 0 before the first seal.
func (p *Pinned) Epoch() uint64 { return p.epoch }

// Ordinal is the ordinal that the view is as of, given or common; 0 of any other view.
func (p *Pinned) Ordinal() uint64 { return p.ordinal }

// Columns are those that were pinned, in the order of Versions.
func (p *Pinned) Columns() []*Column { return p.columns[:len(p.versions)] }

// Version is the version of the i-th column given to Pin. Its Column is nil when
// the column has none at this epoch.
func (p *Pinned) Version(i int) *Version { return &p.versions[i] }

// Versions are those of all columns given to Pin, in order.
func (p *Pinned) Versions() []Version { return p.versions }

// Find looks a column up through a pin of everything. Column is nil in the answer
// when it has no version at this epoch. Each version found is counted as pinned
// until the release (rule V7): LIMIT.
func (p *Pinned) Find(c *Column) (Version, error) {
	if !p.all {
		panic("snapshot: Find through a pin of columns")
	}
	if p.epoch == 0 {
		return Version{}, nil
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	v, err := p.reader.lookUp(p, c)
	if err != nil || v.Column == nil {
		return Version{}, err
	}
	return v, p.reader.accounts.add(p.reader, p, &v)
}
