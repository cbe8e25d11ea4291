package snapshot

import (
	"cmp"
	"slices"

	"callboard/protocol"
	"callboard/shm"
)

// found is a segment of the generation, and what lies in it.
type found struct {
	seg    *Segment
	entry  *protocol.SegmentEntry // nil: it has none yet
	pieces []*Block               // by offset, none over another
	sorts  map[*Block]pieceSort
	owners map[*Block]*column // of data
}

// pieceSort tells what a claimed run of bytes is. Only what versions refer to may be
// referred to twice.
type pieceSort uint8

const (
	pieceTable pieceSort = iota // pages of tables, slots, rings of deletes
	pieceText
	pieceFloors
	pieceLayout
	pieceOrdinals
	pieceRows
	pieceData // of an array column's rows
)

func (p pieceSort) shared() bool    { return p >= pieceFloors && p != pieceData }
func (p pieceSort) directory() bool { return p <= pieceLayout }

func (p pieceSort) String() string {
	return [...]string{"a table", "texts", "floors", "a layout", "row ordinals", "rows", "data of arrays"}[p]
}

// extent is a run of bytes that is part of something larger.
type extent struct{ segment, offset, length uint64 }

// bytes is a run of bytes that something refers to, checked against its segment.
func (r *recovery) bytes(what string, segment, offset, length uint64) ([]byte, error) {
	f := r.byID[segment]
	if f == nil {
		return nil, corrupt("%s lies in segment %d, which is not there or does not begin with its header", what, segment)
	}
	size := uint64(len(f.seg.Bytes))
	if offset < protocol.SegmentHeaderBytes || offset > size || length > size-offset {
		return nil, corrupt("%s of %d bytes at offset %d is not within segment %d of %d bytes", what, length, offset, segment, size)
	}
	return f.seg.Bytes[offset:][:length:length], nil
}

// claim takes a run of bytes, from the start of a block on. Who refers to the same as
// others gets the same Block, where its sort allows it; fresh tells whether it is new.
func (r *recovery) claim(what string, segment, offset, length uint64, sort pieceSort) (b *Block, fresh bool, err error) {
	if offset%protocol.BlockAlignBytes != 0 || length == 0 {
		return nil, false, corrupt("%s of %d bytes at offset %d of segment %d: expected some bytes at a multiple of %d", what, length, offset, segment, protocol.BlockAlignBytes)
	}
	if _, err := r.bytes(what, segment, offset, length); err != nil {
		return nil, false, err
	}
	length = (length + protocol.BlockAlignBytes - 1) &^ (protocol.BlockAlignBytes - 1) // segments end at such a border
	f := r.byID[segment]
	if f.seg.Sort == protocol.SegmentClient && (sort != pieceRows || f.seg.Owner == 0) {
		return nil, false, corrupt("%s lies in segment %d, which is a client's (%#x)", what, segment, f.seg.Owner)
	}
	i := f.after(offset)
	if i < len(f.pieces) && f.pieces[i].Ref.OffsetBytes < offset+length {
		p := f.pieces[i]
		if other := f.sorts[p]; other != sort || !sort.shared() || p.Ref.OffsetBytes != offset || p.Ref.LengthBytes != length {
			return nil, false, corrupt("%s of %d bytes at offset %d of segment %d lies over %s of %d bytes at %d", what, length, offset, segment, other, p.Ref.LengthBytes, p.Ref.OffsetBytes)
		}
		return p, false, nil
	}
	b = f.block(offset, length)
	f.pieces = slices.Insert(f.pieces, i, b)
	f.sorts[b] = sort
	return b, true, nil
}

// after is the first piece that ends behind an offset.
func (f *found) after(offset uint64) int {
	i, _ := slices.BinarySearchFunc(f.pieces, offset, func(p *Block, offset uint64) int {
		return cmp.Compare(p.Ref.OffsetBytes+p.Ref.LengthBytes-1, offset)
	})
	return i
}

// block is a block that another life of the broker leased.
func (f *found) block(offset, length uint64) *Block {
	return &Block{Ref: protocol.BlockRef{Segment: f.seg.ID, OffsetBytes: offset, LengthBytes: length}, Bytes: f.seg.Bytes[offset:][:length:length],
		lease: shm.Block{Segment: f.seg.ID, Offset: offset, Length: length}, found: true}
}

