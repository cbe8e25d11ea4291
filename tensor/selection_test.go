package tensor

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Behaviour 62 to 91, on rows of one byte.
func TestApply(t *testing.T) {
	cases := []struct {
		name    string
		seed    []byte
		rows    []byte
		sel     Selection
		want    []byte // nil when refused
		refused []string
	}{
		{name: "62 whole set", seed: []byte{1, 2, 3, 4}, rows: []byte{5, 6, 7, 8}, sel: Selection{Count: All}, want: []byte{5, 6, 7, 8}},
		{name: "63 count addresses the leading prims", seed: []byte{5, 6, 7, 8}, rows: []byte{50, 60}, sel: Selection{Count: 2}, want: []byte{50, 60, 7, 8}},
		{name: "64 count beyond the set", seed: []byte{1, 2, 3, 4}, rows: make([]byte, 5), sel: Selection{Count: 5}, refused: []string{"count is 5", "4 prims"}},
		{name: "65 zero is not everything", seed: []byte{1, 2}, rows: []byte{3, 4}, sel: Selection{}, refused: []string{"count is 0", "all"}},
		{name: "67 map without count", seed: []byte{1, 2}, rows: []byte{3}, sel: Selection{IndexMap: []uint32{0}},
			refused: []string{"count must be non-zero", "index map"}},
		{name: "67 mask without count", seed: []byte{1, 2}, rows: []byte{3, 4}, sel: Selection{Mask: []uint64{1}},
			refused: []string{"count must be non-zero", "mask"}},
		{name: "70 gather direction", seed: []byte{5, 6, 7, 8}, rows: []byte{70, 80, 90}, sel: Selection{Count: 3, IndexMap: []uint32{2, 0, 1}},
			want: []byte{90, 70, 80, 8}},
		{name: "71 broadcast", seed: []byte{1, 2, 3}, rows: []byte{9}, sel: Selection{Count: All, IndexMap: []uint32{0, 0, 0}}, want: []byte{9, 9, 9}},
		{name: "74 out of range", seed: []byte{1, 2}, rows: []byte{9}, sel: Selection{Count: 1, IndexMap: []uint32{1}},
			refused: []string{"index map entry 0 is 1", "1 rows"}},
		{name: "75 out of range at the end", seed: []byte{1, 2}, rows: []byte{8, 9}, sel: Selection{Count: 2, IndexMap: []uint32{0, 2}},
			refused: []string{"index map entry 1 is 2", "2 rows"}},
		{name: "89 largest entry", seed: []byte{1, 2}, rows: []byte{8, 9}, sel: Selection{Count: 2, IndexMap: []uint32{0, math.MaxUint32}},
			refused: []string{"4294967295"}},
		{name: "76 the map picks sources", seed: []byte{1, 2}, rows: []byte{10, 20}, sel: Selection{Count: 1, IndexMap: []uint32{1}}, want: []byte{20, 2}},
		{name: "81 map and mask", seed: []byte{1}, rows: []byte{2}, sel: Selection{Count: 1, IndexMap: []uint32{0}, Mask: []uint64{1}},
			refused: []string{"index map and mask"}},
		{name: "82 mask writes only set bits", seed: []byte{5, 6, 7, 8, 9}, rows: []byte{0, 0, 70, 0, 0}, sel: Selection{Count: 5, Mask: []uint64{4}},
			want: []byte{5, 6, 70, 8, 9}},
		{name: "82 bits beyond count are ignored", seed: []byte{5, 6, 7}, rows: []byte{50, 60}, sel: Selection{Count: 2, Mask: []uint64{math.MaxUint64 - 1}},
			want: []byte{5, 60, 7}},
		{name: "82 no bit set", seed: []byte{5, 6}, rows: []byte{1, 2}, sel: Selection{Count: All, Mask: []uint64{0}}, want: []byte{5, 6}},
		{name: "84 mask too short", seed: make([]byte, 65), rows: make([]byte, 65), sel: Selection{Count: 65, Mask: []uint64{1}},
			refused: []string{"mask has 1 words", "needs 2"}},
		{name: "84 mask empty", seed: []byte{1}, rows: []byte{2}, sel: Selection{Count: 1, Mask: []uint64{}}, refused: []string{"mask has 0 words"}},
		{name: "86 a mask does not shrink the payload", seed: []byte{1, 2, 3, 4}, rows: []byte{9}, sel: Selection{Count: 4, Mask: []uint64{1}},
			refused: []string{"1 rows", "expected 4", "mask"}},
		{name: "90 map longer than count", seed: []byte{1, 2, 3}, rows: []byte{7, 8}, sel: Selection{Count: 2, IndexMap: []uint32{1, 0, 9, 9, 9}},
			want: []byte{8, 7, 3}},
		{name: "90 map shorter than count", seed: []byte{1, 2, 3}, rows: []byte{7, 8}, sel: Selection{Count: 3, IndexMap: []uint32{1, 0}},
			refused: []string{"index map has 2 entries", "count is 3"}},
		{name: "8 too few rows", seed: []byte{1, 2, 3}, rows: []byte{7, 8}, sel: Selection{Count: All}, refused: []string{"2 rows", "expected 3"}},
		{name: "19 empty set", seed: []byte{}, rows: []byte{}, sel: Selection{Count: All}, want: []byte{}},
		{name: "19 empty set with a mask of no words", seed: []byte{}, rows: []byte{}, sel: Selection{Count: All, Mask: []uint64{}}, want: []byte{}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dst := append([]byte{}, c.seed...)
			err := c.sel.Apply(dst, nil, c.rows, 1)
			if c.want == nil {
				requireRefused(t, err, InvalidArgument, c.refused...)
				require.Equal(t, c.seed, dst, "written although refused")
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, dst)
		})
	}
}

