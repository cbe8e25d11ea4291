package snapshot

import (
	"sync/atomic"

	"callboard/protocol"
	"callboard/tensor"
)

// Version is one version of a column as a reader found it. Data is valid as long
// as the pin that it was found under.
type Version struct {
	// Column is the column; nil in a Version that was not found.
	Column *Column
	// Birth is the epoch that published it.
	Birth uint64
	// Data holds Rows rows of Column.RowBytes bytes, read-only. Those of an array column
	// say where the elements lie: Pinned.Ragged follows them. It is nil where the rows lie
	// on a device.
	Data []byte
	Rows uint64
	// Block is where the rows lie; none are nowhere. Its segment is one of the device's where DeviceNumber,
	// 1 + the broker's index of the device, is not 0 (rule C1).
	Block        protocol.BlockRef
	DeviceNumber uint32
	// Void: they lay on a device of a broker that has ended since, and are gone (rule B3).
	// A newer epoch shows the attribute without them.
	Void bool
	// OrdinalLowest and OrdinalHighest bound the ordinals written in it.
	OrdinalLowest, OrdinalHighest uint64
	// LayoutGeneration changes exactly when membership or the row map changes.
	LayoutGeneration uint64
	// StampNs is the time of its seal in ns.
	StampNs uint64
	// Adopted: the block is a producer's own.
	Adopted bool

	layout   protocol.Ref
	ordinals []uint64 // of the rows; nil: all are of OrdinalHighest
}

// slotCopy is what one look at a slot took.
type slotCopy struct {
	birth    uint64
	death    uint64
	block    protocol.BlockRef
	rows     uint64
	lowest   uint64
	highest  uint64
	layouts  uint64
	layout   protocol.Ref
	ordinals protocol.Ref
	flags    uint32
	device   uint32
	life     uint64
	stampNs  uint64
	accepted bool
}

// look reads a slot by rule V4: birth, death, the rest, birth again. A slot that is
// of another epoch, or is being refilled, is not accepted; a reader never waits for
// one.
func look(s *protocol.VersionSlot, epoch uint64) (c slotCopy) {
	c = lookAny(s, epoch)
	c.accepted = c.accepted && c.death > epoch
	return c
}

// lookAny is look for a version that is dead or alive at the epoch.
func lookAny(s *protocol.VersionSlot, epoch uint64) (c slotCopy) {
	c.birth = atomic.LoadUint64(&s.Birth) // pairs with the stores in Store.fill
	if c.birth > epoch || c.birth == 0 {
		return c
	}
	c.death = atomic.LoadUint64(&s.Death)
	c.block = protocol.BlockRef{Segment: atomic.LoadUint64(&s.Block.Segment), OffsetBytes: atomic.LoadUint64(&s.Block.OffsetBytes), LengthBytes: atomic.LoadUint64(&s.Block.LengthBytes)}
	c.rows = atomic.LoadUint64(&s.Rows)
	c.lowest, c.highest = atomic.LoadUint64(&s.OrdinalLowest), atomic.LoadUint64(&s.OrdinalHighest)
	c.layouts = atomic.LoadUint64(&s.LayoutGeneration)
	c.layout = protocol.Ref{Segment: atomic.LoadUint64(&s.Layout.Segment), OffsetBytes: atomic.LoadUint64(&s.Layout.OffsetBytes)}
	c.ordinals = protocol.Ref{Segment: atomic.LoadUint64(&s.RowOrdinals.Segment), OffsetBytes: atomic.LoadUint64(&s.RowOrdinals.OffsetBytes)}
	c.flags = atomic.LoadUint32(&s.Flags)
	c.device, c.life = atomic.LoadUint32(&s.DeviceNumber), atomic.LoadUint64(&s.ArenaGeneration)
	c.stampNs = atomic.LoadUint64(&s.StampNs)
	c.accepted = atomic.LoadUint64(&s.Birth) == c.birth
	return c
}

// find looks for the version of c that is alive at epoch: in the slot that the
// directory hints at, then through the chain. ok is false for a column that has
// none, because it was born later.
//
// Precondition: the caller's pin on c at epoch has passed the check of rule V2.
// Then the version's slot, if there is one, is not refilled, and one pass finds it.
func (r *Reader) find(c *Column, epoch uint64) (s slotCopy, ok bool, err error) {
	hint := atomic.LoadUint64(&c.entry.LatestSlot)
	if hint < 1<<31 {
		page, err := r.slotPage(c, int(hint/protocol.SlotsPerPage))
		if err != nil {
			return s, false, err
		}
		if page != nil {
			if s = look(&page.Slots[hint%protocol.SlotsPerPage], epoch); s.accepted {
				return s, true, nil
			}
		}
	}
	for n := 0; ; n++ {
		page, err := r.slotPage(c, n)
		if err != nil || page == nil {
			return s, false, err
		}
		for i := range page.Slots {
			if s = look(&page.Slots[i], epoch); s.accepted {
				return s, true, nil
			}
		}
	}
}

// version turns a slot into a Version, its bytes checked against their segment.
func (r *Reader) version(c *Column, s *slotCopy) (Version, error) {
	v := Version{Column: c, Birth: s.birth, Rows: s.rows, OrdinalLowest: s.lowest, OrdinalHighest: s.highest, LayoutGeneration: s.layouts,
		StampNs: s.stampNs, Adopted: s.flags&protocol.VersionAdopted != 0, layout: s.layout}
	size := s.block.LengthBytes
	if c.Index != protocol.FloorColumn {
		if c.RowBytes != 0 && s.rows > s.block.LengthBytes/c.RowBytes {
			return v, corrupt("attribute %q: %d rows of %d bytes do not fit a block of %d bytes", c.Name, s.rows, c.RowBytes, s.block.LengthBytes)
		}
		size = s.rows * c.RowBytes
	}
	if size == 0 {
		return v, nil
	}
	var err error
	if s.ordinals.Segment != 0 {
		if v.ordinals, err = views[uint64](r, s.ordinals, s.rows, "a version's row ordinals"); err != nil {
			return v, err
		}
	}
	v.Block = protocol.BlockRef{Segment: s.block.Segment, OffsetBytes: s.block.OffsetBytes, LengthBytes: size}
	if s.device != 0 {
		return v, r.onDevice(&v, s)
	}
	v.Data, err = r.block(protocol.Ref{Segment: s.block.Segment, OffsetBytes: s.block.OffsetBytes}, size, "a version's block")
	return v, err
}

// onDevice checks a place of a device's memory against the directory's entry of the segment,
// which whoever imports it compares with what the broker says.
func (r *Reader) onDevice(v *Version, s *slotCopy) error {
	if device := v.Column.Schema.Device; device.Type != tensor.DeviceCUDA || device.ID != s.device-1 {
		return corrupt("attribute %q lies on %s, its version of epoch %d on device number %d", v.Column.Name, device, v.Birth, s.device)
	}
	v.DeviceNumber = s.device
	if v.Void = s.life != atomic.LoadUint64(&r.root.StartedNs); v.Void {
		return nil
	}
	e, ok, err := r.Segment(v.Block.Segment)
	if err != nil || !ok { // its entry may wait for a page
		return err
	}
	if b := &v.Block; e.Sort&protocol.SegmentOnDevice == 0 || b.OffsetBytes > e.SizeBytes || b.LengthBytes > e.SizeBytes-b.OffsetBytes {
		return corrupt("attribute %q: %d bytes at offset %d of a device do not fit segment %d of %d bytes and sort %#x", v.Column.Name, b.LengthBytes, b.OffsetBytes, b.Segment, e.SizeBytes, e.Sort)
	}
	return nil
}
