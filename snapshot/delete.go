package snapshot

import (
	"slices"

	"callboard/fault"
	"callboard/protocol"
)

// Delete takes attributes from the prims of q at an ordinal; without names it takes
// all that the prims carry, so that the prims are gone (behaviour 147, 148). Deletes
// are ordered like writes: what is accepted later at a lower ordinal is deleted too, in
// attributes and schemas that do not exist yet as well. An attribute that is not known,
// or that a prim does not carry, is no error.
func (s *Store) Delete(q *Query, names []string, ordinal uint64) (Outcome, error) {
	var columns []*column
	for i, name := range names {
		if err := checkReserved(name); err != nil {
			return Outcome{}, err
		}
		if err := checkText(protocol.StringToken, name); err != nil {
			return Outcome{}, err
		}
		if _, err := s.admit(name, ordinal, false); err != nil {
			return Outcome{}, err
		}
		if a := s.byName[name]; a != nil && !slices.Contains(names[:i], name) {
			columns = append(columns, a.columns...)
		}
	}
	if len(names) == 0 {
		for _, c := range s.columns[1:] {
			if !slices.ContainsFunc(q.prims, c.mentions) {
				continue
			}
			if _, err := s.admit(c.name, ordinal, false); err != nil {
				return Outcome{}, err
			}
			columns = append(columns, c)
		}
	}
	charged := uint64(len(q.prims)) * sizeOf[tombstone]()
	if more := charged * uint64(len(columns)); s.unsealedBytes+more > s.config.UnsealedBytesMax {
		return Outcome{}, protocol.Errorf(protocol.StatusQueueFull, "a delete on %d prims in %d columns: %d unsealed bytes wait already and %d more exceed the limit of %d; seal first, or raise `serve --max-unsealed`", len(q.prims), len(columns), s.unsealedBytes, more, s.config.UnsealedBytesMax)
	}
	if len(q.prims) > 0 && !fault.On(fault.DeleteIgnored) {
		d := &remembered{ordinal: ordinal, names: slices.Clone(names), query: q, prims: q.prims[:len(q.prims):len(q.prims)]}
		for _, c := range columns {
			s.attach(d, c)
		}
		s.remember(d)
	}
	s.counters.Deletes++
	return Outcome{Ordinal: ordinal, Epoch: s.epoch, Count: uint64(len(columns))}, nil
}

// remembered is a delete that was accepted and is not sealed for all that it is about.
type remembered struct {
	ordinal uint64
	names   []string // none: all
	query   *Query
	prims   []uint64
	set     map[uint64]struct{} // of prims, made when somebody asks
	columns []*column           // that have a capture of it
}

// rememberedMax bounds the prims of the deletes that are remembered: the oldest ones
// are forgotten beyond it, and reach then only what is there.
const rememberedMax = 1 << 20

func (s *Store) remember(d *remembered) {
	s.deletes = append(s.deletes, d)
	s.rememberedPrims += len(d.prims)
	for s.rememberedPrims > rememberedMax && len(s.deletes) > 1 {
		s.rememberedPrims -= len(s.deletes[0].prims)
		s.deletes = slices.Delete(s.deletes, 0, 1)
	}
}

// attach makes the delete one of the column's captures, unless it is one already.
func (s *Store) attach(d *remembered, c *column) {
	if slices.Contains(d.columns, c) {
		return
	}
	d.columns = append(d.columns, c)
	k := s.newCapture()
	k.ordinal, k.deletes, k.charged = d.ordinal, true, uint64(len(d.prims))*sizeOf[tombstone]()
	k.query, k.prims = d.query, d.prims
	s.unsealedBytes += k.charged
	c.insertCapture(k)
}

// reaching are the remembered deletes that a write of k's prims must meet in its column
// when ordinals above after are sealed, and that the column, nil for a new one, does
// not have yet. Usually nothing is remembered.
func (s *Store) reaching(c *column, name string, k *capture, after uint64) (list []*remembered) {
	for _, d := range s.deletes {
		if d.ordinal > after && (len(d.names) == 0 || slices.Contains(d.names, name)) && !(c != nil && slices.Contains(d.columns, c)) && slices.ContainsFunc(k.prims, d.has) {
			list = append(list, d)
		}
	}
	return list
}

func (d *remembered) has(prim uint64) bool { return hasPrim(&d.set, d.prims, prim) }

// forgetDeletes forgets those below whose ordinals nobody can write any more.
func (s *Store) forgetDeletes() {
	if len(s.deletes) == 0 {
		return
	}
	s.deletes = slices.DeleteFunc(s.deletes, func(d *remembered) bool {
		over := s.floors.standard >= d.ordinal
		if len(d.names) > 0 {
			over = !slices.ContainsFunc(d.names, func(name string) bool { return s.floorOf(name) < d.ordinal })
		}
		if over {
			s.rememberedPrims -= len(d.prims)
		}
		return over
	})
}

// mentions tells whether the column, or a write that waits for its seal, has a prim.
func (c *column) mentions(prim uint64) bool {
	if c.layout != nil {
		if _, ok := c.layout.rows[prim]; ok {
			return true
		}
	}
	return slices.ContainsFunc(c.pending, func(k *capture) bool { return !k.deletes && k.has(prim) })
}
