package snapshot

import (
	"slices"

	"callboard/protocol"
	"callboard/tensor"
)

// Entry is one attribute of a batch.
type Entry struct {
	Target    Target
	Bytes     []byte
	Rows      uint64
	Selection tensor.Selection
}

// batch is the changes of several attributes that happen together or not at all.
type batch struct {
	store   *Store
	changes []change
	ordinal uint64
	seal    bool
	copied  uint64
}

// WriteBatch writes several attributes at one ordinal, all or none (behaviour
// 198–203): every entry is checked before anything is leased, and everything is
// leased before the first byte is copied. With seal they appear in one epoch. As
// for Write, bytes and selections are the caller's again when it returns or when
// the Job has ended.
func (s *Store) WriteBatch(entries []Entry, seal bool) (Outcome, *Job, error) {
	if len(entries) == 1 {
		e := &entries[0]
		return s.Write(&e.Target, e.Bytes, e.Rows, e.Selection, seal)
	}
	b := batch{store: s, seal: seal, changes: make([]change, 0, len(entries))}
	for i := range entries {
		if err := b.add(&entries[i]); err != nil {
			return Outcome{}, nil, err
		}
	}
	if err := b.lease(); err != nil {
		b.drop()
		return Outcome{}, nil, err
	}
	s.counters.Writes += uint64(len(entries))
	if b.copied > s.config.CopyInlineBytes {
		return Outcome{}, b.job(), nil
	}
	b.copyNow()
	return b.commit(), nil, nil
}

// add checks one entry. Two of one name would depend on their order, which has no
// meaning in a batch (behaviour 202).
func (b *batch) add(e *Entry) error {
	if e.Target.Next {
		return protocol.Errorf(protocol.StatusInvalidArgument, "a write of several attributes needs an ordinal: the next one is each attribute's own")
	}
	w, err := b.store.prepare(&e.Target, payload{bytes: e.Bytes, rows: e.Rows, selection: e.Selection}, false)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(b.changes, func(other change) bool { return other.name == w.name }) {
		return protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q is given twice in one write", w.name)
	}
	b.ordinal = w.ordinal
	if w.plan.total == 0 {
		return nil
	}
	w.plan.rows = slices.Clone(w.plan.rows) // the next entry uses the query again
	b.changes = append(b.changes, w)
	return nil
}

func (b *batch) lease() error {
	columns := make([]*column, 0, len(b.changes))
	for i := range b.changes {
		w := &b.changes[i]
		if err := w.lease(); err != nil {
			return err
		}
		b.copied += w.copied
		columns = append(columns, w.column)
	}
	if !b.seal {
		return nil
	}
	return b.store.reserveSeal(len(columns), columns...)
}

func (b *batch) drop() {
	for i := range b.changes {
		b.changes[i].drop()
	}
}

func (b *batch) copy() {
	for i := range b.changes {
		b.changes[i].copy()
	}
}

// copyNow is change.copyNow for all.
func (b *batch) copyNow() {
	done := false
	defer func() {
		if !done {
			b.drop()
		}
	}()
	b.copy()
	done = true
}

// job makes one Job of all copies; all columns are busy until it ends.
func (b batch) job() *Job {
	busy := func(on bool) {
		for i := range b.changes {
			c := b.changes[i].column
			c.busy, c.pending = on, b.ordinal
		}
	}
	busy(true)
	if b.seal {
		b.store.floors.promised++
	}
	end := func() {
		busy(false)
		if b.seal {
			b.store.floors.promised--
		}
	}
	return &Job{
		Bytes:  b.copied,
		Run:    func() { b.copy() },
		Finish: func() (Outcome, error) { end(); return b.commit(), nil },
		Abort:  func() { end(); b.drop() },
	}
}

// commit makes all changes building versions, and publishes them in one epoch if
// that was asked.
func (b *batch) commit() Outcome {
	s := b.store
	columns := make([]*column, 0, len(b.changes))
	for i := range b.changes {
		b.changes[i].commit()
		columns = append(columns, b.changes[i].column)
	}
	if b.seal && len(columns) > 0 {
		for _, c := range columns {
			s.raiseFloor(c.nameID, b.ordinal)
		}
		s.publishing = append(s.publishing[:0], columns...)
		s.publish(s.publishing, 0)
	}
	return Outcome{Ordinal: b.ordinal, Epoch: s.epoch}
}
