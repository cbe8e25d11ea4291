package snapshot

import (
	"slices"

	"callboard/protocol"
)

// refsOf are the rows of an array version that have data.
func refsOf(v *version) func(yield func(uint32, protocol.RowRef) bool) {
	return liveRefs(slice[protocol.RowRef](v.block.Bytes, 0, int(v.rows)), layoutRowsOf(v), v.birth)
}

// claimData claims what the rows of an array version refer to, or nothing. Runs of the
// same column that touch become one piece, which goes as a whole: when the last row that
// lies in it is gone (rule V8).
func (r *recovery) claimData(what string, c *column, v *version) error {
	var all []extent
	element := elementBytes(&c.schema)
	for row, ref := range refsOf(v) {
		if _, err := r.bytes(what+", an array", ref.Segment, ref.OffsetBytes, ref.LengthBytes); err != nil {
			return err
		}
		if f := r.byID[ref.Segment]; ref.LengthBytes%element != 0 || f.seg.Sort == protocol.SegmentClient && f.seg.Owner == 0 {
			return corrupt("%s: row %d has %d bytes in segment %d, of elements of %d", what, row, ref.LengthBytes, ref.Segment, element)
		}
		if n := len(all); n > 0 && all[n-1].segment == ref.Segment && all[n-1].offset+all[n-1].length == ref.OffsetBytes {
			all[n-1].length += ref.LengthBytes
			continue
		}
		all = append(all, extent{ref.Segment, ref.OffsetBytes, ref.LengthBytes})
	}
	all = widen(all)
	for _, e := range all {
		f := r.byID[e.segment]
		for i := f.after(e.offset); i < len(f.pieces) && f.pieces[i].Ref.OffsetBytes < e.offset+e.length; i++ {
			if p := f.pieces[i]; f.owners[p] != c {
				return corrupt("%s: rows at %d bytes from offset %d of segment %d lie over %s of %d bytes at %d", what, e.length, e.offset, e.segment,
					f.sorts[p], p.Ref.LengthBytes, p.Ref.OffsetBytes)
			}
		}
	}
	for _, e := range all {
		r.byID[e.segment].addData(c, e.offset, e.offset+e.length)
	}
	return nil
}

// addData makes one piece of a run and those of the same column that it overlaps.
func (f *found) addData(c *column, from, to uint64) {
	first := f.after(from)
	end := first
	for ; end < len(f.pieces) && f.pieces[end].Ref.OffsetBytes < to; end++ {
		p := f.pieces[end]
		from, to = min(from, p.Ref.OffsetBytes), max(to, p.Ref.OffsetBytes+p.Ref.LengthBytes)
		delete(f.sorts, p)
		delete(f.owners, p)
	}
	b := f.block(from, to-from)
	f.pieces = slices.Replace(f.pieces, first, end, b)
	f.sorts[b], f.owners[b] = pieceData, c
}

// findData makes the books of an array column's data of what its versions refer to.
func (r *recovery) findData(c *column) {
	type use struct {
		block *dataBlock
		last  *version // the newest that refers to it
	}
	uses, order := map[*Block]*use{}, []*use(nil)
	g, newest := c.ragged, c.latest()
	g.rows = make([]raggedRow, newest.rows)
	for _, v := range c.versions {
		for row, ref := range refsOf(v) {
			f := r.byID[ref.Segment]
			piece := f.pieces[f.after(ref.OffsetBytes)]
			u := uses[piece]
			if u == nil {
				u = &use{block: &dataBlock{block: piece.Hold(), first: v.sequence}}
				uses[piece], order = u, append(order, u)
			}
			u.last = v
			u.block.size = max(u.block.size, ref.OffsetBytes+ref.LengthBytes-piece.Ref.OffsetBytes)
			if v == newest {
				g.rows[row] = raggedRow{data: u.block, bytes: ref.LengthBytes}
				u.block.live += ref.LengthBytes
				u.block.rows = append(u.block.rows, row)
			}
		}
	}
	for _, u := range order {
		b := u.block
		if b.live == 0 {
			b.left = true
			u.last.data = append(u.last.data, b)
			continue
		}
		g.sizeBytes += b.size
		g.liveBytes += b.used()
		g.thin(b, b.live)
	}
}
