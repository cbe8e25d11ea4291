package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"

	"callboard/protocol"
)

// RowOrdinal is the ordinal that last wrote a row of the version.
func (v *Version) RowOrdinal(row uint32) uint64 {
	if v.ordinals == nil {
		return v.OrdinalHighest
	}
	return v.ordinals[row]
}

// Moment is which state of columns a reader wants.
type Moment struct {
	by int
	at uint64
}

const (
	byOrdinal = iota
	byCommon
	byStamp
	byNearestStamp
)

// AsOf is the state as of an ordinal, exactly; it must not be above the floors.
func AsOf(ordinal uint64) Moment { return Moment{byOrdinal, ordinal} }

// Common is the state as of the highest ordinal through which all columns are sealed; those that never were do not
// count, and have no version.
func Common() Moment { return Moment{by: byCommon} }

// AtStamp is of each column what was sealed last with a stamp of at most so many ns; nearest: or what was sealed after
// it, where its stamp is nearer.
func AtStamp(ns uint64, nearest bool) Moment {
	if nearest {
		return Moment{byNearestStamp, ns}
	}
	return Moment{byStamp, ns}
}

func (m Moment) String() string {
	if m.by == byOrdinal {
		return fmt.Sprintf("ordinal %d", m.at)
	}
	return fmt.Sprintf("stamp %d", m.at)
}

// PinAt pins the versions of columns of a moment (rules O4, V5), each at an epoch
// of its own, and the floors of the newest epoch. A column that had no version then
// has none in p.
//
// Errors: FLOOR_VIOLATION where the ordinal is above a column's floor; OUT_OF_RANGE
// where that state is not retained, or was never one of its own because
// several ordinals were sealed at once; those of Pin.
func (r *Reader) PinAt(p *Pinned, m Moment, columns ...*Column) error {
	for range pinTries - 1 {
		err := r.pinAt(p, m, columns)
		var refused *protocol.Error
		if m.by == byOrdinal || !errors.As(err, &refused) || refused.Status != protocol.StatusOutOfRange || p.epoch == r.Epoch() {
			return err
		}
		// What is aligned is a state of p's epoch: seals have overtaken it, and there is a newer one.
	}
	return r.pinAt(p, m, columns)
}

func (r *Reader) pinAt(p *Pinned, m Moment, columns []*Column) error {
	p.begin(r, false)
	if err := r.pinEpoch(p, 1); err != nil {
		return err
	}
	if p.epoch == 0 {
		if m.by == byOrdinal && m.at > 0 && len(columns) > 0 {
			p.refs.Store(0)
			return aboveFloor(columns[0].Name, m.at, 0)
		}
		p.columns = append(p.columns[:0], columns...)
		p.versions = slices.Grow(p.versions[:0], len(columns))[:len(columns)]
		clear(p.versions)
		return nil
	}
	floorColumn := p.columns[0]
	s, ok, err := r.find(floorColumn, p.epoch)
	if err == nil && !ok {
		err = corrupt("no floors are there for epoch %d", p.epoch)
	}
	if err == nil {
		p.floors, err = r.version(floorColumn, &s)
	}
	if err == nil {
		err = r.pinColumnsAt(p, m, columns)
	}
	if err == nil {
		err = r.accounts.open(r, p)
	}
	if err != nil {
		p.drop()
	}
	return err
}

func aboveFloor(name string, at, floor uint64) error {
	return protocol.Errorf(protocol.StatusFloorViolation, "attribute %q: a read as of ordinal %d is above the write floor %d; seal it first, or read the newest state", name, at, floor)
}

func (r *Reader) pinColumnsAt(p *Pinned, m Moment, columns []*Column) error {
	floors, err := p.Floors()
	if err != nil {
		return err
	}
	if m.by == byCommon {
		m = AsOf(floors.common(columns))
	} else if m.by == byOrdinal {
		for _, c := range columns {
			if floor := floors.Of(c.NameID); m.at > floor {
				return aboveFloor(c.Name, m.at, floor)
			}
		}
	}
	if m.by == byOrdinal {
		p.ordinal = m.at
	}
	p.columns = append(append(p.columns[:0], columns...), p.columns[0])
	p.versions = slices.Grow(p.versions[:0], len(columns))[:len(columns)]
	clear(p.versions)
	for i, c := range columns {
		if c.Unreadable != nil {
			return c.Unreadable
		}
		if m.by == byOrdinal && floors.Of(c.NameID) == 0 {
			continue // p's epoch shows nothing of it: what is there now was sealed later
		}
		if p.versions[i], err = r.pinColumnAt(p, c, m); err != nil {
			return err
		}
	}
	return nil
}

