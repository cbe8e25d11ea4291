package snapshot

import (
	"fmt"
	"iter"
	"slices"

	"callboard/protocol"
	"callboard/shm"
)

// refBytes is a row of an array column: a RowRef, which says where the row's elements
// lie. What a column does with rows (layouts, overlays, dirty ranges) it does with these.
const refBytes = 24

// compactBytesMin is how many bytes of live rows a seal may move, beside as many as it
// was given to write.
const compactBytesMin = 1 << 20

// ragged is what an array column knows of its data: where the rows of the newest
// version lie, and how much of each block they use.
type ragged struct {
	rows      []raggedRow
	liveBytes uint64       // of all blocks below: what rows refer to
	sizeBytes uint64       // of all blocks below: what was written there
	sparse    []*dataBlock // those that were less than half live, oldest first
	leftCount int          // of sparse: those that no row refers to any more
	emptied   []*dataBlock // scratch: blocks that came in this seal, or that the last row may have left
	plan      uint64       // number of the last plan
}

// raggedRow is one row of the newest version. A dead or an empty row has no data.
type raggedRow struct {
	data  *dataBlock
	bytes uint64
	plan  uint64 // the plan that replaces, ends or moves it
}

// dataBlock is a block that rows' elements lie in, the stage's or a producer's. It is
// never written to again. Versions from first until the one that the last row left in
// may refer to it; once that has come, it goes with the last of them (rule V8).
type dataBlock struct {
	block *Block
	size  uint64
	live  uint64 // bytes that the newest version's rows refer to; a shared row counts for each
	first uint64 // sequence of the version that brought it
	left  bool
	thin  bool     // in ragged.sparse
	rows  []uint32 // that it was written for, in ragged.rows; some have left
	next  int      // rows before it have left

	plan  uint64 // of which going is
	going uint64 // bytes of live whose rows the plan replaces or ends
}

// used is how many of its bytes are not dead.
func (b *dataBlock) used() uint64 { return min(b.live, b.size) }

// stays is what live will be by a plan.
func (b *dataBlock) stays(plan uint64) uint64 {
	if b.plan != plan {
		return b.live
	}
	return b.live - b.going
}

func (r *ragged) add(b *dataBlock, bytes uint64) {
	before := b.used()
	b.live += bytes
	r.liveBytes += b.used() - before
}

// sub takes a row's bytes off its block.
func (r *ragged) sub(row *raggedRow) {
	b := row.data
	if b == nil {
		return
	}
	if row.bytes > b.live {
		panic(fmt.Sprintf("snapshot: a row of %d bytes leaves a data block of which %d are in use", row.bytes, b.live))
	}
	before := b.used()
	b.live -= row.bytes
	r.liveBytes -= before - b.used()
	row.data, row.bytes = nil, 0
	if b.live == 0 {
		r.emptied = append(r.emptied, b)
	} else {
		r.thin(b, b.live)
	}
}

// thin notes a block that is mostly dead, or will be.
func (r *ragged) thin(b *dataBlock, live uint64) {
	if !b.thin && 2*live < b.size {
		b.thin = true
		r.sparse = append(r.sparse, b)
	}
}

// set says where a row lies from now on.
func (r *ragged) set(row uint32, b *dataBlock, bytes uint64) {
	e := &r.rows[row]
	r.sub(e)
	if bytes == 0 {
		return
	}
	e.data, e.bytes = b, bytes
	r.add(b, bytes)
	b.rows = append(b.rows, row)
}

// take makes a block of data one of the column's; settle decides whether it stays.
func (r *ragged) take(block *Block, size, first uint64) *dataBlock {
	if block == nil {
		return nil // all rows are empty
	}
	b := &dataBlock{block: block.Hold(), size: size, first: first}
	r.sizeBytes += size
	r.emptied = append(r.emptied, b)
	return b
}

