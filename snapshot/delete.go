package snapshot

import (
	"slices"

	"callboard/fault"
	"callboard/protocol"
)

// Delete takes attributes from the prims of q at an ordinal; without names it takes
// all that the prims carry, so that the prims are gone (behaviour 147, 148). Deletes
// are ordered like writes. An attribute that is not known, or that a prim does not
// carry, is no error.
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
		for _, c := range columns {
			k := s.newCapture()
			k.ordinal, k.deletes, k.charged = ordinal, true, charged
			k.query, k.prims = q, q.prims[:len(q.prims):len(q.prims)]
			s.unsealedBytes += charged
			c.insertCapture(k)
		}
	}
	s.counters.Deletes++
	return Outcome{Ordinal: ordinal, Epoch: s.epoch, Count: uint64(len(columns))}, nil
}

// mentions tells whether the column, or anything that waits for its seal, is about a
// prim.
func (c *column) mentions(prim uint64) bool {
	if c.layout != nil {
		if _, ok := c.layout.rows[prim]; ok {
			return true
		}
	}
	return slices.ContainsFunc(c.pending, func(k *capture) bool { return k.has(prim) })
}
