package snapshot

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"callboard/protocol"
	"callboard/shm"
)

// publish is the seal proper, in the order of rule V6: blocks (they are there),
// layout rows, new slots, deaths of the old, recovery record with its checksum,
// the epoch word, one wake.
func (s *Store) publish(columns []*column, stampNs uint64) {
	if stampNs == 0 {
		stampNs = uint64(time.Now().UnixNano())
	}
	epoch := s.epoch + 1
	s.sealed = Sealed{Epoch: epoch, StampNs: stampNs, Columns: s.sealed.Columns[:0]}
	for _, c := range columns {
		c.layout.publish(epoch)
	}
	for _, c := range columns {
		b := c.building
		if b.rows != uint64(len(c.layout.prims)) {
			panic(fmt.Sprintf("snapshot: attribute %q has %d unsealed rows, its layout %d", c.name, b.rows, len(c.layout.prims)))
		}
		v := c.newVersion()
		*v = version{birth: epoch, death: protocol.Infinite, block: b.block, rows: b.rows, layoutBlock: c.layout.block.Hold(),
			generation: c.layout.generation, lowest: b.ordinal, highest: b.ordinal}
		flags := uint32(0)
		if b.adopted {
			flags = protocol.VersionAdopted
			count(&c.entry.AdoptedCount, 1)
			s.counters.Adopted++
		} else {
			count(&c.entry.ScatteredCount, 1)
			s.counters.Scattered++
		}
		s.fill(c, v, flags, b.rows*c.rowBytes, stampNs)
		s.unsealedBytes -= b.block.Ref.LengthBytes
		c.building = nil
		s.sealed.Columns = append(s.sealed.Columns, SealedColumn{Name: c.name, Index: c.index, Floor: s.floorOfID(c.nameID), Lowest: v.lowest,
			Highest: v.highest, Rows: v.rows, LayoutGeneration: v.generation, Adopted: b.adopted, Published: true})
	}
	s.publishFloors(epoch, stampNs)
	for _, c := range columns {
		s.replace(c, epoch)
	}
	s.replace(s.columns[protocol.FloorColumn], epoch)
	s.records.write(epoch)
	s.epoch = epoch
	atomic.StoreUint64(&s.root.Epoch, epoch)
	if _, err := shm.FutexWake(s.EpochWord(), math.MaxInt32); err != nil {
		panic("snapshot: waking readers: " + err.Error())
	}
	for _, c := range columns {
		atomic.StoreUint64(&c.entry.LatestSlot, uint64(c.latest().slot))
		count(&c.entry.VersionCount, 1)
		s.noteExcess(c)
	}
	f := s.columns[protocol.FloorColumn]
	atomic.StoreUint64(&f.entry.LatestSlot, uint64(f.latest().slot))
	s.noteExcess(f)
	s.counters.Seals++
	s.sealed.Global = s.floors.global
	s.reclaim(false)
	if s.config.OnSeal != nil {
		s.config.OnSeal(&s.sealed)
	}
}

// newVersion appends a version with a free slot to the column's own books.
func (c *column) newVersion() *version {
	v := c.cache
	if v == nil {
		v = new(version)
	} else {
		c.cache = nil
	}
	c.versions = append(c.versions, v)
	return v
}

// fill takes a free slot for v and writes it in the order of rule V4.
func (s *Store) fill(c *column, v *version, flags uint32, lengthBytes, stampNs uint64) {
	n := len(c.freeSlots)
	v.slot, c.freeSlots = c.freeSlots[n-1], c.freeSlots[:n-1]
	shared := c.slots[v.slot].shared
	atomic.StoreUint64(&shared.Birth, protocol.Infinite)
	atomic.StoreUint64(&shared.Death, protocol.Infinite)
	atomic.StoreUint64(&shared.Block.Segment, v.block.Ref.Segment)
	atomic.StoreUint64(&shared.Block.OffsetBytes, v.block.Ref.OffsetBytes)
	atomic.StoreUint64(&shared.Block.LengthBytes, lengthBytes)
	atomic.StoreUint64(&shared.Rows, v.rows)
	atomic.StoreUint64(&shared.OrdinalLowest, v.lowest)
	atomic.StoreUint64(&shared.OrdinalHighest, v.highest)
	atomic.StoreUint64(&shared.LayoutGeneration, v.generation)
	layout := protocol.Ref{}
	if v.layoutBlock != nil {
		layout = protocol.Ref{Segment: v.layoutBlock.Ref.Segment, OffsetBytes: v.layoutBlock.Ref.OffsetBytes}
	}
	atomic.StoreUint64(&shared.Layout.Segment, layout.Segment)
	atomic.StoreUint64(&shared.Layout.OffsetBytes, layout.OffsetBytes)
	atomic.StoreUint64(&shared.RowOrdinals.Segment, 0)
	atomic.StoreUint64(&shared.RowOrdinals.OffsetBytes, 0)
	atomic.StoreUint64(&shared.ArenaGeneration, 0)
	atomic.StoreUint32(&shared.Flags, flags)
	atomic.StoreUint32(&shared.DeviceArena, 0)
	atomic.StoreUint64(&shared.StampNs, stampNs)
	atomic.StoreUint64(&shared.Birth, v.birth)
	s.records.set(c.slots[v.slot].record, v.record(c))
}

func (v *version) record(c *column) protocol.RecordEntry {
	return protocol.RecordEntry{AttributeSlot: uint64(c.index)<<32 | uint64(v.slot), Birth: v.birth, Death: v.death,
		Block: v.block.Ref, Rows: v.rows, LayoutGeneration: v.generation}
}

// replace stores the death of the version before the newest one.
func (s *Store) replace(c *column, epoch uint64) {
	if len(c.versions) < 2 {
		return
	}
	old := c.versions[len(c.versions)-2]
	old.death = epoch
	atomic.StoreUint64(&c.slots[old.slot].shared.Death, epoch)
	s.records.set(c.slots[old.slot].record, old.record(c))
}

// publishFloors writes the next version of column 0 (rule V9).
func (s *Store) publishFloors(epoch, stampNs uint64) {
	last := len(s.floors.spares) - 1
	b := s.floors.spares[last]
	s.floors.spares = s.floors.spares[:last]
	s.floors.global = s.globalFloor()
	n := 0
	rows := slice[protocol.FloorRow](b.Bytes, sizeOf[protocol.FloorTable](), len(s.floors.byName))
	for id, floor := range s.floors.byName {
		rows[n] = protocol.FloorRow{NameID: id, Floor: floor}
		n++
	}
	*at[protocol.FloorTable](b.Bytes, 0) = protocol.FloorTable{GlobalFloor: s.floors.global, DefaultFloor: s.floors.standard, StampNs: stampNs, Count: uint64(n)}
	c := s.columns[protocol.FloorColumn]
	v := c.newVersion()
	*v = version{birth: epoch, death: protocol.Infinite, block: b, rows: uint64(n)}
	s.fill(c, v, 0, floorTableBytes(n), stampNs)
}
