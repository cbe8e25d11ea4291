package model

import "callboard/modelcheck"

// reader reads the newest epoch, for ever.
type reader struct {
	at    uint8
	epoch uint8
	attr  uint8
	slot  uint8
	birth uint8
	death uint8
	block uint8
	found [maxAttrs]uint8 // the block of each attribute
}

// Where the reader stands, named by the step it takes next.
const (
	readerEpoch = iota // the zero reader
	readerPin
	readerHorizon
	readerSlot
	readerFields
	readerAgain
	readerBlock
	readerRelease
)

// readerSteps adds what the reader can do next.
func (m Model) readerSteps(s *state, to *modelcheck.Steps[state]) {
	n := *s
	r := &n.reader
	a, i := r.attr, r.slot
	add := func(format string, args ...uint8) { to.Add(n, "reader", format, args...) }
	switch r.at {
	case readerEpoch:
		r.epoch, r.at = n.epoch, readerPin
		add("loads the epoch: %d", r.epoch)
	case readerPin:
		n.pin, r.at = r.epoch, readerHorizon
		add("pins %d", r.epoch)
	case readerHorizon:
		horizon := n.horizon[a]
		if m.PinAll {
			horizon = n.any
		}
		if horizon > r.epoch {
			r.at = readerRelease
			add("finds horizon %d", horizon)
			if n.epoch < horizon {
				to.Fail("endless retry: horizon %d sends the reader back, but the epoch is %d", horizon, n.epoch)
			}
			return
		}
		if r.attr++; m.PinAll || int(r.attr) == m.Attrs {
			r.attr, r.at = 0, readerSlot
		}
		add("passes horizon %d", horizon)
	case readerSlot:
		if r.birth = n.slots[a][i].birth; r.birth > r.epoch {
			r.birth = 0
			add("passes over attribute %d slot %d", a, i)
			n = *s
			r.slot++
			m.failIfNotFound(&n, to, add)
			return
		}
		r.at = readerFields
		add("loads birth of attribute %d slot %d: %d", a, i, r.birth)
	case readerFields:
		r.death, r.block, r.at = n.slots[a][i].death, n.slots[a][i].block, readerAgain
		add("loads attribute %d slot %d: death %d, block %d", a, i, r.death, r.block)
	case readerAgain:
		right := n.slots[a][i].birth == r.birth && r.epoch < r.death
		if right {
			r.found[a] = r.block
		}
		r.birth, r.death, r.block = 0, 0, 0
		if !right {
			r.slot, r.at = r.slot+1, readerSlot
			m.failIfNotFound(&n, to, add)
			return
		}
		r.slot, r.at = 0, readerSlot
		if r.attr++; int(r.attr) == m.Attrs {
			r.attr, r.at = 0, readerBlock
		}
		add("takes attribute %d slot %d", a, i)
	case readerBlock:
		got, want := n.blocks[a][r.found[a]], n.truth[a][r.epoch]
		r.found[a] = 0
		if r.attr++; int(r.attr) == m.Attrs {
			r.attr, r.at = 0, readerRelease
		}
		add("reads attribute %d: contents of epoch %d, life %d", a, got&15, got>>4)
		if got != want {
			to.Fail("wrong bytes: attribute %d at epoch %d shows those of epoch %d, life %d, not of epoch %d", a, s.reader.epoch, got&15, got>>4, want&15)
		}
	case readerRelease:
		n.pin, n.reader = 0, reader{}
		add("drops its pin")
	}
}

// failIfNotFound ends a look at a slot that was not the right one.
func (m Model) failIfNotFound(n *state, to *modelcheck.Steps[state], add func(string, ...uint8)) {
	a, e := n.reader.attr, n.reader.epoch
	add("goes on to slot %d of attribute %d", n.reader.slot, a)
	if n.reader.slot == slots {
		to.Fail("not found: attribute %d has no version at epoch %d", a, e)
	}
}
