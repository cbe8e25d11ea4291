package tensor

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// All widths, all four combinations of lists, against one copy per row.
func TestCopyRowsAgainstOneByOne(t *testing.T) {
	const seed = 20
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for size := 1; size <= 140; size++ {
		for form := range 4 {
			n := r.IntN(40)
			dst, src := make([]byte, 50*size), counting(n*size)
			var dstRows, srcRows []uint32
			if form&1 != 0 {
				dstRows = make([]uint32, n)
				for i := range dstRows {
					dstRows[i] = uint32(r.IntN(50))
				}
			}
			if form&2 != 0 {
				src = counting(30 * size)
				srcRows = make([]uint32, n)
				for i := range srcRows {
					srcRows[i] = uint32(r.IntN(30))
				}
			}
			want := make([]byte, len(dst))
			for i := range n {
				copy(want[rowAt(dstRows, i)*size:][:size], src[rowAt(srcRows, i)*size:])
			}
			require.NoError(t, CopyRows(dst, src, size, dstRows, srcRows))
			require.Equal(t, want, dst, "%d bytes a row, form %d", size, form)
		}
	}
}

func TestCopyRowsChecksEverythingFirst(t *testing.T) {
	cases := []struct {
		name             string
		dst, src, size   int
		dstRows, srcRows []uint32
		mentions         []string
	}{
		{"target beyond the end", 24, 24, 12, []uint32{0, 2}, nil, []string{"target row 1 is 2", "2 rows"}},
		{"89 largest target", 24, 24, 12, []uint32{0, math.MaxUint32}, nil, []string{"4294967295"}},
		{"bad entry among many", 10, 10, 1, []uint32{0, 1, 2, 3, 4, 10, 6, 7, 8, 9}, nil, []string{"target row 5 is 10"}},
		{"source beyond the end", 24, 24, 12, nil, []uint32{0, 1, 2}, []string{"3 rows", "target has 2"}},
		{"source entry beyond the end", 24, 24, 12, nil, []uint32{0, 2}, []string{"source row 1 is 2"}},
		{"last row is cut off", 24, 23, 12, nil, []uint32{0, 1}, []string{"source row 1 is 1", "1 rows"}},
		{"more targets than rows", 36, 24, 12, []uint32{0, 1, 2}, nil, []string{"3 rows", "source has 2"}},
		{"lists of two lengths", 24, 24, 12, []uint32{0, 1}, []uint32{0}, []string{"2 targets", "1 sources"}},
		{"target too small", 12, 24, 12, nil, nil, []string{"2 rows", "target has 1"}},
		{"no row size", 12, 12, 0, nil, nil, []string{"0 bytes"}},
		{"negative row size", 12, 12, -4, nil, nil, []string{"-4 bytes"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dst := make([]byte, c.dst)
			src := make([]byte, c.src)
			for i := range src {
				src[i] = 0xFF
			}
			requireRefused(t, CopyRows(dst, src, c.size, c.dstRows, c.srcRows), InvalidArgument, c.mentions...)
			require.Equal(t, make([]byte, c.dst), dst)
		})
	}
}

func TestCopyRowsOfNothing(t *testing.T) {
	require.NoError(t, CopyRows(nil, nil, 12, nil, nil))
	require.NoError(t, CopyRows(nil, nil, 12, []uint32{}, []uint32{}))
	require.NoError(t, CopyRows(nil, make([]byte, 12), 12, []uint32{}, nil))
}

func TestCopyRowsAllocatesNothing(t *testing.T) {
	order := shuffled(1000)
	for _, size := range []int{4, 12, 48} {
		dst, src := make([]byte, 1000*size), make([]byte, 1000*size)
		require.Zero(t, testing.AllocsPerRun(20, func() {
			if err := CopyRows(dst, src, size, order, order); err != nil {
				t.Fatal(err)
			}
		}))
	}
}
