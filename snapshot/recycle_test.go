package snapshot

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCatchingUpTouchesOnlyWhatChanged: rule O7. A block that is brought up to date gets
// the rows that the log names and no others, be they runs, rows on their own or both.
func TestCatchingUpTouchesOnlyWhatChanged(t *testing.T) {
	const n, rowBytes = 1000, 64
	for name, rows := range map[string][]uint32{
		"a run":       {5, 6, 7, 8, 9},
		"single rows": {3, 900, 41},
		"both":        {3, 10, 11, 12, 13, 14, 900},
	} {
		t.Run(name, func(t *testing.T) {
			c := &column{}
			c.log[1].begin(false)
			c.log[1].add(rows, n)
			dst, src := make([]byte, n*rowBytes), bytes.Repeat([]byte{1}, n*rowBytes)
			want := make([]byte, n*rowBytes)
			for _, row := range rows {
				copy(want[row*rowBytes:][:rowBytes], src)
			}
			c.catchUp(1, 1, n, rowBytes, dst, src, nil)
			require.True(t, bytes.Equal(want, dst))
		})
	}
}

// TestALogKeepsEveryRow: runs of four and more are kept as runs, whatever is
// around them, and every row is in the log.
func TestALogKeepsEveryRow(t *testing.T) {
	for _, rows := range [][]uint32{
		{}, {7}, {1, 2, 3}, {1, 2, 3, 4}, {9, 1, 2, 3, 4, 9}, {1, 2, 3, 4, 6, 7, 8, 9}, {4, 4, 5, 6, 7, 7}, {5, 3, 4, 5, 6, 8, 9, 10}, {0, 1, 2, 4, 5, 6, 7, 8, 3},
	} {
		var d changed
		d.begin(false)
		d.add(rows, 1000)
		all := append([]uint32{}, d.single...)
		for _, run := range d.spans {
			require.GreaterOrEqual(t, run.count, uint32(runMin))
			for i := range run.count {
				all = append(all, run.first+i)
			}
		}
		require.ElementsMatch(t, rows, all)
		require.EqualValues(t, len(rows), d.count)
	}
}
