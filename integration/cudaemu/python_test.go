package cudaemu

import (
	"cmp"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// The ABI as libffi has it, between two processes: 64-byte handles by value.
func TestLibraryFromPython(t *testing.T) {
	library := Library(t)
	python, err := exec.LookPath(cmp.Or(os.Getenv("CALLBOARD_PYTHON"), "python3"))
	if err != nil {
		if os.Getenv("CALLBOARD_TEST_NO_SKIP") == "1" {
			t.Fatalf("may not be skipped here: %v", err)
		}
		t.Skip(err)
	}
	command := exec.Command(python, "testdata/smoke.py", library)
	command.Env = append(os.Environ(), "CUDAEMU_DELAY_US=1000", "CUDAEMU_DIR="+t.TempDir())
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
