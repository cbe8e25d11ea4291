package tensor

import (
	"iter"
	"math/bits"

	"callboard/fault"
)

// All as a Selection's Count addresses the whole set.
const All = ^uint64(0)

// Selection says which targets of a set are written and from which source rows.
// The set is ordered; its first Count entries, L of them, are addressed.
//
//   - With neither map nor mask, source row i goes to target i.
//   - With IndexMap, source row IndexMap[i] goes to target i: a gather. The
//     payload may have any number of rows.
//   - With Mask, source row i goes to target i where bit i is set: bit i%64 of
//     word i/64. The payload still has L rows.
//
// A nil map or mask is absent; an empty one that is not nil is too short. The
// slices must be private copies. The zero Selection is not valid: a length that
// was computed as 0 must not widen to everything.
type Selection struct {
	Count    uint64
	IndexMap []uint32
	Mask     []uint64
}

// Resolve checks the selection against a set of setSize targets and a payload
// of rows source rows, and returns L.
func (s *Selection) Resolve(setSize, rows uint64) (uint64, error) {
	n, err := s.targets(setSize)
	if err != nil {
		return 0, err
	}
	if s.IndexMap == nil {
		if rows != n {
			return 0, invalid("tensor has %d rows: expected %d, one per addressed prim%s", rows, n, s.why())
		}
		return n, nil
	}
	return n, checkRows("index map entry", s.IndexMap[:n], rows)
}

// why adds what people overlook about a mask: it never shrinks the payload.
func (s *Selection) why() string {
	if s.Mask != nil {
		return "; a mask leaves out targets, not rows of the payload"
	}
	return ""
}

// PackedRows cuts a packed array payload into rows of equal length: L rows, or
// with an index map as many as its highest entry asks for. It returns their
// number and the elements in each; Resolve(setSize, rows) then holds.
func (s *Selection) PackedRows(setSize, elements uint64) (rows, each uint64, err error) {
	n, err := s.targets(setSize)
	if err != nil {
		return 0, 0, err
	}
	rows, from := n, "from the number of addressed prims"
	if s.IndexMap != nil {
		rows, from = 0, "from the highest index map entry"
		for _, row := range s.IndexMap[:n] {
			rows = max(rows, uint64(row)+1)
		}
	}
	switch {
	case rows == 0 && elements == 0:
		return 0, 0, nil
	case rows == 0 || elements%rows != 0:
		return 0, 0, invalid("packed tensor has %d elements: they do not divide into %d rows, a number that comes %s",
			elements, rows, from)
	}
	return rows, elements / rows, nil
}

// targets checks everything that does not depend on the payload.
func (s *Selection) targets(setSize uint64) (uint64, error) {
	if s.IndexMap != nil && s.Mask != nil {
		return 0, invalid("index map and mask are both given: expected at most one of them")
	}
	n := s.Count
	switch {
	case n == All:
		n = setSize
	case n == 0 && s.IndexMap != nil:
		return 0, invalid("count is 0 with an index map of %d entries: count must be non-zero, at most %d", len(s.IndexMap), setSize)
	case n == 0 && s.Mask != nil:
		return 0, invalid("count is 0 with a mask of %d words: count must be non-zero, at most %d", len(s.Mask), setSize)
	case n == 0:
		return 0, invalid("count is 0: expected 1 to %d, or the explicit \"all\"", setSize)
	case n > setSize:
		return 0, invalid("count is %d: the set has %d prims", n, setSize)
	}
	if s.IndexMap != nil && uint64(len(s.IndexMap)) < n {
		return 0, invalid("index map has %d entries: count is %d", len(s.IndexMap), n)
	}
	if words := n/64 + (n%64+63)/64; s.Mask != nil && uint64(len(s.Mask)) < words {
		return 0, invalid("mask has %d words of 64 bits: count is %d and needs %d", len(s.Mask), n, words)
	}
	return n, nil
}

// Rows yields, in order, each target in [lo, hi) that is written and its source
// row. Targets are positions in the set. Preconditions: Resolve has succeeded
// and hi is at most the L that it returned.
func (s *Selection) Rows(lo, hi uint64) iter.Seq2[uint64, uint64] {
	return func(yield func(target, row uint64) bool) {
		for i := lo; i < hi; i++ {
			row := i
			if s.IndexMap != nil {
				row = uint64(s.IndexMap[i])
			} else if s.Mask != nil {
				if i, _ = nextRun(s.Mask, i, hi); i == hi {
					return
				}
				row = i
			}
			if !yield(i, row) {
				return
			}
		}
	}
}

