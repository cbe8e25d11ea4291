package model

import "callboard/modelcheck"

// sleepStep is the sleeper's half of R3: read the doorbell; announce the sleep; look at the rings once more; wait on
// the value read. What is left out changes the order, never the words.
func (m Model) sleepStep(n *state, p party, c int, to *modelcheck.Steps[state]) {
	me := p.me
	load := func(addr uint8) uint8 { return me.buffer.Load(n.memory[:], addr) }
	add := func(format string, args ...uint8) { to.Add(*n, p.name, format, args...) }

	switch me.at {
	case loadValue:
		me.value = load(p.bell)
		me.at = after(sleepOrder(p.broken), loadValue)
		add("loads its doorbell: %d", me.value)

	case storeSleep:
		if !m.store(n, p, p.sleep, 1) {
			return
		}
		me.at = after(sleepOrder(p.broken), storeSleep)
		add("stores sleeping = 1")

	case look:
		if me.looked == 0 && !me.buffer.Empty() && p.broken != SleepBarrier {
			return // the fence between the announcement and the look
		}
		i := me.looked
		tail := load(p.serves[i])
		me.looked++
		switch {
		case tail != me.seen[i]:
			me.looked, me.at = 0, awake
		case int(me.looked) == len(p.serves):
			me.looked, me.at = 0, after(sleepOrder(p.broken), look)
		}
		add("looks at ring %d: %d entries, %d taken", i, tail, me.seen[i])

	case wait:
		// Entering the kernel takes a lock, so the buffer is empty; compare and sleep are one step under it.
		if !me.buffer.Empty() {
			return
		}
		now, value := n.memory[p.bell], me.value
		me.value = 0
		if now == value || p.broken == CompareInWait {
			me.at = asleep
			add("waits on value %d; the doorbell is %d: sleeps", value, now)
			return
		}
		me.at = awake
		add("waits on value %d; the doorbell is %d: does not sleep", value, now)

	case asleep:
		// Only the kernel moves it.

	case awake:
		if !m.store(n, p, p.sleep, 0) {
			return
		}
		me.value, me.at = 0, drain
		add("stores sleeping = 0")

	case drain:
		m.drainStep(n, p, c, to)
	}
}

// drainStep takes all that is in one ring. The broker then makes the completions of that ring; a client then submits
// its next entry.
func (m Model) drainStep(n *state, p party, c int, to *modelcheck.Steps[state]) {
	me := p.me
	i := me.looked
	tail := me.buffer.Load(n.memory[:], p.serves[i])
	took := tail - me.seen[i]
	me.seen[i] = tail
	me.looked++
	last := int(me.looked) == len(p.serves)
	switch {
	case c >= 0 && took == 0:
		me.looked, me.at = 0, sleepOrder(p.broken)[0]
	case c >= 0:
		me.looked, me.at = 0, firstOfRinging(m.ringRule(c))
		if int(me.sent) == m.Entries {
			me.at = finished
		}
	case took > 0 && m.RoundTrip:
		me.owes, me.at = i, firstOfRinging(m.ringRule(c))
	case last:
		me.looked, me.at = 0, sleepOrder(p.broken)[0]
	}
	to.Add(*n, p.name, "drains ring %d: takes %d", i, took)
}

// sleepOrder is the order of the sleeper's steps before it waits.
func sleepOrder(broken Rule) []uint8 {
	switch broken {
	case Recheck:
		return []uint8{loadValue, storeSleep, wait}
	case ValueBeforeLook:
		return []uint8{storeSleep, look, loadValue, wait}
	case SleepBeforeLook:
		return []uint8{loadValue, look, storeSleep, wait}
	case SleepAndValue:
		return []uint8{look, storeSleep, loadValue, wait}
	default:
		return []uint8{loadValue, storeSleep, look, wait}
	}
}

// after is the step that follows now.
func after(order []uint8, now uint8) uint8 {
	for i, at := range order {
		if at == now {
			return order[i+1]
		}
	}
	panic("model: a sleeper stands outside its order")
}