// unclaim takes back a claim that was fresh.
func (r *recovery) unclaim(b *Block) {
	f := r.byID[b.Ref.Segment]
	f.pieces = slices.DeleteFunc(f.pieces, func(p *Block) bool { return p == b })
	delete(f.sorts, b)
}

// claimTable claims what is there once, for as long as the stage lives.
func (r *recovery) claimTable(what string, place protocol.Ref, length uint64) ([]byte, error) {
	b, _, err := r.claim(what, place.Segment, place.OffsetBytes, length, pieceTable)
	if err != nil {
		return nil, err
	}
	return b.Bytes[:length:length], nil
}

// widen makes whole units of what blocks are cut in of runs that may touch and overlap:
// how the blocks were cut is not known any more, and does not matter.
func widen(all []extent) []extent {
	for i := range all {
		e := &all[i]
		end := (e.offset + e.length + protocol.BlockAlignBytes - 1) &^ (protocol.BlockAlignBytes - 1)
		e.offset &^= protocol.BlockAlignBytes - 1
		e.length = end - e.offset
	}
	slices.SortFunc(all, func(a, b extent) int {
		return cmp.Or(cmp.Compare(a.segment, b.segment), cmp.Compare(a.offset, b.offset))
	})
	merged := all[:0]
	for _, e := range all {
		if n := len(merged); n > 0 && merged[n-1].segment == e.segment && e.offset <= merged[n-1].offset+merged[n-1].length {
			last := &merged[n-1]
			last.length = max(last.length, e.offset+e.length-last.offset)
			continue
		}
		merged = append(merged, e)
	}
	return merged
}

// readSegments finds the table of segments, and which of them are in service. A segment
// whose own header is not that of this segment is none. Whose it is, its header tells only
// where the directory says nothing: a client may have written it.
func (r *recovery) readSegments(segments []*Segment) error {
	for _, seg := range segments {
		size := uint64(len(seg.Bytes))
		if seg.ID == 0 || r.byID[seg.ID] != nil {
			return corrupt("segment %d of %d bytes was found twice, or has no number", seg.ID, size)
		}
		if size%protocol.BlockAlignBytes != 0 || size < protocol.SegmentHeaderBytes+protocol.BlockAlignBytes {
			r.unused = append(r.unused, seg)
			continue
		}
		f := &found{seg: seg, sorts: map[*Block]pieceSort{}, owners: map[*Block]*column{}}
		seg.Sort, seg.Owner = protocol.SegmentBroker, 0
		r.byID[seg.ID] = f
		r.segments = append(r.segments, f)
	}
	slices.SortFunc(r.segments, func(a, b *found) int { return cmp.Compare(a.seg.ID, b.seg.ID) })
	if err := r.readTable(&r.store.segments, "the table of segments"); err != nil {
		return err
	}
	for id := uint64(1); id <= r.root.SegmentCount; id++ {
		raw, ok := r.store.segments.have(id - 1)
		if !ok {
			return corrupt("it counts %d segments, and its table of segments ends before %d", r.root.SegmentCount, id)
		}
		if err := r.readSegment(id, at[protocol.SegmentEntry](raw, 0)); err != nil {
			return err
		}
	}
	for _, f := range slices.Clone(r.segments) {
		if f.entry == nil {
			if err := r.readSegmentHeader(f); err != nil {
				return err
			}
		}
		if len(f.pieces) > 0 && f.seg.Sort != protocol.SegmentBroker {
			return corrupt("the table of segments lies in segment %d, which is a client's", f.seg.ID)
		}
	}
	return nil
}

