package snapshot

import (
	"cmp"
	"fmt"
	"slices"

	"callboard/protocol"
)

// weakVersion is a version that the record tells of and that may have been reclaimed
// since: it is dead, and its column's horizon is past it. If a reader has pinned it, it
// is as it was; if none has, its slot or its memory may be another's already. Then it is
// not there any more, and nobody can have noticed.
type weakVersion struct {
	column *column
	slot   int
	entry  protocol.RecordEntry
}

func (r *recovery) readColumns() error {
	s := r.store
	if err := r.readTable(&s.attributes, "the table of attributes"); err != nil {
		return err
	}
	if r.root.AttributeCount == 0 {
		return corrupt("it has no columns, not even that of the floors")
	}
	if r.root.HorizonAny > r.epoch {
		return corrupt("the horizon of all columns is %d, above epoch %d", r.root.HorizonAny, r.epoch)
	}
	r.owned = make([]bool, min(s.records.tables[0].room(), s.records.tables[1].room()))
	if len(r.entries) > len(r.owned) {
		return corrupt("one of its recovery records has %d entries, and there is room for %d in the other", len(r.entries), len(r.owned))
	}
	for i := range r.root.AttributeCount {
		raw, ok := s.attributes.have(uint64(i))
		if !ok {
			return corrupt("it counts %d columns, and its table of attributes ends before %d", r.root.AttributeCount, i)
		}
		if err := r.readColumn(i, at[protocol.AttributeEntry](raw, 0)); err != nil {
			return err
		}
	}
	return nil
}

// readColumn makes a column of its entry, with all its slots and what they hold for
// certain.
func (r *recovery) readColumn(index uint32, e *protocol.AttributeEntry) error {
	s := r.store
	c := &column{index: index, nameID: e.NameID, schema: e.Schema, rowBytes: e.RowBytes, retain: int(e.Retain), handoff: e.Handoff, entry: e}
	for i := range c.log {
		c.log[i].all = true // what versions of another life changed is not known
	}
	if index == protocol.FloorColumn {
		c.name = floorName
		if e.Schema != floorSchema() || e.RowBytes != 8 || e.NameID != 0 {
			return corrupt("column 0 is not that of the floors")
		}
	} else {
		c.name, _ = s.Text(e.NameID)
		c.device = s.served(&e.Schema)
		_, rowBytes, err := schemaOf(&e.Schema)
		if !r.isString(e.NameID, protocol.StringToken) || checkReserved(c.name) != nil || err != nil || rowBytes != e.RowBytes {
			return corrupt("column %d has name %#x (%q), %d bytes a row, and a schema for %d (%v)", index, e.NameID, c.name, e.RowBytes, rowBytes, err)
		}
		if c.attribute = s.byName[c.name]; c.attribute == nil {
			c.attribute = &attribute{name: c.name, id: c.nameID}
			s.byName[c.name] = c.attribute
		}
		c.attribute.columns = append(c.attribute.columns, c)
		if e.Schema.Kind == protocol.KindArray {
			c.ragged = &ragged{}
		}
	}
	if e.State != protocol.AttributeLive || e.Retain == 0 || e.Retain > 1<<20 || e.Handoff != protocol.HandoffAdopt && e.Handoff != protocol.HandoffCopy {
		return corrupt("column %d (%q) has state %d, retains %d versions, handoff %d", index, c.name, e.State, e.Retain, e.Handoff)
	}
	if e.Horizon > r.epoch {
		return corrupt("the horizon of column %d (%q) is %d, above epoch %d", index, c.name, e.Horizon, r.epoch)
	}
	// A broker raises a horizon, then that of all: readers of all columns look at this one
	// alone, and the next broker must not take it for raised.
	if e.Horizon > r.root.HorizonAny {
		r.raiseHorizonAny(e.Horizon)
	}
	s.columns = append(s.columns, c)
	if err := r.readSlots(c); err != nil {
		return err
	}
	return r.readTombstones(c)
}

func (r *recovery) raiseHorizonAny(to uint64) {
	for i := range r.edits {
		if e := &r.edits[i]; e.word == &r.root.HorizonAny {
			e.value = max(e.value, to)
			return
		}
	}
	r.edit(&r.root.HorizonAny, to)
}

