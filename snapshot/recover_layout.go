package snapshot

import (
	"callboard/protocol"
)

// layoutSize is the size of the layout that a slot refers to.
func (r *recovery) layoutSize(what string, shared *protocol.VersionSlot) (uint64, error) {
	head, err := r.bytes(what+", its layout", shared.Layout.Segment, shared.Layout.OffsetBytes, sizeOf[protocol.LayoutHeader]())
	if err != nil {
		return 0, err
	}
	if shared.Layout.OffsetBytes%protocol.BlockAlignBytes != 0 {
		return 0, corrupt("%s: its layout lies at offset %d", what, shared.Layout.OffsetBytes)
	}
	capacity := at[protocol.LayoutHeader](head, 0).Capacity
	if capacity < layoutRowsMin || capacity > 1<<32 || capacity&(capacity-1) != 0 || shared.Rows > capacity {
		return 0, corrupt("%s has %d rows, its layout room for %d", what, shared.Rows, capacity)
	}
	size, _ := layoutBytes(int(capacity))
	return size, nil
}

// layoutRowsOf are the rows of a version in its layout.
func layoutRowsOf(v *version) []protocol.LayoutRow {
	return slice[protocol.LayoutRow](v.layoutBlock.Bytes, sizeOf[protocol.LayoutHeader](), int(v.rows))
}

// readLayoutRows checks the rows of a version, and undoes deaths of a seal that is not
// there. Rows behind those of the newest version, whose birth it stored, are nobody's.
func (r *recovery) readLayoutRows(what string, v *version) error {
	rows := layoutRowsOf(v)
	for i := range rows {
		row := &rows[i]
		if row.Birth > v.birth || !r.isString(row.PathID, protocol.StringPath) {
			return corrupt("%s: row %d is of prim %#x and born at %d", what, i, row.PathID, row.Birth)
		}
	}
	for i := range rows {
		if rows[i].Death > r.epoch {
			r.edit(&rows[i].Death, protocol.Infinite)
		}
	}
	r.store.lastLayout = max(r.store.lastLayout, at[protocol.LayoutHeader](v.layoutBlock.Bytes, 0).LayoutID)
	return nil
}

// joinLayout gives a column the layout of its newest version. Columns whose newest
// versions have the same one share it.
func (r *recovery) joinLayout(c *column, v *version) error {
	if l := r.layouts[v.layoutBlock]; l != nil {
		if l.generation != v.generation || uint64(len(l.prims)) != v.rows {
			return corrupt("columns share a layout of %d rows in generation %d, and column %d has %d rows in generation %d", len(l.prims), l.generation, c.index, v.rows, v.generation)
		}
		l.users++
		c.layout = l
		return nil
	}
	head, shared := at[protocol.LayoutHeader](v.layoutBlock.Bytes, 0), layoutRowsOf(v)
	l := &layout{id: head.LayoutID, users: 1, key: hashStart, rows: make(map[uint64]uint32, len(shared)), generation: v.generation, sealed: len(shared),
		block: v.layoutBlock.Hold()}
	l.shared = slice[protocol.LayoutRow](v.layoutBlock.Bytes, sizeOf[protocol.LayoutHeader](), int(head.Capacity))[:len(shared)]
	for i := range shared {
		prim := shared[i].PathID
		l.prims = append(l.prims, prim)
		l.key = hashPrim(l.key, prim)
		if shared[i].Death <= r.epoch {
			l.dead++
			continue
		}
		if row, twice := l.rows[prim]; twice {
			return corrupt("prim %#x has rows %d and %d of column %d", prim, row, i, c.index)
		}
		l.rows[prim] = uint32(i)
	}
	r.layouts[v.layoutBlock], c.layout = l, l
	r.store.list(l)
	return nil
}

// readTombstones finds a column's ring of deletes, ends its replacement where that was
// begun, and takes back deletes of a seal that is not there: their places stay empty.
func (r *recovery) readTombstones(c *column) error {
	e, t := c.entry, &c.tombstones
	capacity, place := e.TombstoneCapacity, e.Tombstones
	if next := &e.TombstonesNext; capacity == 0 && next.Segment != 0 {
		capacity, place = next.LengthBytes/sizeOf[protocol.TombstoneRow](), protocol.Ref{Segment: next.Segment, OffsetBytes: next.OffsetBytes}
	}
	t.count = e.TombstoneCount
	if capacity == 0 {
		if t.count > 0 {
			return corrupt("column %d (%q) has %d deletes, and no place for them", c.index, c.name, t.count)
		}
		return nil
	}
	if capacity < tombstonesMin || capacity > tombstonesMax || capacity&(capacity-1) != 0 {
		return corrupt("column %d (%q) has a ring for %d deletes", c.index, c.name, capacity)
	}
	raw, err := r.claimTable("a ring of deletes", place, capacity*sizeOf[protocol.TombstoneRow]())
	if err != nil {
		return err
	}
	t.rows, t.made = slice[protocol.TombstoneRow](raw, 0, int(capacity)), 1
	for i := range t.rows {
		if row := &t.rows[i]; row.Epoch > r.epoch {
			r.edit(&row.Epoch, protocol.Infinite)
			r.edit(&row.Ordinal, 0)
		}
	}
	r.edit(&e.Tombstones.OffsetBytes, place.OffsetBytes)
	r.edit(&e.Tombstones.Segment, place.Segment)
	r.edit(&e.TombstoneCapacity, capacity)
	r.edit(&e.TombstonesNext.Segment, 0)
	return nil
}
