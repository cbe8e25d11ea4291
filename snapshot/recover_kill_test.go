//go:build callboard_kill

package snapshot

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pictures takes what has just been done to shared memory, store by store: one picture
// for each of those that take picks. It leaves atStep as it was.
func (h *history) pictures(take func(n int) bool, what func()) (all []*picture) {
	n := 0
	atStep = func() {
		if take(n) {
			all = append(all, h.picture())
		}
		n++
	}
	defer func() { atStep = nil }()
	what()
	return all
}

// TestKilledAtEveryStep: the broker is killed at random stores of random operations, at
// all of them for a few, in recoveries too; what was sealed is there, and the seal that
// was under way is there as a whole or not at all (rules B2, V6; behaviour of D9).
func TestKilledAtEveryStep(t *testing.T) {
	killed, forward := 0, 0
	seeds(t, 8*time.Second, func(t *testing.T, seed uint64) {
		names := slices.Sorted(maps.Keys(historyConfigs))
		c := historyConfigs[names[seed%uint64(len(names))]]
		h := newHistory(t, seed, c.config, c.delayed)
		for range 120 {
			some := h.lazy.IntN(12)
			if some == 0 {
				some = 1 // every one
			}
			first := h.lazy.IntN(some)
			before := h.naive.epoch
			if h.lazy.IntN(3) > 0 {
				h.next()
				continue
			}
			all := h.pictures(func(n int) bool { return n%some == first }, h.next)
			for i, p := range all {
				if i > 0 && h.lazy.IntN(10) > 0 && some > 1 {
					continue
				}
				var r *Recovered
				again := h.pictures(func(int) bool { return false }, func() { r = h.examine(p, seed) })
				require.Empty(t, again)
				require.GreaterOrEqual(t, r.Epoch, before, "what was sealed before the operation")
				killed++
				if r.RolledForward {
					forward++
				}
			}
			if len(all) > 0 && h.lazy.IntN(3) == 0 {
				h.restart(all[h.lazy.IntN(len(all))])
				killed++
			}
		}
		h.finale()
	})
	t.Logf("killed %d times, rolled forward %d times", killed, forward)
	require.Positive(t, forward)
}