func (r *recovery) readSlots(c *column) error {
	for place := c.entry.SlotPages; place.Segment != 0; place = c.lastPage.Next { // no page is claimed twice, so it ends
		raw, err := r.claimTable(fmt.Sprintf("a page of slots of column %d", c.index), place, sizeOf[protocol.SlotPage]())
		if err != nil {
			return err
		}
		page := at[protocol.SlotPage](raw, 0)
		first := page.FirstRecord
		room := uint64(len(r.owned))
		if page.Attribute != uint64(c.index) || page.FirstSlot != uint64(len(c.slots)) || first > room || room-first < protocol.SlotsPerPage {
			return corrupt("a page of slots of column %d says column %d, slot %d for %d, records from %d of %d", c.index, page.Attribute, page.FirstSlot, len(c.slots), first, room)
		}
		c.lastPage = page
		for i := range page.Slots {
			record := first + uint64(i)
			if r.owned[record] {
				return corrupt("entry %d of its recovery records belongs to two slots, one of them of column %d", record, c.index)
			}
			r.owned[record] = true
			c.slots = append(c.slots, slot{shared: &page.Slots[i], record: record})
			if err := r.readSlot(c, len(c.slots)-1); err != nil {
				return err
			}
		}
		r.store.recordSlots = max(r.store.recordSlots, first+protocol.SlotsPerPage)
	}
	if c.lastPage == nil {
		return corrupt("column %d has no slots", c.index)
	}
	return nil
}

// readSlot compares a slot with the record.
func (r *recovery) readSlot(c *column, i int) error {
	shared, e := c.slots[i].shared, r.entry(c.slots[i].record)
	if e.Birth == 0 {
		r.freeSlot(c, i)
		return nil
	}
	living := e.Death == protocol.Infinite
	if e.AttributeSlot != uint64(c.index)<<32|uint64(i) || e.Birth > r.epoch || !living && (e.Death <= e.Birth || e.Death > r.epoch) {
		return corrupt("the recovery record of epoch %d says column %d, slot %d, birth %d, death %d of column %d, slot %d", r.epoch, e.AttributeSlot>>32,
			uint32(e.AttributeSlot), e.Birth, e.Death, c.index, i)
	}
	if e.Death <= c.entry.Horizon {
		r.weak = append(r.weak, weakVersion{c, i, e})
		return nil
	}
	if shared.Birth != e.Birth {
		return corrupt("slot %d of column %d has birth %d, the recovery record says %d", i, c.index, shared.Birth, e.Birth)
	}
	return r.readVersion(c, i, &e)
}

// freeSlot makes sure that a slot without a version shows none: one that was being
// filled when the broker died (V6). What a reclaimed version left may stay, as it did.
func (r *recovery) freeSlot(c *column, i int) {
	shared := c.slots[i].shared
	if shared.Birth > r.epoch || shared.Death > c.entry.Horizon {
		r.edit(&shared.Birth, protocol.Infinite)
	}
	c.freeSlots = append(c.freeSlots, i)
}

