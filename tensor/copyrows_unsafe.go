package tensor

import "unsafe"

// CopyRows copies rows of rowBytes bytes: row srcRows[i] of src to row
// dstRows[i] of dst, for each i in order, so that the last duplicate wins. A
// nil list means 0, 1, 2 …; with both nil all of src is copied.
//
// All indices are checked before the first byte is written; an error means that
// nothing was. It allocates nothing. Neighbouring rows of unusual widths are moved
// together; the usual widths have loops that are as fast without looking for them.
//
// Preconditions: the lists are private to the process; they are checked once and
// then believed. dst and src do not overlap.
func CopyRows(dst, src []byte, rowBytes int, dstRows, srcRows []uint32) error {
	if rowBytes < 1 {
		return invalid("rows have %d bytes: expected at least 1", rowBytes)
	}
	dstCount, srcCount := len(dst)/rowBytes, len(src)/rowBytes
	n := srcCount
	switch {
	case dstRows != nil && srcRows != nil && len(dstRows) != len(srcRows):
		return invalid("row lists differ in length: %d targets and %d sources", len(dstRows), len(srcRows))
	case dstRows != nil:
		n = len(dstRows)
	case srcRows != nil:
		n = len(srcRows)
	}
	if dstRows == nil && n > dstCount {
		return invalid("%d rows are copied: the target has %d", n, dstCount)
	}
	if srcRows == nil && n > srcCount {
		return invalid("%d rows are copied: the source has %d", n, srcCount)
	}
	if err := checkRows("target row", dstRows, uint64(dstCount)); err != nil {
		return err
	}
	same := srcCount >= dstCount && unsafe.SliceData(srcRows) == unsafe.SliceData(dstRows) // one list for both
	if !same {
		if err := checkRows("source row", srcRows, uint64(srcCount)); err != nil {
			return err
		}
	}
	if n == 0 {
		return nil
	}
	if dstRows == nil && srcRows == nil {
		copy(dst, src[:n*rowBytes])
		return nil
	}
	if len(dst) < prefetchMin || rowBytes > prefetchWidth || dstRows == nil {
		copyPiece(dst, src, rowBytes, n, dstRows, srcRows)
		return nil
	}
	far := len(src) >= prefetchMin && srcRows != nil // rows come from all over a large region, too
	for i := 0; i < n; {
		end := ahead(unsafe.Pointer(unsafe.SliceData(dst)), uintptr(rowBytes), dstRows, i)
		if far {
			ahead(unsafe.Pointer(unsafe.SliceData(src)), uintptr(rowBytes), srcRows, i)
		}
		if srcRows == nil {
			copyPiece(dst, src[i*rowBytes:], rowBytes, end-i, dstRows[i:end], nil)
		} else {
			copyPiece(dst, src, rowBytes, end-i, dstRows[i:end], srcRows[i:end])
		}
		i = end
	}
	return nil
}

// copyPiece copies n rows whose indices were checked. At least one list is given.
func copyPiece(dst, src []byte, rowBytes, n int, dstRows, srcRows []uint32) {
	d, s := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	switch rowBytes {
	case 1:
		copyRows[[1]byte](d, s, n, dstRows, srcRows)
	case 2:
		copyRows[[2]byte](d, s, n, dstRows, srcRows)
	case 4:
		copyRows[[4]byte](d, s, n, dstRows, srcRows)
	case 8:
		copyRows[[8]byte](d, s, n, dstRows, srcRows)
	case 12:
		copyRows[[12]byte](d, s, n, dstRows, srcRows)
	case 16:
		copyRows[[16]byte](d, s, n, dstRows, srcRows)
	case 24:
		copyRows[[24]byte](d, s, n, dstRows, srcRows)
	case 32:
		copyRows[[32]byte](d, s, n, dstRows, srcRows)
	case 64:
		copyRows[[64]byte](d, s, n, dstRows, srcRows)
	default:
		copyRuns(dst, src, rowBytes, n, dstRows, srcRows)
	}
}

// rowAt is entry i of a list of rows; nil lists count.
func rowAt(rows []uint32, i int) int {
	if rows == nil {
		return i
	}
	return int(rows[i])
}

// copyRows moves rows of one fixed width. T is an array of bytes, so nothing is
// assumed about alignment, and the compiler makes each copy a few plain moves:
// a call to memmove would cost more than the row.
//
// Preconditions: all n indices are in bounds and at least one list is given.
func copyRows[T any](dst, src unsafe.Pointer, n int, dstRows, srcRows []uint32) {
	var t T
	size := unsafe.Sizeof(t)
	switch {
	case srcRows == nil:
		for i, row := range dstRows {
			*(*T)(unsafe.Add(dst, uintptr(row)*size)) = *(*T)(unsafe.Add(src, uintptr(i)*size))
		}
	case dstRows == nil:
		for i, row := range srcRows {
			*(*T)(unsafe.Add(dst, uintptr(i)*size)) = *(*T)(unsafe.Add(src, uintptr(row)*size))
		}
	default:
		srcRows = srcRows[:len(dstRows)]
		for i, row := range dstRows {
			*(*T)(unsafe.Add(dst, uintptr(row)*size)) = *(*T)(unsafe.Add(src, uintptr(srcRows[i])*size))
		}
	}
}

// copyRuns moves rows of any width, neighbours on both sides in one go.
func copyRuns(dst, src []byte, rowBytes, n int, dstRows, srcRows []uint32) {
	for i := 0; i < n; {
		d, s := rowAt(dstRows, i), rowAt(srcRows, i)
		run := 1
		for i+run < n && rowAt(dstRows, i+run) == d+run && rowAt(srcRows, i+run) == s+run {
			run++
		}
		copy(dst[d*rowBytes:(d+run)*rowBytes], src[s*rowBytes:(s+run)*rowBytes])
		i += run
	}
}
