package snapshot

import (
	"fmt"
	"math"
	"time"

	"callboard/fault"
	"callboard/protocol"
	"callboard/shm"
)

// publish is the seal proper, in the order of rule V6: blocks (they are there),
// layout rows, tombstones, new slots, deaths of the old, recovery record with its
// checksum, the epoch word, one wake.
func (s *Store) publish(z *sealing) {
	stampNs := z.stampNs
	if stampNs == 0 {
		stampNs = uint64(time.Now().UnixNano())
	}
	epoch := s.epoch + 1
	s.sealed = Sealed{Epoch: epoch, StampNs: stampNs, Columns: s.sealed.Columns[:0]}
	for i := range z.folds {
		if f := &z.folds[i]; f.publish {
			f.commit(s, epoch)
		}
	}
	for i := range z.folds {
		if f := &z.folds[i]; f.publish {
			f.column.layout.publish(epoch)
			f.column.bury(f.plan.buried, epoch)
		}
	}
	for i := range z.folds {
		f := &z.folds[i]
		if !f.publish {
			continue
		}
		c := f.column
		v := c.latest()
		if v.rows != uint64(len(c.layout.prims)) {
			panic(fmt.Sprintf("snapshot: attribute %q has %d rows to publish, its layout %d", c.name, v.rows, len(c.layout.prims)))
		}
		flags := uint32(0)
		if v.adopted {
			flags = protocol.VersionAdopted
		}
		s.fill(c, v, flags, v.rows*c.rowBytes, stampNs)
		s.sealed.Columns = append(s.sealed.Columns, SealedColumn{Name: c.name, Index: c.index, Floor: s.floorOfID(c.nameID), Lowest: v.lowest,
			Highest: v.highest, Rows: v.rows, LayoutGeneration: v.generation, Adopted: v.adopted, Published: true})
	}
	s.publishFloors(epoch, stampNs)
	for i := range z.folds {
		if z.folds[i].publish {
			s.replace(z.folds[i].column, epoch)
		}
	}
	s.replace(s.columns[protocol.FloorColumn], epoch)
	s.records.write(epoch)
	s.epoch = epoch
	store64(&s.root.Epoch, epoch)
	s.wake()
	for i := range z.folds {
		f := &z.folds[i]
		c := f.column
		if f.publish {
			store64(&c.entry.LatestSlot, uint64(c.latest().slot))
			count(&c.entry.VersionCount, 1)
			s.noteExcess(c)
			s.noteLag(c)
		}
		f.end(s)
	}
	z.folds = z.folds[:0]
	s.found()
	f := s.columns[protocol.FloorColumn]
	store64(&f.entry.LatestSlot, uint64(f.latest().slot))
	s.noteExcess(f)
	s.counters.Seals++
	s.sealed.Global = s.floors.global
	s.reclaim(false)
	if s.config.OnSeal != nil {
		s.config.OnSeal(&s.sealed)
	}
}

// wake wakes who waits for an epoch.
func (s *Store) wake() {
	if _, err := shm.FutexWake(s.EpochWord(), math.MaxInt32); err != nil {
		panic("snapshot: waking readers: " + err.Error())
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
	store64(&shared.Birth, protocol.Infinite)
	store64(&shared.Death, protocol.Infinite)
	store64(&shared.Block.Segment, v.block.Ref.Segment)
	store64(&shared.Block.OffsetBytes, v.block.Ref.OffsetBytes)
	store64(&shared.Block.LengthBytes, lengthBytes)
	store64(&shared.Rows, v.rows)
	store64(&shared.OrdinalLowest, v.lowest)
	store64(&shared.OrdinalHighest, v.highest)
	store64(&shared.LayoutGeneration, v.generation)
	layout := protocol.Ref{}
	if v.layoutBlock != nil {
		layout = protocol.Ref{Segment: v.layoutBlock.Ref.Segment, OffsetBytes: v.layoutBlock.Ref.OffsetBytes}
	}
	store64(&shared.Layout.Segment, layout.Segment)
	store64(&shared.Layout.OffsetBytes, layout.OffsetBytes)
	ordinals := protocol.Ref{}
	if v.ordinals != nil {
		ordinals = protocol.Ref{Segment: v.ordinals.Ref.Segment, OffsetBytes: v.ordinals.Ref.OffsetBytes}
	}
	store64(&shared.RowOrdinals.Segment, ordinals.Segment)
	store64(&shared.RowOrdinals.OffsetBytes, ordinals.OffsetBytes)
	store64(&shared.ArenaGeneration, v.block.life())
	store32(&shared.Flags, flags)
	store32(&shared.DeviceNumber, v.block.device().number())
	store64(&shared.StampNs, stampNs)
	store64(&shared.Birth, v.birth)
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
	store64(&c.slots[old.slot].shared.Death, epoch)
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
		if fault.On(fault.FloorsStale) {
			floor--
		}
		rows[n] = protocol.FloorRow{NameID: id, Floor: floor}
		n++
	}
	*at[protocol.FloorTable](b.Bytes, 0) = protocol.FloorTable{GlobalFloor: s.floors.global, DefaultFloor: s.floors.standard, StampNs: stampNs, Count: uint64(n)}
	c := s.columns[protocol.FloorColumn]
	v := c.newVersion()
	*v = version{birth: epoch, death: protocol.Infinite, block: b, rows: uint64(n)}
	s.fill(c, v, 0, floorTableBytes(n), stampNs)
}
