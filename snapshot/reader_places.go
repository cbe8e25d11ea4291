package snapshot

import (
	"sync/atomic"

	"callboard/protocol"
	"callboard/shm"
)

// segment resolves an id; what the resolver says of a segment that cannot be had
// (the broker is gone) is passed on with its own status.
func (r *Reader) segment(id uint64, what string) ([]byte, error) {
	if id == 0 {
		return nil, corrupt("%s has no place (segment 0)", what)
	}
	mem, err := r.segments(id)
	if err != nil {
		e := StatusError(err)
		return nil, protocol.Errorf(e.Status, "%s lies in segment %d: %s", what, id, e.Text)
	}
	return mem, nil
}

// view is the struct of type T at a place of shared memory.
func view[T any](r *Reader, ref protocol.Ref, what string) (*T, error) {
	mem, err := r.segment(ref.Segment, what)
	if err != nil {
		return nil, err
	}
	p, err := shm.View[T](mem, ref.OffsetBytes)
	if err != nil {
		return nil, corrupt("%s in segment %d: %v", what, ref.Segment, err)
	}
	return p, nil
}

// views are n structs of type T at a place of shared memory.
func views[T any](r *Reader, ref protocol.Ref, n uint64, what string) ([]T, error) {
	mem, err := r.segment(ref.Segment, what)
	if err != nil {
		return nil, err
	}
	if n > uint64(len(mem)) { // at least one byte each; also keeps n an int
		return nil, corrupt("%s: %d entries do not fit segment %d of %d bytes", what, n, ref.Segment, len(mem))
	}
	s, err := shm.Slice[T](mem, ref.OffsetBytes, int(n))
	if err != nil {
		return nil, corrupt("%s in segment %d: %v", what, ref.Segment, err)
	}
	return s, nil
}

// block is length bytes at a place of shared memory.
func (r *Reader) block(ref protocol.Ref, length uint64, what string) ([]byte, error) {
	mem, err := r.segment(ref.Segment, what)
	if err != nil {
		return nil, err
	}
	if ref.OffsetBytes > uint64(len(mem)) || length > uint64(len(mem))-ref.OffsetBytes {
		return nil, corrupt("%s: %d bytes at offset %d do not fit segment %d of %d bytes", what, length, ref.OffsetBytes, ref.Segment, len(mem))
	}
	return mem[ref.OffsetBytes:][:length:length], nil
}

// entry is entry i of a doubling table whose pages stand in refs.
func entry[T any](r *Reader, what string, base uint64, refs []protocol.Ref, i uint64) (*T, error) {
	page, place := protocol.PagePlace(base, i)
	if page >= len(refs) {
		return nil, corrupt("%s entry %d needs page %d, the table has %d", what, i, page, len(refs))
	}
	ref := loadRef(&refs[page])
	offset := ref.OffsetBytes + place*sizeOf[T]()
	if offset < ref.OffsetBytes {
		return nil, corrupt("%s entry %d: its page's offset is %d", what, i, ref.OffsetBytes)
	}
	return view[T](r, protocol.Ref{Segment: ref.Segment, OffsetBytes: offset}, what+" entry")
}

// loadRef reads a place that its writer stores while readers run: the offset first,
// then the segment, so that whoever sees the segment sees the offset.
func loadRef(p *protocol.Ref) protocol.Ref {
	segment := atomic.LoadUint64(&p.Segment)
	return protocol.Ref{Segment: segment, OffsetBytes: atomic.LoadUint64(&p.OffsetBytes)}
}

// viewIn is n structs of type T at an offset of bytes that were found in a segment.
func viewIn[T any](data []byte, offset uint64, n int) ([]T, error) {
	s, err := shm.Slice[T](data, offset, n)
	if err != nil {
		return nil, corrupt("a block's content: %v", err)
	}
	return s, nil
}
