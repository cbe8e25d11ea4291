package snapshot

import (
	"math"
	"slices"
	"sync/atomic"

	"callboard/protocol"
)

// layout says which prim has which row. Columns that were first written with the
// same prims share one; a column that gains prims on its own gets its own (rule L2).
// Rows are only ever appended, and never while more than one column uses it.
type layout struct {
	id         uint64
	prims      []uint64          // path ids by row
	rows       map[uint64]uint32 // row by path id
	generation uint64            // of prims as they are now
	sealed     int               // rows whose birth has been published
	block      *Block            // LayoutHeader and LayoutRow in shared memory
	shared     []protocol.LayoutRow
	users      int    // columns, and writes on their way
	key        uint64 // in Store.layouts
}

const layoutRowsMin = 8

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

// publish stores the birth of rows that the next epoch shows first (rule V6).
func (l *layout) publish(epoch uint64) {
	for ; l.sealed < len(l.prims); l.sealed++ {
		atomic.StoreUint64(&l.shared[l.sealed].Birth, epoch)
	}
}

// rowPlan is the row map of a write, and what must change in the column's layout
// for it. Making a plan and leasing for it changes nothing that anybody sees.
type rowPlan struct {
	rows  []uint32 // by place in the query; absent where nothing is written. Valid until the query is used again
	dense bool     // the query's prims are exactly the rows, in order
	total uint64   // rows of the column afterwards
	added []uint64 // prims that get the last rows

	from  *layout // the column's layout, nil if it has none
	join  *layout // an existing layout to share
	block *Block  // leased: for a new layout, one's own, or one with more room
}

// planRows finds a row for every prim of q that the selection addresses. Prims that
// are not addressed appear only when somebody writes them (behaviour 92).
func (s *Store) planRows(from *layout, q *Query, selection *selected) rowPlan {
	p := rowPlan{from: from}
	if from != nil {
		var missing int
		p.rows, p.dense, missing = q.lookUp(from)
		p.total = uint64(len(from.prims))
		if missing == 0 {
			return p
		}
	} else {
		p.rows = q.emptyMap()
	}
	fresh := map[uint64]uint32{}
	for target := range selection.targets() {
		if p.rows[target] != absent {
			continue
		}
		prim := q.prims[target]
		row, ok := fresh[prim]
		if !ok {
			row = uint32(p.total)
			fresh[prim] = row
			p.added = append(p.added, prim)
			p.total++
		}
		p.rows[target] = row
	}
	p.dense = uint64(len(p.rows)) == p.total
	for i, row := range p.rows {
		p.dense = p.dense && row == uint32(i)
	}
	return p
}

// lease finds or leases what the plan needs, so that commit cannot fail.
func (p *rowPlan) lease(s *Store) error {
	if len(p.added) == 0 {
		return nil
	}
	if p.from == nil {
		if l := s.layouts[hashPrims(p.added)]; l != nil && slices.Equal(l.prims, p.added) {
			p.join = l
			l.users++ // from now on nobody appends to it
			return nil
		}
	}
	if l := p.from; l != nil && l.users == 1 {
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

// commit gives column c the plan's rows.
func (p *rowPlan) commit(s *Store, c *column) {
	if len(p.added) == 0 {
		return
	}
	l := p.from
	if l == nil && p.join == nil { // one of the same batch may have made it meanwhile
		if same := s.layouts[hashPrims(p.added)]; same != nil && slices.Equal(same.prims, p.added) {
			p.join = same
			same.users++
			s.memory.Drop(p.block)
		}
	}
	switch {
	case p.join != nil:
		c.layout = p.join
		return
	case l == nil || l.users > 1:
		own := &layout{id: s.lastLayout + 1, users: 1, rows: make(map[uint64]uint32, p.total)}
		s.lastLayout++
		if l != nil {
			own.prims, own.shared, own.sealed = slices.Clone(l.prims), l.shared, l.sealed
			for i, prim := range own.prims {
				own.rows[prim] = uint32(i)
			}
			l.users--
		}
		l, c.layout = own, own
	default:
		s.unlist(l)
	}
	for _, prim := range p.added {
		l.rows[prim] = uint32(len(l.prims))
		l.prims = append(l.prims, prim)
	}
	if p.block != nil {
		l.moveTo(p.block, s.memory)
	} else {
		l.shared = l.shared[:len(l.prims)]
		for i := len(l.prims) - len(p.added); i < len(l.prims); i++ {
			l.shared[i] = protocol.LayoutRow{PathID: l.prims[i], Birth: protocol.Infinite, Death: protocol.Infinite}
		}
	}
	s.layoutGeneration++
	l.generation, l.key = s.layoutGeneration, hashPrims(l.prims)
	s.list(l)
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
	if s.layouts[l.key] == nil {
		s.layouts[l.key] = l
	}
}

// unlist keeps columns from joining l.
func (s *Store) unlist(l *layout) {
	if s.layouts[l.key] == l {
		delete(s.layouts, l.key)
	}
}
