package callboard

import (
	"callboard/protocol"
	"callboard/tensor"
)

// groupStarts is where the rows of an array group begin, from what the broker answered.
func (m *session) groupStarts(g *protocol.GroupDescriptor, content []byte) ([]uint64, error) {
	at := uint64(g.ElementSizesOffsetBytes)
	if at > uint64(len(content)) || g.Rows > (uint64(len(content))-at)/8 {
		return nil, fail(protocol.StatusInternal, "the broker says that %d element sizes lie at %d of %d bytes", g.Rows, at, len(content))
	}
	sizes := make([]uint64, g.Rows)
	copy(bytesOfSlice(sizes), content[at:])
	return m.startsOf(g, sizes)
}

// startsOf is where rows of so many elements begin in a group's bytes. sizes are ours.
func (m *session) startsOf(g *protocol.GroupDescriptor, sizes []uint64) ([]uint64, error) {
	starts := make([]uint64, len(sizes)+1)
	for i, n := range sizes {
		if n > (g.Block.LengthBytes-starts[i])/m.row {
			return nil, fail(protocol.StatusInternal, "the broker leased %d bytes: %d elements of %d bytes for row %d do not fit", g.Block.LengthBytes, n, m.row, i)
		}
		starts[i+1] = starts[i] + n*m.row
	}
	return starts, nil
}

// IsArray tells the kind: of kind array each prim's row is a tensor of its own.
func (g *MapGroup) IsArray() bool { return g.rowSchema().Kind == tensor.Array }

// DType is the element type, its lanes included.
func (g *MapGroup) DType() DType { return g.rowSchema().DType }

// Tensor describes the row of the i-th of Prims in a group of kind array, writable:
// (n[, lanes]), with as many elements as ElementSizes said.
func (g *MapGroup) Tensor(i int) (Tensor, error) {
	b, err := g.row(i)
	if err != nil {
		return Tensor{}, err
	}
	return rowTensor(g.rowSchema(), b, false)
}

func (g *MapGroup) row(i int) ([]byte, error) {
	if !g.IsArray() {
		return nil, notRagged(g.inner.name)
	}
	b, err := g.Bytes()
	if err != nil {
		return nil, err
	}
	if i < 0 || i >= g.Rows() {
		return nil, outOfRows(g.inner.name, i, g.Rows())
	}
	starts := g.inner.starts[g.index]
	return b[starts[i]:starts[i+1]:starts[i+1]], nil
}
