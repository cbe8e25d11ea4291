package integration

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/fault"
	"callboard/integration/harness"
)

// roleEnv names the part that a re-executed test binary plays.
const roleEnv = "CALLBOARD_TEST_ROLE"

func TestMain(m *testing.M) {
	flag.Parse()
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(play(role))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	// Whatever the environment says must not lead the tests to a real stage.
	for _, name := range []string{"CALLBOARD_RUNTIME_DIR", "CALLBOARD_STAGE", "XDG_RUNTIME_DIR"} {
		_ = os.Unsetenv(name)
	}
	if os.Getenv(harness.BinaryEnv) == "" {
		dir, err := os.MkdirTemp("", "callboard-binary-")
		if err == nil {
			defer os.RemoveAll(dir)
			err = buildBroker(filepath.Join(dir, "callboard"))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	code := m.Run()
	if left := orphans(); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "left behind (field reports A4, A26):\n  %s\n", strings.Join(left, "\n  "))
		return 1
	}
	return code
}

// buildBroker builds the binary under test, with the fault in it if asked for, and
// leads the harness to it.
func buildBroker(path string) error {
	args := []string{"build", "-o", path}
	if *injectTear {
		args = append(args, "-tags", fault.Tag)
		if err := os.Setenv(fault.Env, string(fault.PinsIgnored)); err != nil {
			return err
		}
	}
	if out, err := exec.Command("go", append(args, "../cmd/broker")...).CombinedOutput(); err != nil {
		return fmt.Errorf("building the broker: %w\n%s", err, out)
	}
	return os.Setenv(harness.BinaryEnv, path)
}

// orphans lists processes that we started and that still live, or that nobody waited
// for. Files are looked for at the end of each stage.
func orphans() (left []string) {
	for deadline := time.Now().Add(soon); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if left = children(os.Getpid()); len(left) == 0 {
			break
		}
	}
	return left
}

// children lists the processes whose parent is pid.
func children(pid int) (found []string) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile
		}
		// pid (name) state parent …; the name may hold anything, the last ) ends it.
		text := string(raw)
		end := strings.LastIndexByte(text, ')') + 1
		if fields := strings.Fields(text[end:]); len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			found = append(found, "process "+text[:end])
		}
	}
	return found
}

// skip is the only way to leave a test out.
func skip(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("CALLBOARD_TEST_NO_SKIP") == "1" {
		t.Fatalf("may not be skipped here: %s", reason)
	}
	t.Skip(reason)
}

// randomness gives a source whose seed is printed when the test fails or -v is given.
func randomness(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("CALLBOARD_TEST_SEED"); text != "" {
		given, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "CALLBOARD_TEST_SEED")
		seed = given
	}
	t.Logf("repeat with CALLBOARD_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, seed))
}

// openFiles lists the descriptors of a process by what they point to.
func openFiles(t *testing.T, pid int) (open []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		if target, err := os.Readlink(dir + entry.Name()); err == nil {
			open = append(open, target)
		}
	}
	slices.Sort(open)
	return open
}

// mapsOf lists a process's mappings of objects under dir.
func mapsOf(t *testing.T, pid int, dir string) (maps []string) {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(raw)) {
		if at := strings.Index(line, dir); at >= 0 {
			maps = append(maps, strings.TrimSpace(line[at:]))
		}
	}
	slices.Sort(maps)
	return maps
}
