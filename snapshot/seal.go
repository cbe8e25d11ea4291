package snapshot

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"callboard/protocol"
)

// floors are the write floors by attribute name.
type floors struct {
	byName   map[uint64]uint64 // name's token id → floor, where it is above the default
	standard uint64            // of every other name (behaviour 114)
	global   uint64            // lowest of all known attributes (behaviour 112)
	spares   []*Block          // leased for the next FloorTables
	promised int               // seals that copy jobs end with
}

// floorOf is the write floor of a name, known or not.
func (s *Store) floorOf(name string) uint64 {
	if id, ok := s.dictionary.ids[0][name]; ok {
		return s.floorOfID(id)
	}
	return s.floors.standard
}

func (s *Store) floorOfID(id uint64) uint64 {
	return max(s.floors.byName[id], s.floors.standard)
}

// Sealed tells what a seal published.
type Sealed struct {
	Epoch   uint64
	StampNs uint64
	Global  uint64
	Columns []SealedColumn
}

// SealedColumn is one column's part of a seal.
type SealedColumn struct {
	Name             string
	Index            uint32
	Floor            uint64
	Lowest, Highest  uint64
	Rows             uint64
	LayoutGeneration uint64
	Adopted          bool
	Published        bool // false: only the floor moved
}

// Seal advances the write floor and publishes what it covers, in one epoch
// (rules O3, V6). A seal that moves nothing succeeds and keeps the epoch. ErrRetry:
// a write that is covered is still being copied, or memory is being made.
func (s *Store) Seal(ordinal uint64, scope uint64, names []string, stampNs uint64) (Outcome, error) {
	if scope > protocol.ScopeExclude {
		return Outcome{}, protocol.Errorf(protocol.StatusInvalidArgument, "scope is %d: expected %d (all), %d (include) or %d (exclude)", scope, protocol.ScopeAll, protocol.ScopeInclude, protocol.ScopeExclude)
	}
	if scope == protocol.ScopeAll && len(names) > 0 {
		return Outcome{}, protocol.Errorf(protocol.StatusInvalidArgument, "scope all takes no attributes, %d are given", len(names))
	}
	if scope == protocol.ScopeExclude && len(names) == 0 {
		scope = protocol.ScopeAll // behaviour 113
	}
	if err := s.cover(scope, names); err != nil {
		return Outcome{}, err
	}
	moves := scope == protocol.ScopeAll && ordinal > s.floors.standard
	for _, id := range s.named {
		moves = moves || scope == protocol.ScopeInclude && ordinal > s.floorOfID(id)
	}
	s.publishing = s.publishing[:0]
	for _, c := range s.columns[1:] {
		if !c.covered {
			continue
		}
		if c.busy && c.pending <= ordinal {
			return Outcome{}, ErrRetry
		}
		moves = moves || ordinal > s.floorOfID(c.nameID)
		if c.building != nil && c.building.ordinal <= ordinal {
			s.publishing = append(s.publishing, c)
		}
	}
	if moves {
		if err := s.reserveSeal(len(s.named)+len(s.columns), s.publishing...); err != nil {
			return Outcome{}, err
		}
		s.raiseFloors(scope, ordinal)
		s.publish(s.publishing, stampNs)
	} else if len(s.publishing) > 0 {
		c := s.publishing[0]
		panic(fmt.Sprintf("snapshot: attribute %q has ordinal %d unsealed at floor %d", c.name, c.building.ordinal, s.floorOfID(c.nameID)))
	}
	return Outcome{Value: s.reportedFloor(scope, names), Ordinal: ordinal, Epoch: s.epoch}, nil
}

