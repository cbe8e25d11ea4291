//go:build !callboard_kill

package snapshot

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKilledBrokers runs the tests that need the tag callboard_kill, which calls them at
// every store: see step_kill.go and recover_kill_test.go.
func TestKilledBrokers(t *testing.T) {
	if raceEnabled {
		t.Log("left out under the race detector: what it runs is built without")
		return
	}
	args := []string{"test", "-count=1", "-tags=callboard_kill", "-run=^TestKilled", "-v"}
	if testing.Short() {
		args = append(args, "-short")
	}
	out, err := exec.Command("go", append(args, ".")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestKilledAtEveryStep ")
	require.Contains(t, string(out), "--- PASS: TestKilledWhileARingOfDeletesGrows ")
	require.Contains(t, string(out), "--- PASS: TestKilledWhileLostRowsAreShown ")
}