// readVersion makes a version of a slot. It claims all that belongs to it, or nothing.
func (r *recovery) readVersion(c *column, i int, e *protocol.RecordEntry) (err error) {
	shared := c.slots[i].shared
	what := fmt.Sprintf("the version of epoch %d of column %d", e.Birth, c.index)
	lengthBytes, rowSort := floorTableBytes(int(min(shared.Rows, 1<<32))), pieceFloors
	if c.index != protocol.FloorColumn {
		rowSort = pieceRows
		if lengthBytes, err = bytesOf(c.name, shared.Rows, c.rowBytes); err != nil {
			return corrupt("%s has %d rows: %v", what, shared.Rows, err)
		}
	}
	b := &shared.Block
	if b.Segment != e.Block.Segment || b.OffsetBytes != e.Block.OffsetBytes || b.LengthBytes != lengthBytes || lengthBytes > e.Block.LengthBytes ||
		e.Block.LengthBytes%protocol.BlockAlignBytes != 0 || shared.Rows != e.Rows || shared.LayoutGeneration != e.LayoutGeneration {
		return corrupt("%s has %d rows, generation %d, in %+v; the recovery record says %d rows, generation %d, in %+v", what, shared.Rows, shared.LayoutGeneration, *b,
			e.Rows, e.LayoutGeneration, e.Block)
	}
	var claimed []*Block
	claim := func(place protocol.Ref, length uint64, sort pieceSort) *Block {
		if err != nil {
			return nil
		}
		block, fresh, failed := r.claim(what, place.Segment, place.OffsetBytes, length, sort)
		if err = failed; failed != nil {
			return nil
		}
		if fresh {
			claimed = append(claimed, block)
		}
		return block.Hold()
	}
	v := &version{slot: i, birth: e.Birth, death: e.Death, rows: e.Rows, generation: e.LayoutGeneration, lowest: shared.OrdinalLowest, highest: shared.OrdinalHighest,
		adopted: shared.Flags&protocol.VersionAdopted != 0}
	if shared.DeviceNumber == 0 {
		v.block = claim(protocol.Ref{Segment: b.Segment, OffsetBytes: b.OffsetBytes}, e.Block.LengthBytes, rowSort)
	} else {
		v.block, err = r.claimGone(what, c, e, lengthBytes)
	}
	if c.index != protocol.FloorColumn && err == nil {
		var size uint64
		if size, err = r.layoutSize(what, shared); err == nil {
			v.layoutBlock = claim(shared.Layout, size, pieceLayout)
		}
		if shared.RowOrdinals.Segment != 0 && err == nil {
			v.ordinals = claim(shared.RowOrdinals, v.rows*8, pieceOrdinals)
		}
		if err == nil {
			err = r.readLayoutRows(what, v)
		}
		if err == nil && c.ragged != nil {
			err = r.claimData(what, c, v)
		}
	}
	if err != nil {
		for _, held := range []*Block{v.block, v.layoutBlock, v.ordinals} {
			if held != nil {
				held.refs--
			}
		}
		for _, block := range claimed {
			r.unclaim(block)
		}
		return err
	}
	r.edit(&shared.Death, e.Death) // one that was stored by a seal that is undone
	at, _ := slices.BinarySearchFunc(c.versions, v.birth, func(other *version, birth uint64) int { return cmp.Compare(other.birth, birth) })
	c.versions = slices.Insert(c.versions, at, v)
	r.store.layoutGeneration = max(r.store.layoutGeneration, v.generation)
	return nil
}

// readWeak looks at the versions that may be gone, when all is claimed that is there.
func (r *recovery) readWeak() error {
	for i := range r.weak {
		w := &r.weak[i]
		shared := w.column.slots[w.slot].shared
		if shared.Birth == w.entry.Birth && r.readVersion(w.column, w.slot, &w.entry) == nil {
			continue
		}
		r.entries[w.column.slots[w.slot].record] = protocol.RecordEntry{}
		r.freeSlot(w.column, w.slot)
	}
	return nil
}

// finishColumns puts what versions say of a column into its books.
func (r *recovery) finishColumns() error {
	for _, c := range r.store.columns {
		slices.SortFunc(c.freeSlots, func(a, b int) int { return b - a }) // the first ones are used first
		for i, v := range c.versions {
			last := i == len(c.versions)-1
			if last != (v.death == protocol.Infinite) || !last && v.death > c.versions[i+1].birth {
				return corrupt("version %d of %d of column %d is of epochs %d to %d", i, len(c.versions), c.index, v.birth, v.death)
			}
			if c.index != protocol.FloorColumn {
				v.sequence = uint64(i + 1)
			}
		}
		v := c.latest()
		if v == nil {
			continue
		}
		r.edit(&c.entry.LatestSlot, uint64(v.slot))
		if c.index != protocol.FloorColumn && !r.loseColumn(c) {
			if err := r.joinLayout(c, v); err != nil {
				return err
			}
			if c.ragged != nil {
				r.findData(c)
			}
		}
	}
	return nil
}

// readFloors takes the floors from the newest version of column 0 (rule V9).
func (r *recovery) readFloors() error {
	v := r.store.columns[protocol.FloorColumn].latest()
	if v == nil {
		if r.record >= 0 {
			return corrupt("epoch %d has no floors", r.epoch)
		}
		return nil
	}
	f, t := &r.store.floors, at[protocol.FloorTable](v.block.Bytes, 0)
	if t.Count != v.rows {
		return corrupt("the floors of epoch %d have %d rows, not %d", r.epoch, t.Count, v.rows)
	}
	f.standard, f.global = t.DefaultFloor, t.GlobalFloor
	for _, row := range slice[protocol.FloorRow](v.block.Bytes, sizeOf[protocol.FloorTable](), int(v.rows)) {
		if !r.isString(row.NameID, protocol.StringToken) {
			return corrupt("the floors of epoch %d have a row for %#x, which is no name", r.epoch, row.NameID)
		}
		f.byName[row.NameID] = row.Floor
	}
	return nil
}
