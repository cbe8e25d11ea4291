package snapshot

import (
	"callboard/fault"
	"callboard/protocol"
)

// tombstonesMax is how many deletes of a column are remembered (rule O7), and
// tombstonesMin how many there is room for at first.
const (
	tombstonesMax = 1 << 16
	tombstonesMin = 1 << 6
)

// tombstones is a column's ring of deletes in shared memory. A ring that is too small
// is replaced by one of twice the size; the old one stays, since readers may look at
// it, and all of them together are smaller than the newest.
type tombstones struct {
	rows  []protocol.TombstoneRow // nil before the first delete
	count uint64                  // deletes ever
	next  []protocol.TombstoneRow // a larger ring, reserved
	place protocol.BlockRef       // of next
	made  int                     // rings that were made
}

// reserveTombstones makes room for n more deletes, as far as rings grow.
func (s *Store) reserveTombstones(c *column, n int) error {
	t := &c.tombstones
	have := max(len(t.rows), len(t.next))
	want := max(have, tombstonesMin)
	for want < tombstonesMax && t.count+uint64(n) > uint64(want) {
		want *= 2
	}
	if want == have {
		return nil
	}
	b, err := s.metadata(uint64(want) * sizeOf[protocol.TombstoneRow]())
	if err != nil {
		return err
	}
	t.made++
	clear(b.Bytes)
	t.next = slice[protocol.TombstoneRow](b.Bytes, 0, want)
	t.place = protocol.BlockRef{Segment: b.Ref.Segment, OffsetBytes: b.Ref.OffsetBytes, LengthBytes: uint64(want) * sizeOf[protocol.TombstoneRow]()}
	return nil
}

// bury publishes deletes that an epoch shows first, before its word is stored. A
// delete that falls out of the ring moves the retention frontier first.
func (c *column) bury(buried []tombstone, epoch uint64) {
	t := &c.tombstones
	if t.next != nil {
		c.growTombstones()
	}
	if fault.On(fault.TombstoneDropped) {
		return
	}
	for _, b := range buried {
		row := &t.rows[t.count%uint64(len(t.rows))]
		if t.count >= uint64(len(t.rows)) && row.Ordinal > c.entry.FrontierOrdinal {
			store64(&c.entry.FrontierOrdinal, row.Ordinal)
		}
		store64(&row.Epoch, protocol.Infinite)
		store64(&row.PathID, b.prim)
		store64(&row.Ordinal, b.ordinal)
		store64(&row.Epoch, epoch)
		t.count++
		store64(&c.entry.TombstoneCount, t.count)
	}
}

// growTombstones makes the reserved ring the column's: its capacity is 0 meanwhile, so
// that readers do not take the place of one for the size of another. Should the broker
// die meanwhile, the next one finds the ring by TombstonesNext, and ends what was begun.
func (c *column) growTombstones() {
	t := &c.tombstones
	for i := t.count - min(t.count, uint64(len(t.rows))); i < t.count; i++ {
		t.next[i%uint64(len(t.next))] = t.rows[i%uint64(len(t.rows))]
	}
	e := c.entry
	store64(&e.TombstonesNext.LengthBytes, t.place.LengthBytes)
	store64(&e.TombstonesNext.OffsetBytes, t.place.OffsetBytes)
	store64(&e.TombstonesNext.Segment, t.place.Segment)
	store64(&e.TombstoneCapacity, 0)
	store64(&e.Tombstones.OffsetBytes, t.place.OffsetBytes)
	store64(&e.Tombstones.Segment, t.place.Segment)
	t.rows, t.next = t.next, nil
	store64(&e.TombstoneCapacity, uint64(len(t.rows)))
	store64(&e.TombstonesNext.Segment, 0)
}
