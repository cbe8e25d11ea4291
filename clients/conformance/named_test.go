package conformance

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
)

// runNamed runs all tests that scenarios name, once, and gives each one's result; a test that was not found has none.
func runNamed(t *testing.T, root string, scenarios []*Scenario) map[string]error {
	results := map[string]error{}
	pytest, gotests, programs := map[string]bool{}, map[string][]string{}, map[string]bool{}
	for _, s := range scenarios {
		for _, name := range s.Pytest {
			pytest[name] = true
		}
		for _, g := range s.GoTest {
			gotests[g[0]] = append(gotests[g[0]], g[1])
		}
		for _, c := range s.CTest {
			programs[c[0]] = true
		}
	}
	if len(pytest) > 0 {
		runPytest(t, root, slices.Sorted(maps.Keys(pytest)), results)
	}
	if len(gotests) > 0 {
		runGoTests(t, root, gotests, results)
	}
	for program := range programs {
		runCTests(t, root, program, results)
	}
	return results
}

// runPytest reads results from the report: a test with parameters passes when each of them does.
func runPytest(t *testing.T, root string, names []string, results map[string]error) {
	report := filepath.Join(t.TempDir(), "report.xml")
	args := []string{"-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", report}
	for _, name := range names {
		args = append(args, filepath.Join("clients/python/tests", name))
	}
	command := exec.Command(python(root), args...)
	command.Dir = root
	command.Env = append(os.Environ(), "CALLBOARD_BIN="+brokerBinary(t))
	out, _ := command.CombinedOutput()
	raw, err := os.ReadFile(report)
	if err != nil {
		t.Errorf("pytest: %v\n%s", err, out)
		return
	}
	var suites struct {
		Suites []struct {
			Cases []struct {
				Class   string    `xml:"classname,attr"`
				Name    string    `xml:"name,attr"`
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
				Skipped *struct{} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(raw, &suites); err != nil {
		t.Errorf("pytest's report: %v", err)
	}
	failed := false
	for _, suite := range suites.Suites {
		for _, c := range suite.Cases {
			file := c.Class[strings.LastIndexByte(c.Class, '.')+1:] + ".py"
			test, _, _ := strings.Cut(c.Name, "[")
			name := "pytest " + file + "::" + test
			var err error
			if c.Failure != nil || c.Error != nil || c.Skipped != nil {
				err, failed = fmt.Errorf("%s failed or was skipped", c.Name), true
			}
			results[name] = errors.Join(results[name], err)
		}
	}
	if failed || len(results) == 0 {
		t.Logf("pytest said:\n%s", out)
	}
}

// runGoTests runs tests of several packages, by package. A name that two of them have runs in both.
func runGoTests(t *testing.T, root string, tests map[string][]string, results map[string]error) {
	names := slices.Concat(slices.Collect(maps.Values(tests))...)
	command := exec.Command("go", append([]string{"test", "-count=1", "-json", "-run", "^(" + strings.Join(names, "|") + ")$"}, slices.Sorted(maps.Keys(tests))...)...)
	command.Dir = root
	out, _ := command.Output()
	said := map[string]string{}
	failed := map[string]bool{}
	for line := range bytes.Lines(out) {
		var event struct{ Action, Package, Test, Output string }
		if json.Unmarshal(line, &event) != nil {
			continue
		}
		path := "./" + strings.TrimPrefix(event.Package, "callboard/")
		said[path] += event.Output
		switch {
		case event.Test == "" && event.Action == "fail":
			failed[path] = true
		case event.Test == "":
		case event.Action == "pass":
			results["gotest "+path+" "+event.Test] = nil
		case event.Action == "fail" || event.Action == "skip":
			results["gotest "+path+" "+event.Test], failed[path] = errors.New(event.Action), true
		}
	}
	for path := range failed {
		t.Logf("go test %s said:\n%s", path, said[path])
	}
}

// runCTests reads the lines of a program's RUN. It runs all its tests: one that fails ends it, and one that ends badly
// behind them, as with a leak, has shown nothing.
func runCTests(t *testing.T, root, program string, results map[string]error) {
	dir := filepath.Join(root, "clients", "c")
	path := filepath.Join("build", "tests", program)
	if out, err := exec.Command("make", "--silent", "-C", dir, path).CombinedOutput(); err != nil {
		t.Errorf("make %s: %v\n%s", path, err, out)
		return
	}
	command := exec.Command(filepath.Join(dir, path))
	command.Dir = dir
	out, err := command.CombinedOutput()
	if err != nil {
		t.Logf("%s said:\n%s", program, out)
	}
	for line := range strings.Lines(string(out)) {
		if test, passed := strings.CutPrefix(strings.TrimSpace(line), "ok "); passed {
			results["ctest "+program+" "+test] = err
		}
	}
}

// Invariant F1: a name that no test has is no result, beside one that has.
func TestANameThatNoTestHasCountsForNothing(t *testing.T) {
	root, err := harness.Root()
	require.NoError(t, err)
	s, err := ParseScenarios("test", "case 1 x\ngotest ./tensor TestDLPackLayout\ngotest ./tensor TestNone\n"+
		"ctest test_dlpack_write lanes_255_and_no_more\nctest test_dlpack_write none\n")
	require.NoError(t, err)
	results := runNamed(t, root, s)
	for i, test := range s[0].tests() {
		err, ran := results[test.name]
		require.NoError(t, err)
		require.Equal(t, i%2 == 0, ran, test.name)
	}
}
