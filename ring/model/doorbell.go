package model

import (
	"fmt"

	"callboard/modelcheck"
)

// Rule names one rule that an exploration leaves out, on the side of the sleeper or of the one who rings.
type Rule uint8

const (
	AllRules        Rule = iota
	Recheck              // sleeper: looks at the rings once more before it waits
	ValueBeforeLook      // sleeper: reads the value it waits on before it looks at the rings
	SleepAndValue        // sleeper: announces its sleep and reads the value before it looks, not after
	CompareInWait        // sleeper: the kernel compares the doorbell and sleeps in one step
	EntryBeforeRing      // ringer: the entry is in the ring before the bell rings
	RingBeforeLook       // ringer: loads the sleeping word only after it has stored the entry and rung
	RingBarrier          // ringer: the doorbell is a fetch_add, a full barrier, not a load and a store
	Wake                 // ringer: wakes whoever announced its sleep

	// Two rules that R3 has and that the doorbell's value makes spare: leaving out one of them alone does no harm.
	SleepBeforeLook // sleeper: announces its sleep before it looks at the rings
	SleepBarrier    // sleeper: a fence between the announcement and the look
	ruleCount
)

// Side says who leaves the rule out.
type Side uint8

const (
	Submission Side = iota // clients ring, the broker sleeps
	Completion             // the broker rings, the client sleeps; needs RoundTrip
)

// Config bounds one exploration.
type Config struct {
	Clients   int  // 1..2
	Entries   int  // each client submits, 1..3
	RoundTrip bool // each client waits for a completion before it submits again
	NoBuffer  bool // sequential consistency; to show what the buffers find
	Without   Rule
	Side      Side
}

// String gives the bounds in short.
func (c Config) String() string {
	s := fmt.Sprintf("clients=%d entries=%d", c.Clients, c.Entries)
	if c.RoundTrip {
		s += " round trip"
	}
	if c.NoBuffer {
		s += " SC"
	}
	return s
}

const maxClients = 2

// Words of shared memory. The broker's are first; client c's own completion side is at +c.
const (
	bell        = 0 // the broker's doorbell
	sleeping    = 1
	submitted   = 2                       // tail of submission ring c
	completed   = submitted + maxClients  // tail of completion ring c
	clientBell  = completed + maxClients  // doorbell of client c
	clientSleep = clientBell + maxClients // sleeping word of client c
	memoryWords = clientSleep + maxClients
)

// process is a client (which rings first) or the broker (which looks first): one ringer and one sleeper in one thread.
type process struct {
	at     uint8
	value  uint8             // the doorbell's value it will wait on
	seen   [maxClients]uint8 // entries taken from each ring it serves
	looked uint8             // the ring it looks at
	owes   uint8             // broker: the client whose completion it is making
	sent   uint8             // client: entries submitted
	heard  uint8             // ringer: what it loaded of the other's doorbell or sleeping word
	buffer modelcheck.StoreBuffer
}

// Where a process stands, named by the step it takes next.
const (
	loadValue = iota
	storeSleep
	look
	wait
	asleep
	awake
	drain
	earlyLook // from here on: ringing
	storeEntry
	ring
	ringStore
	lookSleep
	wake
	finished
)

type state struct {
	memory  [memoryWords]uint8
	broker  process
	clients [maxClients]process
}

// Model is the doorbell within bounds. Make one with New.
type Model struct{ Config }

// New checks the bounds; bounds that do not fit are a mistake in a test, and panic.
func New(c Config) Model {
	if c.Clients < 1 || c.Clients > maxClients || c.Entries < 1 || c.Entries > 3 || c.Side == Completion && !c.RoundTrip {
		panic(fmt.Sprintf("model: bounds %+v do not fit (clients ≤ %d, entries ≤ 3; the completion side needs a round trip)", c, maxClients))
	}
	return Model{c}
}

// Explore visits every state in bounds, at most limit.
func (m Model) Explore(limit int) modelcheck.Outcome { return modelcheck.Explore[state](m, limit) }

// Start: nothing is submitted; the broker is about to look into the rings and the clients are about to submit.
func (m Model) Start() state {
	s := state{broker: process{at: drain}}
	for c := range m.Clients {
		s.clients[c].at = firstOfRinging(m.ringRule(c))
	}
	return s
}

// Rest: everything was drained, everything completed, the broker sleeps and the clients are done.
func (m Model) Rest(s *state) string {
	for c := range m.Clients {
		if s.broker.at == asleep && s.memory[submitted+c] != s.broker.seen[c] {
			return fmt.Sprintf("lost wake-up: the broker sleeps, and client %d has submitted %d entries of which %d were drained",
				c, s.memory[submitted+c], s.broker.seen[c])
		}
		if s.clients[c].at == asleep {
			return fmt.Sprintf("lost wake-up: client %d sleeps, and of its %d entries %d are completed", c, s.clients[c].sent, s.memory[completed+c])
		}
		if s.clients[c].at != finished || s.broker.at != asleep {
			return "no process can take a step"
		}
	}
	return ""
}

// party is one process with what it needs to know of its neighbours: which words are its own, whom it rings.
type party struct {
	name   string
	me     *process
	serves []uint8 // tails of the rings it drains
	bell   uint8   // its own doorbell and sleeping word
	sleep  uint8
	broken Rule // the rule it leaves out as a sleeper
}

var clientNames = [maxClients]string{"client 0", "client 1"}

// Next lists each process's next step and the drains.
func (m Model) Next(s *state, to *modelcheck.Steps[state]) {
	m.step(s, -1, to)
	for c := range m.Clients {
		m.step(s, c, to)
	}
}

// party of the broker (-1) or client c in n.
func (m Model) party(n *state, c int) party {
	if c < 0 {
		p := party{name: "broker", me: &n.broker, serves: []uint8{submitted, submitted + 1}[:m.Clients], bell: bell, sleep: sleeping}
		if m.Side == Submission {
			p.broken = m.Without
		}
		return p
	}
	i := uint8(c)
	p := party{name: clientNames[c], me: &n.clients[c], serves: []uint8{completed + i}, bell: clientBell + i, sleep: clientSleep + i}
	if m.Side == Completion {
		p.broken = m.Without
	}
	return p
}

// step adds the next step of the broker (c = -1) or client c, and the drain of its buffer.
func (m Model) step(s *state, c int, to *modelcheck.Steps[state]) {
	n := *s
	p := m.party(&n, c)
	if !p.me.buffer.Empty() {
		addr, v := p.me.buffer.Drain(n.memory[:])
		to.Add(n, "memory", drains[addr], v)
		n = *s
	}
	if p.me.at < earlyLook {
		m.sleepStep(&n, p, c, to)
	} else {
		m.ringStep(&n, p, c, to)
	}
}

// store puts a store into p's buffer; ok is false while the buffer has no room.
func (m Model) store(n *state, p party, addr, v uint8) (ok bool) {
	if m.NoBuffer {
		n.memory[addr] = v
		return true
	}
	if !p.me.buffer.Room(modelcheck.Depth) {
		return false
	}
	p.me.buffer.Store(addr, v)
	return true
}
