//go:build nogpu

package cudaipc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A build without device support says so, and what to do.
func TestBuildWithoutGPUSaysSo(t *testing.T) {
	_, err := Load("")
	require.ErrorIs(t, err, ErrNotBuilt)
	r := Probe("")
	require.Equal(t, No, r.Answer)
	require.Equal(t, ReasonNotBuilt, r.Reason)
	require.Contains(t, r.Advice, "nogpu")
}
