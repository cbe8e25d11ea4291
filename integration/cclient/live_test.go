package cclient

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
)

// build makes the programs that run against a broker, and returns the C client's directory.
func build(t *testing.T) string {
	t.Helper()
	root, err := harness.Root()
	require.NoError(t, err)
	client := filepath.Join(root, "clients", "c")
	succeeds(t, nil, "make", "--silent", "-C", client, "live")
	return client
}

// TestLive runs every verb of the C client, plain and with GUARD (rule M1), on
// stages that adopt and that copy.
func TestLive(t *testing.T) {
	client := build(t)
	for _, handoff := range []string{"adopt", "copy"} {
		for _, guard := range []string{"", "1"} {
			t.Run(handoff+" guard="+guard, func(t *testing.T) {
				b := harness.Start(t, "--handoff", handoff)
				env := b.Env()
				if guard != "" {
					env = append(env, "CALLBOARD_GUARD="+guard)
				}
				require.Contains(t, succeeds(t, env, filepath.Join(client, "build", "test_live"), b.Stage), "ok")
			})
		}
	}
}

// TestLiveUnderValgrind runs them once more with every byte watched: what a broker wrote is what is read, and all that
// was allocated is freed.
func TestLiveUnderValgrind(t *testing.T) {
	valgrind, err := exec.LookPath("valgrind")
	if err != nil {
		skip(t, "valgrind is not installed")
	}
	client := build(t)
	b := harness.Start(t)
	succeeds(t, b.Env(), valgrind, "--quiet", "--error-exitcode=1", "--leak-check=full", "--show-leak-kinds=all", "--errors-for-leak-kinds=all",
		"--fair-sched=yes", "--child-silent-after-fork=yes", filepath.Join(client, "build", "test_live"), b.Stage)
}
