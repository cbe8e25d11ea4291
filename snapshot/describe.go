package snapshot

import (
	"callboard/protocol"
)

// ColumnState describes one column for people.
type ColumnState struct {
	Name                                                              string
	Index                                                             uint32
	Schema                                                            protocol.Schema
	Rows, Floor, Bytes, Adopted, Scattered, AdoptRefused, CopiedBytes uint64
	Retain                                                            uint32
	Handoff                                                           uint32
	Ordinals                                                          [][2]uint64 // lowest and highest of each version that is kept, oldest first
	Unsealed                                                          uint64      // the lowest ordinal that waits for its seal, 0 if none
	Versions                                                          int
}

// State describes the store for people: a copy that stays as it is.
type State struct {
	Epoch         uint64
	GlobalFloor   uint64
	DefaultFloor  uint64
	Columns       []ColumnState
	Counters      Counters
	Usage         StoreUse
	UnsealedBytes uint64
	Sessions      int
	Strings       int
}

// Describe takes the state as it is now.
func (s *Store) Describe() State {
	state := State{Epoch: s.epoch, GlobalFloor: s.globalFloor(), DefaultFloor: s.floors.standard, Counters: s.counters, Usage: s.Usage(),
		UnsealedBytes: s.unsealedBytes, Sessions: len(s.sessions), Strings: len(s.dictionary.texts)}
	for _, c := range s.columns[1:] {
		e := c.entry
		cs := ColumnState{Name: c.name, Index: c.index, Schema: c.schema, Floor: s.floorOfID(c.nameID), Adopted: e.AdoptedCount, Scattered: e.ScatteredCount,
			AdoptRefused: e.AdoptRefusedCount, CopiedBytes: e.CopiedBytes, Retain: uint32(c.retain), Handoff: c.handoff, Versions: len(c.versions)}
		if v := c.latest(); v != nil {
			cs.Rows, cs.Bytes = v.rows, v.rows*c.rowBytes
			if c.ragged != nil {
				cs.Bytes += c.ragged.liveBytes
			}
		}
		for _, v := range c.versions {
			cs.Ordinals = append(cs.Ordinals, [2]uint64{v.lowest, v.highest})
		}
		if len(c.pending) > 0 {
			cs.Unsealed = c.pending[0].ordinal
		}
		state.Columns = append(state.Columns, cs)
	}
	return state
}

// FloorOf is the write floor of a name, known or not.
func (s *Store) FloorOf(name string) uint64 { return s.floorOf(name) }

// SessionsOf counts the open sessions of an owner.
func (s *Store) SessionsOf(owner any) (n uint32) {
	for _, m := range s.sessions {
		if m.Owner == owner {
			n++
		}
	}
	return n
}

// Declare makes an attribute before anybody writes it, or confirms one that exists
// with the same schema. retain 0 and HandoffDefault are no opinion: the stage's for
// a new attribute, what it has for one that exists.
func (s *Store) Declare(name string, schema protocol.Schema, retain, handoff uint32) error {
	t := Target{Name: name, Schema: schema}
	r, err := s.resolve(&t)
	if err != nil {
		return err
	}
	c := r.column
	if c == nil && r.attribute != nil {
		return named(name, r.differs)
	}
	if handoff > protocol.HandoffCopy {
		return protocol.Errorf(protocol.StatusInvalidArgument, "handoff is %d: expected %d (default), %d (adopt) or %d (copy)", handoff, protocol.HandoffDefault, protocol.HandoffAdopt, protocol.HandoffCopy)
	}
	if retain > 1<<20 {
		return protocol.Errorf(protocol.StatusInvalidArgument, "retain is %d: at most %d", retain, 1<<20)
	}
	if retain == 0 {
		retain = s.config.Retain
		if c != nil {
			retain = uint32(c.retain)
		}
	}
	if handoff == protocol.HandoffDefault {
		handoff = s.config.Handoff
		if c != nil {
			handoff = c.handoff
		}
	}
	if c == nil {
		_, err = s.makeColumn(name, r.schema, r.rowBytes, retain, handoff)
		return err
	}
	c.retain, c.handoff = int(retain), handoff
	store32(&c.entry.Retain, retain)
	store32(&c.entry.Handoff, handoff)
	s.noteExcess(c)
	return nil
}
