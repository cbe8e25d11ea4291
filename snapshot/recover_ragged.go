package snapshot

import (
	"cmp"
	"slices"

	"callboard/protocol"
)

// foundData is the data of an array column: what its versions' tables refer to, all
// together.
type foundData struct {
	extents []extent
	pieces  []*Block // claimed for them; none before all versions that must be there are read
}

// readRefs checks the table of an array version, and claims what it refers to, or notes it
// for claimData.
func (r *recovery) readRefs(what string, c *column, v *version) error {
	element, extents := elementBytes(&c.schema), []extent(nil)
	for row, ref := range liveRefs(slice[protocol.RowRef](v.block.Bytes, 0, int(v.rows)), layoutRowsOf(v), v.birth) {
		if ref.LengthBytes%element != 0 {
			return corrupt("%s: row %d has %d bytes, an element has %d", what, row, ref.LengthBytes, element)
		}
		if _, err := r.bytes(what+", a row", ref.Segment, ref.OffsetBytes, ref.LengthBytes); err != nil {
			return err
		}
		if n := len(extents) - 1; n >= 0 && extents[n].segment == ref.Segment && extents[n].offset+extents[n].length == ref.OffsetBytes {
			extents[n].length += ref.LengthBytes
			continue
		}
		extents = append(extents, extent{ref.Segment, ref.OffsetBytes, ref.LengthBytes})
	}
	d := r.data[c]
	if d == nil {
		d = &foundData{}
		r.data[c] = d
	}
	if !r.dataClaimed {
		d.extents = append(d.extents, extents...)
		return nil
	}
	return r.claimRefs(what, d, extents)
}

// claimData claims the data of all versions that must be there.
func (r *recovery) claimData() error {
	r.dataClaimed = true
	for _, c := range r.store.columns {
		if d := r.data[c]; d != nil {
			all := d.extents
			d.extents = nil
			if err := r.claimRefs("the data of attribute "+c.name, d, all); err != nil {
				return err
			}
		}
	}
	return nil
}

// claimRefs claims more of a column's data, which may lie over what was claimed for it
// before, or leaves all as it was.
func (r *recovery) claimRefs(what string, d *foundData, more []extent) error {
	before := d.extents
	err := r.claimJoined(what, d, join(slices.Concat(before, more)))
	if err != nil {
		if again := r.claimJoined(what, d, before); again != nil {
			panic("snapshot: claiming what was claimed: " + again.Error())
		}
	}
	return err
}

func (r *recovery) claimJoined(what string, d *foundData, extents []extent) error {
	for _, b := range d.pieces {
		r.unclaim(b)
	}
	d.extents, d.pieces = extents, nil
	for _, e := range extents {
		b, _, err := r.claim(what, e.segment, e.offset, e.length, pieceData)
		if err != nil {
			return err
		}
		d.pieces = append(d.pieces, b)
	}
	return nil
}

// finishRagged makes the books of an array column's data. A piece is a data block, however
// many there were: it goes when all of it may.
func (r *recovery) finishRagged(c *column) {
	books, d := c.ragged, r.data[c]
	if d == nil {
		return
	}
	blocks, last := make([]*dataBlock, len(d.pieces)), make([]*version, len(d.pieces))
	for i, b := range d.pieces {
		blocks[i] = &dataBlock{block: b.Hold(), size: b.Ref.LengthBytes}
	}
	books.rows = make([]raggedRow, c.latest().rows)
	for _, v := range c.versions {
		for row, ref := range liveRefs(slice[protocol.RowRef](v.block.Bytes, 0, int(v.rows)), layoutRowsOf(v), v.birth) {
			i, _ := slices.BinarySearchFunc(d.pieces, ref, func(b *Block, ref protocol.RowRef) int {
				return cmp.Or(cmp.Compare(b.Ref.Segment, ref.Segment), cmp.Compare(b.Ref.OffsetBytes+b.Ref.LengthBytes-1, ref.OffsetBytes))
			})
			b := blocks[i]
			if b.first == 0 {
				b.first = v.sequence
			}
			if last[i] = v; v == c.latest() {
				books.rows[row] = raggedRow{data: b, bytes: ref.LengthBytes}
				b.live += ref.LengthBytes
				b.rows = append(b.rows, row)
			}
		}
	}
	for i, b := range blocks {
		if b.live == 0 {
			b.left = true
			last[i].data = append(last[i].data, b)
			continue
		}
		books.sizeBytes += b.size
		books.liveBytes += b.used()
		books.thin(b, b.live)
	}
}
