package model

import "callboard/modelcheck"

// reader is one reading process: where it stands, its locals, and its store buffer. Locals are zero while they mean
// nothing, so that states which differ in nothing that matters are one.
type reader struct {
	at     uint8
	newest uint8 // the epoch loaded
	want   uint8 // the epoch whose truth this read must show
	pin    uint8 // the epoch pinned and searched for
	attr   uint8
	slot   uint8
	birth  uint8 // of the slot looked at
	death  uint8
	block  uint8
	again  bool  // as of: the version was found once, its pin stands, and it is being found again
	owed   uint8 // the horizon that made it retry: the epoch must have reached it
	buffer modelcheck.StoreBuffer
}

// Where a reader stands, named by the step it takes next.
const (
	readerEpoch = iota
	readerPin
	readerCheck
	readerMoveIn  // only where a pin moves: store the other word,
	readerMoveOut // then clear the first
	readerBirth
	readerDeath
	readerBlock
	readerBirthAgain
	readerWord0
	readerWord1
	readerRelease
	readerDead
)

// readerBuffer is more than a reader ever stores between two fences.
const readerBuffer = modelcheck.Depth

// readerSteps adds the next step of reader r, unless a fence or a full buffer holds it up.
func (m Model) readerSteps(s *state, r uint8, to *modelcheck.Steps[state]) {
	n := *s
	rd := &n.readers[r]
	load := func(addr uint8) uint8 { return rd.buffer.Load(n.memory[:], addr) }
	add := func(format string, args ...uint8) { to.Add(n, readerNames[r], format, args...) }
	a := rd.attr

	switch rd.at {
	case readerEpoch:
		m.loadEpoch(s, r, to)

	case readerPin:
		if !rd.buffer.Room(readerBuffer) {
			return
		}
		m.store(n.memory[:], &rd.buffer, pinWord(r, a, m.firstPinWord()), rd.pin)
		if rd.attr++; rd.attr == m.pinWords() {
			rd.attr = 0
			rd.at = readerCheck
			if m.Without == PinBeforeCheck {
				rd.at = readerBirth
			}
		}
		add("stores pin %d = %d", a, rd.pin)

	case readerCheck:
		if a == 0 && m.Without != ReaderFence && m.Without != PinBeforeCheck && !rd.buffer.Empty() {
			return // the fence between pins and horizons
		}
		m.checkHorizon(&n, r, to)

	case readerMoveIn, readerMoveOut:
		if !rd.buffer.Room(readerBuffer) {
			return
		}
		if rd.at == readerMoveIn {
			m.store(n.memory[:], &rd.buffer, pinWord(r, a, 0), rd.pin)
			rd.at = readerMoveOut
			add("moves pin %d: stores %d in its new word", a, rd.pin)
			return
		}
		m.store(n.memory[:], &rd.buffer, pinWord(r, a, 1), 0)
		rd.at = readerBirth
		add("moves pin %d: clears its old word", a)

	case readerBirth:
		if rd.slot == m.slots() {
			m.notFound(&n, r, to)
			return
		}
		slot := rd.slot
		rd.birth = load(slotField(a, slot, birth))
		seen := rd.birth
		if rd.birth > rd.searched() {
			rd.nextSlot()
		} else {
			rd.at = readerDeath
		}
		add("loads birth of attribute %d slot %d: %d", a, slot, seen)

	case readerDeath:
		rd.death = load(slotField(a, rd.slot, death))
		rd.at = readerBlock
		add("loads death of attribute %d slot %d: %d", a, rd.slot, rd.death)

	case readerBlock:
		rd.block = load(slotField(a, rd.slot, block))
		slot, seen := rd.slot, rd.block
		rd.at = readerBirthAgain
		if m.Without == SlotRecheck {
			m.judge(rd)
		}
		add("loads block of attribute %d slot %d: %d", a, slot, seen)

	case readerBirthAgain:
		slot, b := rd.slot, load(slotField(a, rd.slot, birth))
		if b == rd.birth {
			m.judge(rd)
		} else {
			rd.nextSlot()
		}
		add("loads birth of attribute %d slot %d again: %d", a, slot, b)

	case readerWord0, readerWord1:
		m.readWord(&n, r, to)

	case readerRelease:
		m.release(&n, r, to)
	}
}

