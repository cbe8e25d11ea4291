package model

import (
	"math/bits"

	"callboard/modelcheck"
)

// broker is the stage loop: where it stands, its locals, and its store buffer. What a slot holds it knows from its own
// stores, so only which slots are in use stands here.
type broker struct {
	at     uint8
	epoch  uint8           // the last it sealed, in its own order; memory may show an older one
	set    uint8           // the attributes of the running seal, bit by bit; 0 between seals
	attr   uint8           // the attribute it is at
	used   [maxAttrs]uint8 // slots (and so blocks) that are not free, bit by bit
	live   [maxAttrs]uint8 // the slot of the live version
	fresh  [maxAttrs]uint8 // the slot that the running seal fills
	block  [maxAttrs]uint8 // the block that the running seal fills
	victim uint8           // the slot it tries to reclaim
	scan   uint8           // the pin word it looks at next
	back   uint8           // where it goes on after the attempt
	buffer modelcheck.StoreBuffer
}

// Where the broker stands, named by the step it takes next.
const (
	brokerIdle = iota
	brokerWord0
	brokerWord1
	brokerBirthMax
	brokerDeathNever
	brokerBlock
	brokerBirth
	brokerDeath
	brokerEpoch
	brokerAhead
	brokerLook
	brokerRaise
	brokerRaiseAny
	brokerScan
	brokerClear
	brokerHandOver
)

// order is V6: blocks, slots, deaths of the old, and the epoch last. Each is the first step of its stage.
func (m Model) order() [4]uint8 {
	switch m.Without {
	case DeathBeforeEpoch:
		return [4]uint8{brokerWord0, brokerBirthMax, brokerEpoch, brokerDeath}
	case SlotsBeforeEpoch:
		return [4]uint8{brokerWord0, brokerEpoch, brokerBirthMax, brokerDeath}
	default:
		return [4]uint8{brokerWord0, brokerBirthMax, brokerDeath, brokerEpoch}
	}
}

// brokerSteps adds what the broker can do next.
func (m Model) brokerSteps(s *state, to *modelcheck.Steps[state]) {
	n := *s
	b := &n.broker
	if !b.buffer.Room(m.buffer()) {
		return // whatever comes next may store
	}
	a, e := b.attr, b.epoch+1
	store := func(addr, v uint8) { m.store(n.memory[:], &b.buffer, addr, v) }
	add := func(format string, args ...uint8) { to.Add(n, "broker", format, args...) }

	switch b.at {
	case brokerIdle:
		m.idle(s, to)

	case brokerWord0:
		store(blockWord(a, b.block[a], 0), e)
		b.at = brokerWord1
		add("writes word 0 of attribute %d block %d for epoch %d", a, b.block[a], e)
	case brokerWord1:
		k := b.block[a]
		store(blockWord(a, k, 1), e)
		m.nextOf(&n, brokerWord0)
		add("writes word 1 of attribute %d block %d for epoch %d", a, k, e)
		m.failIfStarved(&n, to)

	case brokerAhead:
		k := b.block[a]
		store(blockWord(a, k, 1), b.epoch)
		b.at, b.attr, b.block[a] = brokerIdle, 0, 0
		add("brings word 1 of attribute %d block %d up to epoch %d", a, k, s.broker.epoch)

	case brokerBirthMax: // any free slot, so that new versions come before old ones in a walk, and after them
		for slot := range m.slots() {
			if b.used[a]&(1<<slot) != 0 {
				continue
			}
			n = *s
			b.fresh[a] = slot
			if m.Without == RefillThroughMax {
				store(slotField(a, slot, death), never)
				b.at = brokerBlock
				add("refills attribute %d slot %d: death never", a, slot)
				continue
			}
			store(slotField(a, slot, birth), never)
			b.at = brokerDeathNever
			add("refills attribute %d slot %d: birth MAX", a, slot)
		}
	case brokerDeathNever:
		store(slotField(a, b.fresh[a], death), never)
		b.at = brokerBlock
		add("refills attribute %d slot %d: death never", a, b.fresh[a])
	case brokerBlock:
		store(slotField(a, b.fresh[a], block), b.block[a])
		b.at = brokerBirth
		add("refills attribute %d slot %d: block %d", a, b.fresh[a], b.block[a])
	case brokerBirth:
		slot := b.fresh[a]
		store(slotField(a, slot, birth), e)
		b.used[a] |= 1 << slot
		m.nextOf(&n, brokerBirthMax)
		add("refills attribute %d slot %d: birth %d", a, slot, e)

	case brokerDeath:
		slot := b.live[a]
		store(slotField(a, slot, death), e)
		b.live[a], b.fresh[a], b.block[a] = b.fresh[a], 0, 0
		m.nextOf(&n, brokerDeath)
		add("stores death of attribute %d slot %d: %d", a, slot, e)

	case brokerEpoch:
		// A full barrier: were the epoch still in the buffer during the next pass, a reader could leave one dead
		// version after it was looked at and pin another before it is, and one pass would find nothing.
		switch {
		case m.Without == EpochBarrier:
			store(epochWord, e)
		case b.buffer.Empty():
			n.memory[epochWord] = e
		default:
			return
		}
		m.nextStage(&n, brokerEpoch)
		add("stores the epoch: %d", e)
		if m.Without == ReclaimAfterEpoch { // the version this very seal kills is taken for dead
			n = *s
			m.attempt(&n, bits8(b.set), brokerEpoch, to)
		}

	case brokerLook, brokerScan:
		m.look(&n, to)
	case brokerRaise, brokerRaiseAny:
		m.raise(&n, to)
	case brokerClear, brokerHandOver:
		m.clear(&n, to)
	}
}

