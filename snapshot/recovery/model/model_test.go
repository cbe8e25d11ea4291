package model

import (
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/modelcheck"
	"callboard/modelcheck/proof"
)

const limit = 30_000_000

func explore(t *testing.T, cases []Case) (rows []modelcheck.Row) {
	for _, c := range cases {
		rows = append(rows, proof.Row(t, c.Name, c.Config, New(c.Config).Explore(limit)))
	}
	return rows
}

// B2, V3, V6 with all rules: nothing committed is lost, nothing is made twice, readers go on.
func TestRecoveryHolds(t *testing.T) {
	rows := explore(t, Sound())
	proof.Holds(t, rows)
	proof.Compare(t, "sound", rows)
}

func TestRecoveryHoldsInLargeBounds(t *testing.T) {
	if !proof.Large(t) {
		return
	}
	rows := explore(t, SoundLarge())
	proof.Holds(t, rows)
	proof.Compare(t, "large", rows)
}

// Every rule is needed: with any one of them left out, the search finds a fault.
func TestEveryRuleLeftOutIsCaught(t *testing.T) {
	seen := map[Rule]bool{}
	for _, c := range Broken() {
		seen[c.Config.Without] = true
	}
	for r := AllRules + 1; r < ruleCount; r++ {
		require.True(t, seen[r], "rule %d has no case", r)
	}
	rows := explore(t, Broken())
	proof.Caught(t, rows)
	proof.Compare(t, "broken", rows)
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
	one, two := Sound()[1].Config, Sound()[2].Config
	reading := func(s *state) bool { return s.reader.at == readerBlock && s.kills > 0 }
	for _, c := range []struct {
		what string
		in   Config
		want func(*state) bool
	}{
		{"a roll forward", one, func(s *state) bool { return s.broker.at == brokerForward }},
		{"a kill in a recovery that has something to fix", one, func(s *state) bool { return s.kills == 2 && s.broker.at == brokerFix }},
		{"a death that is undone", two, func(s *state) bool {
			b := &s.broker
			return b.at == brokerFix && b.books[b.attr][b.slot].birth != 0
		}},
		{"a read of a dead version across a restart, with another block written anew", one, func(s *state) bool {
			return reading(s) && s.broker.at == brokerIdle && s.reader.epoch < s.epoch && s.blocks[0][s.reader.found[0]]>>4 == 0 && s.slots[0][2].birth != never
		}},
		{"a version of the record that was given up since", one, func(s *state) bool {
			r := &s.records[s.epoch%2]
			return s.kills == 1 && s.broker == (broker{}) && r.intact && r.table[0][0].birth != 0 && r.table[0][0].birth != s.slots[0][0].birth
		}},
	} {
		out := modelcheck.Explore[state](witness{New(c.in), c.want}, limit)
		require.Equal(t, "seen", out.Fault, c.what)
		t.Logf("%s: after %d states", c.what, out.States)
	}
}
