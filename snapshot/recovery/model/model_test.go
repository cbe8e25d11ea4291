package model

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/modelcheck"
)

var (
	largeBounds = flag.Bool("model.large", false, "explore the large bounds too (minutes, some GiB)")
	update      = flag.Bool("model.update", false, "write the tables into RESULTS.md instead of comparing")
	showTraces  = flag.Bool("model.trace", false, "print the steps to every fault")
)

const limit = 30_000_000

func explore(t *testing.T, cases []Case) (rows []modelcheck.Row) {
	for _, c := range cases {
		out := New(c.Config).Explore(limit)
		rows = append(rows, modelcheck.Row{Name: c.Name, Bounds: c.Config.String(), Outcome: out})
		if *showTraces && out.Fault != "" {
			t.Logf("%s (%s)\n%s", c.Name, c.Config, out)
		}
	}
	return rows
}

// results compares a table with the one kept in RESULTS.md, byte for byte.
func results(t *testing.T, section string, rows []modelcheck.Row) {
	table := modelcheck.Table(rows)
	t.Log("\n" + table)
	text, err := os.ReadFile("RESULTS.md")
	require.NoError(t, err)
	kept, replaced, ok := modelcheck.Section(string(text), section, table)
	require.True(t, ok, "RESULTS.md has no section %q", section)
	if *update {
		require.NoError(t, os.WriteFile("RESULTS.md", []byte(replaced), 0o644))
		return
	}
	require.Equal(t, kept, table, "RESULTS.md is not what the models give now; look at why, then run with -model.update")
}

// B2, V3, V6 with all rules: nothing committed is lost, nothing is made twice, readers go on.
func TestRecoveryHolds(t *testing.T) {
	rows := explore(t, Sound())
	for _, r := range rows {
		require.True(t, r.Outcome.Holds(), "%s (%s)\n%s", r.Name, r.Bounds, r.Outcome)
	}
	results(t, "sound", rows)
}

func TestRecoveryHoldsInLargeBounds(t *testing.T) {
	if !*largeBounds {
		t.Log("only with -model.large; RESULTS.md keeps the last table")
		return
	}
	rows := explore(t, SoundLarge())
	for _, r := range rows {
		require.True(t, r.Outcome.Holds(), "%s (%s)\n%s", r.Name, r.Bounds, r.Outcome)
	}
	results(t, "large", rows)
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
	for _, r := range rows {
		require.NotEmpty(t, r.Outcome.Fault, "%s (%s) was not caught", r.Name, r.Bounds)
	}
	results(t, "broken", rows)
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