// Behaviour 18: a set that is narrower than the column, in another order.
func TestApplyPartialUpdateLeavesOtherRows(t *testing.T) {
	dst := []byte{1, 2, 3, 4, 5}
	sel := Selection{Count: All}
	require.NoError(t, sel.Apply(dst, []uint32{3, 1}, []byte{40, 20}, 1))
	require.Equal(t, []byte{1, 20, 3, 40, 5}, dst)
}

// Behaviour 91: of duplicate targets the last logical one wins.
func TestApplyLastDuplicateWins(t *testing.T) {
	for _, size := range []int{1, 12, 24, 40} {
		dst, src := make([]byte, 2*size), counting(3*size)
		sel := Selection{Count: All}
		require.NoError(t, sel.Apply(dst, []uint32{1, 0, 1}, src, size))
		require.Equal(t, src[size:3*size], dst)
	}
}

func TestApplyRefusesBadColumnRowsBeforeAnyByte(t *testing.T) {
	for _, sel := range []Selection{{Count: All}, {Count: All, IndexMap: []uint32{0, 1, 2}}, {Count: All, Mask: []uint64{5}}} {
		dst := make([]byte, 3)
		requireRefused(t, sel.Apply(dst, []uint32{0, 1, 3}, []byte{7, 8, 9}, 1), InvalidArgument, "target row 2 is 3", "3 rows")
		require.Equal(t, make([]byte, 3), dst)
	}
	sel := Selection{Count: All}
	requireRefused(t, sel.Apply(make([]byte, 4), nil, make([]byte, 5), 2), InvalidArgument, "5 bytes", "2 bytes")
	requireRefused(t, sel.Apply(make([]byte, 4), nil, make([]byte, 4), 0), InvalidArgument, "0 bytes")
}

// Behaviour 21, 22, 35, 77, 78, 80: how a packed array payload is cut.
func TestPackedRows(t *testing.T) {
	cases := []struct {
		name              string
		setSize, elements uint64
		sel               Selection
		rows, each        uint64
		refused           []string
	}{
		{name: "21 uniform rows", setSize: 3, elements: 6, sel: Selection{Count: All}, rows: 3, each: 2},
		{name: "22 does not divide", setSize: 3, elements: 7, sel: Selection{Count: All}, refused: []string{"7 elements", "3 rows", "addressed prims"}},
		{name: "35 one prim", setSize: 1, elements: 5, sel: Selection{Count: All}, rows: 1, each: 5},
		{name: "77 the map defines the partition", setSize: 2, elements: 12, sel: Selection{Count: All, IndexMap: []uint32{0, 2}}, rows: 3, each: 4},
		{name: "78 partition does not fit", setSize: 2, elements: 10, sel: Selection{Count: All, IndexMap: []uint32{0, 2}},
			refused: []string{"10 elements", "3 rows", "highest index map entry"}},
		{name: "80 row count is L", setSize: 4, elements: 6, sel: Selection{Count: 2}, rows: 2, each: 3},
		{name: "86 mask keeps all rows", setSize: 4, elements: 8, sel: Selection{Count: 4, Mask: []uint64{1}}, rows: 4, each: 2},
		{name: "29 empty rows", setSize: 3, elements: 0, sel: Selection{Count: All}, rows: 3, each: 0},
		{name: "19 empty set", setSize: 0, elements: 0, sel: Selection{Count: All}},
		{name: "19 empty set with elements", setSize: 0, elements: 4, sel: Selection{Count: All}, refused: []string{"4 elements", "0 rows"}},
		{name: "largest entry", setSize: 1, elements: 1 << 32, sel: Selection{Count: 1, IndexMap: []uint32{math.MaxUint32}}, rows: 1 << 32, each: 1},
		{name: "65 zero count", setSize: 4, elements: 8, sel: Selection{}, refused: []string{"count is 0"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			rows, each, err := c.sel.PackedRows(c.setSize, c.elements)
			if c.refused != nil {
				requireRefused(t, err, InvalidArgument, c.refused...)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.rows, rows)
			require.Equal(t, c.each, each)
			_, err = c.sel.Resolve(c.setSize, rows)
			require.NoError(t, err)
		})
	}
}