// settle ends a seal: blocks without rows go to the last version that may refer to
// them, or back at once where that is none.
func (r *ragged) settle(s *Store, c *column) {
	now := c.latest().sequence
	for _, b := range r.emptied {
		switch {
		case b.live > 0:
			r.thin(b, b.live) // it may have come with more than its rows
		case !b.left:
			b.left, b.rows = true, nil
			r.sizeBytes -= b.size
			if b.thin {
				r.leftCount++
			}
			c.handDown(s, b, now)
		}
	}
	clear(r.emptied)
	r.emptied = r.emptied[:0]
	if 2*r.leftCount > len(r.sparse) {
		r.sparse = slices.DeleteFunc(r.sparse, func(b *dataBlock) bool { return b.left })
		r.leftCount = 0
	}
}

// handDown gives a block that no row refers to any more to the newest version before
// sequence that may still do, or back to memory.
func (c *column) handDown(s *Store, b *dataBlock, sequence uint64) {
	for i := len(c.versions) - 1; i >= 0; i-- {
		v := c.versions[i]
		if v.sequence >= sequence {
			continue
		}
		if v.sequence >= b.first {
			v.data = append(v.data, b)
			return
		}
		break
	}
	s.memory.Drop(b.block)
}

// commit brings the books of the data to a version that was just made.
func (r *ragged) commit(s *Store, f *fold, v *version) {
	switch {
	case f.whole >= 0 || f.fresh || f.plan.compact && len(f.plan.live) == 0: // nothing of what was before stays
		for i := range r.rows {
			r.sub(&r.rows[i])
		}
		r.rows = r.rows[:0]
	case f.plan.compact:
		r.renumber(f.plan.live)
	}
	if n := int(v.rows) - len(r.rows); n > 0 {
		first := len(r.rows)
		r.rows = slices.Grow(r.rows, n)[:v.rows]
		clear(r.rows[first:])
	}
	if moved := r.take(f.moved, f.movedBytes, v.sequence); moved != nil {
		for _, row := range f.movedRows {
			r.set(row, moved, r.rows[row].bytes)
		}
		if f.cursor != nil {
			f.cursor.next = f.cursorNext
		}
	}
	if f.whole >= 0 {
		r.bring(f.captures[f.whole], nil, nil, v.sequence)
	}
	for i := f.first; i < len(f.captures); i++ {
		step := &f.steps[i]
		if step.count == 0 {
			continue
		}
		var places []uint32
		if step.sorted {
			places = f.placesOf(step)
		}
		r.bring(f.captures[i], f.rowsOf(step), places, v.sequence)
	}
	for _, row := range f.plan.deaths {
		if int(row) < len(r.rows) {
			r.sub(&r.rows[row])
		}
	}
	r.settle(s, f.column)
}

// bring notes the rows that a capture wrote: rows, or nil for all in order. Row i is of the capture's prim places[i], or i.
func (r *ragged) bring(k *capture, rows, places []uint32, sequence uint64) {
	b := r.take(k.data, k.dataBytes, sequence)
	if b != nil {
		b.rows = make([]uint32, 0, len(k.prims))
	}
	refs := slice[protocol.RowRef](k.bytes, 0, len(k.prims))
	for i, ref := range refs {
		row := uint32(i)
		if rows != nil {
			row = rows[i]
		}
		if places != nil {
			ref = refs[places[i]]
		}
		if b == nil {
			ref.LengthBytes = 0 // what stands there is a later capture's, applied in this one's table
		}
		r.set(row, b, ref.LengthBytes)
	}
}

// renumber follows rows that moved together: row i is what live[i] was.
func (r *ragged) renumber(live []uint32) {
	now := make([]raggedRow, len(live))
	for i, row := range live {
		now[i] = r.rows[row]
		if b := now[i].data; b != nil {
			b.rows, b.next = b.rows[:0], 0
		}
	}
	r.rows = now
	for i := range now {
		if b := now[i].data; b != nil {
			b.rows = append(b.rows, uint32(i))
		}
	}
}

