package proof

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/modelcheck"
)

var (
	large      = flag.Bool("model.large", false, "explore the large bounds too (minutes, some GiB)")
	update     = flag.Bool("model.update", false, "write the tables into RESULTS.md instead of comparing")
	showTraces = flag.Bool("model.trace", false, "print the steps to every fault")
)

// Row is what the search of a case came to; bounds are its configuration's.
func Row(t *testing.T, name string, bounds fmt.Stringer, out modelcheck.Outcome) modelcheck.Row {
	if *showTraces && out.Fault != "" {
		t.Logf("%s (%s)\n%s", name, bounds, out)
	}
	return modelcheck.Row{Name: name, Bounds: bounds.String(), Outcome: out}
}

// Large tells whether large bounds are to be explored, and says so when not.
func Large(t *testing.T) bool {
	if !*large {
		t.Log("only with -model.large; RESULTS.md keeps the last table")
	}
	return *large
}

// Holds requires that no row has a fault and that all of it was explored.
func Holds(t *testing.T, rows []modelcheck.Row) {
	t.Helper()
	for _, r := range rows {
		require.True(t, r.Outcome.Holds(), "%s (%s)\n%s", r.Name, r.Bounds, r.Outcome)
	}
}

// Caught requires that a fault was found in every row.
func Caught(t *testing.T, rows []modelcheck.Row) {
	t.Helper()
	for _, r := range rows {
		require.NotEmpty(t, r.Outcome.Fault, "%s (%s) was not caught", r.Name, r.Bounds)
	}
}

// Compare compares a table with the one kept in RESULTS.md, byte for byte: states and steps are part of what was found.
func Compare(t *testing.T, section string, rows []modelcheck.Row) {
	t.Helper()
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
