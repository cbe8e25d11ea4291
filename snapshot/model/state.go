package model

import "callboard/modelcheck"

// The most that a state has room for.
const (
	maxReaders = 2
	maxAttrs   = 2
	maxSlots   = 4
)

// never is birth = MAX and death = ∞.
const never = 15

// The words of shared memory, by address.
const (
	epochWord      = 0
	anyHorizonWord = 1
	horizonWords   = 2                                // + attribute
	slotWords      = horizonWords + maxAttrs          // + (attribute, slot, field)
	blockWords     = slotWords + maxAttrs*maxSlots*3  // + (attribute, block, 0..1)
	pinWords       = blockWords + maxAttrs*maxSlots*2 // + (reader, pin, 0..1); 1 only where a pin moves
	memoryWords    = pinWords + maxReaders*maxAttrs*2
)

// The fields of a version slot.
const (
	birth = 0
	death = 1
	block = 2
)

func horizonOf(a uint8) uint8           { return horizonWords + a }
func slotField(a, slot, f uint8) uint8  { return slotWords + (a*maxSlots+slot)*3 + f }
func blockWord(a, block, i uint8) uint8 { return blockWords + (a*maxSlots+block)*2 + i }
func pinWord(reader, pin, i uint8) uint8 {
	return pinWords + (reader*maxAttrs+pin)*2 + i
}

// state is all there is at one moment. A block's two words hold the epoch at which they were sealed, so that a wrong
// word shows where it is from.
type state struct {
	memory  [memoryWords]uint8
	broker  broker
	readers [maxReaders]reader
	deaths  uint8 // how many readers have died
	// sealed is the ghost that knows the truth: bit e of sealed[a] is set when attribute a was written at epoch e. Only
	// the checks look at it.
	sealed [maxAttrs]uint8
}

// truth is the epoch at which what attribute a shows at epoch e was sealed.
func (s *state) truth(a, e uint8) uint8 {
	for ; e > 0; e-- {
		if s.sealed[a]&(1<<e) != 0 {
			return e
		}
	}
	return 0
}

// Model is the protocol within bounds. Make one with New.
type Model struct{ Config }

// New checks the bounds; bounds that do not fit are a mistake in a test, and panic.
func New(c Config) Model {
	c.check()
	return Model{c}
}

// Explore visits every state in bounds, at most limit.
func (m Model) Explore(limit int) modelcheck.Outcome { return modelcheck.Explore[state](m, limit) }

// Start is a stage at epoch 1: each attribute's slot 0 holds version 1 in block 0, and the other slots are free.
func (m Model) Start() state {
	var s state
	s.memory[epochWord] = 1
	s.broker.epoch = 1
	for a := range uint8(m.Attrs) {
		for slot := range m.slots() {
			s.memory[slotField(a, slot, birth)] = never
			s.memory[slotField(a, slot, death)] = never
		}
		s.memory[slotField(a, 0, birth)] = 1
		s.memory[blockWord(a, 0, 0)] = 1
		s.memory[blockWord(a, 0, 1)] = 1
		s.broker.used[a] = 1
		s.sealed[a] = 1 << 1
	}
	return s
}

var readerNames = [maxReaders]string{"reader 0", "reader 1"}

// Next lists the broker's steps, each reader's, the drains, and the deaths.
func (m Model) Next(s *state, to *modelcheck.Steps[state]) {
	m.brokerSteps(s, to)
	if !s.broker.buffer.Empty() {
		n := *s
		addr, v := n.broker.buffer.Drain(n.memory[:])
		to.Add(n, "memory", brokerDrains[addr], v)
	}
	for r := range uint8(m.Readers) {
		rd := &s.readers[r]
		if !rd.buffer.Empty() {
			n := *s
			addr, v := n.readers[r].buffer.Drain(n.memory[:])
			to.Add(n, "memory", readerDrains[addr], v)
		}
		if rd.at == readerDead {
			continue
		}
		m.readerSteps(s, r, to)
		if int(s.deaths) < m.Deaths {
			n := *s
			n.deaths++
			n.readers[r] = reader{at: readerDead, buffer: rd.buffer}
			to.Add(n, readerNames[r], "dies; its stores will drain")
		}
	}
}

// Rest: readers read for ever, so only a stage whose readers are all dead may come to rest.
func (m Model) Rest(s *state) string {
	for r := range m.Readers {
		if s.readers[r].at != readerDead {
			return "no process can take a step"
		}
	}
	return ""
}

// store puts a store into buf, or into memory where the exploration is without buffers.
func (m Model) store(memory []uint8, buf *modelcheck.StoreBuffer, addr, v uint8) {
	if m.NoBuffer {
		memory[addr] = v
		return
	}
	buf.Store(addr, v)
}