// cover marks the columns that a scope covers and leaves the ids of names in s.named.
func (s *Store) cover(scope uint64, names []string) error {
	s.named = s.named[:0]
	for _, c := range s.columns {
		c.covered = scope != protocol.ScopeInclude
	}
	for _, name := range names {
		if strings.HasPrefix(name, "@") {
			return protocol.Errorf(protocol.StatusNotSupported, "attribute %q: names that start with @ are reserved", name)
		}
		if c := s.findColumn(name); c != nil {
			c.covered = scope == protocol.ScopeInclude
		}
		id, err := s.dictionary.intern(protocol.StringToken, name)
		if err != nil {
			return err
		}
		s.named = append(s.named, id)
	}
	return nil
}

// raiseFloors moves the floors of what a seal covers. EXCLUDE leaves the floor of
// names that nobody knows yet alone (behaviour 115).
func (s *Store) raiseFloors(scope, ordinal uint64) {
	switch scope {
	case protocol.ScopeAll:
		s.floors.standard = max(s.floors.standard, ordinal)
		for id, floor := range s.floors.byName {
			if floor <= s.floors.standard {
				delete(s.floors.byName, id)
			}
		}
	case protocol.ScopeInclude:
		for _, id := range s.named {
			s.raiseFloor(id, ordinal)
		}
	case protocol.ScopeExclude:
		for _, c := range s.columns[1:] {
			if c.covered {
				s.raiseFloor(c.nameID, ordinal)
			}
		}
	}
}

func (s *Store) raiseFloor(id, ordinal uint64) {
	if ordinal > s.floorOfID(id) {
		s.floors.byName[id] = ordinal
	}
}

// sealColumn seals one column at its building version's ordinal. The caller has
// reserved (reserveSeal).
func (s *Store) sealColumn(c *column, ordinal uint64) {
	s.raiseFloor(c.nameID, ordinal)
	s.publishing = append(s.publishing[:0], c)
	s.publish(s.publishing, 0)
}

// reportedFloor is what the completion of a seal says: the floor of what was named.
func (s *Store) reportedFloor(scope uint64, names []string) uint64 {
	if scope != protocol.ScopeInclude || len(names) == 0 {
		return s.globalFloor()
	}
	lowest := uint64(math.MaxUint64)
	for _, name := range names {
		lowest = min(lowest, s.floorOf(name))
	}
	return lowest
}

func (s *Store) globalFloor() uint64 {
	if len(s.columns) < 2 {
		return s.floors.standard
	}
	lowest := uint64(math.MaxUint64)
	for _, c := range s.columns[1:] {
		lowest = min(lowest, s.floorOfID(c.nameID))
	}
	return lowest
}

// reserveSeal makes sure that a seal of these columns needs nothing more: a free
// slot each, and room for the floors, of which the seal gives at most newNames rows
// of their own. What seals at the end of copy jobs were promised stays there.
func (s *Store) reserveSeal(newNames int, columns ...*column) error {
	if len(s.notes) > 0 {
		s.writeNotes()
	}
	for _, c := range columns {
		if err := s.reserveSlots(c, 1); err != nil {
			return err
		}
	}
	f := &s.floors
	seals := f.promised + 1
	if err := s.reserveSlots(s.columns[protocol.FloorColumn], seals); err != nil {
		return err
	}
	need := floorTableBytes(len(f.byName) + newNames + f.promised)
	for i := len(f.spares) - 1; i >= 0; i-- {
		if uint64(len(f.spares[i].Bytes)) < need {
			s.memory.Drop(f.spares[i])
			f.spares = slices.Delete(f.spares, i, i+1)
		}
	}
	for len(f.spares) < seals {
		b, err := s.metadata(need)
		if err != nil {
			return err
		}
		f.spares = append(f.spares, b)
	}
	return nil
}

func (s *Store) reserveSlots(c *column, n int) error {
	for len(c.freeSlots) < n {
		if err := s.growSlots(c); err != nil {
			return err
		}
	}
	return nil
}

func floorTableBytes(rows int) uint64 {
	return sizeOf[protocol.FloorTable]() + uint64(rows)*sizeOf[protocol.FloorRow]()
}