func bits8(set uint8) uint8 { return uint8(bits.TrailingZeros8(set)) }

// idle adds what the broker may begin between seals: a seal of any attributes, an attempt to reclaim any dead version
// (V3 goes oldest first; any order is more than that), copying ahead, and the clearing of a dead reader's pins. After the last epoch
// no block is written again, so nothing is reclaimed.
func (m Model) idle(s *state, to *modelcheck.Steps[state]) {
	if int(s.broker.epoch) >= m.MaxEpoch {
		return
	}
	e := s.broker.epoch + 1
	for set := uint8(1); set < 1<<m.Attrs; set++ {
		n := *s
		n.broker.set = set
		for a := range uint8(m.Attrs) {
			if set&(1<<a) != 0 {
				n.sealed[a] |= 1 << e
			}
		}
		m.nextOf(&n, brokerIdle)
		to.Add(n, "broker", "begins the seal of epoch %d, attributes by bit %b", e, set)
		m.failIfStarved(&n, to)
	}
	for a := range uint8(m.Attrs) {
		m.attempt(s, a, brokerIdle, to)
		if m.Ahead {
			m.ahead(s, a, to)
		}
	}
	for r := range uint8(m.Readers) {
		rd := &s.readers[r]
		dead := rd.at == readerDead && rd.buffer.Empty()
		if dead || m.Without == PinsOutliveSession && rd.at != readerDead {
			n := *s
			n.broker.at, n.broker.victim = brokerClear, r
			to.Add(n, "broker", "takes reader %d for dead", r)
		}
	}
}

// nextOf goes on to the next attribute of the seal in the stage that begins with first, or to the next stage. From
// brokerIdle it begins the first stage.
func (m Model) nextOf(n *state, first uint8) {
	b := &n.broker
	rest := b.set
	if first != brokerIdle {
		rest &^= 1<<(b.attr+1) - 1
	}
	if rest == 0 {
		m.nextStage(n, first)
		return
	}
	if first == brokerIdle {
		first = m.order()[0]
	}
	b.attr = bits8(rest)
	b.at = first
	if first == brokerWord0 {
		m.needBlock(n)
	}
}

