package snapshot

import (
	"cmp"
	"maps"
	"slices"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// What follows reads the shared bytes alone, as another process would.

func (f *fixture) header() *protocol.DirectoryHeader {
	return at[protocol.DirectoryHeader](f.root, 0)
}

func (f *fixture) bytes(segment, offset, length uint64) []byte {
	seg := f.memory.Segment(segment)
	require.NotNil(f.t, seg, "the directory refers to segment %d", segment)
	require.LessOrEqual(f.t, offset+length, uint64(len(seg.Bytes)))
	return seg.Bytes[offset : offset+length]
}

// walkEntry is entry i of a doubling table.
func walkEntry[T any](f *fixture, base uint64, refs []protocol.Ref, i uint64) *T {
	page, place := protocol.PagePlace(base, i)
	size := sizeOf[T]()
	return at[T](f.bytes(refs[page].Segment, refs[page].OffsetBytes+place*size, size), 0)
}

func (f *fixture) attribute(column uint32) *protocol.AttributeEntry {
	return walkEntry[protocol.AttributeEntry](f, protocol.AttributePageBase, f.header().AttributePages[:], uint64(column))
}

// versionAt is the slot of the version that shows a column at an epoch, nil if none
// does. There are never two.
func (f *fixture) versionAt(column uint32, epoch uint64) (found *protocol.VersionSlot) {
	e := f.attribute(column)
	for place, n := e.SlotPages, uint64(0); place.Segment != 0; {
		page := at[protocol.SlotPage](f.bytes(place.Segment, place.OffsetBytes, sizeOf[protocol.SlotPage]()), 0)
		require.EqualValues(f.t, column, page.Attribute)
		require.Equal(f.t, n, page.FirstSlot)
		for i := range page.Slots {
			if s := &page.Slots[i]; s.Birth <= epoch && epoch < s.Death {
				require.Nil(f.t, found, "column %d has two versions at epoch %d", column, epoch)
				found = s
			}
		}
		n += protocol.SlotsPerPage
		place = page.Next
	}
	return found
}

// rowsAt are a column's rows by path id.
func (f *fixture) rowsAt(column uint32, epoch uint64) map[uint64]string {
	v := f.versionAt(column, epoch)
	if v == nil {
		return nil
	}
	rowBytes := f.attribute(column).RowBytes
	require.Equal(f.t, v.Rows*rowBytes, v.Block.LengthBytes)
	data := f.content(v.Block.Segment, v.Block.OffsetBytes, v.Block.LengthBytes)
	require.Equal(f.t, v.DeviceNumber != 0, f.address(v.Block.Segment) != 0)
	if schema := f.attribute(column).Schema; v.Rows > 0 && schema.DeviceType == tensor.DeviceCUDA {
		require.Equal(f.t, schema.DeviceID+1, v.DeviceNumber, "rows lie where their attribute does")
	}
	head := sizeOf[protocol.LayoutHeader]()
	capacity := at[protocol.LayoutHeader](f.bytes(v.Layout.Segment, v.Layout.OffsetBytes, head), 0).Capacity
	require.LessOrEqual(f.t, v.Rows, capacity)
	rows := slice[protocol.LayoutRow](f.bytes(v.Layout.Segment, v.Layout.OffsetBytes+head, capacity*sizeOf[protocol.LayoutRow]()), 0, int(capacity))
	got := map[uint64]string{}
	for i := range v.Rows {
		require.LessOrEqual(f.t, rows[i].Birth, v.Birth, "row %d of a version is not born with it", i)
		if rows[i].Death <= epoch {
			continue
		}
		require.NotContains(f.t, got, rows[i].PathID, "a prim has two rows")
		row := data[i*rowBytes : (i+1)*rowBytes]
		if f.attribute(column).Schema.Kind == protocol.KindArray {
			if ref := at[protocol.RowRef](row, 0); ref.LengthBytes == 0 {
				require.Zero(f.t, *ref, "an empty row")
				row = nil
			} else {
				row = f.bytes(ref.Segment, ref.OffsetBytes, ref.LengthBytes)
			}
		}
		got[rows[i].PathID] = string(row)
	}
	return got
}

// ordinalsAt are the ordinals of a column's rows by path id.
func (f *fixture) ordinalsAt(column uint32, epoch uint64) map[uint64]uint64 {
	v := f.versionAt(column, epoch)
	if v == nil || v.Rows == 0 {
		return nil
	}
	head := sizeOf[protocol.LayoutHeader]()
	rows := slice[protocol.LayoutRow](f.bytes(v.Layout.Segment, v.Layout.OffsetBytes+head, v.Rows*sizeOf[protocol.LayoutRow]()), 0, int(v.Rows))
	got := map[uint64]uint64{}
	for i := range v.Rows {
		if rows[i].Death <= epoch {
			continue
		}
		got[rows[i].PathID] = v.OrdinalHighest
		if v.RowOrdinals.Segment != 0 {
			got[rows[i].PathID] = *at[uint64](f.bytes(v.RowOrdinals.Segment, v.RowOrdinals.OffsetBytes+8*i, 8), 0)
		}
	}
	return got
}

// floorsAt are the floors of an epoch, those by name by token id (rule V9).
func (f *fixture) floorsAt(epoch uint64) (protocol.FloorTable, map[uint64]uint64) {
	v := f.versionAt(protocol.FloorColumn, epoch)
	require.NotNil(f.t, v, "epoch %d has no floors", epoch)
	data := f.bytes(v.Block.Segment, v.Block.OffsetBytes, v.Block.LengthBytes)
	table := *at[protocol.FloorTable](data, 0)
	rows := map[uint64]uint64{}
	for _, r := range slice[protocol.FloorRow](data, sizeOf[protocol.FloorTable](), int(table.Count)) {
		rows[r.NameID] = r.Floor
	}
	require.Len(f.t, rows, int(table.Count))
	require.Equal(f.t, floorTableBytes(len(rows)), v.Block.LengthBytes)
	return table, rows
}

// wantedRecord is a version as the recovery record should tell it.
type wantedRecord struct {
	column *column
	entry  protocol.RecordEntry
}

func (f *fixture) versionRecords() (all []wantedRecord) {
	for _, c := range f.store.columns {
		for _, v := range c.versions {
			all = append(all, wantedRecord{c, v.record(c)})
		}
	}
	return all
}

// expectRecord notes what the record of the newest epoch must say: all that there
// was before the step, replaced or not, and what is new (rule B2).
func (f *fixture) expectRecord() {
	epoch := f.store.epoch
	want := map[protocol.RecordEntry]bool{}
	for _, w := range f.before {
		if w.entry.Death == protocol.Infinite && w.column.latest().birth == epoch {
			w.entry.Death = epoch
		}
		want[w.entry] = true
	}
	for _, c := range f.store.columns {
		if v := c.latest(); v != nil && v.birth == epoch {
			want[v.record(c)] = true
		}
	}
	f.expected[epoch%2], f.epochs[epoch%2] = want, epoch
}

// checkRecords verifies both recovery records, byte for byte (rule B2).
func (f *fixture) checkRecords() {
	for k := range f.epochs {
		if f.epochs[k] == 0 {
			continue
		}
		h := &f.header().Records[k]
		require.Equal(f.t, f.epochs[k], h.Epoch)
		require.Equal(f.t, protocol.RecordChecksum(h), h.Checksum)
		sum, got := uint64(0), map[protocol.RecordEntry]bool{}
		for i := range h.EntryCount {
			e := walkEntry[protocol.RecordEntry](f, protocol.RecordPageBase, h.Pages[:], i)
			sum += protocol.RecordEntryHash(i, e)
			if e.Birth != 0 {
				got[*e] = true
			}
		}
		require.Equal(f.t, h.EntrySum, sum)
		require.Equal(f.t, f.expected[k], got, "record %d of epoch %d", k, h.Epoch)
	}
}

// checkBooks counts every reference to every block, and every byte that is unsealed.
func (f *fixture) checkBooks() {
	require.Empty(f.t, f.jobs)
	s := f.store
	refs := map[*Block]int{}
	hold := func(b *Block) {
		if b != nil {
			refs[b]++
		}
	}
	unsealed, layouts, slotPages := uint64(0), map[*layout]int{}, 0
	for _, c := range s.columns {
		for _, v := range c.versions {
			if !v.gone() {
				hold(v.block)
			}
			hold(v.ordinals)
			hold(v.layoutBlock)
			for k := range v.mirrors {
				hold(v.mirrors[k].block)
			}
		}
		f.checkRagged(c, hold)
		for i, k := range c.pending {
			hold(k.block)
			hold(k.data)
			unsealed += k.charged
			require.False(f.t, k.filling)
			require.Greater(f.t, k.ordinal, s.floorOfID(c.nameID), "a sealed capture is still pending")
			if i > 0 {
				require.LessOrEqual(f.t, c.pending[i-1].ordinal, k.ordinal)
			}
		}
		for _, x := range c.spares {
			hold(x.block)
			hold(x.ordinals)
		}
		if c.layout != nil {
			layouts[c.layout]++
		}
		require.Zero(f.t, len(c.slots)%protocol.SlotsPerPage)
		require.Len(f.t, c.slots, len(c.versions)+len(c.freeSlots), "slots of column %d", c.index)
		slotPages += len(c.slots)/protocol.SlotsPerPage + c.tombstones.made
	}
	for l, users := range layouts {
		hold(l.block)
		require.Equal(f.t, users, l.users, "users of layout %d", l.id)
		require.Len(f.t, l.shared, len(l.prims))
	}
	for key, l := range s.layouts {
		require.Contains(f.t, layouts, l, "a layout that nobody uses")
		require.Equal(f.t, hashPrims(l.prims), key)
	}
	for _, m := range s.sessions {
		for i := range m.groups {
			hold(m.groups[i].block)
			hold(m.groups[i].words)
		}
	}
	for _, l := range s.lent {
		hold(l.block)
	}
	for _, b := range s.floors.spares {
		hold(b)
	}
	f.checkDeletes()
	f.checkCaptured()
	require.Equal(f.t, unsealed, s.unsealedBytes)
	require.Zero(f.t, s.floors.promised)
	require.Zero(f.t, s.floors.names)
	require.Empty(f.t, s.active)

	blocks := map[*Arena]int{}
	for b, n := range refs {
		require.Equal(f.t, n, b.refs, "references of a block of %s", b.arena.Label)
		blocks[b.arena]++
	}
	pages := slotPages
	for _, t := range []*table{&s.attributes, &s.segments, &s.dictionary.table, &s.records.tables[0], &s.records.tables[1]} {
		pages += len(t.pages)
	}
	blocks[s.meta] += pages + s.dictionary.made
	held, quarantined := map[*Device]uint64{}, map[*Arena]int{}
	for _, seg := range f.memory.segments {
		held[seg.Device] += uint64(len(seg.Bytes))
		if seg.arena != nil {
			if quarantined[seg.arena] = len(seg.arena.quarantine); blocks[seg.arena] == 0 {
				blocks[seg.arena] = 0
			}
		}
	}
	for a, n := range blocks {
		n += quarantined[a]
		require.Equal(f.t, n, a.blocks, "blocks of %s", a.Label)
		require.Equal(f.t, n, a.pool.Stats().Blocks, "pool of %s", a.Label)
	}
	for _, r := range f.grow {
		held[r.Arena.Device()] += r.SizeBytes
	}
	for _, sp := range append([]*space{&f.memory.space}, f.memory.devices...) {
		require.Equal(f.t, held[sp.device]+sp.openBytes, sp.totalBytes, "segments on %s", sp.device)
	}
	f.checkSegments()
}

// checkSegments verifies the directory's table of segments against those that are.
func (f *fixture) checkSegments() {
	require.Empty(f.t, f.store.notes)
	h := f.header()
	live, retired := map[uint64]uint64{}, uint32(0)
	for id := uint64(1); id <= h.SegmentCount; id++ {
		switch e := walkEntry[protocol.SegmentEntry](f, protocol.SegmentPageBase, h.SegmentPages[:], id-1); e.State {
		case protocol.SegmentLive:
			require.Equal(f.t, id, e.Segment)
			live[id] = e.OwnerIncarnation
		case protocol.SegmentRetired:
			retired++
		}
	}
	require.Equal(f.t, slices.Sorted(maps.Keys(f.memory.segments)), slices.Sorted(maps.Keys(live)))
	for id, owner := range live {
		require.Equal(f.t, f.memory.segments[id].Owner, owner)
	}
	require.Equal(f.t, h.RetiredCount, retired)
}

// checkDeletes compares what finds remembered deletes with their list.
func (f *fixture) checkDeletes() {
	d := &f.store.deletes
	gone, prims, about := 0, 0, map[uint64][]*remembered{}
	waiting := map[*remembered]string{}
	for name, list := range d.waiting {
		require.NotEmpty(f.t, list)
		for i, r := range list {
			waiting[r] = name
			require.True(f.t, i == 0 || list[i-1].ordinal <= r.ordinal)
		}
	}
	for i, r := range d.list {
		if r.gone {
			require.NotZero(f.t, i)
			gone++
			continue
		}
		prims += len(r.prims)
		name, waits := waiting[r]
		require.True(f.t, waits)
		require.Equal(f.t, r.waits, name)
		delete(waiting, r)
		floor := f.store.floors.standard
		if name != "" {
			require.Contains(f.t, r.names, name)
			floor = f.store.floorOf(name)
		}
		require.Less(f.t, floor, r.ordinal, "a delete that nobody can write below")
		if !r.indexed {
			continue
		}
		for _, prim := range r.prims {
			if list := about[prim]; !slices.Contains(list, r) {
				about[prim] = append(list, r)
			}
		}
	}
	require.Empty(f.t, waiting)
	require.Equal(f.t, []int{gone, prims}, []int{d.gone, d.prims})
	require.Len(f.t, d.about, len(about))
	for prim, p := range d.about {
		require.Equal(f.t, about[prim], p.all)
		for index, number := range p.met {
			c := f.store.columns[index]
			for _, r := range p.all {
				if r.number <= number && r.of(c.name) && r.ordinal > f.store.floorOfID(c.nameID) {
					require.True(f.t, r.in(c), "delete %d of prim %d is not in column %d, which has met those to %d", r.number, prim, index, number)
				}
			}
		}
	}
}

// checkCaptured compares what finds captures by prim with the captures that wait.
func (f *fixture) checkCaptured() {
	inserts := map[uint64][]*capture{}
	for _, c := range f.store.columns {
		about := map[uint64][]*capture{}
		for _, k := range c.pending {
			require.Equal(f.t, k.indexed, !slices.Contains(c.unindexed, k))
			for _, prim := range k.prims {
				if list := about[prim]; k.indexed && !slices.Contains(list, k) {
					about[prim] = append(list, k)
				}
				if list := inserts[prim]; k.insert && !slices.Contains(list, k) {
					inserts[prim] = append(list, k)
				}
			}
		}
		for _, k := range c.unindexed {
			require.Contains(f.t, c.pending, k)
		}
		require.Len(f.t, c.about, len(about))
		for prim, p := range c.about {
			require.Equal(f.t, about[prim], p.all)
		}
	}
	for prim, p := range f.store.inserts {
		require.Subset(f.t, inserts[prim], p.all) // an upsert that joined an INSERT is none
		require.True(f.t, slices.IsSortedFunc(p.all, func(a, b *capture) int { return cmp.Compare(a.ordinal, b.ordinal) }))
	}
}
