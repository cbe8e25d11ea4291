package conformance

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
)

var (
	update = flag.Bool("update", false, "write docs/conformance.md")
	filter = flag.String("case", "", "run only scenarios whose cases or title match this pattern; the table is then not looked at")
)

// TestConformance runs every scenario in every language and every pair, and holds docs/conformance.md to what came of
// it.
func TestConformance(t *testing.T) {
	t.Parallel()
	root, err := harness.Root()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "docs/behaviour.md"))
	require.NoError(t, err)
	scenarios, err := LoadScenarios("scenarios")
	require.NoError(t, err)
	table := NewTable(ParseCases(string(text)))
	for _, s := range scenarios {
		for _, number := range s.Cases {
			require.NotNil(t, table.Case(number), "%s cites case %d, which docs/behaviour.md does not have", s.Where, number)
		}
	}
	argv, broken := commands(t)
	s := &supervisor{argv: argv, broken: broken, running: map[string]*driver{}, start: func(args ...string) *harness.Broker { return harness.Start(t, args...) }}
	s.shared = s.start("--log-level", "warn")
	defer s.stop(t)
	for language, why := range broken {
		t.Errorf("%s: %s", language, why)
	}
	chosen := scenarios
	if *filter != "" {
		pattern := regexp.MustCompile(*filter)
		chosen = slices.DeleteFunc(slices.Clone(scenarios), func(s *Scenario) bool {
			return !pattern.MatchString(strings.Trim(fmt.Sprint(s.Cases), "[]") + " " + s.Title)
		})
	}
	if testing.Short() { // what one language does, and no table
		chosen = slices.DeleteFunc(slices.Clone(chosen), func(s *Scenario) bool { return len(s.Roles()) != 1 })
	}
	require.NotEmpty(t, chosen, "no scenario matches %q", *filter)
	var named sync.WaitGroup // beside the scenarios: what both do most is wait
	var results map[string]error
	named.Go(func() { results = runNamed(t, root, chosen) })
	defer named.Wait()
	for _, scenario := range chosen {
		s.tabulate(t, scenario, table)
	}
	named.Wait()
	for _, scenario := range chosen {
		tabulateNamed(t, scenario, table, results)
	}
	if *filter != "" || testing.Short() {
		return
	}
	t.Log("\n" + terminal(table))
	path := filepath.Join(root, "docs/conformance.md")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(table.Markdown()), 0o644))
		return
	}
	have, _ := os.ReadFile(path)
	if string(have) != table.Markdown() {
		t.Errorf("docs/conformance.md says something else than what came out: look at the difference after\n  go test ./clients/conformance -update")
	}
}

// tabulate runs one scenario wherever it is meant to run.
func (s *supervisor) tabulate(t *testing.T, scenario *Scenario, table *Table) {
	add := func(column string, r Result) { table.AddAll(scenario.Cases, column, r) }
	for _, language := range Languages {
		if scenario.Never != "" {
			add(language, Result{Outcome: NotOffered, Note: scenario.Never})
			continue
		}
		if !scenario.RunsIn(language) {
			add(language, Result{Outcome: NotOffered, Note: scenario.Reason})
		}
	}
	if len(scenario.Steps) == 0 {
		return
	}
	for _, pair := range pairs(scenario) {
		label := strings.Join(pair, "→")
		n, err := s.run(scenario, pair)
		r := s.judge(t, scenario, table, label, n, err)
		if pair[0] == pair[len(pair)-1] {
			add(pair[0], r)
		}
		if len(pair) > 1 {
			r.Note = ""
			add(Pairs, r)
		}
	}
}

// tabulateNamed adds the tests that a scenario names.
func tabulateNamed(t *testing.T, scenario *Scenario, table *Table, results map[string]error) {
	for _, test := range scenario.tests() {
		r := Result{Outcome: Passed, Assertions: 1}
		if err, ran := results[test.name]; !ran || err != nil {
			t.Errorf("%s: case %v: %s: ran: %v, %v", scenario.Where, scenario.Cases, test.name, ran, err)
			r = Result{Outcome: Failed, Note: "failed: " + test.name}
		}
		table.AddAll(scenario.Cases, test.language, r)
	}
}

// judge makes a result of how a run ended. Every case that a scenario cites must allow "later" for it to be so.
func (s *supervisor) judge(t *testing.T, scenario *Scenario, table *Table, label string, assertions int, err error) Result {
	mayBeLater := scenario.Later || !slices.ContainsFunc(scenario.Cases, func(n int) bool { return !table.Case(n).Later() })
	var later laterError
	var absent absentError
	switch {
	case err == nil:
		return Result{Outcome: Passed, Assertions: assertions}
	case errors.As(err, &later) && mayBeLater:
		return Result{Outcome: Later, Note: later.text}
	case errors.As(err, &absent) && mayBeLater:
		return Result{Outcome: Later, Note: absent.reason}
	case errors.As(err, &absent):
		return Result{Outcome: NotOffered, Note: absent.reason}
	}
	t.Errorf("%s: case %v, %s, %s: %v", scenario.Where, scenario.Cases, scenario.Title, label, err)
	return Result{Outcome: Failed, Note: fmt.Sprintf("failed: %q", scenario.Title)} // the numbers are in the test's output
}

// pairs lists the languages of a scenario's roles: every language, or every ordered pair.
func pairs(s *Scenario) (all [][]string) {
	for _, a := range Languages {
		if !s.RunsIn(a) {
			continue
		}
		if len(s.Roles()) == 1 {
			all = append(all, []string{a})
			continue
		}
		for _, b := range Languages {
			if s.RunsIn(b) {
				all = append(all, []string{a, b})
			}
		}
	}
	return all
}

// terminal is the table for people who watch the test: a line per case.
func terminal(table *Table) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%5s  %-18s%-18s%-18s%s\n", "case", "go", "c", "python", "pairs")
	for _, c := range table.cases {
		fmt.Fprintf(&b, "%5d", c.Number)
		for _, column := range append(slices.Clone(Languages), Pairs) {
			text, _ := table.Cell(c.Number, column)
			fmt.Fprintf(&b, "  %-16s", strings.Trim(text, "*"))
		}
		b.WriteString("\n")
	}
	b.WriteString(table.Summary())
	return b.String()
}
