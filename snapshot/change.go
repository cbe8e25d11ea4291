package snapshot

import (
	"callboard/protocol"
)

// change is a new state of a column's building version, on its way. lease takes all
// that it needs, then the bytes are copied, here or by a Job, then commit makes it
// the building version. Until then nobody sees anything of it, and drop undoes it.
type change struct {
	store    *Store
	name     string
	schema   protocol.Schema
	payload  payload
	column   *column // nil until lease has made it
	ordinal  uint64
	seal     bool
	rowBytes uint64
	choice   selected
	plan     rowPlan

	block   *Block // the new building version
	source  *Block // the lease that src lies in, nil if none
	base    []byte // what block starts from
	src     []byte // the payload's rows
	whole   bool   // row i of the payload goes to row i, for all rows
	adopted bool
	copied  uint64
	charged uint64 // of Store.unsealedBytes, modulo 2^64: may stand for less than before
	flags   uint32
}

// lease takes memory, slots, and the column if there is none yet. An error or
// ErrRetry leaves what drop gives back.
func (w *change) lease() error {
	s, p := w.store, &w.payload
	handoff := s.config.Handoff
	if w.column != nil {
		handoff = w.column.handoff
	}
	w.src = p.bytes[:w.rowBytes*p.rows]
	if w.whole && p.staged != nil && handoff == protocol.HandoffAdopt {
		if w.adopted = p.adopt; w.adopted {
			w.flags = protocol.CompletionAdopted
		} else {
			w.flags = protocol.CompletionAdoptRefused
		}
	}
	if err := w.plan.lease(s); err != nil {
		return err
	}
	if err := w.leaseBlock(); err != nil {
		return err
	}
	if p.staged != nil && !w.adopted {
		w.source = p.staged.Hold()
	}
	if w.column == nil { // last, since it stays
		if w.seal {
			if err := s.reserveSeal(1); err != nil {
				return err
			}
		}
		c, err := s.makeColumn(w.name, w.schema, w.rowBytes, s.config.Retain, s.config.Handoff)
		w.column = c
		return err
	}
	if w.seal {
		return s.reserveSeal(1, w.column)
	}
	return nil
}

// leaseBlock finds the block of the new building version: the producer's own, the
// one that there is, or a new one. Rows are never scattered into an adopted block
// (rule S4).
func (w *change) leaseBlock() error {
	s := w.store
	need, err := bytesOf(w.name, w.plan.total, w.rowBytes)
	if err != nil {
		return err
	}
	var b *building
	had := uint64(0)
	if w.column != nil && w.column.building != nil {
		b = w.column.building
		had = b.block.Ref.LengthBytes
	}
	if need > had && !w.seal && s.unsealedBytes+(need-had) > s.config.UnsealedBytesMax {
		return protocol.Errorf(protocol.StatusQueueFull, "attribute %q: %d unsealed bytes wait already and %d more exceed the limit of %d; seal first, or raise `serve --max-unsealed`", w.name, s.unsealedBytes, need-had, s.config.UnsealedBytesMax)
	}
	written := w.choice.count * w.rowBytes // one row may be written to many prims
	switch {
	case w.adopted:
		w.block = w.payload.staged.Hold()
	case b != nil && !b.adopted && had >= need:
		w.block = b.block.Hold()
		w.copied = written
	default:
		if w.block, err = s.memory.Alloc(s.broker, need); err != nil {
			return err
		}
		if w.whole {
			// every byte comes from the payload
		} else if b != nil {
			w.base = b.block.Bytes[:b.rows*w.rowBytes]
		} else if w.column != nil && w.column.latest() != nil {
			v := w.column.latest()
			w.base = v.block.Bytes[:v.rows*w.rowBytes]
		}
		w.copied = uint64(len(w.base)) + written
	}
	w.charged = w.block.Ref.LengthBytes - had
	s.unsealedBytes += w.charged
	return nil
}

// bytesOf is the size of rows, refused where it is beyond any memory.
func bytesOf(name string, rows, rowBytes uint64) (uint64, error) {
	if rowBytes != 0 && rows > (1<<60)/rowBytes {
		return 0, protocol.Errorf(protocol.StatusOutOfMemory, "attribute %q: %d rows of %d bytes are more than any memory holds", name, rows, rowBytes)
	}
	return rows * rowBytes, nil
}

// copy brings the block up to its base, then puts the payload's rows into it.
// Everything was checked: a failure is our own.
func (w *change) copy() {
	switch dst := w.block.Bytes[:w.plan.total*w.rowBytes]; {
	case w.adopted || w.rowBytes == 0:
	case w.whole:
		copy(dst, w.src)
	default:
		copy(dst, w.base)
		if err := w.choice.ApplyRange(dst, w.plan.rows, w.src, int(w.rowBytes), 0, w.choice.count); err != nil {
			panic("snapshot: scatter of checked rows: " + err.Error())
		}
	}
}

// copyNow copies in the loop. The source may be memory that its client truncated:
// the fault goes on to whoever guards the client's turn, and leaves nothing behind.
func (w *change) copyNow() {
	done := false
	defer func() {
		if !done {
			w.drop()
		}
	}()
	w.copy()
	done = true
}

// job makes a Job of the copy. w is its own now.
func (w change) job() *Job {
	c := w.column
	c.busy, c.pending = true, w.ordinal
	if w.seal {
		w.store.floors.promised++
	}
	w.plan.rows = append([]uint32(nil), w.plan.rows...) // the query may be used for another layout meanwhile
	end := func() {
		c.busy = false
		if w.seal {
			w.store.floors.promised--
		}
	}
	return &Job{
		Bytes:  w.copied,
		Run:    func() { w.copy() },
		Finish: func() (Outcome, error) { end(); return w.commit(), nil },
		Abort:  func() { end(); w.drop() },
	}
}

// commit makes the change the building version, and seals it if that was asked. No
// seal can have come between: one that covers the ordinal waits for the job.
func (w *change) commit() Outcome {
	s, c := w.store, w.column
	w.plan.commit(s, c)
	if b := c.building; b != nil {
		s.memory.Drop(b.block)
	}
	c.building = &c.next
	c.next = building{ordinal: w.ordinal, block: w.block, rows: w.plan.total, adopted: w.adopted}
	s.memory.Drop(w.source)
	if w.flags&protocol.CompletionAdoptRefused != 0 {
		count(&c.entry.AdoptRefusedCount, 1)
		s.counters.AdoptRefused++
	}
	count(&c.entry.CopiedBytes, w.copied)
	s.counters.CopiedBytes += w.copied
	if w.seal {
		s.sealColumn(c, w.ordinal)
	}
	return Outcome{Ordinal: w.ordinal, Epoch: s.epoch, Flags: w.flags}
}

// drop gives back what lease took.
func (w *change) drop() {
	w.plan.drop(w.store)
	if w.block != nil {
		w.store.unsealedBytes -= w.charged
	}
	w.store.memory.Drop(w.block)
	w.store.memory.Drop(w.source)
	w.block, w.source = nil, nil
}
