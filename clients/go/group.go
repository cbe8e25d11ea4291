package callboard

import (
	"runtime"
	"sync/atomic"

	"callboard/protocol"
	"callboard/tensor"
)

// Group is sealed data of one attribute: a read-only view in place. It keeps its
// bytes, whatever is written meanwhile, until Release; a Group that was dropped is
// released by the garbage collector, so hold it as long as its bytes are in use.
type Group struct {
	hold   *hold
	part   *part
	single bool // of one row whose axis is left out

	ordinal atomic.Uint64 // 0: not looked for yet
}

func newGroup(from *hold, p *part) (*Group, error) {
	h, err := from.again()
	if err != nil {
		return nil, err
	}
	g := &Group{hold: h, part: p}
	runtime.AddCleanup(g, func(h *hold) {
		if h.release() {
			h.view.client.forgot("a group")
		}
	}, h)
	return g, nil
}

// Attribute is the attribute's name.
func (g *Group) Attribute() string { return g.part.name }

// Ordinal is the highest ordinal within the group (behaviour 133). It is found at the
// first call; of a group that was released before, it is that of the version.
func (g *Group) Ordinal() uint64 {
	if known := g.ordinal.Load(); known != 0 {
		return known
	}
	highest := uint64(0)
	for _, t := range g.part.deleted {
		highest = max(highest, t.Ordinal)
	}
	if !g.IsDelete() {
		top := g.part.version.OrdinalHighest
		if g.hold.usable("the group") != nil {
			return top // its rows' ordinals may be gone
		}
		for _, row := range g.part.rows.Rows {
			if highest = max(highest, g.part.version.RowOrdinal(row)); highest >= top {
				break
			}
		}
	}
	g.ordinal.Store(highest)
	return highest
}

// RowOrdinals are the ordinals that last wrote, or deleted, each of Prims. The slice is
// the caller's.
func (g *Group) RowOrdinals() []uint64 {
	var out []uint64
	if g.IsDelete() {
		for _, t := range g.part.deleted {
			out = append(out, t.Ordinal)
		}
		return out
	}
	for _, row := range g.part.rows.Rows {
		out = append(out, g.part.version.RowOrdinal(row))
	}
	return out
}

// Floor is the attribute's write floor at the group's epoch.
func (g *Group) Floor() uint64 { return g.part.floor }

// Epoch is the epoch that the group is of.
func (g *Group) Epoch() uint64 { return g.hold.view.pinned.Epoch() }

// StampNs is the time of the seal that published the data, in ns.
func (g *Group) StampNs() uint64 { return g.part.version.StampNs }

// LayoutGeneration stays equal while only values change.
func (g *Group) LayoutGeneration() uint64 { return g.part.version.LayoutGeneration }

// DType is the element type, its lanes included.
func (g *Group) DType() DType { return g.rowSchema().DType }

// Semantic is what the numbers stand for.
func (g *Group) Semantic() Semantic { return g.rowSchema().Semantic }

// IsArray tells the kind that its writer declared (behaviour 37). Of kind array there is
// a tensor for each of Prims: Tensor, Row; Array and Bytes are the fixed kind's.
func (g *Group) IsArray() bool { return g.rowSchema().Kind == tensor.Array }

// IsDelete tells whether the group is of prims that do not carry the attribute any
// more; such a group has no array (behaviour 150). Only reads of changes have some.
func (g *Group) IsDelete() bool { return g.part.deleted != nil }

// Adopted tells whether the bytes are the producer's own block.
func (g *Group) Adopted() bool { return g.part.version.Adopted }

// Prims are the path ids of the prims that the group is of, in the query's order. Do
// not change them.
func (g *Group) Prims() []uint64 {
	if !g.IsDelete() {
		return g.part.rows.Prims
	}
	var out []uint64
	for _, t := range g.part.deleted {
		out = append(out, t.Prim)
	}
	return out
}

// IndexMap gives the row of each of Prims, nil when the rows are exactly those
// prims' in order, as they always are of kind array. With a map the array may have more
// rows than there are prims. Do not change it.
func (g *Group) IndexMap() []uint32 {
	if g.part.rows.Dense || g.IsDelete() || g.IsArray() {
		return nil
	}
	return g.part.rows.Rows
}

