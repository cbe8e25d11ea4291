package model

import (
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/modelcheck"
	"callboard/modelcheck/proof"
)

const limit = 5_000_000

func explore(t *testing.T, cases []Case) (rows []modelcheck.Row) {
	for _, c := range cases {
		rows = append(rows, proof.Row(t, c.Name, c.Config, New(c.Config).Explore(limit)))
	}
	return rows
}

// R3 with all rules: no wake-up is lost in either direction, although no wait has a time-out.
func TestDoorbellHolds(t *testing.T) {
	rows := explore(t, Sound())
	proof.Holds(t, rows)
	proof.Compare(t, "sound", rows)
}

func TestDoorbellHoldsInLargeBounds(t *testing.T) {
	if !proof.Large(t) {
		return
	}
	rows := explore(t, SoundLarge())
	proof.Holds(t, rows)
	proof.Compare(t, "large", rows)
}

// Two orders that R3 asks for are spare as long as the kernel compares the value. If one of these is ever caught, the
// model or the reasoning in RESULTS.md is wrong.
func TestSpareRulesDoNoHarmAlone(t *testing.T) {
	rows := explore(t, Spare())
	proof.Holds(t, rows)
	proof.Compare(t, "spare", rows)
}

func TestEveryRuleLeftOutLosesAWakeUp(t *testing.T) {
	rows := explore(t, Broken())
	for _, r := range rows {
		require.Contains(t, r.Outcome.Fault, "lost wake-up", "%s (%s) was not caught", r.Name, r.Bounds)
	}
	proof.Compare(t, "broken", rows)
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
