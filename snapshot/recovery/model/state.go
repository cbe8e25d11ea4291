package model

import "callboard/modelcheck"

// The most that a state has room for: one reader needs one slot and one block beside the newest and the one in the
// making.
const (
	maxAttrs = 2
	maxEpoch = 6
	slots    = 3
)

// never is birth = MAX and death = ∞.
const never = 15

// version is one slot: in shared memory, in the broker's books, or in a record. Birth 0 in books and records: free.
type version struct{ birth, death, block uint8 }

type table [maxAttrs][slots]version

// record is one recovery record; intact tells what its checksum would.
type record struct {
	epoch  uint8
	table  table
	intact bool
}

// state is all there is at one moment.
type state struct {
	epoch   uint8
	horizon [maxAttrs]uint8
	any     uint8 // the horizon of all
	slots   table
	blocks  [maxAttrs][slots]uint8 // what was written there: see contents
	pin     uint8
	records [2]record

	broker broker
	reader reader
	kills  uint8

	// Ghosts, which only the checks look at: the newest epoch that was committed, the contents that an attribute has at
	// each epoch that was committed or shown.
	committed uint8
	truth     [maxAttrs][maxEpoch + 1]uint8
}

// contents names what a life of the broker writes for an epoch.
func contents(epoch, life uint8) uint8 { return epoch | life<<4 }

// halfWay is what a block holds that is being brought up to date: nobody may see it.
const halfWay = 0xff

// Model is the protocol within bounds. Make one with New.
type Model struct{ Config }

// New checks the bounds; bounds that do not fit are a mistake in a test, and panic.
func New(c Config) Model {
	if c.Attrs < 1 || c.Attrs > maxAttrs || c.MaxEpoch < 2 || c.MaxEpoch > maxEpoch || c.Kills < 0 || c.Kills > 3 || c.Without >= ruleCount {
		panic("model: bounds that the model has no room for: " + c.String())
	}
	return Model{c}
}

// Explore visits every state in bounds, at most limit.
func (m Model) Explore(limit int) modelcheck.Outcome { return modelcheck.Explore[state](m, limit) }

// Start is a stage at epoch 1, right after its seal: slot 0 of each attribute holds version 1 in block 0.
func (m Model) Start() state {
	s := state{epoch: 1, committed: 1}
	for a := range m.Attrs {
		for i := range slots {
			s.slots[a][i] = version{never, never, 0}
		}
		s.slots[a][0].birth = 1
		s.blocks[a][0] = contents(1, 0)
		s.truth[a][1] = contents(1, 0)
		s.broker.books[a][0] = version{1, never, 0}
	}
	s.records[1] = record{epoch: 1, table: s.broker.books, intact: true}
	if m.Without == TwoRecords {
		s.records[0], s.records[1] = s.records[1], record{}
	}
	s.broker.at, s.broker.epoch, s.broker.turn = brokerIdle, 1, 2
	return s
}

// Next lists the broker's steps, the reader's, and the kill.
func (m Model) Next(s *state, to *modelcheck.Steps[state]) {
	m.brokerSteps(s, to)
	m.readerSteps(s, to)
	if int(s.kills) < m.Kills && s.broker != (broker{}) {
		n := *s
		n.kills++
		n.broker = broker{}
		if m.Without == PinsOutliveBroker {
			n.pin = 0
		}
		to.Add(n, "kernel", "kills the broker")
	}
}

// Rest: the reader reads for ever.
func (m Model) Rest(*state) string { return "no process can take a step" }
