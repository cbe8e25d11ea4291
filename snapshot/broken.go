package snapshot

import (
	"slices"

	"callboard/protocol"
)

// A device may break while it is served (rule C4): nothing can be copied there until the
// broker is started anew. Its columns keep the version that they have, which lies in memory
// that others have open, and get no further one but by deletes, which copy nothing. Rows
// that wait for their seal are given up, as at a restart: each of them might need a copy,
// and a seal that covers one would hold up all else that it is of, for ever.
//
// What is on its way ends first. A seal keeps the captures that it has taken until it has
// failed, or published what was copied before; a write that was being copied fails. A seal
// that comes later and would have published what was given up fails too, once, so that
// whoever seals hears of it; the next one goes on.

// breakage is what is known of a device that broke.
type breakage struct {
	why   error
	rows  uint64 // given up
	given func(rows uint64)
}

// LoseDevice says that a device broke, and why; operations that need it end with that. It
// may be said more than once. given is called in the loop, once, when all that waited was
// given up, with the number of rows: now, or when the seals on their way have ended.
func (s *Store) LoseDevice(d *Device, why error, given func(rows uint64)) {
	if s.brokenBy(d) != nil {
		return
	}
	if s.broken == nil {
		s.broken = map[*Device]*breakage{}
	}
	s.broken[d] = &breakage{why: why, given: given}
	for _, m := range s.sessions {
		if m.arena != nil && m.staging == d && m.left > 0 { // whoever claims a group would meet it
			s.FailSession(m, named(m.target.Name, why))
		}
	}
	s.giveUpBroken(false)
}

// brokenBy is why a device is broken; nil: it is not.
func (s *Store) brokenBy(d *Device) error {
	if b := s.broken[d]; b != nil {
		return b.why
	}
	return nil
}

// giveUpBroken gives up the rows that wait for columns of broken devices, but for those of
// seals on their way and those that a Job fills. heard: somebody's seal has failed of them.
func (s *Store) giveUpBroken(heard bool) {
	if len(s.broken) == 0 {
		return
	}
	held := false
	for _, c := range s.columns[1:] {
		b := s.broken[c.device]
		if b == nil {
			continue
		}
		n := s.taken(c)
		held = held || n > 0
		for _, k := range slices.Clone(c.pending[n:]) {
			if k.deletes || k.filling {
				continue
			}
			if !heard && (c.unheard == 0 || k.ordinal < c.unheard) {
				c.unheard = k.ordinal
			}
			if k.session != nil && !k.session.ended {
				s.FailSession(k.session, named(c.name, b.why))
			}
			b.rows += uint64(len(k.prims))
			c.removeCapture(k)
			s.forgetInserts(k)
			s.dropCapture(k)
		}
	}
	if held {
		return
	}
	for _, b := range s.broken {
		if given := b.given; given != nil {
			b.given = nil
			given(b.rows)
		}
	}
}

// broken is why nothing can be written where the rows go; nil: it can.
func (w *incoming) broken(s *Store) error {
	if why := s.brokenBy(w.device); why != nil {
		return named(w.name, why)
	}
	return nil
}

// taken is how many of a column's captures, from the first on, a seal on its way has taken.
func (s *Store) taken(c *column) (n int) {
	for _, z := range s.active {
		for i := range z.folds {
			if f := &z.folds[i]; f.column == c {
				n = max(n, f.pending)
			}
		}
	}
	return n
}

// hear fails a seal of what was given up, the first time.
func (z *sealing) hear() (err error) {
	s := z.store
	if len(s.broken) == 0 {
		return nil
	}
	for _, c := range s.columns[1:] {
		if c.unheard == 0 || c.unheard > z.ordinal || !z.covers(c.nameID) {
			continue
		}
		if err == nil {
			why := StatusError(s.brokenBy(c.device))
			err = protocol.Errorf(why.Status, "attribute %q: its rows from ordinal %d on, which waited for their seal, are given up: %s. Nothing of this seal was done; seal again for all that is not of this device", c.name, c.unheard, why.Text)
		}
		c.unheard = 0
	}
	return err
}