func (r *recovery) readSegment(id uint64, e *protocol.SegmentEntry) error {
	f, sort := r.byID[id], e.Sort&^protocol.SegmentOnDevice
	switch {
	case e.State == protocol.SegmentFree: // it is to be written
		return nil
	case e.State > protocol.SegmentRetired || e.Segment != id || sort < protocol.SegmentBroker || sort > protocol.SegmentShared || sort != e.Sort && f != nil:
		return corrupt("entry %d of its table of segments is of segment %d, state %d, sort %d", id, e.Segment, e.State, e.Sort)
	case e.State == protocol.SegmentRetired:
		r.retiredCount++
		if f == nil {
			return nil
		}
		return r.leaveOut(f)
	case f == nil || !r.isSegment(f.seg) || e.Sort == protocol.SegmentShared: // of the last sort: no version lies there, and whoever had claimed a group may still write
		r.retiredCount++
		r.retired = append(r.retired, e)
		if f == nil {
			return nil
		}
		return r.leaveOut(f)
	case uint64(len(f.seg.Bytes)) != e.SizeBytes:
		return corrupt("segment %d has %d bytes, not %d", id, len(f.seg.Bytes), e.SizeBytes)
	}
	f.entry = e
	f.seg.Sort, f.seg.Owner = e.Sort, e.OwnerIncarnation
	if e.Sort == protocol.SegmentBroker {
		f.seg.Owner = 0
	}
	return nil
}

// readSegmentHeader takes a segment that the directory does not tell of for what its
// header says. It was made right before the broker died, or waits for its entry.
func (r *recovery) readSegmentHeader(f *found) error {
	if !r.isSegment(f.seg) {
		return r.leaveOut(f)
	}
	if f.seg.Owner = at[protocol.RegionHeader](f.seg.Bytes, 0).OwnerIncarnation; f.seg.Owner != 0 {
		f.seg.Sort = protocol.SegmentClient
	}
	return nil
}

// isSegment tells whether a segment begins as it must: clients refuse one that does not.
func (r *recovery) isSegment(seg *Segment) bool {
	h := at[protocol.RegionHeader](seg.Bytes, 0)
	return h.Magic == protocol.MagicSegment && h.Version == protocol.VersionWord && h.RegionID == seg.ID &&
		h.Generation == r.config.Generation && h.SizeBytes == uint64(len(seg.Bytes))
}

// leaveOut takes a segment out of the recovery; who refers to it will not find it.
func (r *recovery) leaveOut(f *found) error {
	if len(f.pieces) > 0 {
		return corrupt("its table of segments lies in segment %d, which is retired, or does not begin with its header", f.seg.ID)
	}
	delete(r.byID, f.seg.ID)
	r.segments = slices.DeleteFunc(r.segments, func(other *found) bool { return other == f })
	r.unused = append(r.unused, f.seg)
	return nil
}

// serve puts a segment into service: in the arena that its pieces tell, with the pieces
// leased. In a client's arena all else is quarantined.
func (f *found) serve(s *Store, clients map[uint64]*Arena) {
	m, seg := s.memory, f.seg
	size := uint64(len(seg.Bytes))
	m.segments[seg.ID] = seg
	m.totalBytes += size
	if seg.Sort == protocol.SegmentClient && seg.Owner == 0 {
		m.spares = append(m.spares, seg)
		m.spareBytes += size
		return
	}
	a := s.broker
	if seg.Sort == protocol.SegmentClient {
		if a = clients[seg.Owner]; a == nil {
			a = m.NewArena(protocol.SegmentClient, seg.Owner, "a client of before", false)
			a.quarantined = true
			clients[seg.Owner] = a
		}
	}
	if a == s.broker && len(f.pieces) > 0 && !slices.ContainsFunc(f.pieces, func(b *Block) bool { return b.Ref.LengthBytes > smallBytes }) {
		a = s.smallArena()
	}
	for _, b := range f.pieces {
		if f.sorts[b].directory() {
			a = s.meta
		}
	}
	seg.arena = a
	a.segments[seg.ID] = seg
	a.pool.AddSegment(seg.ID, size)
	free := uint64(protocol.SegmentHeaderBytes)
	for _, b := range f.pieces {
		f.quarantine(a, free, b.Ref.OffsetBytes)
		f.lease(a, b)
		free = b.Ref.OffsetBytes + b.Ref.LengthBytes
	}
	f.quarantine(a, free, size)
}

func (f *found) lease(a *Arena, b *Block) {
	if err := a.pool.Claim(b.lease); err != nil {
		panic("snapshot: claiming what was checked: " + err.Error())
	}
	b.arena = a
	a.blocks++
}

// quarantine leases what lies between two pieces of a client's segment.
func (f *found) quarantine(a *Arena, from, to uint64) {
	if !a.quarantined || from == to {
		return
	}
	b := f.block(from, to-from)
	b.refs = 1
	f.lease(a, b)
	a.quarantine = append(a.quarantine, b)
}
