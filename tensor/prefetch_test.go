package tensor

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Regions so large that lines are asked for beforehand, with rows of which a piece, its end or
// several are: the same as one copy per row, and nothing behind the lists is looked at.
func TestRowsOfALargeRegionAgainstOneByOne(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 0))
	for _, size := range []int{1, 7, 12, 16, 64, 65} {
		count := prefetchMin/size + 1
		for _, n := range []int{1, prefetchRows - 1, prefetchRows, prefetchRows + 1, 3*prefetchRows + 5} {
			rows, from := make([]uint32, n), make([]uint32, n)
			for i := range rows {
				rows[i], from[i] = uint32(r.IntN(count)), uint32(r.IntN(n))
			}
			rows[n-1] = uint32(count - 1)
			src := counting(n * size)
			for _, srcRows := range [][]uint32{nil, from} {
				dst, want := make([]byte, count*size), make([]byte, count*size)
				for i, row := range rows {
					copy(want[int(row)*size:][:size], src[rowAt(srcRows, i)*size:])
				}
				require.NoError(t, CopyRows(dst, src, size, rows[:n:n], srcRows))
				require.True(t, bytes.Equal(want, dst), "%d rows of %d bytes, from %v", n, size, srcRows != nil)
			}
		}
	}
}

func TestFillRowsStoresToTheseRowsOnly(t *testing.T) {
	for _, words := range []int{100, prefetchMin / 8} {
		for _, n := range []int{0, 1, prefetchRows, 2*prefetchRows + 1} {
			rows := shuffled(words)[:min(n, words)]
			dst, want := make([]uint64, words), make([]uint64, words)
			for _, row := range rows {
				want[row] = 77
			}
			FillRows(dst, slices.Clip(rows), 77)
			require.True(t, slices.Equal(want, dst), "%d of %d", n, words)
			require.Panics(t, func() { FillRows(dst, []uint32{uint32(words)}, 1) })
		}
	}
}
