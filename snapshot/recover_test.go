package snapshot

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// seeds runs what for one seed after the other while there is time, or for the one in
// CALLBOARD_SEED.
func seeds(t *testing.T, budget time.Duration, what func(t *testing.T, seed uint64)) {
	if testing.Short() {
		budget /= 5
	}
	start := uint64(time.Now().UnixNano())
	if text := os.Getenv("CALLBOARD_SEED"); text != "" {
		var err error
		start, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		budget = 0
	}
	t.Logf("first seed: CALLBOARD_SEED=%d", start)
	for n, begin := uint64(0), time.Now(); n == 0 || time.Since(begin) < budget; n++ {
		if !t.Run(fmt.Sprint(start+n), func(t *testing.T) { what(t, start+n) }) {
			return
		}
	}
}

// TestRestartsShowWhatWasSealed: brokers are killed between operations, several in a
// row, while a reader holds views and clients hold pins; every epoch that anybody may
// look at is as the naive store says, bit by bit, and the books are in order (rules B2,
// D9, V3, V8).
func TestRestartsShowWhatWasSealed(t *testing.T) {
	seeds(t, 4*time.Second, func(t *testing.T, seed uint64) {
		names := slices.Sorted(maps.Keys(historyConfigs))
		c := historyConfigs[names[seed%uint64(len(names))]]
		h := newHistory(t, seed, c.config, c.delayed)
		for range 200 {
			h.next()
			if h.lazy.IntN(12) == 0 {
				for range 1 + h.lazy.IntN(3) {
					r := h.restart(nil)
					require.False(t, r.RolledForward)
				}
			}
		}
		h.finale()
	})
}
