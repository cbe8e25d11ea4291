package snapshot

import (
	"callboard/fault"
	"callboard/protocol"
)

// startsOf turns element counts into where rows begin in bytes, the end of the last one
// included. what names the counts in errors.
func startsOf(name string, sizes []uint64, elementBytes uint64) ([]uint64, error) {
	starts := make([]uint64, len(sizes)+1)
	for i, n := range sizes {
		if n > (1<<60-starts[i])/elementBytes {
			return nil, protocol.Errorf(protocol.StatusOutOfMemory, "attribute %q: element_sizes has %d elements of %d bytes in row %d: more than any memory holds", name, n, elementBytes, i)
		}
		starts[i+1] = starts[i] + n*elementBytes
	}
	return starts, nil
}

// checkRagged checks how the rows of an array payload lie, and that a fixed one does
// not say.
func (w *incoming) checkRagged(sizes []uint64) (err error) {
	p, element := &w.payload, elementBytes(&w.schema)
	if w.schema.Kind == protocol.KindFixed {
		if len(sizes) > 0 {
			return protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q: element_sizes has %d entries but the kind is fixed: rows of a fixed attribute have one size", w.name, len(sizes))
		}
		return nil
	}
	size := uint64(len(p.bytes))
	switch {
	case p.starts != nil: // a session's own
		return nil
	case len(sizes) == 0:
		if p.rows == 0 || size%p.rows != 0 || size/p.rows%element != 0 {
			return protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q: packed payload has %d bytes: they do not divide into %d rows of whole elements of %d bytes", w.name, size, p.rows, element)
		}
		p.rowBytes = size / p.rows
		return nil
	case uint64(len(sizes)) != p.rows:
		return protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q: element_sizes has %d entries: the payload has %d rows", w.name, len(sizes), p.rows)
	}
	if p.starts, err = startsOf(w.name, sizes, element); err != nil {
		return err
	}
	if end := p.starts[p.rows]; end != size {
		return protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q: element_sizes add up to %d bytes: the payload has %d", w.name, end, size)
	}
	return nil
}

// row is where source row i lies in an array payload.
func (p *payload) row(i uint64) (first, length uint64) {
	if p.starts == nil {
		return i * p.rowBytes, p.rowBytes
	}
	return p.starts[i], p.starts[i+1] - p.starts[i]
}

// sourceRow is the payload's row for target i.
func (w *incoming) sourceRow(i int) uint64 {
	if w.from == nil {
		return uint64(i)
	}
	return uint64(w.from[i])
}

// leaseRagged takes the table of the capture's rows, and the memory of their elements:
// the producer's own block where it promised to let go of it, whatever the rows are for,
// but never that of a session of several groups, where others can write.
func (w *incoming) leaseRagged(s *Store, seal bool, handoff uint32) (err error) {
	k, p := w.capture, &w.payload
	w.from, k.from = k.from, nil
	table, err := bytesOf(w.name, uint64(len(k.prims)), refBytes)
	if err != nil {
		return err
	}
	k.dataBytes = uint64(len(p.bytes))
	own := p.staged != nil && p.session == nil // nobody else can write there
	adopt := own && p.adopt && handoff == protocol.HandoffAdopt
	switch {
	case adopt:
		k.data, k.adopted, w.flags = p.staged.Hold(), true, protocol.CompletionAdopted
	case own && handoff == protocol.HandoffAdopt:
		w.flags = protocol.CompletionAdoptRefused
	}
	if !adopt && p.selection.Mask != nil { // only what is selected is copied
		k.dataBytes = 0
		for i := range k.prims {
			_, length := p.row(w.sourceRow(i))
			k.dataBytes += length
		}
	}
	size := k.dataBytes
	if adopt {
		size = k.data.Ref.LengthBytes
	}
	if err := w.charge(s, table+size, seal); err != nil {
		return err
	}
	if k.block, err = s.data(table); err != nil {
		return err
	}
	k.bytes = k.block.Bytes[:table]
	w.copied = table
	if !adopt && size > 0 {
		if k.data, err = s.data(size); err != nil {
			return err
		}
		if p.staged != nil {
			w.source = p.staged.Hold()
		}
		w.copied += size
	}
	k.copied = w.copied
	charged := k.block.Ref.LengthBytes
	if k.data != nil {
		charged += k.data.Ref.LengthBytes
	}
	s.unsealedBytes += charged - k.charged
	k.charged = charged
	return nil
}

// copyRagged copies the elements, unless the block that they lie in is kept, and says
// where each row lies.
func (w *incoming) copyRagged() {
	k, p := w.capture, &w.payload
	selected := p.selection.Mask != nil && !k.adopted
	if k.data != nil && !k.adopted && !selected {
		copy(k.data.Bytes, p.bytes)
	}
	refs, at := slice[protocol.RowRef](k.bytes, 0, len(k.prims)), uint64(0)
	for i := range refs {
		first, length := p.row(w.sourceRow(i))
		if length == 0 {
			refs[i] = protocol.RowRef{}
			continue
		}
		if selected {
			copy(k.data.Bytes[at:][:length], p.bytes[first:])
			first = at
			at += length
		}
		if fault.On(fault.RowsShortened) {
			length -= elementBytes(&w.schema)
		}
		refs[i] = protocol.RowRef{Segment: k.data.Ref.Segment, OffsetBytes: k.data.Ref.OffsetBytes + first, LengthBytes: length}
	}
}

// elementBytes is the size of an array's element.
func elementBytes(s *protocol.Schema) uint64 {
	return uint64(s.DtypeBits) / 8 * uint64(s.DtypeLanes)
}
