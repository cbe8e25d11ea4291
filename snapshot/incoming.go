package snapshot

import (
	"slices"

	"callboard/protocol"
	"callboard/tensor"
)

// lease takes the memory that a write is captured in: the producer's block, where it
// promised to let go of it, else one of the stage's.
func (w *incoming) lease(s *Store, seal bool) error {
	k, p := w.capture, &w.payload
	if k == nil {
		return nil
	}
	handoff := s.config.Handoff
	if w.column != nil {
		handoff = w.column.handoff
	}
	after := s.floorOf(w.name)
	if seal { // what it covers comes before it
		after = w.ordinal
	}
	for _, z := range s.active { // as does what a seal on its way covers, which has taken its captures already
		if z.coversName(w.name) {
			after = max(after, z.ordinal)
		}
	}
	w.deletes, w.meets = s.reaching(w.column, w.name, k.prims, after)
	alone := slices.ContainsFunc(w.deletes, func(d *remembered) bool { return d.ordinal == k.ordinal }) // comes after that delete
	if w.column != nil && !seal && !alone && k.session == nil {
		w.instead = w.column.superseded(k)
	}
	w.first = !seal && (w.column == nil || w.column.layout == nil) && k.from == nil && len(k.prims) > freshKept && rowMapBytes*uint64(len(k.prims)) > s.config.CopyInlineBytes
	if w.schema.Kind == protocol.KindArray {
		return w.leaseRagged(s, seal, handoff)
	}
	whole := p.staged != nil && p.session == nil && k.from == nil && w.coversAll()
	if p.staged != nil && handoff == protocol.HandoffAdopt && p.staged.device() == w.device {
		if p.adopt {
			k.block, k.staged = p.staged.Hold(), true
			k.bytes = p.bytes[:w.rowBytes*p.rows]
			if whole {
				w.flags = protocol.CompletionAdopted
			}
			return w.charge(s, k.block.Ref.LengthBytes, seal)
		}
		if whole {
			w.flags = protocol.CompletionAdoptRefused
		}
	}
	rows := p.rows
	if p.selection.Mask != nil {
		rows = uint64(len(k.prims)) // only what is selected is copied
	}
	size, err := bytesOf(w.name, rows, w.rowBytes)
	if err != nil {
		return err
	}
	room := size
	if w.column != nil && w.device == nil && p.staged == nil && k.from == nil && !k.insert && !seal && !alone && w.instead == nil {
		if tail := w.column.tail(k.ordinal, size); tail != nil {
			if uint64(len(tail.block.Bytes)) >= uint64(len(tail.bytes))+size {
				w.tail, w.copied = tail, size
				return nil
			}
			if more := min(2*uint64(len(tail.block.Bytes)), joinRoomMax); s.unsealedBytes+more <= s.config.UnsealedBytesMax {
				room = max(more, size)
			}
		}
	}
	if err := w.charge(s, room, seal); err != nil {
		return err
	}
	if k.block, err = s.dataOn(w.device, room); err != nil {
		return err
	}
	s.unsealedBytes += k.block.Ref.LengthBytes - k.charged
	k.charged = k.block.Ref.LengthBytes
	k.bytes = k.block.Bytes[:size]
	if p.staged != nil {
		w.source = p.staged.Hold()
	}
	w.copied, k.copied = size, size
	return nil
}

// coversAll tells whether the capture's prims, in order, are all rows that the column
// will have as far as is known: then it will be adopted as it stands.
func (w *incoming) coversAll() bool {
	k, c := w.capture, w.column
	if c == nil {
		return w.first || noDuplicates(k.prims) // a Job looks for them
	}
	for _, other := range c.pending {
		if other.deletes || len(other.prims) != len(k.prims) || &other.prims[0] != &k.prims[0] {
			return false
		}
	}
	if c.layout == nil || len(c.layout.prims) == 0 {
		return w.first || noDuplicates(k.prims)
	}
	l := c.layout
	if l.halfDead() { // its rows will move together first
		return l.living(k.prims)
	}
	if len(k.prims) < len(l.prims) || l.dead > 0 {
		return false
	}
	if k.query != nil && k.query.Size() == uint64(len(k.prims)) && len(k.prims) == len(l.prims) {
		_, dense, _ := k.query.lookUp(l)
		return dense
	}
	return equalPrims(k.prims[:len(l.prims)], l.prims) && noDuplicates(k.prims)
}

func equalPrims(a, b []uint64) bool {
	for i := range b {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func noDuplicates(prims []uint64) bool {
	if len(prims) < 2 {
		return true
	}
	seen := make(map[uint64]struct{}, len(prims))
	for _, prim := range prims {
		seen[prim] = struct{}{}
	}
	return len(seen) == len(prims)
}

// charge counts bytes that wait for a seal (rule O2). What is sealed in the same step
// does not wait.
func (w *incoming) charge(s *Store, more uint64, seal bool) error {
	freed := uint64(0)
	if w.instead != nil {
		freed = w.instead.charged
	}
	if !seal && s.unsealedBytes+more-freed > s.config.UnsealedBytesMax {
		return protocol.Errorf(protocol.StatusQueueFull, "attribute %q: %d unsealed bytes wait already and %d more exceed the limit of %d; seal first, or raise `serve --max-unsealed`", w.name, s.unsealedBytes, more, s.config.UnsealedBytesMax)
	}
	w.capture.charged = more
	s.unsealedBytes += more
	return nil
}

// bytesOf is the size of rows, refused where it is beyond any memory.
func bytesOf(name string, rows, rowBytes uint64) (uint64, error) {
	if rowBytes != 0 && rows > (1<<60)/rowBytes {
		return 0, protocol.Errorf(protocol.StatusOutOfMemory, "attribute %q: %d rows of %d bytes are more than any memory holds", name, rows, rowBytes)
	}
	return rows * rowBytes, nil
}

// copy brings the payload into the capture. Everything was checked: a failure is our
// own, or a fault in the memory of the client whose turn it is.
func (w *incoming) copy() {
	k, p := w.capture, &w.payload
	switch {
	case w.copied == 0 || w.tail != nil:
	case w.schema.Kind == protocol.KindArray:
		w.copyRagged()
	case p.selection.Mask != nil:
		if err := tensor.CopyRows(k.bytes, p.bytes, int(w.rowBytes), nil, k.from); err != nil {
			panic("snapshot: gathering checked rows: " + err.Error())
		}
	default:
		copy(k.bytes, p.bytes)
	}
}

// settle ends the copy: rows lie as prims say.
func (w *incoming) settle(s *Store) {
	if w.payload.selection.Mask != nil && w.copied > 0 {
		w.capture.from = nil
	}
	s.memory.Drop(w.source)
	w.source, w.payload = nil, payload{}
}

// meetDeletes puts the deletes that were accepted before into the column.
func (w *incoming) meetDeletes(s *Store) {
	for _, d := range w.deletes {
		s.attach(d, w.column)
	}
	w.deletes = nil
	if w.meets {
		s.deletes.met(w.column, w.capture.prims)
	}
}
