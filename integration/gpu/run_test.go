package gpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
)

// kit is a folder as `make gpu-test` makes it, of programs that only print and end with a status.
func kit(t *testing.T, programs map[string]string) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		skip(t, "run.sh is not here: "+err.Error())
	}
	script, err := os.ReadFile(filepath.Join(root, "integration", "gpu", "run.sh"))
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "run"), script, 0o644))
	for name, text := range programs {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o644), "the script makes it executable")
	}
	return dir
}

// carried runs the script from another directory, and gives what it printed and its status.
func carried(t *testing.T, dir string, env []string, arguments ...string) (string, int) {
	t.Helper()
	c := exec.Command("sh", append([]string{filepath.Join(dir, "run")}, arguments...)...)
	c.Dir = t.TempDir()
	c.Env = append(append(os.Environ(), "REQUIRE_GPU=1"), env...)
	out, err := c.CombinedOutput()
	if _, ended := err.(*exec.ExitError); !ended {
		require.NoError(t, err)
	}
	return string(out), c.ProcessState.ExitCode()
}

// Each part is told that a GPU is wanted; the summary says what passed, and a part that fails keeps none from running.
func TestTheCarriedScriptSaysWhatPassed(t *testing.T) {
	results := filepath.Join(t.TempDir(), "out")
	dir := kit(t, map[string]string{
		"callboard": `echo 'ok    GPU     device 0: another process opened its memory'`,
		"gpu.test":  `[ "$REQUIRE_GPU" = 1 ] && echo 'driver of integration/gpu: NVIDIA X' && echo '--- PASS: TestA' && echo '--- FAIL: TestB'; exit 1`,
		"bench":     `[ "$*" = "-only gpu -results ` + results + ` -name first -repetitions 2" ] && echo "wrote x"`,
	})
	text, code := carried(t, dir, []string{"BENCH_ARGS=-repetitions 2"}, "-o", results, "doctor", "go", "bench")
	require.Equal(t, 1, code, text)
	for _, line := range []string{"\npassed: doctor\n    ok    GPU     device 0: another process opened its memory\n", "\nFAILED: go\n    driver of integration/gpu: NVIDIA X\n    1 tests passed, 0 skipped, 1 failed\n    --- FAIL: TestB\n", "\npassed: bench\n    wrote x\n"} {
		require.Contains(t, text, line)
	}
	for _, log := range []string{"doctor.log", "go.log", "bench.log", "summary.log"} {
		require.FileExists(t, filepath.Join(results, log))
	}
	require.NoFileExists(t, filepath.Join(results, "python.log"))
}

// A doctor that is content without a GPU is not enough.
func TestTheCarriedScriptWantsADevice(t *testing.T) {
	dir := kit(t, map[string]string{"callboard": `echo 'ok    GPU     no driver; only host memory is served'`})
	text, code := carried(t, dir, nil, "doctor")
	require.Equal(t, 1, code)
	require.Contains(t, text, "FAILED: doctor\n    ok    GPU     no driver")
	require.Contains(t, text, "a broker would serve none")
	_, code = carried(t, dir, []string{"REQUIRE_GPU="}, "doctor")
	require.Equal(t, 0, code)
}

// An interpreter that the carried client is not for fails its part, with the reason.
func TestTheCarriedScriptWithoutPython(t *testing.T) {
	dir := kit(t, nil)
	text, code := carried(t, dir, []string{"PYTHON=/nowhere/python3"}, "python")
	require.Equal(t, 1, code)
	require.Contains(t, text, "/nowhere/python3 is not there, or older than 3.11")
	require.Contains(t, text, "FAILED: python")

	text, code = carried(t, dir, nil, "pyhton")
	require.Equal(t, 2, code)
	require.Contains(t, text, `there is no part "pyhton": expected doctor, go, bench or python`)
}

// A rehearsal asks for no GPU and writes no figures, and says so.
func TestTheCarriedScriptRehearses(t *testing.T) {
	dir := kit(t, map[string]string{"bench": `[ "$*" = "-only gpu -quick" ] && echo "emulated driver: no figures"`})
	text, code := carried(t, dir, []string{"REQUIRE_GPU="}, "bench")
	require.Equal(t, 0, code, text)
	require.Contains(t, text, "A rehearsal: a GPU was not asked for.\npassed: bench\n    emulated driver: no figures\n")
	require.FileExists(t, filepath.Join(dir, "results", "bench.log"))
}