// Apply writes a fixed payload into a column: resolve, then copy. dst holds the
// column's rows and src the payload's, both compact, rowBytes each. rowOf gives
// the column row of every target of the set; nil means that dst is exactly the
// set in order. Of duplicate targets the last one wins. Nothing is written when
// an error is returned.
func (s *Selection) Apply(dst []byte, rowOf []uint32, src []byte, rowBytes int) error {
	if rowBytes < 1 || len(src)%rowBytes != 0 {
		return invalid("tensor has %d bytes: they do not divide into rows of %d bytes", len(src), rowBytes)
	}
	setSize := uint64(len(rowOf))
	if rowOf == nil {
		setSize = uint64(len(dst) / rowBytes)
	}
	n, err := s.Resolve(setSize, uint64(len(src)/rowBytes))
	if err != nil {
		return err
	}
	if s.Mask != nil { // many runs, each checked on its own: the first error must come before the first byte
		if err := checkRows("target row", rowOf, uint64(len(dst)/rowBytes)); err != nil {
			return err
		}
	}
	return s.ApplyRange(dst, rowOf, src, rowBytes, 0, n)
}

// ApplyRange does the part of Apply for targets [lo, hi), so that a big copy
// can be cut into jobs. Jobs of one payload may run side by side only when no
// two targets share a row; else they must run in order.
//
// Preconditions: Resolve has succeeded and hi is at most the L it returned.
func (s *Selection) ApplyRange(dst []byte, rowOf []uint32, src []byte, rowBytes int, lo, hi uint64) error {
	if lo >= hi {
		return nil
	}
	if s.Mask == nil {
		return s.applyRun(dst, rowOf, src, rowBytes, lo, hi)
	}
	for {
		first, end := nextRun(s.Mask, lo, hi)
		if first == hi {
			return nil
		}
		if err := s.applyRun(dst, rowOf, src, rowBytes, first, end); err != nil {
			return err
		}
		lo = end
	}
}

// applyRun copies targets [lo, hi), all of them selected.
func (s *Selection) applyRun(dst []byte, rowOf []uint32, src []byte, rowBytes int, lo, hi uint64) error {
	size := uint64(rowBytes)
	if rowOf != nil {
		rowOf = rowOf[lo:hi]
	} else {
		dst = dst[lo*size : hi*size]
	}
	if s.IndexMap != nil {
		return CopyRows(dst, src, rowBytes, rowOf, s.IndexMap[lo:hi])
	}
	return CopyRows(dst, src[lo*size:hi*size], rowBytes, rowOf, nil)
}

// nextRun finds the first run of set bits in [lo, hi): its start and its end.
// Both are hi when there is none.
func nextRun(mask []uint64, lo, hi uint64) (first, end uint64) {
	first = nextBit(mask, lo, hi, 0)
	return first, nextBit(mask, first, hi, ^uint64(0))
}

// nextBit finds the first bit in [lo, hi) that differs from those of flip.
func nextBit(mask []uint64, lo, hi, flip uint64) uint64 {
	if fault.On(fault.MaskInverted) {
		flip = ^flip
	}
	for lo < hi {
		if word := (mask[lo/64] ^ flip) >> (lo % 64); word != 0 {
			return min(lo+uint64(bits.TrailingZeros64(word)), hi)
		}
		lo = lo/64*64 + 64
	}
	return hi
}

// checkRows finds the first index that is not below count. The maximum is taken
// first, in four chains that do not wait for each other; the culprit is searched
// only if there is one.
func checkRows(what string, rows []uint32, count uint64) error {
	var a, b, c, d uint32
	four := rows
	for ; len(four) >= 4; four = four[4:] {
		a, b, c, d = max(a, four[0]), max(b, four[1]), max(c, four[2]), max(d, four[3])
	}
	for _, row := range four {
		a = max(a, row)
	}
	if len(rows) == 0 || uint64(max(a, b, c, d)) < count {
		return nil
	}
	for i, row := range rows {
		if uint64(row) >= count {
			return invalid("%s %d is %d: there are %d rows, numbered from 0", what, i, row, count)
		}
	}
	panic("tensor: row list changed while it was checked: it must be private")
}
