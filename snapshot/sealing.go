package snapshot

import (
	"math"
	"slices"

	"callboard/fault"
	"callboard/protocol"
)

// sealing is a seal on its way: what it covers, and the versions that it makes.
type sealing struct {
	store          *Store
	ordinal, scope uint64
	stampNs        uint64
	ids            []uint64   // of the names that it covers; scope all covers all
	folds          []fold     // of columns that have something to publish
	incoming       []incoming // written in the same step
	copied         uint64
	device         bool  // some of it by a device, or after it
	failed         error // what a device met
	promisedNames  int
}

func (s *Store) newSealing(ordinal uint64) *sealing {
	var z *sealing
	if n := len(s.sealings); n > 0 {
		z, s.sealings = s.sealings[n-1], s.sealings[:n-1]
	} else {
		z = &sealing{}
	}
	*z = sealing{store: s, ordinal: ordinal, scope: protocol.ScopeInclude, ids: z.ids[:0], folds: z.folds[:0], incoming: z.incoming[:0]}
	return z
}

// include adds a name.
func (z *sealing) include(name string) error {
	if err := checkReserved(name); err != nil {
		return err
	}
	id, err := z.store.dictionary.intern(protocol.StringToken, name)
	if err == nil {
		z.ids = append(z.ids, id)
	}
	return err
}

// exclude turns the names into those of all other attributes that are known now:
// EXCLUDE leaves names that nobody knows yet alone (behaviour 115).
func (z *sealing) exclude() {
	named := slices.Clone(z.ids)
	z.ids = z.ids[:0]
	for _, a := range z.store.byName {
		if !slices.Contains(named, a.id) || fault.On(fault.ExcludeForgotten) {
			z.ids = append(z.ids, a.id)
		}
	}
}

func (z *sealing) covers(id uint64) bool {
	return z.scope == protocol.ScopeAll || slices.Contains(z.ids, id)
}

func (z *sealing) coversName(name string) bool {
	if z.scope == protocol.ScopeAll {
		return true
	}
	id, ok := z.store.dictionary.ids[0][name]
	return ok && slices.Contains(z.ids, id)
}

// waitsFor tells whether the seal must come after y, which is on its way: they share a
// name, and this one is above it or covers something that y publishes (rule L1).
func (z *sealing) waitsFor(y *sealing) bool {
	all := z.scope == protocol.ScopeAll || y.scope == protocol.ScopeAll
	if !all && !slices.ContainsFunc(z.ids, y.covers) {
		return false
	}
	if z.ordinal >= y.ordinal {
		return true
	}
	return slices.ContainsFunc(y.folds, func(f fold) bool {
		return f.column != nil && z.covers(f.column.nameID) && f.column.through(z.ordinal) > 0
	})
}

// moves tells whether any floor rises.
func (z *sealing) moves() bool {
	s := z.store
	for _, id := range z.ids {
		if z.ordinal > s.floorOfID(id) {
			return true
		}
	}
	if z.scope != protocol.ScopeAll || z.ordinal <= s.floors.standard && len(s.floors.byName) == 0 {
		return false
	}
	for _, a := range s.byName {
		if z.ordinal > s.floorOfID(a.id) {
			return true
		}
	}
	return z.ordinal > s.floors.standard
}

// begin takes all that the seal needs, and copies, at once or by a Job.
func (z *sealing) begin() (Outcome, *Job, error) {
	s := z.store
	s.pinsUnknown = false
	for _, y := range s.active {
		if z.waitsFor(y) {
			z.drop()
			return Outcome{}, nil, ErrRetry
		}
	}
	if !z.moves() {
		out := z.outcome()
		z.drop()
		return out, nil, nil
	}
	err := z.plan()
	if err == nil {
		err = z.lease()
	}
	if err != nil {
		z.drop()
		return Outcome{}, nil, err
	}
	if z.copied > s.config.CopyInlineBytes || z.device {
		return Outcome{}, z.job(), nil
	}
	done := false
	defer func() { // as Store.copyIncoming
		if !done {
			z.drop()
		}
	}()
	z.copy()
	done = true
	return z.commit(), nil, nil
}

