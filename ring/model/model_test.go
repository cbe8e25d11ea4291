package model

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/modelcheck"
)

var (
	largeBounds = flag.Bool("model.large", false, "explore the large bounds too")
	update      = flag.Bool("model.update", false, "write the tables into RESULTS.md instead of comparing")
	showTraces  = flag.Bool("model.trace", false, "print the steps to every fault")
)

const limit = 5_000_000

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

// results compares a table with the one kept in RESULTS.md, byte for byte: states and steps are part of what was found.
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

func requireHolds(t *testing.T, rows []modelcheck.Row) {
	for _, r := range rows {
		require.True(t, r.Outcome.Holds(), "%s (%s)\n%s", r.Name, r.Bounds, r.Outcome)
	}
}

// R3 with all rules: no wake-up is lost in either direction, although no wait has a time-out.
func TestDoorbellHolds(t *testing.T) {
	rows := explore(t, Sound())
	requireHolds(t, rows)
	results(t, "sound", rows)
}

func TestDoorbellHoldsInLargeBounds(t *testing.T) {
	if !*largeBounds {
		t.Log("only with -model.large; RESULTS.md keeps the last table")
		return
	}
	rows := explore(t, SoundLarge())
	requireHolds(t, rows)
	results(t, "large", rows)
}

// Two orders that R3 asks for are spare as long as the kernel compares the value. If one of these is ever caught, the
// model or the reasoning in RESULTS.md is wrong.
func TestSpareRulesDoNoHarmAlone(t *testing.T) {
	rows := explore(t, Spare())
	requireHolds(t, rows)
	results(t, "spare", rows)
}

func TestEveryRuleLeftOutLosesAWakeUp(t *testing.T) {
	rows := explore(t, Broken())
	for _, r := range rows {
		require.Contains(t, r.Outcome.Fault, "lost wake-up", "%s (%s) was not caught", r.Name, r.Bounds)
	}
	results(t, "broken", rows)
}

func TestEveryRuleHasACaseInEachDirection(t *testing.T) {
	seen := map[Rule]int{}
	for _, c := range append(Broken(), Spare()...) {
		seen[c.Config.Without]++
	}
	for r := AllRules + 1; r < ruleCount; r++ {
		require.Equal(t, 2, seen[r], "rule %d", r)
	}
	require.Zero(t, seen[AllRules])
}

// Without store buffers a doorbell that is loaded and stored would go unnoticed with one client: the buffers find it.
func TestMissingBarrierHidesUnderSequentialConsistency(t *testing.T) {
	for _, c := range Broken() {
		if c.Config.Without == RingBarrier {
			c.Config.NoBuffer = true
			require.True(t, New(c.Config).Explore(limit).Holds(), c.Name)
		}
	}
}

// With a second client the lost increment alone is enough, so the fetch_add is needed on any machine.
func TestTwoClientsLoseAnIncrementEvenUnderSequentialConsistency(t *testing.T) {
	c := Config{Clients: 2, Entries: 2, NoBuffer: true, Without: RingBarrier}
	require.Contains(t, New(c).Explore(limit).Fault, "lost wake-up")
}

func TestBoundsThatDoNotFitPanic(t *testing.T) {
	for _, c := range []Config{
		{Clients: 0, Entries: 1},
		{Clients: 3, Entries: 1},
		{Clients: 1, Entries: 4},
		{Clients: 1, Entries: 1, Side: Completion},
	} {
		require.Panics(t, func() { New(c) }, "%+v", c)
	}
}
