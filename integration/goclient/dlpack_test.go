package goclient

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"callboard/integration/harness"

	"github.com/stretchr/testify/require"
)

// Behaviour 281, 282, 288, 290, 291; field reports E2, E4, E8, G15: consumers and producers in C, by cgo. The program is built
// here, since nothing else of the project needs cgo.
func TestDLPackWithC(t *testing.T) {
	root, err := harness.Root()
	require.NoError(t, err)
	run := func(env []string, name string, args ...string) string {
		command := exec.Command(name, args...)
		command.Env = append(os.Environ(), env...)
		out, err := command.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	run(nil, "make", "--silent", "-C", filepath.Join(root, "clients", "c"), "all")
	program := filepath.Join(t.TempDir(), "dlpack")
	run([]string{"CGO_ENABLED=1"}, "go", "build", "-o", program, "./testdata/dlpack")
	for _, handoff := range []string{"adopt", "copy"} {
		t.Run(handoff, func(t *testing.T) {
			b := harness.Start(t, "--handoff", handoff)
			require.Equal(t, "ok\n", run(append(b.Env(), "GODEBUG=cgocheck=1"), program, b.Stage))
		})
	}
}