// plan finds the captures that the seal covers, and their rows.
func (z *sealing) plan() error {
	s := z.store
	if err := z.hear(); err != nil {
		return err
	}
	if len(s.lost) > 0 && len(s.active) > 0 {
		return ErrRetry // that one shows what is lost
	}
	for _, c := range s.columns[1:] {
		n := 0
		if len(c.pending) > 0 && z.covers(c.nameID) {
			n = c.through(z.ordinal)
			if fault.On(fault.SealTooFar) {
				n = c.through(z.ordinal + 1)
			}
		}
		for _, k := range c.pending[:n] {
			if k.filling {
				return ErrRetry
			}
		}
		var more *capture
		for i := range z.incoming {
			if z.incoming[i].column == c {
				more = z.incoming[i].capture
			}
		}
		if n > 0 || more != nil || c.lost {
			f := z.fold(c, c.rowBytes, n)
			f.captures = append(f.captures, c.pending[:n]...)
			if more != nil {
				f.captures = append(f.captures, more)
			}
		}
	}
	for i := range z.incoming {
		if w := &z.incoming[i]; w.column == nil && w.capture != nil {
			f := z.fold(nil, w.rowBytes, 0)
			f.device = w.device
			f.captures = append(f.captures, w.capture)
		}
	}
	return nil
}

func (z *sealing) fold(c *column, rowBytes uint64, pending int) *fold {
	if n := len(z.folds); n < cap(z.folds) {
		z.folds = z.folds[:n+1] // with the memory that it has
	} else {
		z.folds = append(z.folds, fold{})
	}
	f := &z.folds[len(z.folds)-1]
	f.column, f.rowBytes, f.pending = c, rowBytes, pending
	if c != nil {
		f.device = c.device
	}
	return f
}

// lease takes everything; what stays when it fails comes last.
func (z *sealing) lease() error {
	s, made := z.store, 0
	for i := range z.incoming {
		w := &z.incoming[i]
		if err := w.lease(s, true); err != nil {
			return err
		}
		z.copied += w.copied
		if w.column == nil && w.capture != nil {
			made++
		}
	}
	z.device = anyOnDevice(z.incoming)
	for i := range z.folds {
		f := &z.folds[i]
		f.planFold(s.brokenBy(f.device) == nil)
		if err := f.lease(s, z.nameOf(f)); err != nil {
			return err
		}
		z.copied += f.cost()
		z.device = z.device || f.device != nil && f.copied > 0
	}
	z.promisedNames = len(z.ids)
	if z.scope == protocol.ScopeAll {
		z.promisedNames = 0
	}
	if err := s.reserveSeal(z); err != nil {
		return err
	}
	if made == 0 {
		return nil
	}
	next := len(z.folds) - made
	for i := range z.incoming {
		if w := &z.incoming[i]; w.column == nil && w.capture != nil {
			if err := w.makeColumn(s); err != nil {
				return err
			}
			z.folds[next].column = w.column
			next++
		}
	}
	return nil
}

func (z *sealing) nameOf(f *fold) string {
	if f.column != nil {
		return f.column.name
	}
	return z.incoming[0].name
}

// copy makes all copies; z.failed tells what a device met.
func (z *sealing) copy() {
	if z.failed = arrive(z.incoming); z.failed != nil {
		return
	}
	for i := range z.incoming {
		if z.incoming[i].capture != nil {
			if z.failed = z.incoming[i].fill(); z.failed != nil {
				return
			}
			if z.incoming[i].payload.selection.Mask != nil && z.incoming[i].copied > 0 {
				z.incoming[i].capture.from = nil // its rows lie as they are selected
			}
		}
	}
	for i := range z.folds { // first: a device may fail, which must leave the captures of all as they are, and on the host one may take others in
		if f := &z.folds[i]; f.device != nil {
			if z.failed = f.copyOnDevice(); z.failed != nil {
				z.failed = named(z.nameOf(f), z.failed)
				return
			}
			step()
		}
	}
	for i := range z.folds {
		if f := &z.folds[i]; f.device == nil {
			f.copy()
			step()
		}
	}
}

