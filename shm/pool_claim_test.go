package shm

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestClaimsAreRefusedWithNumbers: what is not wholly free cannot be claimed.
func TestClaimsAreRefusedWithNumbers(t *testing.T) {
	p := NewPool(PageAlign)
	p.AddSegment(7, FirstSegment)
	claim := func(offset, length uint64) error { return p.Claim(Block{7, offset, length}) }
	require.NoError(t, claim(PageAlign+512, 1024))
	require.NoError(t, claim(PageAlign, 512), "right before another")
	require.NoError(t, claim(FirstSegment-256, 256), "to the segment's end")
	warm, ok := p.Alloc(4096)
	require.True(t, ok)
	p.Free(warm)
	leased, ok := p.Alloc(8192)
	require.True(t, ok)

	for _, c := range []struct {
		why   string
		block Block
		says  string
	}{
		{"twice", Block{7, PageAlign, 512}, "leased"},
		{"the end of another", Block{7, PageAlign + 1280, 512}, "leased"},
		{"over the beginning of another", Block{7, FirstSegment - 512, 512}, "free"},
		{"over a whole one", Block{7, FirstSegment - 768, 768}, "free"},
		{"a leased block", Block{7, leased.Offset, 256}, "leased"},
		{"a warm block", Block{7, warm.Offset, 256}, "warm"},
		{"the header", Block{7, 0, 256}, "between 4096 and 1048576"},
		{"behind the end", Block{7, FirstSegment, 256}, "between 4096 and 1048576"},
		{"over the end", Block{7, FirstSegment - 256, 512}, "between 4096 and 1048576"},
		{"a length that overflows", Block{7, FirstSegment - 256, 1<<64 - 256}, "between 4096 and 1048576"},
		{"half a unit", Block{7, 1 << 15, 100}, "multiples of 256"},
		{"an odd place", Block{7, 1<<15 + 1, 256}, "multiples of 256"},
		{"nothing", Block{7, 1 << 15, 0}, "some length"},
		{"another segment", Block{8, 1 << 15, 256}, "no such segment"},
	} {
		stats := p.Stats()
		require.ErrorContains(t, p.Claim(c.block), c.says, c.why)
		require.Equal(t, stats, p.Stats(), c.why)
	}
}

// TestAClaimOfNoClassIsNeverLeasedForOne: a warm list holds blocks of one length each.
func TestAClaimOfNoClassIsNeverLeasedForOne(t *testing.T) {
	p := NewPool(PageAlign)
	p.AddSegment(1, FirstSegment)
	odd := Block{1, PageAlign, 9 * BlockAlign} // classes are of 8 and of 10 units
	require.NoError(t, p.Claim(odd))
	p.Free(odd)
	require.Zero(t, p.warmed)
	b, ok := p.Alloc(8 * BlockAlign)
	require.True(t, ok)
	require.EqualValues(t, 8*BlockAlign, b.Length)

	even := Block{1, 1 << 18, 10 * BlockAlign}
	require.NoError(t, p.Claim(even))
	p.Free(even)
	require.Equal(t, 1, p.warmed)
	b, ok = p.Alloc(9 * BlockAlign)
	require.True(t, ok)
	require.Equal(t, even, b, "one that is of a class stays warm")
}

// TestRandomClaimsLoseNothing: whatever is claimed, in whatever order, what is left is
// free, and all of it is when the claims are freed.
func TestRandomClaimsLoseNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 200 {
		p := NewPool(PageAlign)
		p.AddSegment(1, 3*FirstSegment)
		var claims []Block
		for at := uint64(PageAlign); at < 3*FirstSegment; {
			length := BlockAlign * (1 + r.Uint64N(1<<r.IntN(12)))
			if length = min(length, 3*FirstSegment-at); r.IntN(2) == 0 {
				claims = append(claims, Block{1, at, length})
			}
			at += length
		}
		if r.IntN(2) == 0 {
			r.Shuffle(len(claims), func(i, k int) { claims[i], claims[k] = claims[k], claims[i] })
		}
		leased := uint64(0)
		for _, b := range claims {
			require.NoError(t, p.Claim(b))
			leased += b.Length
		}
		require.Equal(t, leased, p.Stats().Leased)
		checkChain(t, p, seed)
		for b, ok := p.Alloc(BlockAlign * (1 + r.Uint64N(64))); ok; b, ok = p.Alloc(BlockAlign * (1 + r.Uint64N(64))) {
			require.False(t, slices.ContainsFunc(claims, func(c Block) bool { return b.Offset < c.Offset+c.Length && c.Offset < b.Offset+b.Length }), "seed %d", seed)
			claims = append(claims, b)
		}
		for _, b := range claims {
			p.Free(b)
		}
		p.melt()
		require.EqualValues(t, 3*FirstSegment-PageAlign, p.Stats().LargestFree)
		checkChain(t, p, seed)
	}
}
