package snapshot

import (
	"callboard/protocol"
	"callboard/tensor"
)

// Ragged gives the rows of a row map in v, a version of an array column: the elements
// of each, in place, valid as long as p. Rows may share their bytes. What is given out
// is counted as pinned until the release (rule V7): LIMIT.
//
// v must have been found through p. Every place is checked against its segment, and
// every length against the size of an element: INTERNAL.
func (p *Pinned) Ragged(v *Version, m *RowMap) ([][]byte, error) {
	refs, err := viewIn[protocol.RowRef](v.Data, 0, int(v.Rows))
	if err != nil {
		return nil, err
	}
	element, bytes := uint64(v.Column.Schema.DType.Size()), uint64(0)
	rows := make([][]byte, len(m.Rows))
	var segment uint64
	var mem []byte
	for i, row := range m.Rows {
		ref := refs[row] // checked and used as it is now
		if ref.LengthBytes == 0 {
			continue
		}
		if mem == nil || segment != ref.Segment {
			if mem, err = p.reader.segment(ref.Segment, "a row of an array"); err != nil {
				return nil, err
			}
			segment = ref.Segment
		}
		if ref.LengthBytes%element != 0 || ref.OffsetBytes > uint64(len(mem)) || ref.LengthBytes > uint64(len(mem))-ref.OffsetBytes {
			return nil, corrupt("attribute %q: row %d has %d bytes at offset %d of segment %d, which has %d; an element has %d", v.Column.Name, row, ref.LengthBytes, ref.OffsetBytes, segment, len(mem), element)
		}
		rows[i] = mem[ref.OffsetBytes:][:ref.LengthBytes:ref.LengthBytes]
		bytes += ref.LengthBytes
	}
	return rows, p.reader.accounts.addRows(p.reader, p, v, bytes)
}

// IsArray tells whether the column's rows have lengths of their own.
func (c *Column) IsArray() bool { return c.Schema.Kind == tensor.Array }
