package snapshot

import (
	"maps"
	"math"
	"slices"

	"callboard/protocol"
)

// layout says which prim has which row. Columns that were first written with the
// same prims share one; a column whose membership changes on its own gets its own
// (rule L2). Rows are only ever appended, and die in place; neither happens while
// more than one column uses it. It changes only in the step that publishes it.
type layout struct {
	id         uint64
	prims      []uint64          // path ids by row
	rows       map[uint64]uint32 // row by path id, of the living
	dead       int               // rows without a prim
	changes    uint64            // how often rows died: row maps that are older may be wrong
	generation uint64            // of prims as they are now
	sealed     int               // rows whose birth has been published
	dying      []uint32          // rows whose death the next epoch shows
	block      *Block            // LayoutHeader and LayoutRow in shared memory
	shared     []protocol.LayoutRow
	users      int    // columns, and seals on their way
	key        uint64 // in Store.layouts
}

const layoutRowsMin = 8

// freshKept is how large a plan's map may be to be used again.
const freshKept = 64

// rowMapBytes is about what a row map has to be written for each prim.
const rowMapBytes = 24

// absent is the row of a prim that has none.
const absent = math.MaxUint32

// layoutBytes is the size of a block with room for at least n rows, in powers of two.
func layoutBytes(n int) (sizeBytes uint64, capacity int) {
	capacity = layoutRowsMin
	for capacity < n {
		capacity *= 2
	}
	return sizeOf[protocol.LayoutHeader]() + uint64(capacity)*sizeOf[protocol.LayoutRow](), capacity
}

// moveTo makes block the shared picture of l and writes all its rows there. Versions
// hold references of their own to the block that it had.
func (l *layout) moveTo(block *Block, m *Memory) {
	_, capacity := layoutBytes(len(l.prims))
	*at[protocol.LayoutHeader](block.Bytes, 0) = protocol.LayoutHeader{LayoutID: l.id, Capacity: uint64(capacity)}
	shared := slice[protocol.LayoutRow](block.Bytes, sizeOf[protocol.LayoutHeader](), capacity)
	for i := copy(shared, l.shared); i < len(l.prims); i++ {
		shared[i] = protocol.LayoutRow{PathID: l.prims[i], Birth: protocol.Infinite, Death: protocol.Infinite}
	}
	m.Drop(l.block)
	l.block, l.shared = block, shared[:len(l.prims)]
}

// publish stores the birth and the death of rows that the next epoch shows first
// (rule V6).
func (l *layout) publish(epoch uint64) {
	for ; l.sealed < len(l.prims); l.sealed++ {
		store64(&l.shared[l.sealed].Birth, epoch)
	}
	for _, row := range l.dying {
		store64(&l.shared[row].Death, epoch)
	}
	l.dying = l.dying[:0]
}

// halfDead tells whether rows should move together (rule L2).
func (l *layout) halfDead() bool { return l.dead >= layoutRowsMin && 2*l.dead >= len(l.prims) }

// living tells whether prims are exactly those that have a row, in the order of rows.
func (l *layout) living(prims []uint64) bool {
	n := 0
	for row, prim := range l.prims {
		if now, ok := l.rows[prim]; !ok || now != uint32(row) {
			continue
		}
		if n == len(prims) || prims[n] != prim {
			return false
		}
		n++
	}
	return n == len(prims)
}

// tombstone is one delete of one prim, before it is published.
type tombstone struct{ prim, ordinal uint64 }

// rowPlan is what a seal's captures do to a column's membership, in their order.
// Making a plan and leasing for it changes nothing that anybody sees.
type rowPlan struct {
	from    *layout           // the column's layout, nil if it has none
	compact bool              // from's living rows move together first
	live    []uint32          // then: their rows in from
	fresh   map[uint64]uint32 // prims whose row differs from from's; absent: deleted
	added   []uint64          // prims that get the last rows
	deaths  []uint32          // rows that end
	buried  []tombstone
	total   uint64 // rows afterwards

	join  *layout // an existing layout to share
	block *Block  // leased: for a new layout, one's own, or one with more room
}

// begin starts a plan on a layout.
func (p *rowPlan) begin(from *layout) {
	*p = rowPlan{from: from, fresh: p.fresh, live: p.live[:0], added: p.added[:0], deaths: p.deaths[:0], buried: p.buried[:0]}
	if len(p.fresh) > freshKept {
		p.fresh = nil // a map does not shrink, and to walk it would cost its size for ever
	}
	clear(p.fresh)
	if from == nil {
		return
	}
	p.total = uint64(len(from.prims))
	if p.compact = from.halfDead(); p.compact {
		p.total = uint64(len(from.rows))
		p.expect(len(from.rows))
		for row, prim := range from.prims {
			if now, ok := from.rows[prim]; ok && now == uint32(row) {
				p.set(prim, uint32(len(p.live)))
				p.live = append(p.live, uint32(row))
			}
		}
	}
}

