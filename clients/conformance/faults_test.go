package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"callboard/fault"
	"callboard/integration/harness"
)

// findings says which scenario finds which fault: a case that it cites, and what its title begins with.
var findings = map[fault.Fault]struct {
	number int
	title  string // "./package TestName": a Go test, where clients do themselves what the broker does for others
}{
	fault.MaskInverted:          {82, "a mask writes"},
	fault.MapScattered:          {70, "./snapshot TestPrimsThatAreNotAddressedDoNotAppear"},
	fault.RowsShortened:         {20, "one tensor per prim"},
	fault.ClaimedTwice:          {185, "a session that others fill"},
	fault.LastTermAlone:         {240, "HAS"},
	fault.CountTrails:           {63, "count writes the leading"},
	fault.FloorOffByOne:         {184, "a session obeys"},
	fault.DefaultFloorForgotten: {114, "a name first used"},
	fault.FloorsStale:           {118, "floor and layout"},
	fault.NextOrdinalSkips:      {100, "the stage chooses"},
	fault.SameOrdinalReversed:   {185, "sessions that share"},
	fault.SealTooFar:            {105, "a seal does not wait"},
	fault.IncludeIsAll:          {112, "scope INCLUDE"},
	fault.ExcludeForgotten:      {113, "scope EXCLUDE"},
	fault.InsertIsUpsert:        {98, "of two"},
	fault.BatchInParts:          {201, "all or none"},
	fault.SchemaUnchecked:       {44, "another type than one written"},
	fault.SemanticLost:          {49, "geometric"},
	fault.InitCurrentZero:       {180, "what mapped"},
	fault.DeleteIgnored:         {147, "one attribute"},
	fault.TombstoneDropped:      {150, "a tombstone"},
	fault.RowOrdinalsStale:      {127, "a range gives"},
	fault.DirtyRangeLost:        {18, "rows that are rewritten"},
	fault.GenerationAlways:      {118, "floor and layout"},
	fault.RetainOneLess:         {123, "as many versions"},
	fault.QueryUnordered:        {18, "a partial update"},
	fault.PinsIgnored:           {159, "rows that are rewritten"},
}

// TestFaultsAreFound builds a broker that makes a mistake when it is told to, and shows that for each mistake there is
// a case that fails: the scenarios are able to.
func TestFaultsAreFound(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Log("left out of the short form: it builds another broker")
		return
	}
	scenarios, err := LoadScenarios("scenarios")
	require.NoError(t, err)
	argv, broken := commands(t)
	require.Empty(t, broken["go"])
	binary := filepath.Join(t.TempDir(), "callboard")
	out, err := exec.Command("go", "build", "-tags", fault.Tag, "-o", binary, "../../cmd/broker").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Len(t, findings, len(fault.All), "every fault has a case")
	for _, f := range fault.All {
		finding := findings[f]
		where, run := "", goTest(t, finding.title)
		if run == nil {
			i := slices.IndexFunc(scenarios, func(s *Scenario) bool {
				return slices.Contains(s.Cases, finding.number) && strings.HasPrefix(s.Title, finding.title) && len(s.Steps) > 0
			})
			require.GreaterOrEqual(t, i, 0, "fault %s: no scenario of case %d begins with %q", f, finding.number, finding.title)
			where = scenarios[i].Where
			run = func(f fault.Fault) error {
				s := &supervisor{argv: argv, running: map[string]*driver{}, start: func(args ...string) *harness.Broker { return harness.StartFaulty(t, binary, f, args...) }}
				defer s.stop(t)
				s.shared = s.start("--log-level", "warn")
				defer s.shared.Stop()
				_, err := s.run(scenarios[i], []string{"go"})
				return err
			}
		}
		require.NoError(t, run(""), "%s without the fault %s", where, f)
		err := run(f)
		assert.Error(t, err, "fault %s: case %d, %q, passes all the same", f, finding.number, finding.title)
		if err == nil {
			continue
		}
		var absent absentError
		var later laterError
		require.False(t, errors.As(err, &absent) || errors.As(err, &later), "fault %s: %v", f, err)
		t.Logf("%-24s case %3d: %s", f, finding.number, firstLine.FindString(err.Error()))
	}
}

// goTest runs a test that was built with the faults; nil where title is no test's.
func goTest(t *testing.T, title string) func(fault.Fault) error {
	where, name, is := strings.Cut(title, " ")
	if !is || !strings.HasPrefix(where, "./") {
		return nil
	}
	return func(f fault.Fault) error {
		command := exec.Command("go", "test", "-count=1", "-tags", fault.Tag, "-run", "^"+name+"$", "-v", where)
		command.Dir, command.Env = "../..", append(os.Environ(), fault.Env+"="+string(f))
		out, err := command.CombinedOutput()
		require.Contains(t, string(out), "=== RUN   "+name, "there is no such test")
		if err != nil {
			return fmt.Errorf("%s: %w", title, err)
		}
		return nil
	}
}

var firstLine = regexp.MustCompile(`^[^\n]*`)
