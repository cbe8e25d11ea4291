package callboard

import (
	"errors"
	"fmt"
	"slices"

	"callboard/protocol"
	"callboard/snapshot"
	"callboard/tensor"
)

// payload is what one attribute of a write brings, after all checks of rule R6.
type payload struct {
	name      string
	schema    protocol.Schema
	tensor    Tensor   // rows in dimension 0
	rows      uint64   // of the payload that travels
	rowBytes  uint64   //
	count     uint64   // logical elements addressed, tensor.All for the whole query
	mask      []uint64 // nil: none
	take      []uint32 // payload row i is the tensor's row take[i]; nil: row i
	direct    bool     // the tensor's bytes are the payload as they are
	sizeBytes uint64
	primMode  uint32

	gpu     *gpu   // the values lie there; nil: on the host
	staging Device // where they travel, by the broker's number; zero: on the host
	sync    CUDASync

	ragged [][]byte // of kind array: the bytes of each row
	sizes  []uint64 // of kind array: the elements of each row
	prims  int      // of kind array: of the query
}

// writeChecks is what decides a write before it is submitted.
type writeChecks struct {
	name      string
	values    any
	rowShape  []uint64
	newShape  []uint64 // of a new column, where rowShape is open
	semantic  Semantic
	selection *Selection
	isArray   bool
	insert    bool
	device    Device // by this process's number
}

// checkName refuses names that nobody may write.
func checkName(name string) error { return asError(snapshot.CheckName(name)) }

// checkOrdinal refuses an ordinal at or below the floor (behaviour 101, 102).
func (c *client) checkOrdinal(name string, ordinal uint64) error {
	floor, err := c.reader.WriteFloor(name)
	if err != nil {
		return asError(err)
	}
	if ordinal <= floor {
		return fail(protocol.StatusFloorViolation, "attribute %q: ordinal %d is at or below the write floor %d; write above it", name, ordinal, floor)
	}
	return nil
}

// named puts the attribute's name before an error's text.
func named(name string, err error) error {
	var e *Error
	if !errors.As(asError(err), &e) {
		return err
	}
	return fail(e.Status, "attribute %q: %s", name, e.Text)
}

// check decides all that arguments and the directory decide of a write to q.
func (c *client) check(q *Query, w *writeChecks) (p payload, err error) {
	if err := checkName(w.name); err != nil {
		return p, err
	}
	named := func(err error) error { return named(w.name, err) }
	running := q.running() // then only the broker will know how many prims there are
	size := uint64(q.Len())
	expect, selection := size, Selection{Count: tensor.All}
	if running {
		if w.selection != nil {
			size = w.selection.Count
		}
		expect = tensor.AnyRows
		if size == tensor.All {
			return p, named(fail(protocol.StatusInvalidArgument, "the query is still running: a selection needs a count; give one, or wait for the query"))
		}
	}
	if w.selection != nil {
		selection = *w.selection
		if selection.Count == 0 { // before it looks like a payload of the wrong length (behaviour 65)
			return p, named(fail(protocol.StatusInvalidArgument, "count is 0: give the number of prims, or AllPrims for the whole query"))
		}
		expect = selection.Count
		if expect == tensor.All {
			expect = size
		}
		if selection.IndexMap != nil {
			expect = tensor.AnyRows
		}
	}
	if w.isArray {
		if p, err = c.checkRagged(q, w, &selection, size); err != nil {
			return p, named(err)
		}
		if w.insert {
			p.primMode = protocol.ModeInsert
		}
		return p, nil
	}
	t, err := toTensor(w.values)
	p.staging = CPU // whatever the attribute's memory is
	if err == nil && !t.Device.Host() {
		p.gpu, p.staging, err = c.source(&t)
	}
	if err != nil {
		return p, named(err)
	}
	var given tensor.Schema
	device, err := c.ofBroker(w.device)
	if err != nil {
		return p, named(err)
	}
	var rows uint64
	err = c.fit(q, w.name, func(stored *tensor.Schema) (err error) {
		rowShape := w.rowShape
		if stored == nil && rowShape == nil {
			rowShape = w.newShape
		}
		if given, rows, err = foldSchema(&t, stored, rowShape, expect); err != nil {
			return err
		}
		given.Semantic = w.semantic
		if given.Device = deviceFor(device, stored); stored != nil {
			return stored.Accept(&given)
		}
		return given.Validate()
	})
	if err == nil && w.insert && w.selection == nil {
		err = c.checkInsert(q)
	}
	if err != nil {
		return p, named(err)
	}
	if (size > 0 || rows > 0) && (!running || w.selection != nil) { // behaviour 19
		n, err := selection.Resolve(size, rows)
		if err != nil {
			return p, named(err)
		}
		if selection.IndexMap != nil {
			p.take, rows = selection.IndexMap[:n], n
		}
	}
	p.name, p.schema, p.tensor, p.rows = w.name, givenSchema(&given, device), t, rows
	p.count, p.mask = selection.Count, selection.Mask
	if w.insert {
		p.primMode = protocol.ModeInsert
	}
	if p.take != nil {
		p.count = rows
	}
	if p.rowBytes, err = given.RowBytes(); err != nil {
		return p, named(err)
	}
	p.sizeBytes = p.rows * p.rowBytes
	p.direct = p.take == nil && t.Compact()
	return p, nil
}