// common is the lowest floor of the columns' names, without those that are not sealed.
func (f *Floors) common(columns []*Column) uint64 {
	lowest := uint64(0)
	for _, c := range columns {
		if floor := f.Of(c.NameID); floor != 0 && (lowest == 0 || floor < lowest) {
			lowest = floor
		}
	}
	return lowest
}

// pinColumnAt finds the version, pins it and finds it again: between the two the store
// may have given it to others, which its horizon tells. The state of an ordinal at or
// below the column's floor does not change any more; by stamp, what was sealed after p's epoch does not count.
func (r *Reader) pinColumnAt(p *Pinned, c *Column, m Moment) (Version, error) {
	for range pinTries {
		epoch := p.epoch
		if m.by == byOrdinal {
			epoch = r.Epoch()
		}
		found, ok, err := r.findAsOf(c, m, epoch)
		if err != nil || !ok {
			return Version{}, err
		}
		pin := min(epoch, found.death-1)
		slot, err := r.pins.Acquire()
		if err != nil {
			return Version{}, protocol.Errorf(protocol.StatusLimit, "a pin slot for attribute %q is needed: %v", c.Name, err)
		}
		r.pins.Store(slot, c.Index, pin)
		if atomic.LoadUint64(&c.entry.Horizon) <= pin {
			s, ok, err := r.find(c, pin)
			if err == nil && ok && s.birth == found.birth {
				p.slots = append(p.slots, slot)
				return r.version(c, &s)
			}
			r.pins.Release(slot)
			if err != nil {
				return Version{}, err
			}
			continue
		}
		r.pins.Release(slot)
		if pin < epoch || m.by != byOrdinal {
			return Version{}, notRetained(c, m)
		}
	}
	return Version{}, notRetained(c, m)
}

func notRetained(c *Column, m Moment) error {
	return protocol.Errorf(protocol.StatusOutOfRange, "attribute %q: its state as of %v is not retained any more; it keeps %d versions, declare a larger retain", c.Name, m, c.Retain())
}

// findAsOf looks through all slots for the version that is exactly the state of a
// moment, sealed by epoch. ok is false when the column had nothing then.
func (r *Reader) findAsOf(c *Column, m Moment, epoch uint64) (best slotCopy, ok bool, err error) {
	var all []slotCopy // a few: retained ones and pinned ones
	for n := 0; ; n++ {
		page, err := r.slotPage(c, n)
		if err != nil {
			return best, false, err
		}
		if page == nil {
			break
		}
		for i := range page.Slots {
			s := lookAny(&page.Slots[i], epoch)
			if !s.accepted {
				continue
			}
			all = append(all, s)
			from := s.stampNs
			if m.by == byOrdinal {
				from = s.lowest
			}
			if from <= m.at && s.birth > best.birth {
				best = s
			}
		}
	}
	if best.birth == 0 {
		// Also where no slot is of this epoch any more: whoever was held up meanwhile.
		if atomic.LoadUint64(&c.entry.Horizon) != 0 {
			return best, false, notRetained(c, m)
		}
		if m.by != byNearestStamp || len(all) == 0 {
			return best, false, nil // none was ever given up, so the first one is later
		}
		return slices.MinFunc(all, func(a, b slotCopy) int { return cmp.Compare(a.birth, b.birth) }), true, nil
	}
	if m.by == byOrdinal && best.highest > m.at {
		return best, false, protocol.Errorf(protocol.StatusOutOfRange, "attribute %q: ordinals %d to %d were sealed in one step, so there is no state as of %d", c.Name, best.lowest, best.highest, m.at)
	}
	next := slices.IndexFunc(all, func(s slotCopy) bool { return s.birth == best.death })
	if best.death <= epoch && next < 0 {
		return best, false, notRetained(c, m) // what came next is not known
	}
	if m.by == byNearestStamp && next >= 0 && all[next].stampNs-m.at < m.at-best.stampNs {
		best = all[next]
	}
	return best, true, nil
}