// firstPinWord is the word a pin is stored in; where pins move, it moves from word 1 to word 0, which is the order a
// scan looks at them.
func (m Model) firstPinWord() uint8 {
	if m.Without == PinsNeverMove {
		return 1
	}
	return 0
}

// searched is the epoch whose version the reader looks for: before an as-of read has found its version, the one wanted.
func (rd *reader) searched() uint8 {
	if rd.pin == 0 {
		return rd.want
	}
	return rd.pin
}

func (rd *reader) nextSlot() {
	rd.slot++
	rd.birth, rd.death, rd.block = 0, 0, 0
	rd.at = readerBirth
}

// loadEpoch starts a read. As of: any of the newest three epochs may be the one that is wanted.
func (m Model) loadEpoch(s *state, r uint8, to *modelcheck.Steps[state]) {
	n := *s
	rd := &n.readers[r]
	e := rd.buffer.Load(n.memory[:], epochWord)
	owed := rd.owed
	rd.owed = 0
	if m.Without == OneEpoch && rd.attr > 0 {
		rd.pin = e
		rd.at = readerBirth
		to.Add(n, readerNames[r], "loads the epoch anew for attribute %d: %d", rd.attr, e)
		return
	}
	if !m.AsOf {
		rd.want, rd.pin, rd.at = e, e, readerPin
		if m.Without == PinBeforeCheck {
			rd.at = readerCheck
		}
		to.Add(n, readerNames[r], "loads the epoch: %d", e)
		if e < owed {
			to.Fail("endless retry: horizon %d sent the reader back, but the epoch is still %d", owed, e)
		}
		return
	}
	rd.newest, rd.at = e, readerBirth
	for want := e; want > 0 && want+2 >= e; want-- {
		rd.want = want
		to.Add(n, readerNames[r], "loads the epoch: %d, and wants the state as of %d", e, want)
	}
}

// checkHorizon loads one horizon; n is the reader's own copy of the state.
func (m Model) checkHorizon(n *state, r uint8, to *modelcheck.Steps[state]) {
	rd := &n.readers[r]
	a := rd.attr
	addr := horizonOf(a)
	if m.PinAll {
		addr = anyHorizonWord
	}
	h := rd.buffer.Load(n.memory[:], addr)
	limit := rd.pin
	if m.Without == AsOfChecksItsEpoch {
		limit = rd.newest
	}
	tooLate := h > limit
	switch {
	case tooLate && m.AsOf:
		want := rd.want
		*rd = reader{at: readerRelease, buffer: rd.buffer}
		to.Add(*n, readerNames[r], "loads horizon %d: %d, so the state as of %d is OUT_OF_RANGE", a, h, want)
		m.failIfRetained(n, want, to)
		return
	case tooLate:
		*rd = reader{at: readerRelease, owed: h, buffer: rd.buffer}
		if m.Without == PinBeforeCheck {
			rd.at = readerEpoch // nothing is pinned yet
		}
	default:
		if rd.attr++; rd.attr == m.pinWords() {
			rd.attr = 0
			rd.at = readerBirth
			switch m.Without {
			case PinsNeverMove:
				rd.at = readerMoveIn
			case PinBeforeCheck:
				rd.at = readerPin
			}
		}
	}
	to.Add(*n, readerNames[r], "loads horizon %d: %d", a, h)
}

