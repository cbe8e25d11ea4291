package model

import "callboard/modelcheck"

// ringRule is the rule that the broker (-1) or a client leaves out as a ringer.
func (m Model) ringRule(c int) Rule {
	if (c < 0) == (m.Side == Completion) {
		return m.Without
	}
	return AllRules
}

// firstOfRinging is where ringing begins.
func firstOfRinging(broken Rule) uint8 {
	switch broken {
	case RingBeforeLook:
		return earlyLook
	case EntryBeforeRing:
		return ring
	default:
		return storeEntry
	}
}

// ringStep is the ringer's half of R3: store the entry (its tail); fetch_add the doorbell; if the other sleeps, wake it.
// The client rings the broker; the broker rings the client whose completion it makes.
func (m Model) ringStep(n *state, p party, c int, to *modelcheck.Steps[state]) {
	me := p.me
	broken := m.ringRule(c)
	other := m.party(n, -1)
	if c < 0 {
		other = m.party(n, int(me.owes))
	}
	load := func(addr uint8) uint8 { return me.buffer.Load(n.memory[:], addr) }
	add := func(format string, args ...uint8) { to.Add(*n, p.name, format, args...) }

	switch me.at {
	case earlyLook:
		me.heard = load(other.sleep)
		seen := me.heard
		me.at = storeEntry
		add("loads sleeping of the "+other.name+" before it stores the entry: %d", seen)

	case storeEntry:
		tail, count := m.entry(me, c)
		if !m.store(n, p, tail, count) {
			return
		}
		me.at = ring
		if broken == EntryBeforeRing {
			me.at = lookSleep
		}
		add("stores entry %d into the ring", count)

	case ring:
		if broken == RingBarrier {
			me.heard, me.at = load(other.bell), ringStore
			add("loads the doorbell of the "+other.name+": %d", me.heard)
			return
		}
		if !me.buffer.Empty() {
			return // a fetch_add is a full barrier
		}
		n.memory[other.bell]++
		switch broken {
		case EntryBeforeRing:
			me.at = storeEntry
		case RingBeforeLook:
			sleeps := me.heard == 1
			me.heard = 0
			m.goOn(n, p, c, sleeps)
		default:
			me.at = lookSleep
		}
		add("adds to the doorbell of the "+other.name+": %d", n.memory[other.bell])

	case ringStore:
		v := me.heard + 1
		if !m.store(n, p, other.bell, v) {
			return
		}
		me.heard, me.at = 0, lookSleep
		add("stores the doorbell of the "+other.name+": %d", v)

	case lookSleep:
		v := load(other.sleep)
		m.goOn(n, p, c, v == 1 && broken != Wake)
		add("loads sleeping of the "+other.name+": %d", v)

	case wake:
		// A system call, after the locked fetch_add; who does not sleep in the kernel does not notice.
		if other.me.at == asleep {
			other.me.at = awake
			m.goOn(n, p, c, false)
			add("wakes the " + other.name)
			return
		}
		m.goOn(n, p, c, false)
		add("wakes the " + other.name + ", which is not in the kernel: nothing happens")

	case finished:
		// Nothing left to do.
	}
}

// entry is the tail to store and its new value.
func (m Model) entry(me *process, c int) (tail, count uint8) {
	if c < 0 {
		return completed + me.owes, me.seen[me.owes]
	}
	return submitted + uint8(c), me.sent + 1
}

// goOn leaves ringing: first to the wake-up where one is due, then to what follows. A client waits for its completion
// or submits again; the broker drains the next ring.
func (m Model) goOn(n *state, p party, c int, sleeps bool) {
	me := p.me
	if sleeps {
		me.at = wake
		return
	}
	if c < 0 {
		me.owes = 0
		me.at = drain
		if int(me.looked) == len(p.serves) {
			me.looked, me.at = 0, sleepOrder(p.broken)[0]
		}
		return
	}
	me.sent++
	switch {
	case m.RoundTrip:
		me.at = drain
	case int(me.sent) == m.Entries:
		me.at = finished
	default:
		me.at = firstOfRinging(m.ringRule(c))
	}
}