// Changed narrows a row map of v to the rows that were written after an ordinal.
func (m *RowMap) Changed(v *Version, since uint64) *RowMap {
	if v.ordinals == nil {
		if v.OrdinalHighest > since {
			return m
		}
		return &RowMap{}
	}
	out := &RowMap{}
	for i, row := range m.Rows {
		if v.ordinals[row] > since {
			out.Prims, out.Rows, out.Elements = append(out.Prims, m.Prims[i]), append(out.Rows, row), append(out.Elements, m.Elements[i])
		}
	}
	out.findRun()
	return out
}

// Has tells whether an element of the list has a row.
func (m *RowMap) Has(element uint32) bool {
	_, ok := slices.BinarySearch(m.Elements, element)
	return ok
}

// Tombstone is a delete of a prim of a list.
type Tombstone struct {
	Prim    uint64
	Ordinal uint64
	Element uint32 // its first place in the list
}

// tombstoneTries bounds how often a reader looks for a ring that is being replaced,
// which takes its writer three stores.
const tombstoneTries = 1000

// Tombstones gives the last delete of each prim of l in a column, of those after the
// ordinal since and at or below end that an epoch shows, in the list's order (rule
// O7). Whether a prim came back is for the caller to see. OUT_OF_RANGE: deletes after
// since are not all known any more.
func (r *Reader) Tombstones(l *PrimList, c *Column, epoch, since, end uint64) ([]Tombstone, error) {
	var found []Tombstone
	for atomic.LoadUint64(&c.entry.TombstoneCount) > 0 {
		rows, count, err := r.tombstoneRing(c)
		if err != nil {
			return nil, err
		}
		found = lastDeletes(l, rows, count, epoch, since, end)
		// A ring that was replaced meanwhile stays, but not for a broker that starts again.
		if atomic.LoadUint64(&c.entry.TombstoneCapacity) == uint64(len(rows)) {
			break
		}
	}
	if frontier := atomic.LoadUint64(&c.entry.FrontierOrdinal); frontier > since { // after the rows: it rises before they go
		return nil, protocol.Errorf(protocol.StatusOutOfRange, "attribute %q: deletes after ordinal %d are not all known any more, only those after %d; read the newest state as a whole", c.Name, since, frontier)
	}
	slices.SortFunc(found, func(a, b Tombstone) int { return int(a.Element) - int(b.Element) })
	return found, nil
}

// lastDeletes are the deletes in a ring, as Tombstones gives them, the newest first.
func lastDeletes(l *PrimList, rows []protocol.TombstoneRow, count, epoch, since, end uint64) (found []Tombstone) {
	index, size := l.index(), uint64(len(rows))
	seen := map[uint64]bool{}
	for n := count; n > 0 && count-n < size; n-- { // the newest first: their ordinals never rise again
		row := &rows[(n-1)%size]
		shown := atomic.LoadUint64(&row.Epoch)
		t := Tombstone{Prim: atomic.LoadUint64(&row.PathID), Ordinal: atomic.LoadUint64(&row.Ordinal)}
		if shown > epoch || atomic.LoadUint64(&row.Epoch) != shown || t.Ordinal > end {
			continue
		}
		if t.Ordinal <= since {
			break
		}
		var ok bool
		if t.Element, ok = index[t.Prim]; ok && !seen[t.Prim] {
			seen[t.Prim] = true
			found = append(found, t)
		}
	}
	return found
}

// tombstoneRing finds the ring. Its capacity, of which there is never the same twice,
// says whether place and size belong together.
func (r *Reader) tombstoneRing(c *Column) (rows []protocol.TombstoneRow, count uint64, err error) {
	for range tombstoneTries {
		capacity := atomic.LoadUint64(&c.entry.TombstoneCapacity)
		place := loadRef(&c.entry.Tombstones)
		if capacity == 0 || atomic.LoadUint64(&c.entry.TombstoneCapacity) != capacity {
			runtime.Gosched()
			continue
		}
		rows, err = views[protocol.TombstoneRow](r, place, capacity, "a ring of deletes")
		return rows, atomic.LoadUint64(&c.entry.TombstoneCount), err
	}
	return nil, 0, protocol.Errorf(protocol.StatusTimeout, "attribute %q: its ring of deletes is being replaced; try again", c.Name)
}

// Frontier is the ordinal after which a column's changes are known exactly (behaviour
// 119).
func (c *Column) Frontier() uint64 { return atomic.LoadUint64(&c.entry.FrontierOrdinal) }
