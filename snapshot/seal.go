package snapshot

import (
	"math"
	"slices"

	"callboard/fault"
	"callboard/protocol"
)

// floors are the write floors by attribute name.
type floors struct {
	byName   map[uint64]uint64 // name's token id → floor, where it is above the default
	standard uint64            // of every other name (behaviour 114)
	global   uint64            // lowest of all known attributes (behaviour 112)
	spares   []*Block          // leased for the next FloorTables
	promised int               // seals whose copies are on their way
	names    int               // rows that those may add
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
// a write that is covered is still being copied, another seal of the same attributes
// is on its way, or memory is being made.
func (s *Store) Seal(ordinal uint64, scope uint64, names []string, stampNs uint64) (Outcome, *Job, error) {
	if scope > protocol.ScopeExclude {
		return Outcome{}, nil, protocol.Errorf(protocol.StatusInvalidArgument, "scope is %d: expected %d (all), %d (include) or %d (exclude)", scope, protocol.ScopeAll, protocol.ScopeInclude, protocol.ScopeExclude)
	}
	if scope == protocol.ScopeAll && len(names) > 0 {
		return Outcome{}, nil, protocol.Errorf(protocol.StatusInvalidArgument, "scope all takes no attributes, %d are given", len(names))
	}
	if scope == protocol.ScopeExclude && len(names) == 0 {
		scope = protocol.ScopeAll // behaviour 113
	}
	z := s.newSealing(ordinal)
	z.scope, z.stampNs = scope, stampNs
	if fault.On(fault.IncludeIsAll) {
		z.scope = protocol.ScopeAll
	}
	for _, name := range names {
		if err := z.include(name); err != nil {
			z.drop()
			return Outcome{}, nil, err
		}
	}
	if scope == protocol.ScopeExclude {
		z.exclude()
	}
	return z.begin()
}

func (s *Store) raiseFloor(id, ordinal uint64) {
	if ordinal > s.floorOfID(id) {
		s.floors.byName[id] = ordinal
	}
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

// reserveSeal makes sure that the seal needs nothing more: a free slot for each
// column, and room for the floors, of which it gives at most promisedNames rows of
// their own. What seals at the end of copy jobs were promised stays there.
func (s *Store) reserveSeal(z *sealing) error {
	if len(s.notes) > 0 {
		s.writeNotes()
	}
	for i := range z.folds {
		if c := z.folds[i].column; c != nil && z.folds[i].publish { // a new one has free slots
			if err := s.reserveSlots(c, 1); err != nil {
				return err
			}
		}
	}
	f := &s.floors
	seals := f.promised + 1
	if err := s.reserveSlots(s.columns[protocol.FloorColumn], seals); err != nil {
		return err
	}
	need := floorTableBytes(len(f.byName) + z.promisedNames + f.names)
	small := func(b *Block) bool { return uint64(len(b.Bytes)) < need }
	fit := 0
	for _, b := range f.spares {
		if !small(b) {
			fit++
		}
	}
	for ; fit < seals; fit++ { // before small ones go: if there is no memory, seals on their way need these, which do for them
		b, err := s.metadata(need)
		if err != nil {
			return err
		}
		f.spares = append(f.spares, b)
	}
	f.spares = slices.DeleteFunc(f.spares, func(b *Block) bool {
		if small(b) {
			s.memory.Drop(b)
		}
		return small(b)
	})
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
