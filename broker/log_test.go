package broker

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Field report A7: one message is not said without end, others still are, and nothing is
// lost silently.
func TestLogIsLimitedByMessage(t *testing.T) {
	var out bytes.Buffer
	b := &logBudget{}
	log := slog.New(&limitedLog{Handler: slog.NewTextHandler(&out, nil), budget: b})
	began := time.Now()
	for range 1000 {
		log.With("client", 1).Info("refused")
	}
	log.Info("something else")
	lines := strings.Count(out.String(), "refused")
	require.GreaterOrEqual(t, lines, linesPerSecond)
	require.LessOrEqual(t, lines, (2+int(time.Since(began).Seconds()))*linesPerSecond, "the second may change while we look")
	require.Contains(t, out.String(), "something else")
	b.said["refused"].second-- // a second later
	log.Info("refused")
	require.Contains(t, out.String(), "dropped_before=")
}
