package model

import "callboard/modelcheck"

// broker is one life of the stage loop; the next one starts from zeros.
type broker struct {
	at     uint8
	epoch  uint8 // the last it sealed or recovered
	books  table // the versions that are not reclaimed
	set    uint8 // the attributes of the running seal, bit by bit
	attr   uint8 // the one it is at
	slot   uint8 // the slot that it fills, fixes or reclaims
	fresh  [maxAttrs]uint8
	turn   uint8 // records written in this life, plus 2 where that does not matter
	record uint8 // the one that it writes
}

// Where the broker stands, named by the step it takes next.
const (
	brokerRecover = iota // the zero broker
	brokerForward
	brokerFix
	brokerRebuild
	brokerAny
	brokerIdle
	brokerBlock
	brokerBirthMax
	brokerFields
	brokerBirth
	brokerDeath
	brokerInvalidate
	brokerHalf
	brokerEntries
	brokerChecksum
	brokerEpoch
	brokerLook
	brokerRaise
	brokerRaiseAny
	brokerScan
)

// brokerSteps adds what the broker can do next.
func (m Model) brokerSteps(s *state, to *modelcheck.Steps[state]) {
	n := *s
	b := &n.broker
	a, i, e := b.attr, b.slot, b.epoch+1
	add := func(format string, args ...uint8) { to.Add(n, "broker", format, args...) }
	switch b.at {
	case brokerRecover:
		m.choose(&n, to)
	case brokerForward:
		n.epoch = b.epoch
		b.at = brokerFix
		m.skipFixed(&n)
		add("rolls the epoch forward to %d", b.epoch)
	case brokerFix:
		m.fix(&n)
		m.skipFixed(&n)
		add("fixes attribute %d slot %d", a, i)
	case brokerRebuild:
		n.slots[a][i].birth = b.books[a][i].birth
		b.at = brokerFix
		m.nextSlot(b)
		m.skipFixed(&n)
		add("writes attribute %d slot %d anew", a, i)
	case brokerAny:
		n.any = max(n.horizon[0], n.horizon[1])
		*b = broker{at: brokerIdle, epoch: b.epoch, books: b.books, turn: b.turn}
		add("raises the horizon of all to %d", n.any)

	case brokerIdle:
		m.idle(s, to)

	case brokerBlock:
		k := m.freeBlock(b, a)
		n.blocks[a][k] = contents(e, s.kills)
		b.fresh[a] = k
		m.nextOf(b, brokerBlock, brokerBirthMax)
		add("writes block %d of attribute %d for epoch %d", k, a, e)
	case brokerBirthMax: // any free slot
		for i := range uint8(slots) {
			if s.broker.books[a][i].birth != 0 {
				continue
			}
			n = *s
			n.slots[a][i].birth = never
			b.slot, b.at = i, brokerFields
			add("refills attribute %d slot %d: birth MAX", a, i)
		}
	case brokerFields:
		n.slots[a][i].death, n.slots[a][i].block = never, b.fresh[a]
		b.at = brokerBirth
		add("refills attribute %d slot %d: death never, block %d", a, i, b.fresh[a])
	case brokerBirth:
		n.slots[a][i].birth = e
		b.books[a][i] = version{e, never, b.fresh[a]}
		b.slot = 0
		m.nextOf(b, brokerBirthMax, brokerDeath)
		add("refills attribute %d slot %d: birth %d", a, i, e)
	case brokerDeath:
		old := b.living(a)
		n.slots[a][old].death = e
		b.books[a][old].death = e
		next := uint8(brokerInvalidate)
		if m.Without == RecordBeforeEpoch {
			next = brokerEpoch
		}
		m.nextOf(b, brokerDeath, next)
		if b.at != brokerDeath {
			b.fresh = [maxAttrs]uint8{}
		}
		add("stores death of attribute %d slot %d: %d", a, old, e)
		if m.Without == ReclaimAfterEpoch {
			if b.at != brokerDeath && n.pin == 0 {
				n.horizon[a], n.any = e, e
				b.books[a][old] = version{}
				add("reclaims attribute %d slot %d at once", a, old)
			}
		}

	case brokerInvalidate:
		b.record = m.recordOf(b, e)
		n.records[b.record].intact = m.Without == ChecksumLast
		b.at = brokerHalf
		add("begins record %d for epoch %d", b.record, e)
	case brokerHalf:
		r := &n.records[b.record]
		r.epoch = e
		r.table[0] = m.recorded(b)[0]
		b.at = brokerEntries
		add("writes some entries of record %d", b.record)
	case brokerEntries:
		n.records[b.record].table = m.recorded(b)
		b.at = brokerChecksum
		add("writes all entries of record %d", b.record)
	case brokerChecksum:
		n.records[b.record].intact = true
		m.commit(&n, e, to)
		b.at = brokerEpoch
		if m.Without == RecordBeforeEpoch {
			m.sealed(b)
		}
		add("commits record %d by its checksum", s.broker.record)
		m.failIfMadeAgain(s, &n, to)
	case brokerEpoch:
		n.epoch = e
		if m.Without == RecordBeforeEpoch {
			m.commit(&n, e, to)
			b.at = brokerInvalidate
		} else {
			m.sealed(b)
		}
		add("stores the epoch: %d", e)
		m.failIfMadeAgain(s, &n, to)

	case brokerLook:
		m.look(&n, brokerRaise)
		add("looks at the pin for attribute %d slot %d", a, i)
	case brokerRaise:
		death := b.books[a][i].death
		b.at = brokerScan
		if death > n.horizon[a] {
			n.horizon[a] = death
			if death > n.any {
				b.at = brokerRaiseAny
			}
		}
		add("raises the horizon of attribute %d to %d", a, n.horizon[a])
	case brokerRaiseAny:
		n.any = max(n.any, b.books[a][i].death)
		b.at = brokerScan
		add("raises the horizon of all to %d", n.any)
	case brokerScan:
		m.look(&n, brokerIdle)
		if b.at == brokerIdle && (s.pin == 0 || s.pin < b.books[a][i].birth || s.pin >= b.books[a][i].death) {
			b.books[a][i] = version{}
		}
		b.attr, b.slot = 0, 0
		add("looks at the pin again, for attribute %d slot %d", a, i)
	}
}