// nextStage follows V6's order; after its last stage the seal is done.
func (m Model) nextStage(n *state, done uint8) {
	b := &n.broker
	order := m.order()
	for i, stage := range order[:3] {
		if stage == done {
			b.attr, b.at = bits8(b.set), order[i+1]
			return
		}
	}
	b.epoch++
	b.set, b.attr, b.at = 0, 0, brokerIdle
}

// needBlock takes a free block for the seal's attribute, or begins a pass over the dead versions, oldest first.
func (m Model) needBlock(n *state) {
	b := &n.broker
	a := b.attr
	if k, ok := m.freeBlock(n, a); ok {
		b.block[a], b.at = k, brokerWord0
		return
	}
	m.aim(n, 0)
}

// aim turns the pass to the oldest dead version that died after the given epoch. Without one the pass is over and the
// broker has no block: victim is then never. Readers of the latest state cannot bring that about; readers as of older
// epochs can, by pinning one dead version after another just ahead of the pass.
func (m Model) aim(n *state, after uint8) {
	b := &n.broker
	b.at, b.back, b.scan, b.victim = brokerLook, brokerWord0, 0, never
	oldest := uint8(never)
	for slot := range m.slots() {
		if d := m.own(n, slotField(b.attr, slot, death)); m.reclaimable(n, b.attr, slot) && d > after && d < oldest {
			oldest, b.victim = d, slot
		}
	}
	if b.victim == never && m.AsOf && m.Without != GrowAfterPass {
		m.aim(n, 0) // the pool grows; here, where it cannot, the seal waits for a later pass
	}
}

func (m Model) failIfStarved(n *state, to *modelcheck.Steps[state]) {
	if n.broker.at == brokerLook && n.broker.victim == never {
		to.Fail("starved: no block for attribute %d of epoch %d after a pass over its dead versions", n.broker.attr, n.broker.epoch+1)
	}
}

// own is what the broker itself sees of a word that only it writes.
func (m Model) own(n *state, addr uint8) uint8 { return n.broker.buffer.Load(n.memory[:], addr) }

// ahead brings a block that no version has up to date, word by word. Which block does not matter to the broker; any is
// more than the one that the next seal takes.
func (m Model) ahead(s *state, a uint8, to *modelcheck.Steps[state]) {
	for k := range m.slots() {
		free := m.taken(s, a)&(1<<k) == 0
		if m.Without == AheadAfterReclaim {
			free = k != m.own(s, slotField(a, s.broker.live[a], block)) // dead is taken for free
		}
		if !free || m.own(s, blockWord(a, k, 0)) == s.broker.epoch {
			continue
		}
		n := *s
		b := &n.broker
		m.store(n.memory[:], &b.buffer, blockWord(a, k, 0), b.epoch)
		b.at, b.attr, b.block[a] = brokerAhead, a, k
		to.Add(n, "broker", "brings word 0 of attribute %d block %d up to epoch %d", a, k, b.epoch)
	}
}

// freeBlock is the lowest block that no slot in use refers to.
func (m Model) freeBlock(n *state, a uint8) (k uint8, ok bool) {
	taken := m.taken(n, a)
	for k := range m.slots() {
		if taken&(1<<k) == 0 {
			return k, true
		}
	}
	return 0, false
}

// taken are the blocks that slots in use refer to, bit by bit.
func (m Model) taken(n *state, a uint8) (blocks uint8) {
	for slot := range m.slots() {
		if n.broker.used[a]&(1<<slot) != 0 {
			blocks |= 1 << m.own(n, slotField(a, slot, block))
		}
	}
	return blocks
}

// reclaimable reports whether the version in a slot is dead and, by V3, no longer retained.
func (m Model) reclaimable(n *state, a, slot uint8) bool {
	b := &n.broker
	if b.used[a]&(1<<slot) == 0 || slot == b.live[a] {
		return false
	}
	d := m.own(n, slotField(a, slot, death))
	if d == never {
		return false
	}
	if m.Without == ReclaimAfterEpoch || m.Without == RetainedKept {
		return true
	}
	oldest := int(b.epoch) - m.retain() + 1
	return int(d) <= oldest
}
