package model

import "callboard/modelcheck"

// choose begins a life of the broker: it believes the newest intact record.
func (m Model) choose(n *state, to *modelcheck.Steps[state]) {
	b := &n.broker
	best := -1
	for k := range n.records {
		if r := &n.records[k]; r.intact && r.epoch != 0 && (best < 0 || r.epoch > n.records[best].epoch) {
			best = k
		}
	}
	if best < 0 {
		to.Add(*n, "broker", "looks for a record")
		to.Fail("lost: no record is intact")
		return
	}
	r := &n.records[best]
	*b = broker{at: brokerFix, epoch: r.epoch, books: r.table}
	if m.Without != ParityByEpoch {
		b.turn = 2
	}
	wrong := m.wrongBooks(n)
	if m.Without == HorizonStays {
		n.horizon, n.any = [maxAttrs]uint8{}, 0
	}
	if n.epoch != b.epoch && m.Without != RollForward {
		b.at = brokerForward
	} else {
		m.skipFixed(n)
	}
	to.Add(*n, "broker", "starts, and believes record %d of epoch %d", uint8(best), r.epoch)
	switch {
	case r.epoch != n.committed:
		to.Fail("lost: epoch %d was committed, the recovery gives %d", n.committed, r.epoch)
	case wrong < maxAttrs:
		to.Fail("lost: attribute %d at epoch %d has other contents than were sealed", wrong, r.epoch)
	}
}

// wrongBooks is an attribute whose newest version is not as it was sealed.
func (m Model) wrongBooks(n *state) uint8 {
	b := &n.broker
	for a := range uint8(m.Attrs) {
		right := false
		for _, v := range b.books[a] {
			right = right || v.birth != 0 && v.death == never && n.blocks[a][v.block] == n.truth[a][b.epoch]
		}
		if !right {
			return a
		}
	}
	return maxAttrs
}

// wrong tells whether a slot is not as the record says. A version that the record tells of and whose slot was refilled
// since was reclaimed: it is dropped from the books.
func (m Model) wrong(n *state) bool {
	b := &n.broker
	v, shared := &b.books[b.attr][b.slot], &n.slots[b.attr][b.slot]
	if m.Without == OnlyWordsThatDiffer {
		return v.birth != 0
	}
	if v.birth != 0 && v.birth != shared.birth && v.death != never {
		*v = version{}
	}
	if v.birth == 0 {
		return shared.birth > b.epoch && shared.birth != never && m.Without != FreeLaterSlots
	}
	return shared.death != v.death && m.Without != UndoDeaths
}

// skipFixed goes on to the next slot that is not as it should be; behind the last one the recovery ends.
func (m Model) skipFixed(n *state) {
	b := &n.broker
	for b.attr < uint8(m.Attrs) {
		if m.wrong(n) {
			return
		}
		m.nextSlot(b)
	}
	*b = broker{at: brokerIdle, epoch: b.epoch, books: b.books, turn: b.turn}
	if n.any < max(n.horizon[0], n.horizon[1]) && m.Without != AnyHorizonFollows {
		b.at = brokerAny
	}
}

// fix stores the one word of a slot that is wrong.
func (m Model) fix(n *state) {
	b := &n.broker
	v, shared := b.books[b.attr][b.slot], &n.slots[b.attr][b.slot]
	switch {
	case m.Without == OnlyWordsThatDiffer:
		shared.birth, shared.death = never, v.death
		b.at = brokerRebuild
		return
	case v.birth == 0:
		shared.birth = never
	default:
		shared.death = v.death
	}
	m.nextSlot(b)
}

func (m Model) nextSlot(b *broker) {
	if b.slot++; b.slot == slots {
		b.attr, b.slot = b.attr+1, 0
	}
}
