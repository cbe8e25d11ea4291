package snapshot

import "callboard/protocol"

// stagingOf is where a session's rows are filled (rule C5); nil: in the host's memory.
func (s *Store) stagingOf(t *Target, r *resolved) (*Device, error) {
	d := r.device
	if t.StagingType != 0 || t.StagingID != 0 {
		var err error
		if d, err = s.device("staging", t.StagingType, t.StagingID); err != nil {
			return nil, named(t.Name, err)
		}
	}
	if d != nil && r.schema.Kind == protocol.KindArray {
		return nil, protocol.Errorf(protocol.StatusNotSupported, "attribute %q is of kind array and staging is %s: its rows are filled in host memory only; leave staging out, or ask for the cpu", t.Name, d)
	}
	return d, nil
}

// fillByDevice is the copies of fillGroup, where one of the blocks lies on a device: zeros,
// then the sealed rows.
func (m *Session) fillByDevice(d *Device, dst, src *Block, size uint64, rows []uint32, count uint64) error {
	var list copyList
	for i, row := range rows {
		if uint64(row) < count {
			list.add(dst.place(uint64(i)*m.row, m.row), src.place(uint64(row)*m.row, m.row), m.row)
		}
	}
	if list.bytes < size {
		if dst.device() == nil {
			clear(dst.Bytes[:size])
		} else if err := failedOn(d, d.Zero(dst.base, size)); err != nil {
			return named(m.target.Name, err)
		}
	}
	if err := list.run(d); err != nil {
		return named(m.target.Name, err)
	}
	return nil
}

// endUnfilled ends what cannot be filled: a session of one group, of several that attempt.
func (s *Store) endUnfilled(m *Session, index int, attempt uint32) {
	switch g := &m.groups[index]; {
	case m.arena == nil:
		s.EndSession(m)
	case g.attempt == attempt && g.claimant != nil && !m.ended:
		s.giveUp(m, uint64(index))
	}
}