// look goes on to next if the version that is tried is not pinned, else it gives up.
func (m Model) look(n *state, next uint8) {
	b := &n.broker
	v := b.books[b.attr][b.slot]
	if b.at = next; v.birth <= n.pin && n.pin < v.death {
		b.at, b.attr, b.slot = brokerIdle, 0, 0
	}
}

// idle adds what may begin between seals: a seal of some attributes, the reclaim of any dead version, and copying ahead.
// A reclaim that gives nothing new to write is left out: after the last epoch.
func (m Model) idle(s *state, to *modelcheck.Steps[state]) {
	if int(s.broker.epoch) == m.MaxEpoch {
		return
	}
	for _, set := range []uint8{1, 3}[:m.Attrs] {
		n := *s
		room := true
		for a := range uint8(m.Attrs) {
			room = room && (set&(1<<a) == 0 || m.freeBlock(&n.broker, a) < slots)
		}
		if !room {
			continue
		}
		n.broker.set, n.broker.at = set, brokerBlock
		to.Add(n, "broker", "begins to seal epoch %d, attributes %d", n.broker.epoch+1, set)
	}
	for a := range uint8(m.Attrs) {
		for i := range uint8(slots) {
			if v := s.broker.books[a][i]; v.birth == 0 || v.death == never {
				continue
			}
			n := *s
			n.broker.attr, n.broker.slot, n.broker.at = a, i, brokerLook
			to.Add(n, "broker", "tries to reclaim attribute %d slot %d", a, i)
		}
		if m.Ahead {
			m.ahead(s, a, to)
		}
	}
}

// ahead adds the first store of bringing a free block up to date. That it is done is not seen by anybody: what a seal
// writes there stands for it.
func (m Model) ahead(s *state, a uint8, to *modelcheck.Steps[state]) {
	free := [slots]bool{true, true, true}
	for _, v := range s.broker.books[a] {
		if v.birth != 0 && (m.Without != AheadAfterReclaim || v.death == never) {
			free[v.block] = false
		}
	}
	for k := range uint8(slots) {
		if free[k] && s.blocks[a][k] != halfWay {
			n := *s
			n.blocks[a][k] = halfWay
			to.Add(n, "broker", "brings block %d of attribute %d half-way up to epoch %d", k, a, s.broker.epoch)
		}
	}
}

// sealed ends a seal.
func (m Model) sealed(b *broker) {
	*b = broker{at: brokerIdle, epoch: b.epoch + 1, books: b.books, turn: b.turn}
}

// nextOf goes to the next attribute of the seal at the same step, or to the step after it.
func (m Model) nextOf(b *broker, same, next uint8) {
	for b.attr++; b.attr < uint8(m.Attrs); b.attr++ {
		if b.set&(1<<b.attr) != 0 {
			b.at = same
			return
		}
	}
	b.attr, b.at = 0, next
}

// living is the slot of the version that the running seal replaces.
func (b *broker) living(a uint8) uint8 {
	for i, v := range b.books[a] {
		if v.birth != 0 && v.birth <= b.epoch && v.death == never {
			return uint8(i)
		}
	}
	panic("model: the books have no living version")
}

// freeBlock is the first block that the books do not know, or slots.
func (m Model) freeBlock(b *broker, a uint8) uint8 {
	used := [slots]bool{}
	for _, v := range b.books[a] {
		if v.birth != 0 {
			used[v.block] = true
		}
	}
	for k := range uint8(slots) {
		if !used[k] {
			return k
		}
	}
	return slots
}

// recordOf is the record that a seal writes.
func (m Model) recordOf(b *broker, epoch uint8) uint8 {
	switch m.Without {
	case TwoRecords:
		return 0
	case ParityByEpoch:
		b.turn++
		return (b.turn - 1) % 2
	}
	return epoch % 2
}

// recorded is what the record says of the books.
func (m Model) recorded(b *broker) table {
	t := b.books
	if m.Without == DeadInRecord {
		for a := range t {
			for i := range t[a] {
				if t[a][i].death != never {
					t[a][i] = version{}
				}
			}
		}
	}
	return t
}

// commit makes an epoch part of the truth.
func (m Model) commit(n *state, e uint8, to *modelcheck.Steps[state]) {
	n.committed = max(n.committed, e)
	for a := range uint8(m.Attrs) {
		n.truth[a][e] = n.truth[a][e-1]
		for _, v := range n.broker.books[a] {
			if v.birth == e {
				n.truth[a][e] = contents(e, n.kills)
			}
		}
	}
}

// failIfMadeAgain marks a commit that gives an epoch other contents than it had.
func (m Model) failIfMadeAgain(s, n *state, to *modelcheck.Steps[state]) {
	for a := range uint8(m.Attrs) {
		for e := range s.truth[a] {
			if was := s.truth[a][e]; was != 0 && was != n.truth[a][e] {
				to.Fail("made again: attribute %d at epoch %d has other contents than were sealed", a, uint8(e))
			}
		}
	}
}
