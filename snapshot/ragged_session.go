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
	first, length uint64 // in the group's bytes
	from          *Block // held
	at            uint64
}

func (p *sealedRow) copyTo(dst []byte) { copy(dst[p.first:][:p.length], p.from.Bytes[p.at:]) }

// startsFrom counts a run of starts from 0: a group's rows lie in a block of their own.
func startsFrom(run []uint64) []uint64 {
	own := make([]uint64, len(run))
	for i, start := range run {
		own[i] = start - run[0]
	}
	return own
}

// sealedRows are the sealed rows of an array column for the prims of a group.
func (s *Store) sealedRows(g *group, c *column, rows []uint32) (pieces []sealedRow) {
	table := slice[protocol.RowRef](c.latest().block.Bytes, 0, int(c.latest().rows))
	for i, row := range rows {
		if uint64(row) >= uint64(len(table)) || c.ragged.rows[row].data == nil {
			continue
		}
		from := c.ragged.rows[row].data.block
		pieces = append(pieces, sealedRow{first: g.starts[i], length: min(table[row].LengthBytes, g.starts[i+1]-g.starts[i]), from: from.Hold(), at: table[row].OffsetBytes - from.Ref.OffsetBytes})
	}
	return pieces
}
