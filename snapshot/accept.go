package snapshot

import (
	"slices"

	"callboard/protocol"
)

// accept captures what s.incoming holds, all or none: it leases everything, then it
// copies, then everything is there. With seal it is sealed in the same step.
func (s *Store) accept(ordinal uint64, seal bool) (Outcome, *Job, error) {
	if seal {
		z := s.newSealing(ordinal)
		z.incoming, s.incoming = s.incoming, z.incoming
		for i := range z.incoming {
			if err := z.include(z.incoming[i].name); err != nil {
				z.drop()
				return Outcome{}, nil, err
			}
		}
		return z.begin()
	}
	copied := uint64(0)
	for i := range s.incoming {
		w := &s.incoming[i]
		if err := w.lease(s, false); err != nil {
			s.dropIncoming()
			return Outcome{}, nil, err
		}
		copied += w.copied
		if w.first {
			copied += rowMapBytes * uint64(len(w.capture.prims))
		}
	}
	for i := range s.incoming { // last, since they stay
		if err := s.incoming[i].makeColumn(s); err != nil {
			s.dropIncoming()
			return Outcome{}, nil, err
		}
	}
	if copied > s.config.CopyInlineBytes || anyOnDevice(s.incoming) {
		return Outcome{}, s.filling(slices.Clone(s.incoming), ordinal, copied), nil
	}
	s.copyIncoming(s.incoming)
	for i := range s.incoming {
		s.incoming[i].commit(s)
	}
	return s.accepted(s.incoming, ordinal), nil, nil
}

// makeColumn makes the column of a new schema.
func (w *incoming) makeColumn(s *Store) (err error) {
	if w.column == nil && w.capture != nil {
		w.column, err = s.makeColumn(w.name, w.schema, w.rowBytes, s.config.Retain, s.config.Handoff)
	}
	return err
}

// copyIncoming copies in the loop. The source may be memory that its client truncated:
// the fault goes on to whoever guards the client's turn, and leaves nothing behind.
func (s *Store) copyIncoming(all []incoming) {
	done := false
	defer func() {
		if !done {
			s.dropIncoming()
		}
	}()
	for i := range all {
		all[i].copy()
	}
	done = true
}

// commit makes the capture one of its column's unsealed ones.
func (w *incoming) commit(s *Store) {
	if w.capture == nil {
		return
	}
	if w.tail != nil {
		w.meetDeletes(s)
		w.column.join(w.tail, w.capture.prims, w.payload.bytes[:w.copied])
		s.dropCapture(w.capture)
	} else {
		w.settle(s)
		w.stand(s)
	}
	w.capture = nil
}

// stand puts the capture among those of its column, in place of one that it makes
// pointless.
func (w *incoming) stand(s *Store) {
	if old := w.instead; old != nil {
		w.capture.insert = w.capture.insert || old.insert
		w.column.removeCapture(old)
		s.forgetInserts(old)
		s.dropCapture(old)
		w.instead = nil
	}
	w.meetDeletes(s)
	w.column.insertCapture(w.capture)
	w.noteInsert(s)
}

// noteInsert remembers an INSERT until it is sealed. A prim that is deleted between them
// may have several.
func (w *incoming) noteInsert(s *Store) {
	if w.capture.insert {
		s.inserts.add(w.capture.prims, w.capture, (*capture).order)
	}
}

// accepted is the outcome of what was captured.
func (s *Store) accepted(all []incoming, ordinal uint64) Outcome {
	out := Outcome{Ordinal: ordinal, Epoch: s.epoch}
	for i := range all {
		w := &all[i]
		out.Flags |= w.flags
		s.noteFlags(w)
	}
	return out
}

// filling is the Job of a long copy. The captures stand in their places already, so
// what is accepted meanwhile comes after them; seals that cover them wait.
func (s *Store) filling(all []incoming, ordinal, copied uint64) *Job {
	clear(s.incoming)
	s.incoming = s.incoming[:0]
	for i := range all {
		w := &all[i]
		w.await()
		if w.capture == nil {
			continue
		}
		if w.tail != nil {
			w.commit(s)
			continue
		}
		w.capture.filling, w.standing, w.instead = true, true, nil // a copy that fails must leave what was there
		w.stand(s)
	}
	var failed error
	abort := func() {
		for i := range all {
			all[i].drop(s)
		}
	}
	return &Job{
		Bytes:  copied,
		Device: anyOnDevice(all),
		Run: func() {
			if failed = arrive(all); failed != nil {
				return
			}
			for i := range all {
				if k := all[i].capture; k != nil {
					if failed = all[i].fill(); failed != nil {
						return
					}
					if all[i].first {
						k.rows = firstRows(k.prims)
					}
				}
			}
		},
		Finish: func() (Outcome, error) {
			if failed != nil {
				abort()
				return Outcome{}, failed
			}
			for i := range all {
				all[i].land(s)
				if w := &all[i]; w.capture != nil {
					if w.first && w.capture.rows == nil { // a prim came twice
						w.flags = 0
					}
					w.settle(s)
					w.capture.filling, w.capture = false, nil
				}
			}
			return s.accepted(all, ordinal), nil
		},
		Abort: abort,
	}
}

// forgetInserts forgets the INSERT that a capture was, if it was one.
func (s *Store) forgetInserts(k *capture) {
	if k.insert {
		s.inserts.remove(k.prims, k)
	}
}

func (s *Store) noteFlags(w *incoming) {
	if w.flags&protocol.CompletionAdoptRefused != 0 {
		count(&w.column.entry.AdoptRefusedCount, 1)
		s.counters.AdoptRefused++
	}
}

// dropIncoming gives up what s.incoming took.
func (s *Store) dropIncoming() {
	for i := range s.incoming {
		s.incoming[i].drop(s)
	}
	clear(s.incoming)
	s.incoming = s.incoming[:0]
}

func (w *incoming) drop(s *Store) {
	w.land(s)
	s.memory.Drop(w.source)
	w.source = nil
	if w.capture != nil {
		if w.standing {
			w.column.removeCapture(w.capture)
			s.forgetInserts(w.capture)
		}
		s.dropCapture(w.capture)
		w.capture = nil
	}
}