// judge decides on a slot whose fields belong together: it holds the version, or the next slot is looked at.
func (m Model) judge(rd *reader) {
	e := rd.searched()
	if rd.birth > e || e >= rd.death {
		rd.nextSlot()
		return
	}
	if rd.pin != 0 {
		rd.at = readerWord0
		rd.slot, rd.birth, rd.death = 0, 0, 0
		return
	}
	// As of, found for the first time: V5 pins the version's last epoch.
	rd.pin = rd.death - 1
	if rd.death == never || m.Without == AsOfPinsItsEpoch {
		rd.pin = rd.newest
	}
	rd.at, rd.again = readerPin, true
	rd.slot, rd.birth, rd.death, rd.block = 0, 0, 0, 0
}

// notFound is a walk that ended without a version.
func (m Model) notFound(n *state, r uint8, to *modelcheck.Steps[state]) {
	rd := &n.readers[r]
	a, e := rd.attr, rd.searched()
	if m.AsOf && !rd.again {
		want := rd.want
		*rd = reader{buffer: rd.buffer}
		to.Add(*n, readerNames[r], "finds no version as of %d: OUT_OF_RANGE", want)
		m.failIfRetained(n, want, to)
		return
	}
	to.Add(*n, readerNames[r], "has looked at every slot of attribute %d", a)
	to.Fail("not found: attribute %d has no version at epoch %d, which is pinned", a, e)
}

// failIfRetained: an epoch may be out of range only when as many states as are retained have been sealed after it.
func (m Model) failIfRetained(n *state, want uint8, to *modelcheck.Steps[state]) {
	if int(want)+m.retain() > int(n.broker.epoch) {
		to.Fail("refused: the state as of %d is among the %d retained ones (newest %d)", want, uint8(m.retain()), n.broker.epoch)
	}
}

// readWord looks at one word of the block and compares it with the truth.
func (m Model) readWord(n *state, r uint8, to *modelcheck.Steps[state]) {
	rd := &n.readers[r]
	a, i, b, want := rd.attr, rd.at-readerWord0, rd.block, rd.want
	v := rd.buffer.Load(n.memory[:], blockWord(a, b, i))
	switch {
	case m.Without == PinUntilLastWord && i == 0:
		rd.at = readerRelease // one attribute: its last word is still to be read
		rd.attr = 0
	case i == 0:
		rd.at = readerWord1
	case m.Without == PinUntilLastWord:
		*rd = reader{buffer: rd.buffer}
	default:
		rd.block = 0
		rd.at = readerBirth
		if m.Without == OneEpoch {
			rd.at = readerEpoch
		}
		if rd.attr++; int(rd.attr) == m.Attrs {
			*rd = reader{at: readerRelease, buffer: rd.buffer}
		}
	}
	to.Add(*n, readerNames[r], "reads word %d of attribute %d block %d: the bytes of epoch %d", i, a, b, v)
	if t := n.truth(a, want); v != t {
		to.Fail("wrong bytes: attribute %d at epoch %d shows those of epoch %d, not of %d", a, want, v, t)
	}
}

// release drops one pin. The store is a full barrier (V1): it waits for the buffer and reaches memory at once.
func (m Model) release(n *state, r uint8, to *modelcheck.Steps[state]) {
	rd := &n.readers[r]
	a := rd.attr
	if m.Without == ReleaseBarrier {
		if !rd.buffer.Room(readerBuffer) {
			return
		}
		m.store(n.memory[:], &rd.buffer, pinWord(r, a, 0), 0)
	} else {
		if !rd.buffer.Empty() {
			return
		}
		n.memory[pinWord(r, a, 0)] = 0
		if m.Without == PinsNeverMove {
			n.memory[pinWord(r, a, 1)] = 0
		}
	}
	if rd.attr++; rd.attr == m.pinWords() {
		rd.attr = 0
		rd.at = readerEpoch
		if m.Without == PinUntilLastWord && rd.want != 0 {
			rd.at = readerWord1
		}
	}
	to.Add(*n, readerNames[r], "drops pin %d", a)
}
