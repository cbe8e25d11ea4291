package callboard

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Rooms never overlap, lie inside, and all of the area comes back (rule R2).
func TestAreaGivesOutRoomsThatDoNotOverlap(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const size = 64 << 10
	a := newArea(size)
	owner := make([]int, size/roomAlign)
	leased := map[int]room{}
	for id := 1; id < 20000; id++ {
		if len(leased) > 0 && random.IntN(2) == 0 {
			for old, r := range leased {
				for i := r.offset / roomAlign; i < (r.offset+r.size)/roomAlign; i++ {
					require.Equal(t, old, owner[i])
					owner[i] = 0
				}
				a.give(r)
				delete(leased, old)
				break
			}
			continue
		}
		want := 1 + random.IntN(4000)
		r, ok := a.take(want)
		if !ok {
			require.NotEmpty(t, leased)
			continue
		}
		require.GreaterOrEqual(t, int(r.size), want)
		require.LessOrEqual(t, r.offset+r.size, uint32(size))
		require.Zero(t, r.offset%roomAlign)
		require.Zero(t, r.size%roomAlign)
		for i := r.offset / roomAlign; i < (r.offset+r.size)/roomAlign; i++ {
			require.Zero(t, owner[i], "two rooms share bytes at %d", i*roomAlign)
			owner[i] = id
		}
		leased[id] = r
	}
	for _, r := range leased {
		a.give(r)
	}
	require.Equal(t, []room{{0, size}}, a.free)
	_, ok := a.take(size + 1)
	require.False(t, ok)
	whole, ok := a.take(size)
	require.True(t, ok)
	require.Empty(t, a.free)
	nothing, ok := a.take(0)
	require.True(t, ok)
	a.give(nothing)
	a.give(whole)
	require.Equal(t, []room{{0, size}}, a.free)
}
