package snapshot

import "callboard/protocol"

// sessionStarts is where the rows of an array session begin; nil: the kind is fixed.
// An array session is told how many elements each prim's row has (behaviour 182).
func sessionStarts(t *Target, schema *protocol.Schema, rows uint64) ([]uint64, error) {
	switch n := uint64(len(t.ElementSizes)); {
	case schema.Kind == protocol.KindFixed && n > 0:
		return nil, protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q: element_sizes has %d entries but the kind is fixed: rows of a fixed attribute have one size", t.Name, n)
	case schema.Kind == protocol.KindFixed:
		return nil, nil
	case n != rows:
		return nil, protocol.Errorf(protocol.StatusInvalidArgument, "attribute %q: element_sizes has %d entries for %d prims: a session of kind array needs one element count per prim", t.Name, n, rows)
	}
	return startsOf(t.Name, t.ElementSizes, elementBytes(schema))
}

// sealedRow is the part of a sealed row that the session's row has room for.
type sealedRow struct {
	first, length uint64 // in the session's bytes
	from          *Block // held
	at            uint64
}

func (p *sealedRow) copyTo(dst []byte) { copy(dst[p.first:][:p.length], p.from.Bytes[p.at:]) }

// sealedRows are the sealed rows of an array column for the prims of an array session.
func (s *Store) sealedRows(m *Session, c *column, rows []uint32) (pieces []sealedRow) {
	table := slice[protocol.RowRef](c.latest().block.Bytes, 0, int(c.latest().rows))
	for i, row := range rows {
		if uint64(row) >= uint64(len(table)) || c.ragged.rows[row].data == nil {
			continue
		}
		from := c.ragged.rows[row].data.block
		pieces = append(pieces, sealedRow{first: m.starts[i], length: min(table[row].LengthBytes, m.starts[i+1]-m.starts[i]), from: from.Hold(), at: table[row].OffsetBytes - from.Ref.OffsetBytes})
	}
	return pieces
}
