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

// attach makes the delete one of the column's captures, unless it is one already.
func (s *Store) attach(d *remembered, c *column) {
	if d.in(c) {
		return
	}
	if d.columns == nil {
		d.columns = map[*column]struct{}{}
	}
	d.columns[c] = struct{}{}
	k := s.newCapture()
	k.ordinal, k.deletes, k.charged = d.ordinal, true, uint64(len(d.prims))*sizeOf[tombstone]()
	k.query, k.prims = d.query, d.prims
	s.unsealedBytes += k.charged
	c.insertCapture(k)
}

// mentions tells whether the column, or a write that waits for its seal, has a prim.
func (c *column) mentions(prim uint64) bool {
	if c.layout != nil {
		if _, ok := c.layout.rows[prim]; ok {
			return true
		}
	}
	return slices.ContainsFunc(c.captured(prim), func(k *capture) bool { return !k.deletes })
}