// The largest numbers must not wrap on the way to the check.
func TestResolveHugeNumbers(t *testing.T) {
	s := Selection{Count: math.MaxUint64 - 1, Mask: []uint64{1}}
	_, err := s.Resolve(math.MaxUint64, math.MaxUint64-1)
	requireRefused(t, err, InvalidArgument, "mask has 1 words", "288230376151711744")
	s = Selection{Count: All, IndexMap: []uint32{0}}
	_, err = s.Resolve(math.MaxUint64, 1)
	requireRefused(t, err, InvalidArgument, "index map has 1 entries")
}

func TestRowsStopsEarly(t *testing.T) {
	s := Selection{Count: All, Mask: []uint64{0b1011}}
	var got []uint64
	for target, row := range s.Rows(0, 4) {
		require.Equal(t, target, row)
		if got = append(got, target); len(got) == 2 {
			break
		}
	}
	require.Equal(t, []uint64{0, 1}, got)
}

func TestApplyAllocatesNothing(t *testing.T) {
	rowOf := shuffled(1000)
	dst, src := make([]byte, 12000), make([]byte, 12000)
	mask := make([]uint64, 16)
	for i := range mask {
		mask[i] = 0xF0F0F0F0F0F0F0F0
	}
	for _, s := range []Selection{{Count: All}, {Count: All, IndexMap: shuffled(1000)}, {Count: All, Mask: mask}} {
		require.Zero(t, testing.AllocsPerRun(20, func() {
			if err := s.Apply(dst, rowOf, src, 12); err != nil {
				t.Fatal(err)
			}
		}))
	}
}

// Every selection against a loop that does what the rules say, one by one; the
// same cut into two ranges; and the iterator.
func FuzzSelection(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 1))
		setSize, column, size := r.IntN(200), 1+r.IntN(200), 1+r.IntN(70)
		rowOf := make([]uint32, setSize)
		for i := range rowOf {
			rowOf[i] = uint32(r.IntN(column))
			if i > 0 && r.IntN(2) == 0 && int(rowOf[i-1])+1 < column {
				rowOf[i] = rowOf[i-1] + 1
			}
		}
		sel := Selection{Count: All}
		if r.IntN(2) == 0 {
			sel.Count = uint64(r.IntN(setSize + 2))
		}
		rows := setSize
		if sel.Count != All {
			rows = int(sel.Count)
		}
		form := r.IntN(4)
		if form == 1 {
			rows = 1 + r.IntN(50)
			sel.IndexMap = make([]uint32, setSize)
			for i := range sel.IndexMap {
				sel.IndexMap[i] = uint32(r.IntN(rows))
			}
		}
		if form == 2 {
			sel.Mask = make([]uint64, 4)
			for i := range sel.Mask {
				sel.Mask[i] = r.Uint64() | r.Uint64()
			}
		}
		src := counting(rows * size)
		got := make([]byte, column*size)
		err := sel.Apply(got, rowOf, src, size)
		valid := sel.Count == All || sel.Count > 0 && sel.Count <= uint64(setSize)
		if !valid {
			requireRefused(t, err, InvalidArgument, "count")
			return
		}
		require.NoError(t, err)
		n := setSize
		if sel.Count != All {
			n = int(sel.Count)
		}
		want := make([]byte, column*size)
		next, stop := 0, func(i int) bool { return sel.Mask != nil && sel.Mask[i/64]>>(i%64)&1 == 0 }
		for target, row := range sel.Rows(0, uint64(n)) {
			for stop(next) {
				next++
			}
			from := next
			if sel.IndexMap != nil {
				from = int(sel.IndexMap[next])
			}
			require.Equal(t, [2]uint64{uint64(next), uint64(from)}, [2]uint64{target, row})
			copy(want[int(rowOf[next])*size:][:size], src[from*size:])
			next++
		}
		for ; next < n; next++ {
			require.True(t, stop(next), "target %d was left out", next)
		}
		require.Equal(t, want, got)

		again := make([]byte, column*size)
		cut := uint64(r.IntN(n + 1))
		require.NoError(t, sel.ApplyRange(again, rowOf, src, size, 0, cut))
		require.NoError(t, sel.ApplyRange(again, rowOf, src, size, cut, uint64(n)))
		require.Equal(t, want, again)
	})
}