// expect makes room for so many prims at once: to grow a map doubles its cost.
func (p *rowPlan) expect(prims int) {
	if len(p.fresh) == 0 && prims > freshKept {
		p.fresh = make(map[uint64]uint32, prims)
	}
}

func (p *rowPlan) set(prim uint64, row uint32) {
	if p.fresh == nil {
		p.fresh = map[uint64]uint32{}
	}
	p.fresh[prim] = row
}

// row finds a prim's row as it is after what was planned until now.
func (p *rowPlan) row(prim uint64) (row uint32, ok bool) {
	if len(p.fresh) > 0 {
		if row, ok = p.fresh[prim]; ok {
			return row, row != absent
		}
	}
	if p.from == nil || p.compact {
		return absent, false
	}
	row, ok = p.from.rows[prim]
	return row, ok
}

// place appends a row for every prim of a capture to rows, new ones for prims that
// have none (behaviour 92). list has them instead, if it is not nil, and rows is as it was;
// they may be in another order than the prims. whole: they are all rows that there are, in
// order; then rows is as it was. covers: they are all rows, in some order.
func (p *rowPlan) place(k *capture, rows []uint32) (_ []uint32, list *rowList, whole, covers bool) {
	missing := len(k.prims) // at most
	var inFrom []uint32     // rows of the prims before this plan, if that is known of all
	if p.from != nil && !p.compact && len(p.fresh) == 0 && k.query != nil && k.query.Size() == uint64(len(k.prims)) {
		var dense bool
		if inFrom, dense, missing = k.query.lookUp(p.from); missing == 0 {
			if dense && k.from == nil {
				return rows, nil, true, false
			}
			covers = dense || k.query.cacheSpan == len(p.from.prims)
			if list = k.query.inOrder(); list == nil {
				rows = append(rows, inFrom...)
			}
			return rows, list, false, covers
		}
	}
	p.expect(missing)
	first := len(rows)
	dense := k.from == nil
	for i, prim := range k.prims {
		var row uint32
		var ok bool
		switch {
		case inFrom == nil:
			row, ok = p.row(prim)
		case inFrom[i] != absent:
			row, ok = inFrom[i], true
		default: // unless it comes twice
			row, ok = p.fresh[prim]
		}
		if !ok {
			row = uint32(p.total)
			p.set(prim, row)
			p.added = append(p.added, prim)
			p.total++
		}
		dense = dense && row == uint32(i)
		rows = append(rows, row)
	}
	if dense && uint64(len(k.prims)) == p.total {
		return rows[:first], nil, true, false
	}
	return rows, nil, false, false
}

// firstRows gives each prim the row of its place; nil where one comes twice.
func firstRows(prims []uint64) map[uint64]uint32 {
	rows := make(map[uint64]uint32, len(prims))
	for i, prim := range prims {
		rows[prim] = uint32(i)
	}
	if len(rows) < len(prims) {
		return nil
	}
	return rows
}

// take is place for a column's first capture, if nothing else is planned and its rows were
// made beforehand: a million prims cost the loop nothing then. The map becomes the
// layout's, so the plan must not change it.
func (p *rowPlan) take(k *capture) bool {
	if p.from != nil || k.rows == nil || k.from != nil || len(k.prims) <= freshKept {
		return false
	}
	p.fresh, p.added, p.total = k.rows, append(p.added, k.prims...), uint64(len(k.prims))
	return true
}

// remove ends the rows of a capture's prims and tells whether there were any; prims that
// have none are passed over.
func (p *rowPlan) remove(k *capture) bool {
	before := len(p.deaths)
	p.expect(min(len(k.prims), int(p.total)))
	for _, prim := range k.prims {
		if row, ok := p.row(prim); ok {
			p.set(prim, absent)
			p.deaths = append(p.deaths, row)
			p.buried = append(p.buried, tombstone{prim, k.ordinal})
		}
	}
	return len(p.deaths) > before
}

// empty makes a plan that only deletes, and leaves nobody, one without rows: their bytes
// go with the older versions, not with the next write.
func (p *rowPlan) empty() {
	if p.from == nil || len(p.deaths) == 0 || len(p.added) > 0 {
		return
	}
	living := len(p.from.rows)
	if p.compact {
		living = len(p.live)
	}
	if living > len(p.deaths) {
		return
	}
	p.compact, p.live, p.deaths, p.fresh, p.total = true, p.live[:0], p.deaths[:0], nil, 0
}