// job makes a Job of the copies. What the seal covers stays as it is until it ends:
// operations at or below its ordinal wait (admit).
func (z *sealing) job() *Job {
	s := z.store
	s.active = append(s.active, z)
	for i := range z.incoming { // what is accepted meanwhile must see it
		w := &z.incoming[i]
		w.await()
		if w.capture != nil {
			w.column.insertCapture(w.capture)
			w.noteInsert(s)
			w.standing = true
			for k := range z.folds {
				if z.folds[k].column == w.column {
					z.folds[k].pending++
				}
			}
		}
	}
	s.floors.promised++
	s.floors.names += z.promisedNames
	end := func() {
		s.floors.promised--
		s.floors.names -= z.promisedNames
		s.active = slices.DeleteFunc(s.active, func(y *sealing) bool { return y == z })
	}
	abort := func(heard bool) {
		end()
		z.drop()
		s.withdrawHeld()
		s.deletes.unmeet()
		s.giveUpBroken(heard)
	}
	return &Job{
		Bytes:  z.copied,
		Device: z.device,
		Run:    z.copy,
		Finish: func() (Outcome, error) {
			if failed := z.failed; failed != nil {
				abort(true)
				return Outcome{}, failed
			}
			end()
			out := z.commit()
			s.withdrawHeld()
			s.giveUpBroken(true)
			return out, nil
		},
		Abort: func() { abort(false) },
	}
}

// commit raises the floors and publishes.
func (z *sealing) commit() Outcome {
	s := z.store
	for i := range z.incoming {
		w := &z.incoming[i]
		w.land(s)
		s.memory.Drop(w.source)
		w.source = nil
		w.meetDeletes(s)
		if w.standing {
			w.capture = nil // its fold ends it
		}
	}
	s.moveFrontiers()
	z.raiseFloors()
	s.publish(z)
	s.forgetDeletes(z)
	out := z.outcome()
	for i := range z.incoming {
		out.Flags |= z.incoming[i].flags
		s.noteFlags(&z.incoming[i])
	}
	z.drop()
	return out
}

// outcome is what the completion of a seal says: the floor of what was named.
func (z *sealing) outcome() Outcome {
	s := z.store
	out := Outcome{Ordinal: z.ordinal, Epoch: s.epoch, Value: s.globalFloor()}
	if z.scope == protocol.ScopeInclude && len(z.ids) > 0 {
		out.Value = math.MaxUint64
		for _, id := range z.ids {
			out.Value = min(out.Value, s.floorOfID(id))
		}
	}
	return out
}

// drop gives back what the seal took.
func (z *sealing) drop() {
	s := z.store
	for i := range z.folds {
		z.folds[i].drop(s)
	}
	for i := range z.incoming {
		z.incoming[i].drop(s)
	}
	clear(z.incoming)
	z.folds, z.incoming = z.folds[:0], z.incoming[:0]
	s.sealings = append(s.sealings, z)
}

// raiseFloors moves the floors of what a seal covers.
func (z *sealing) raiseFloors() {
	s := z.store
	for _, id := range z.ids {
		s.raiseFloor(id, z.ordinal)
	}
	if fault.On(fault.DefaultFloorForgotten) && z.scope == protocol.ScopeAll {
		for _, a := range s.byName {
			s.raiseFloor(a.id, z.ordinal)
		}
		return
	}
	if z.scope == protocol.ScopeAll && z.ordinal > s.floors.standard {
		s.floors.standard = z.ordinal
		for id, floor := range s.floors.byName {
			if floor <= s.floors.standard {
				delete(s.floors.byName, id)
			}
		}
	}
}
