package snapshot

import (
	"slices"

	"callboard/fault"
)

// Query is an ordered list of prims. It belongs to one client.
type Query struct {
	prims      []uint64
	attributes []uint64 // token ids of what a filter found on them
	// The last row map: prim i lies in row cacheRows[i] of layout cacheOf. Every prim
	// has a row there, so it stays true when the layout grows; only cacheDense does not.
	cacheOf    *layout
	cacheRows  []uint32
	cacheDense bool
	cacheAge   uint64 // layout.changes then
	cacheSpan  int    // how many rows the layout had then, if the query covers all of them; else −1
	cacheUsed  bool
	cacheList  *rowList // the same rows, made when the row map is used for the second time, which pays it back
}

// rowList is a query's rows in a layout, in rising order. It is never written to again: who
// has the same list has the same rows, and whoever keeps one keeps its identity.
type rowList struct {
	rows   []uint32
	places []uint32 // the prim that each row is of; nil: in the query's order
	spans  []span   // the same rows once more, as the log has them
	single []uint32
}

// NewQuery makes a query without prims.
func NewQuery() *Query { return &Query{} }

// Add appends a prim.
func (q *Query) Add(path uint64) {
	q.prims = append(q.prims, path)
	if fault.On(fault.QueryUnordered) {
		slices.Sort(q.prims)
	}
	q.cacheOf = nil
}

// Size is the number of logical elements, duplicates counted.
func (q *Query) Size() uint64 { return uint64(len(q.prims)) }

// Prims are the path ids, in order; do not change them.
func (q *Query) Prims() []uint64 { return q.prims }

// Attributes are the token ids of what a filter found on the prims; none where the query
// is of explicit paths.
func (q *Query) Attributes() []uint64 { return q.attributes }

// first is a query of the first n prims: what q was before it grew.
func (q *Query) first(n uint64) *Query { return &Query{prims: q.prims[:n:n]} }

// lookUp fills the query's row map for l and tells whether the query is exactly the
// layout's rows in order, and how many prims have no row: theirs is absent.
func (q *Query) lookUp(l *layout) (rows []uint32, dense bool, missing int) {
	if q.cacheOf == l && q.cacheAge == l.changes && (!q.cacheDense || len(l.prims) == len(q.prims)) {
		return q.cacheRows, q.cacheDense, 0
	}
	if l.dead == 0 && slices.Equal(q.prims, l.prims) { // as after a first write
		rows = q.emptyMap()
		for i := range rows {
			rows[i] = uint32(i)
		}
		q.remember(l, true)
		return rows, true, 0
	}
	rows, dense = q.emptyMap(), len(q.prims) == len(l.prims)
	for i, prim := range q.prims {
		if row, ok := l.rows[prim]; ok {
			rows[i] = row
		} else {
			missing++
		}
		dense = dense && rows[i] == uint32(i)
	}
	if missing == 0 {
		q.remember(l, dense)
	}
	return rows, dense, missing
}

// remember keeps the row map, which is of all prims.
func (q *Query) remember(l *layout, dense bool) {
	q.cacheUsed, q.cacheList = false, nil
	q.cacheOf, q.cacheDense, q.cacheAge, q.cacheSpan = l, dense, l.changes, -1
	if !dense && len(q.cacheRows) >= len(l.prims) && coverAll(q.cacheRows, len(l.prims)) {
		q.cacheSpan = len(l.prims)
	}
}

// inOrder gives the rows that lookUp found for all prims, as they lie in memory, and the
// prim that each is of; of a prim that comes twice in the query's order. Whoever moves
// rows then meets each page and line once. nil at the first time: cacheRows will do.
func (q *Query) inOrder() *rowList {
	if !q.cacheUsed {
		q.cacheUsed = true
		return nil
	}
	if q.cacheList == nil {
		q.cacheList = &rowList{rows: q.cacheRows}
		if !slices.IsSorted(q.cacheRows) {
			q.cacheList.rows, q.cacheList.places = sortRows(q.cacheRows)
		}
		q.cacheList.spans, q.cacheList.single = split(q.cacheList.rows, nil, nil)
	}
	return q.cacheList
}

// sortRows puts rows in rising order, equal ones as they come, and tells their places.
// It sorts by digits of 11 bits, the lowest first.
func sortRows(rows []uint32) (sorted, places []uint32) {
	const digitBits = 11
	keys, next := make([]uint64, len(rows)), make([]uint64, len(rows))
	highest := uint32(0)
	for i, row := range rows {
		keys[i] = uint64(row)<<32 | uint64(i)
		highest = max(highest, row)
	}
	for shift := 0; highest>>shift > 0; shift += digitBits {
		var starts [1<<digitBits + 1]uint32
		for _, row := range rows {
			starts[row>>shift%(1<<digitBits)+1]++
		}
		for i := range 1 << digitBits {
			starts[i+1] += starts[i]
		}
		for _, key := range keys {
			digit := key >> (32 + shift) % (1 << digitBits)
			next[starts[digit]] = key
			starts[digit]++
		}
		keys, next = next, keys
	}
	sorted, places = make([]uint32, len(rows)), make([]uint32, len(rows))
	for i, key := range keys {
		sorted[i], places[i] = uint32(key>>32), uint32(key)
	}
	return sorted, places
}

// coverAll tells whether rows are all of n rows, in whatever order.
func coverAll(rows []uint32, n int) bool {
	seen, left := make([]uint64, (n+63)/64), n
	for _, row := range rows {
		if word, bit := &seen[row/64], uint64(1)<<(row%64); *word&bit == 0 {
			*word |= bit
			left--
		}
	}
	return left == 0
}

// emptyMap is the query's own space for a row map, all absent.
func (q *Query) emptyMap() []uint32 {
	q.cacheOf = nil
	if q.cacheList != nil && q.cacheList.places == nil {
		q.cacheRows = nil // they are the list's
	}
	q.cacheRows = slices.Grow(q.cacheRows[:0], len(q.prims))[:len(q.prims)]
	for i := range q.cacheRows {
		q.cacheRows[i] = absent
	}
	return q.cacheRows
}

// hashStart is the hash of no prims.
const hashStart = uint64(0xcbf29ce484222325)

// hashPrim adds a path id to a hash of those before it: FNV-1a over whole words.
func hashPrim(h, prim uint64) uint64 { return (h ^ prim) * 0x100000001b3 }

// hashPrims is the hash of a list of path ids.
func hashPrims(prims []uint64) uint64 {
	h := hashStart
	for _, prim := range prims {
		h = hashPrim(h, prim)
	}
	return h
}