// changes tells whether the plan changes membership.
func (p *rowPlan) changes() bool { return p.compact || len(p.added) > 0 || len(p.deaths) > 0 }

// lease finds or leases what the plan needs, so that commit cannot fail.
func (p *rowPlan) lease(s *Store) error {
	if !p.changes() {
		return nil
	}
	if p.joins() {
		if l := s.layouts[hashPrims(p.added)]; l != nil && slices.Equal(l.prims, p.added) {
			p.join = l
			l.users++ // from now on nobody changes it
			return nil
		}
	}
	if l := p.from; l != nil && l.users == 1 && !p.compact {
		s.unlist(l) // from now on nobody joins it
		if p.total <= uint64(cap(l.shared)) {
			return nil
		}
	}
	size, _ := layoutBytes(int(p.total))
	block, err := s.metadata(size)
	p.block = block
	return err
}

// joins tells whether the outcome may be a layout that others have already.
func (p *rowPlan) joins() bool {
	return (p.from == nil || p.compact && len(p.live) == 0) && len(p.deaths) == 0 && len(p.added) > 0
}

// commit gives column c the plan's rows.
func (p *rowPlan) commit(s *Store, c *column) {
	if !p.changes() {
		return
	}
	l, hashed, all := p.from, 0, false // all: the plan has all rows
	if p.join == nil && p.joins() {    // one of the same seal may have made it meanwhile
		if same := s.layouts[hashPrims(p.added)]; same != nil && slices.Equal(same.prims, p.added) {
			p.join = same
			same.users++
			s.memory.Drop(p.block)
			p.block = nil
		}
	}
	if p.join != nil {
		s.leave(l)
		c.layout, p.join = p.join, nil
		return
	}
	if l == nil || l.users > 1 || p.compact {
		own := &layout{id: s.lastLayout + 1, users: 1, key: hashStart}
		s.lastLayout++
		if all = l == nil || p.compact; all {
			if own.rows, p.fresh = p.fresh, nil; own.rows == nil {
				own.rows = map[uint64]uint32{}
			}
			own.prims = make([]uint64, 0, p.total)
			for _, row := range p.live {
				own.prims = append(own.prims, l.prims[row])
			}
		} else {
			own.prims, own.shared, own.sealed, own.dead, own.key = slices.Clone(l.prims), l.shared, l.sealed, l.dead, l.key
			own.rows, hashed = maps.Clone(l.rows), len(l.prims)
		}
		s.leave(l)
		l, c.layout = own, own
	} else {
		s.unlist(l)
		hashed = len(l.prims)
	}
	first := len(l.prims)
	l.prims = append(l.prims, p.added...)
	if !all {
		for i, prim := range p.added {
			l.rows[prim] = uint32(first + i)
		}
	}
	for _, row := range p.deaths { // unless the prim has got another row
		if now := l.rows[l.prims[row]]; now == row || now == absent {
			delete(l.rows, l.prims[row])
		}
	}
	if p.block != nil {
		l.moveTo(p.block, s.memory)
		p.block = nil
	} else {
		l.shared = l.shared[:len(l.prims)]
		for i := first; i < len(l.prims); i++ {
			l.shared[i] = protocol.LayoutRow{PathID: l.prims[i], Birth: protocol.Infinite, Death: protocol.Infinite}
		}
	}
	if len(p.deaths) > 0 {
		l.dying = append(l.dying, p.deaths...)
		l.dead += len(p.deaths)
		l.changes++
	}
	s.layoutGeneration++
	l.generation = s.layoutGeneration
	for _, prim := range l.prims[hashed:] {
		l.key = hashPrim(l.key, prim)
	}
	s.list(l)
}

// leave takes a column from its layout.
func (s *Store) leave(l *layout) {
	if l == nil {
		return
	}
	if l.users--; l.users == 0 {
		s.unlist(l)
		s.memory.Drop(l.block)
	}
}

// drop gives up a plan that is not committed.
func (p *rowPlan) drop(s *Store) {
	s.memory.Drop(p.block)
	if p.join != nil {
		p.join.users--
	} else if p.from != nil {
		s.list(p.from)
	}
	p.block, p.join = nil, nil
}

// list lets columns whose first write has the same prims join l.
func (s *Store) list(l *layout) {
	if l.dead == 0 && s.layouts[l.key] == nil {
		s.layouts[l.key] = l
	}
}

// unlist keeps columns from joining l.
func (s *Store) unlist(l *layout) {
	if s.layouts[l.key] == l {
		delete(s.layouts, l.key)
	}
}
