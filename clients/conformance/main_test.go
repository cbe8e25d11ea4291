package conformance

import (
	"flag"
	"os"
	"testing"

	"callboard/integration/harness"
)

// TestMain keeps what the environment says from leading tests to a real stage.
func TestMain(m *testing.M) {
	flag.Parse()
	for _, name := range []string{"CALLBOARD_RUNTIME_DIR", "CALLBOARD_STAGE", "XDG_RUNTIME_DIR"} {
		_ = os.Unsetenv(name)
	}
	os.Exit(m.Run())
}

func brokerBinary(t *testing.T) string { return harness.Binary(t) }
