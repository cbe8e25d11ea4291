package model

import "callboard/modelcheck"

// attempt adds the beginning of an attempt to reclaim each version of attribute a that is dead. It goes on at back.
func (m Model) attempt(s *state, a, back uint8, to *modelcheck.Steps[state]) {
	for slot := range m.slots() {
		if !m.reclaimable(s, a, slot) {
			continue
		}
		n := *s
		b := &n.broker
		b.at, b.attr, b.victim, b.scan, b.back = brokerLook, a, slot, 0, back
		to.Add(n, "broker", "tries to reclaim attribute %d slot %d", a, slot)
	}
}

// scanned is the number of words a scan looks at: one for each reader, and a second where pins move.
func (m Model) scanned() uint8 {
	if m.Without == PinsNeverMove {
		return uint8(m.Readers) * 2
	}
	return uint8(m.Readers)
}

// look loads one pin word: first to see whether the attempt is worth a risen horizon, then, behind it, to decide.
func (m Model) look(n *state, to *modelcheck.Steps[state]) {
	b := &n.broker
	if b.at == brokerScan && b.scan == 0 && m.Without != BrokerFence && !b.buffer.Empty() {
		return // the fence between horizon and scan
	}
	a, slot := b.attr, b.victim
	r, i := b.scan%uint8(m.Readers), b.scan/uint8(m.Readers)
	p := m.own(n, pinWord(r, m.pinOf(a), i))
	born, died := m.own(n, slotField(a, slot, birth)), m.own(n, slotField(a, slot, death))
	kept := p != 0 && born <= p && p < died
	if m.Without == PinCoversInterval {
		kept = p == b.epoch
	}
	b.scan++
	last := b.scan == m.scanned()
	switch {
	case kept:
		m.finish(n, false, died)
	case last && b.at == brokerLook && m.Without == HorizonBeforeScan:
		b.at, b.scan = brokerScan, 0
	case last && b.at == brokerLook:
		b.at, b.scan = brokerRaise, 0
	case last && m.Without == HorizonBeforeScan:
		b.at, b.scan = brokerRaise, 0
	case last:
		m.finish(n, true, died)
	}
	to.Add(*n, "broker", "looks at pin %d of reader %d for attribute %d slot %d: %d", m.pinOf(a), r, a, slot, p)
	m.failIfStarved(n, to)
}

// raise stores the attribute's horizon, and then the one that readers with a pin for ALL look at.
func (m Model) raise(n *state, to *modelcheck.Steps[state]) {
	b := &n.broker
	a, died := b.attr, m.own(n, slotField(b.attr, b.victim, death))
	addr, what := horizonOf(a), "raises the horizon of attribute %d to %d"
	any := b.at == brokerRaiseAny
	if any {
		addr, what = anyHorizonWord, "raises the horizon of any attribute (here %d) to %d"
	}
	h := max(m.own(n, addr), died)
	m.store(n.memory[:], &b.buffer, addr, h)
	switch {
	case !any && m.PinAll && m.Without != AnyHorizon:
		b.at = brokerRaiseAny
	case m.Without == HorizonBeforeScan:
		m.finish(n, true, died)
	default:
		b.at = brokerScan
	}
	to.Add(*n, "broker", what, a, h)
}

// finish ends an attempt: the slot and its block are free, or they are not. A pass for a block goes on to the next
// version, and is over with the first that it frees.
func (m Model) finish(n *state, freed bool, died uint8) {
	b := &n.broker
	if freed {
		b.used[b.attr] &^= 1 << b.victim
	}
	back := b.back
	b.at, b.scan, b.victim, b.back = back, 0, 0, 0
	switch back {
	case brokerWord0:
		if freed {
			m.needBlock(n)
		} else {
			m.aim(n, died)
		}
	case brokerIdle:
		b.attr = 0
	case brokerEpoch:
		b.attr = bits8(b.set)
	}
}

// clear clears the pins of a reader that is dead, and then, behind a fence, hands its channel to a new one.
func (m Model) clear(n *state, to *modelcheck.Steps[state]) {
	b := &n.broker
	r := b.victim
	if b.at == brokerClear {
		pin := b.attr
		m.store(n.memory[:], &b.buffer, pinWord(r, pin, m.firstPinWord()), 0)
		if b.attr++; b.attr == m.pinWords() {
			b.attr, b.at = 0, brokerHandOver
			if m.Without == PinsOutliveSession {
				b.at, b.victim = brokerIdle, 0
			}
		}
		to.Add(*n, "broker", "clears pin %d of reader %d", pin, r)
		return
	}
	if !b.buffer.Empty() && m.Without != ClearBeforeHandOver {
		return
	}
	n.readers[r] = reader{}
	b.at, b.victim = brokerIdle, 0
	to.Add(*n, "broker", "hands the channel of reader %d to a new reader", r)
}
