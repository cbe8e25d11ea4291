package model

import (
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/modelcheck"
	"callboard/modelcheck/proof"
)

const limit = 20_000_000

func explore(t *testing.T, cases []Case) (rows []modelcheck.Row) {
	for _, c := range cases {
		rows = append(rows, proof.Row(t, c.Name, c.Config, New(c.Config).Explore(limit)))
	}
	return rows
}

// V1–V6 and I3 with all rules: no torn read, no mixed instant, found, paid retries, enough blocks.
func TestProtocolHolds(t *testing.T) {
	rows := explore(t, Sound())
	proof.Holds(t, rows)
	proof.Compare(t, "sound", rows)
}

func TestProtocolHoldsInLargeBounds(t *testing.T) {
	if !proof.Large(t) {
		return
	}
	rows := explore(t, SoundLarge())
	proof.Holds(t, rows)
	proof.Compare(t, "large", rows)
}

// Every rule is needed: with any one of them left out, the search finds a fault.
func TestEveryRuleLeftOutIsCaught(t *testing.T) {
	rows := explore(t, Broken())
	proof.Caught(t, rows)
	proof.Compare(t, "broken", rows)
}

func TestEveryRuleHasACase(t *testing.T) {
	seen := map[Rule]int{}
	for _, c := range Broken() {
		seen[c.Config.Without]++
	}
	for r := AllRules + 1; r < ruleCount; r++ {
		require.Equal(t, 1, seen[r], "rule %d", r)
	}
	require.Zero(t, seen[AllRules])
}

// Without store buffers the missing barriers would go unnoticed: it is the buffers that find them.
func TestMissingBarriersHideUnderSequentialConsistency(t *testing.T) {
	for _, c := range Broken() {
		switch c.Config.Without {
		case ReaderFence, BrokerFence, ReleaseBarrier, EpochBarrier, ClearBeforeHandOver:
			c.Config.NoBuffer = true
			require.True(t, New(c.Config).Explore(limit).Holds(), c.Name)
		}
	}
}

// witness turns "can this happen?" into a fault, so that a search answers it.
type witness struct {
	Model
	want func(*state) bool
}

func (w witness) Next(s *state, to *modelcheck.Steps[state]) {
	if w.want(s) {
		to.Add(*s, "witness", "is there")
		to.Fail("seen")
		return
	}
	w.Model.Next(s, to)
}

// A model that never does the dangerous thing proves nothing: these situations must occur in the sound explorations.
func TestSoundExplorationsReachTheDangerousSituations(t *testing.T) {
	find := func(name string) Config {
		for _, c := range Sound() {
			if c.Name == name {
				return c.Config
			}
		}
		t.Fatalf("no case %q", name)
		return Config{}
	}
	reusedWhilePinned := func(s *state) bool {
		// A block is on its second life while a reader sits in the middle of another block, at an older epoch.
		rd := &s.readers[0]
		return s.memory[blockWord(0, 0, 0)] > 1 && rd.at == readerWord1 && rd.pin != 0 && rd.pin < s.memory[epochWord]
	}
	for _, c := range []struct {
		what string
		in   string
		want func(*state) bool
	}{
		{"a block written anew while a reader reads an older epoch", "latest reads", reusedWhilePinned},
		{"the same with two attributes", "latest reads, two attributes", reusedWhilePinned},
		{"the same with ALL", "snapshot(), one pin for ALL", reusedWhilePinned},
		{"both readers pinned at different epochs beside a reused block", "two readers", func(s *state) bool {
			p, q := s.memory[pinWord(0, 0, 0)], s.memory[pinWord(1, 0, 0)]
			return p != 0 && q != 0 && p != q && s.memory[blockWord(0, 0, 0)] > 1
		}},
		{"a retry", "latest reads", func(s *state) bool { return s.readers[0].owed != 0 }},
		{"a slot refilled under a reader", "latest reads", func(s *state) bool {
			rd := &s.readers[0]
			return rd.at == readerBirthAgain && rd.birth != s.memory[slotField(0, rd.slot, birth)]
		}},
		{"an as-of read of an older version, found again", "reads as of an epoch", func(s *state) bool {
			rd := &s.readers[0]
			return rd.again && rd.at == readerWord1 && rd.pin < rd.newest
		}},
		{"a reader on a channel that a dead one left pinned", "a reader dies, its channel is used again", func(s *state) bool {
			return s.deaths == 1 && s.readers[0].at == readerWord1
		}},
	} {
		out := modelcheck.Explore[state](witness{New(find(c.in)), c.want}, limit)
		require.Equal(t, "seen", out.Fault, "%s never happens in %q", c.what, c.in)
	}
}

func TestBoundsThatDoNotFitPanic(t *testing.T) {
	for _, c := range []Config{
		{Readers: 0, Attrs: 1, MaxEpoch: 3},
		{Readers: 3, Attrs: 1, MaxEpoch: 3},
		{Readers: 1, Attrs: 3, MaxEpoch: 3},
		{Readers: 1, Attrs: 1, MaxEpoch: 8},
		{Readers: 2, Attrs: 1, MaxEpoch: 3, Retain: 2},
		{Readers: 1, Attrs: 2, MaxEpoch: 3, AsOf: true},
	} {
		require.Panics(t, func() { New(c) }, "%+v", c)
	}
}
