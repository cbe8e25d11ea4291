package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/shm"
)

// players fills a directory with players: shell scripts in place of the Python ones, so that what is tested is the supervision.
func players(t *testing.T, scripts map[string]string) {
	t.Helper()
	const ready = "echo '{\"ready\":true}'; read go\n"
	const wait = "read end; exit 0\n" // the end of standard input
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "examples", "demo"), 0o755))
	for _, name := range []string{"simulation", "camera", "consumer"} {
		script, given := scripts[name]
		if !given {
			script = ready + wait
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "examples", "demo", name+".py"), []byte(script), 0o644))
	}
	t.Chdir(dir)
	t.Setenv("CALLBOARD_PYTHON", "/bin/sh")
	t.Setenv(beProgram, "1") // the demo starts this binary as broker and observer
}

// runDemo runs the demo as a process and returns what it printed.
func runDemo(t *testing.T, meanwhile func(supervisor *os.Process, children map[string]int)) (output string, code int) {
	t.Helper()
	command := program(t, "demo", "--steps", "10")
	notes, err := os.CreateTemp(t.TempDir(), "notes")
	require.NoError(t, err)
	command.Stderr = notes
	require.NoError(t, command.Start())
	said := func() string {
		text, err := os.ReadFile(notes.Name())
		require.NoError(t, err)
		return string(text)
	}
	if meanwhile != nil {
		children := map[string]int{}
		waitFor(t, "the demo names its processes", func() bool {
			for _, match := range regexp.MustCompile(`(broker|observer|consumer|simulation|camera) (\d+)`).FindAllStringSubmatch(said(), -1) {
				children[match[1]], _ = strconv.Atoi(match[2])
			}
			return len(children) == 5
		})
		meanwhile(command.Process, children)
		defer func() {
			for name, pid := range children {
				waitFor(t, name+" has ended", func() bool { return syscall.Kill(pid, 0) != nil || zombie(pid) })
			}
		}()
	}
	_ = command.Wait()
	return said(), command.ProcessState.ExitCode()
}

// zombie: a process whose parent was killed may wait for an init that never collects it.
func zombie(pid int) bool {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || regexp.MustCompile(`\) Z `).Match(status)
}

// nothingLeft: no memory and no runtime directory of the demo that said this.
func nothingLeft(t *testing.T, runtime, said string) {
	t.Helper()
	places := []string{runtime}
	if stage := regexp.MustCompile(`stage (demo-[0-9a-f]+);`).FindStringSubmatch(said); stage != nil {
		places = append(places, shm.ShmDir("", stage[1]))
	}
	for _, place := range places {
		waitFor(t, place+" is gone", func() bool {
			_, err := os.Stat(place)
			return os.IsNotExist(err)
		})
	}
}

// A demo that only ever succeeds would show nothing: whatever differs makes it fail, and says what.
func TestDemoFailsLoudlyAndLeavesNothing(t *testing.T) {
	const ready = "echo '{\"ready\":true}'; read go\n"
	for name, c := range map[string]struct {
		scripts map[string]string
		says    string
	}{
		"a difference":       {map[string]string{"consumer": ready + `echo '{"failure":"step 3: position differs"}'; exit 1`}, "consumer: step 3: position differs"},
		"an early end":       {map[string]string{"camera": ready + "exit 0"}, "camera ended before it was done"},
		"an error at start":  {map[string]string{"simulation": "echo 'ModuleNotFoundError: no callboard' >&2; exit 1"}, "make demo"},
		"nothing to compare": {map[string]string{"simulation": ready + `echo '{"result":{"steps":10}}'`, "consumer": ready + `echo '{"result":{"last_step":10}}'`}, "no value was compared"},
	} {
		t.Run(name, func(t *testing.T) {
			runtime := ownPlaces(t)
			players(t, c.scripts)
			said, code := runDemo(t, nil)
			require.Equal(t, exitFailure, code, said)
			require.Contains(t, said, "THE DEMO FAILED")
			require.Contains(t, said, c.says)
			nothingLeft(t, runtime, said)
		})
	}
}

func TestDemoEndsWithAKilledProcessAndLeavesNothing(t *testing.T) {
	for _, victim := range []string{"simulation", "broker", "observer", "supervisor"} {
		t.Run(victim, func(t *testing.T) {
			runtime := ownPlaces(t)
			players(t, nil)
			said, code := runDemo(t, func(supervisor *os.Process, children map[string]int) {
				children["supervisor"] = supervisor.Pid
				require.NoError(t, syscall.Kill(children[victim], syscall.SIGKILL))
				delete(children, "supervisor")
			})
			if victim != "supervisor" {
				require.Equal(t, exitFailure, code, said)
				require.Contains(t, said, victim+" ended with signal: killed")
			}
			require.NotContains(t, said, "and was killed", "all ended by themselves")
			nothingLeft(t, runtime, said)
		})
	}
}

func TestDemoEndsInOrderAtCtrlC(t *testing.T) {
	runtime := ownPlaces(t)
	players(t, nil)
	said, code := runDemo(t, func(supervisor *os.Process, _ map[string]int) {
		require.NoError(t, supervisor.Signal(os.Interrupt))
	})
	require.Equal(t, exitFailure, code)
	require.Contains(t, said, "interrupted; all processes have ended and nothing is left behind")
	nothingLeft(t, runtime, said)
}

// Each number that must be zero, or must not be, turns the verdict.
func TestVerdictOfTheDemoNamesWhatDiffers(t *testing.T) {
	good := results{Simulation: simulationResult{Steps: 10},
		Consumer: consumerResult{LastStep: 10, Values: 1, Frames: 1}, Observer: observerResult{Commits: 1}}
	require.NoError(t, good.verdict())
	for says, change := range map[string]func(*results){
		"saw step 9 last":           func(r *results) { r.Consumer.LastStep = 9 },
		"1 snapshots were torn":     func(r *results) { r.Consumer.Torn = 1 },
		"1 of 1 values differ":      func(r *results) { r.Consumer.ValuesWrong = 1 },
		"1 of 1 camera frames":      func(r *results) { r.Consumer.FramesWrong = 1 },
		"no value":                  func(r *results) { r.Consumer.Values = 0 },
		"no camera frame":           func(r *results) { r.Consumer.Frames = 0 },
		"no commit":                 func(r *results) { r.Observer.Commits = 0 },
		"1 announcements were lost": func(r *results) { r.Observer.Gaps = 1 },
	} {
		bad := good
		change(&bad)
		require.ErrorContains(t, bad.verdict(), says)
	}
	data, err := json.Marshal(good)
	require.NoError(t, err)
	require.Contains(t, string(data), `"latency_p50_us"`)
}