// planMoves picks rows to be moved out of data blocks that are mostly dead, when all
// that is dead outweighs what lives. That is no change of the rows: their ordinals stay.
func (f *fold) planMoves() {
	f.movedRows, f.movedBytes, f.cursor = f.movedRows[:0], 0, nil
	if f.column == nil || f.column.ragged == nil || f.whole >= 0 || f.fresh || f.plan.compact {
		return
	}
	r := f.column.ragged
	live, dead, budget := r.liveBytes, r.sizeBytes-r.liveBytes, uint64(compactBytesMin)
	r.plan++
	for i := range f.steps {
		gone, left := r.going(f.rowsOf(&f.steps[i]))
		live, dead = live-gone, dead+gone-left
	}
	gone, left := r.going(f.plan.deaths)
	live, dead = live-gone, dead+gone-left
	for _, k := range f.captures {
		live, budget = live+k.dataBytes, budget+k.dataBytes
	}
	if dead <= live {
		return
	}
	for _, b := range r.sparse {
		stays := b.stays(r.plan)
		if b.left || stays == 0 || 2*stays >= b.size {
			continue
		}
		for n := b.next; n < len(b.rows); n++ {
			e := &r.rows[b.rows[n]]
			if e.data != b || e.plan == r.plan {
				continue
			}
			if f.movedBytes > 0 && f.movedBytes+e.bytes > budget {
				f.cursor, f.cursorNext = b, n
				return
			}
			e.plan = r.plan
			f.movedRows = append(f.movedRows, b.rows[n])
			f.movedBytes += e.bytes
		}
		if dead -= b.size - stays; dead <= live {
			return
		}
	}
}

// going marks rows that the plan replaces or ends. It tells how many more bytes will be
// dead, and how many are in blocks that no row will refer to.
func (r *ragged) going(rows []uint32) (gone, left uint64) {
	for _, row := range rows {
		if int(row) >= len(r.rows) || r.rows[row].plan == r.plan {
			continue
		}
		e := &r.rows[row]
		e.plan = r.plan
		b := e.data
		if b == nil {
			continue
		}
		if b.plan != r.plan {
			b.plan, b.going = r.plan, 0
		}
		before := min(b.stays(r.plan), b.size)
		b.going += e.bytes
		stays := b.stays(r.plan)
		gone += before - min(stays, b.size)
		if stays == 0 {
			left += b.size
		} else {
			r.thin(b, stays)
		}
	}
	return gone, left
}

// move copies the planned rows to their new block and points the table there. Rows of
// a producer that cut its memory off are zeros from now on.
func (f *fold) move(table []protocol.RowRef) {
	at := uint64(0)
	for _, row := range f.movedRows {
		e, ref := &f.column.ragged.rows[row], &table[row]
		from := e.data.block
		first := ref.OffsetBytes - from.Ref.OffsetBytes
		if ref.Segment != from.Ref.Segment || ref.LengthBytes != e.bytes || first > uint64(len(from.Bytes)) || e.bytes > uint64(len(from.Bytes))-first {
			panic(fmt.Sprintf("snapshot: row %d of attribute %q is at %d+%d of segment %d, its block at %d+%d of %d", row, f.column.name,
				ref.OffsetBytes, ref.LengthBytes, ref.Segment, from.Ref.OffsetBytes, from.Ref.LengthBytes, from.Ref.Segment))
		}
		dst := f.moved.Bytes[at:][:e.bytes]
		copyGuarded(dst, from.Bytes[first:], from)
		*ref = protocol.RowRef{Segment: f.moved.Ref.Segment, OffsetBytes: f.moved.Ref.OffsetBytes + at, LengthBytes: e.bytes}
		at += e.bytes
	}
}

// copyGuarded copies bytes of block to dst; what a producer cut off is zeros.
func copyGuarded(dst, src []byte, block *Block) {
	if block.arena.Sort != protocol.SegmentClient {
		copy(dst, src)
	} else if shm.Guard(func() { copy(dst, src) }) != nil {
		clear(dst)
	}
}

// liveRefs gives the rows of an array version that have data: those of its table that
// are present at its birth. Tables are the only lasting description of data blocks.
func liveRefs(table []protocol.RowRef, rows []protocol.LayoutRow, birth uint64) iter.Seq2[uint32, protocol.RowRef] {
	return func(yield func(uint32, protocol.RowRef) bool) {
		for i := range table {
			if table[i].LengthBytes > 0 && present(&rows[i], birth) && !yield(uint32(i), table[i]) {
				return
			}
		}
	}
}
