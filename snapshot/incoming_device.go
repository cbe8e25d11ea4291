package snapshot

// place is where length bytes from an offset of the payload on lie.
func (p *payload) place(offset, length uint64) Place {
	if p.staged != nil && p.staged.device() != nil {
		return p.staged.place(offset, length)
	}
	return Place{Host: p.bytes[offset:][:length]}
}

// copier is the device that copies the payload; nil: none has to.
func (w *incoming) copier() *Device {
	switch {
	case w.capture == nil || w.copied == 0 || w.tail != nil:
		return nil
	case w.device == nil && w.payload.staged != nil:
		return w.payload.staged.device()
	}
	return w.device
}

// anyOnDevice tells whether a device has to do something before what comes in is there.
func anyOnDevice(all []incoming) bool {
	for i := range all {
		if w := &all[i]; w.payload.wait != nil || w.copier() != nil {
			return true
		}
	}
	return false
}

// await keeps the lease that a Job is going to wait for.
func (w *incoming) await() {
	if w.payload.wait != nil {
		w.late, w.holder = w.payload.staged.Hold(), w.payload.holder
	}
}

// arrive waits until what producers have queued is there (rule C3). It may run anywhere.
func arrive(all []incoming) error {
	for i := range all {
		if w := &all[i]; w.late != nil {
			if err := w.payload.wait(); err != nil {
				return named(w.name, err)
			}
			w.arrived = true
		}
	}
	return nil
}

// land lets go of a lease that was waited for. Where the wait ended with an error, or there
// was none, work of its holder may still write to it: then the lease lasts until the
// holder's process has ended (rule B4).
func (w *incoming) land(s *Store) {
	if w.late != nil {
		s.endWait(w.late, w.holder, w.arrived)
		w.late = nil
	}
}

func (s *Store) endWait(b *Block, holder any, arrived bool) {
	if arrived {
		s.memory.Drop(b)
		return
	}
	s.lent = append(s.lent, lent{claimant: holder, block: b, late: true})
}

// fill brings the payload into the capture. It may run anywhere.
func (w *incoming) fill() error {
	d := w.copier()
	if d == nil {
		w.copy()
		return nil
	}
	var list copyList
	k, p := w.capture, &w.payload
	if p.selection.Mask == nil {
		list.add(k.block.place(0, w.copied), p.place(0, w.copied), w.copied)
	} else {
		for i, row := range k.from {
			list.add(k.block.place(uint64(i)*w.rowBytes, w.rowBytes), p.place(uint64(row)*w.rowBytes, w.rowBytes), w.rowBytes)
		}
	}
	if err := list.run(d); err != nil {
		return named(w.name, err)
	}
	return nil
}

// waitOut is the Job of an operation on a lease that has failed, and that ends when the
// producer's work has.
func (s *Store) waitOut(wait func() error, b *Block, holder any, failed error) *Job {
	b.Hold()
	arrived := false
	return &Job{
		Device: true,
		Run:    func() { arrived = wait() == nil },
		Finish: func() (Outcome, error) {
			s.endWait(b, holder, arrived)
			return Outcome{}, failed
		},
		Abort: func() { s.endWait(b, holder, arrived) },
	}
}