// Row is the row, in the array, of the i-th of Prims.
func (g *Group) Row(i int) int {
	if g.part.rows.Dense || g.IsArray() {
		return i
	}
	return int(g.part.rows.Rows[i])
}

// Rows is the number of rows of the array.
func (g *Group) Rows() int {
	if g.IsDelete() {
		return 0
	}
	if g.part.rows.Dense || g.IsArray() {
		return len(g.part.rows.Rows)
	}
	return int(g.part.version.Rows)
}

// Shape is the array's: (rows, *row_shape[, lanes]), or (*row_shape[, lanes]) from
// Latest. Of kind array it is nil: each tensor has its own.
func (g *Group) Shape() []int64 {
	if g.IsArray() {
		return nil
	}
	shape := g.rowSchema().ViewShape(g.Rows())
	if g.single {
		shape = shape[1:]
	}
	return shape
}

// Bytes is the array's memory: Rows rows, compact, read-only. A store there faults.
// INVALID_HANDLE after Release; empty where IsDelete. Kind array is INVALID_ARGUMENT, and
// so is device memory: DevicePointer gives its address, On its bytes on the host.
func (g *Group) Bytes() ([]byte, error) {
	if err := g.hold.usable("the group"); err != nil {
		return nil, err
	}
	v := &g.part.version
	if g.IsDelete() {
		return nil, nil
	}
	if g.IsArray() {
		return nil, isRagged(g.Attribute())
	}
	if g.part.place.number != 0 {
		return nil, fail(protocol.StatusInvalidArgument, "attribute %q lies in device memory (%s), which the host cannot touch: read it with Device: CPU, or call On(ctx, CPU); DevicePointer and Array give its address", g.Attribute(), g.Device())
	}
	if !g.part.rows.Dense {
		return v.Data, nil
	}
	first, size := uint64(g.part.rows.First)*v.Column.RowBytes, uint64(g.Rows())*v.Column.RowBytes
	return v.Data[first:][:size:size], nil
}

// Array describes the memory as a read-only tensor of Shape: on the host its bytes, on a
// device its address.
func (g *Group) Array() (Tensor, error) {
	var t Tensor
	var err error
	if g.part.place.number != 0 && !g.IsDelete() {
		t, err = g.deviceArray()
	} else {
		var b []byte
		if b, err = g.Bytes(); err == nil {
			t, err = g.rowSchema().View(b, g.Rows(), true)
		}
	}
	if err == nil && g.single {
		t.Shape = t.Shape[1:]
	}
	return t, asError(err)
}

// Tensor describes the row of the i-th of Prims in a group of kind array, read-only and
// in place: (n[, lanes]), n 0 for an empty row.
func (g *Group) Tensor(i int) (Tensor, error) {
	b, err := g.row(i)
	if err != nil {
		return Tensor{}, err
	}
	return rowTensor(g.rowSchema(), b, true)
}

func (g *Group) row(i int) ([]byte, error) {
	if !g.IsArray() {
		return nil, notRagged(g.Attribute())
	}
	if err := g.hold.usable("the group"); err != nil {
		return nil, err
	}
	if i < 0 || i >= len(g.part.ragged) {
		return nil, outOfRows(g.Attribute(), i, len(g.part.ragged))
	}
	return g.part.ragged[i], nil
}

func (g *Group) rowSchema() *tensor.Schema {
	if g.part.schema != nil {
		return g.part.schema
	}
	return &g.part.version.Column.Schema
}

// Retain gives another lease on the same data, to be released on its own: for whoever holds the bytes longer than the
// group's owner, another goroutine for instance. INVALID_HANDLE after Release.
func (g *Group) Retain() (*Group, error) {
	other, err := newGroup(g.hold, g.part)
	if err != nil {
		return nil, err
	}
	other.single = g.single
	return other, nil
}

// Release gives the group back: the stage may use its memory anew. What was got from
// it must not be touched any more. Later calls, from any goroutine, do nothing.
func (g *Group) Release() { g.hold.release() }
