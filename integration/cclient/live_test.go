package cclient

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/integration/harness"
)

// TestLive runs every verb of the C client, plain and with GUARD (rule M1), on
// stages that adopt and that copy.
func TestLive(t *testing.T) {
	root, err := harness.Root()
	require.NoError(t, err)
	client := filepath.Join(root, "clients", "c")
	out, err := exec.Command("make", "--silent", "-C", client, "live").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, handoff := range []string{"adopt", "copy"} {
		for _, guard := range []string{"", "1"} {
			t.Run(handoff+" guard="+guard, func(t *testing.T) {
				b := harness.Start(t, "--handoff", handoff)
				live := exec.Command(filepath.Join(client, "build", "test_live"), b.Stage)
				live.Env = append(os.Environ(), b.Env()...)
				if guard != "" {
					live.Env = append(live.Env, "CALLBOARD_GUARD="+guard)
				}
				out, err := live.CombinedOutput()
				require.NoError(t, err, "%s", out)
				require.Contains(t, string(out), "ok")
			})
		}
	}
}