// foldSchema reads a tensor as rows of the stored schema, or, for a new attribute, of
// the row shape that is declared with it.
func foldSchema(t *Tensor, stored *tensor.Schema, rowShape []uint64, rows uint64) (tensor.Schema, uint64, error) {
	given := tensor.Schema{Kind: tensor.Fixed, RowShape: rowShape, Device: tensor.CPU}
	switch {
	case stored != nil:
		if rowShape != nil && !slices.Equal(rowShape, stored.RowShape) {
			return given, 0, fail(protocol.StatusInvalidArgument, "row_shape is %v but the attribute holds %v", rowShape, stored.RowShape)
		}
		given.RowShape = stored.RowShape
		n, dtype, err := tensor.FoldFixed(t, stored, rows)
		given.DType = dtype
		return given, n, err
	case len(rowShape) == 0:
		n, dtype, err := tensor.FoldFixed(t, nil, rows)
		given.DType = dtype
		return given, n, err
	}
	// A declared row shape comes off first; what trails behind it folds into lanes.
	lanes := uint64(t.DType.Lanes)
	for _, dim := range t.Shape[min(len(t.Shape), 1+len(rowShape)):] {
		lanes *= max(uint64(dim), 1)
		if lanes > tensor.MaxLanes {
			return given, 0, fail(protocol.StatusNotSupported, "tensor of shape %v has rows wider than row_shape %v with %d lanes; declare more of it as row_shape", t.Shape, rowShape, tensor.MaxLanes)
		}
	}
	given.DType = t.DType
	given.DType.Lanes = uint16(lanes)
	n, _, err := tensor.FoldFixed(t, &given, rows)
	return given, n, err
}

// deviceFor is the device, by the broker's number, that a call means that names given: the
// zero Device leaves it to what is stored, and to the host where nothing is.
func deviceFor(given Device, stored *tensor.Schema) Device {
	switch {
	case given != Device{}:
		return given
	case stored != nil:
		return stored.Device
	}
	return CPU
}

// givenSchema is what the broker is told of s: it decides on the device where none was
// named (rule C5).
func givenSchema(s *tensor.Schema, device Device) protocol.Schema {
	w := wireSchema(s)
	w.DeviceType, w.DeviceID = device.Type, device.ID
	return w
}

func wireSchema(s *tensor.Schema) protocol.Schema {
	w := protocol.Schema{Kind: uint32(s.Kind), Semantic: uint32(s.Semantic), DtypeCode: s.DType.Code, DtypeBits: s.DType.Bits, DtypeLanes: s.DType.Lanes,
		DeviceType: s.Device.Type, DeviceID: s.Device.ID, RowDimensions: uint32(len(s.RowShape))}
	copy(w.RowShape[:], s.RowShape)
	return w
}

// copyTo writes the payload's rows, compact, to dst.
func (p *payload) copyTo(dst []byte) error {
	dst = dst[:p.sizeBytes]
	if p.ragged != nil {
		for _, row := range p.ragged {
			dst = dst[copy(dst, row):]
		}
		return nil
	}
	if p.take == nil {
		if len(dst) == 0 {
			return nil
		}
		return asError(p.tensor.Gather(dst))
	}
	source := p.tensor
	if !source.Compact() {
		whole := make([]byte, uint64(source.Shape[0])*p.rowBytes)
		if err := source.Gather(whole); err != nil {
			return asError(err)
		}
		source.Data, source.ByteOffset = whole, 0
	}
	bytes := source.Data[source.ByteOffset:]
	return asError(tensor.CopyRows(dst, bytes, int(p.rowBytes), nil, p.take))
}

func (p *payload) String() string { return fmt.Sprintf("attribute %q", p.name) }
