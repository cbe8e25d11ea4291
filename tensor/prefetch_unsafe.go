package tensor

import "unsafe"

// Rows all over a region that no cache holds are stored one after the other: each store waits
// for its line, and few are waited for at once. So the lines of the rows after those that are
// stored now are asked for beforehand, which takes half of the time. It is two dozen
// instructions of assembly, since Go has no word for it.

const (
	// prefetchRows is how many rows ahead lines are asked for: more than a core waits for
	// at once, so that it always does.
	prefetchRows = 64
	// prefetchMin is how large a region must be for that: a smaller one stays in the cache.
	prefetchMin = 128 << 10
	// prefetchWidth is how long a row may be: of a longer one the processor asks for the rest itself.
	prefetchWidth = 64
)

// prefetch asks for the first line of n ≥ 1 rows of size bytes that begin at base.
//
//go:noescape
func prefetch(base unsafe.Pointer, size uintptr, rows *uint32, n uintptr)

// ahead asks for the lines of rows' entries from first on that are stored to next, and gives
// the end of the piece before which that suffices.
func ahead(base unsafe.Pointer, size uintptr, rows []uint32, first int) (end int) {
	if first == 0 {
		prefetch(base, size, &rows[0], uintptr(min(prefetchRows, len(rows))))
	}
	end = min(first+prefetchRows, len(rows))
	if left := len(rows) - end; left > 0 {
		prefetch(base, size, &rows[end], uintptr(min(prefetchRows, left)))
	}
	return end
}

// FillRows stores value to the words of dst that rows name; the words of a large dst are
// asked for beforehand. A row that dst does not have is a panic, with what comes before it
// stored.
func FillRows(dst []uint64, rows []uint32, value uint64) {
	if 8*len(dst) < prefetchMin {
		for _, row := range rows {
			dst[row] = value
		}
		return
	}
	for i := 0; i < len(rows); {
		end := ahead(unsafe.Pointer(unsafe.SliceData(dst)), 8, rows, i)
		for _, row := range rows[i:end] {
			dst[row] = value
		}
		i = end
	}
}
