package tensor

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// MaxRowDims is the most dimensions that a declared row shape has.
const MaxRowDims = 6

// Device types of DLPack that are told apart here.
const (
	DeviceCPU      uint32 = 1
	DeviceCUDA     uint32 = 2
	DeviceCUDAHost uint32 = 3 // pinned host memory: the CPU reads it like any other
)

// Device says where bytes lie: a DLPack device type and a number.
type Device struct {
	Type uint32
	ID   uint32
}

// CPU is ordinary host memory.
var CPU = Device{Type: DeviceCPU}

// Host reports whether the CPU can touch the bytes.
func (d Device) Host() bool { return d.Type == DeviceCPU || d.Type == DeviceCUDAHost }

func (d Device) String() string {
	switch d.Type {
	case DeviceCPU:
		if d.ID == 0 {
			return "cpu"
		}
		return "cpu:" + strconv.Itoa(int(d.ID))
	case DeviceCUDA:
		return "cuda:" + strconv.Itoa(int(d.ID))
	case DeviceCUDAHost:
		return "cuda_host:" + strconv.Itoa(int(d.ID))
	}
	return fmt.Sprintf("device(%d,%d)", d.Type, d.ID)
}

// Schema is what all rows of one column have in common. A fixed row is
// prod(RowShape) elements of DType; an empty RowShape is one element. The rows
// of an array have lengths of their own and no row shape.
type Schema struct {
	Kind     Kind
	DType    DType
	RowShape []uint64
	Semantic Semantic
	Device   Device
}

// Validate reports why no column can have this schema, or nil. Whether the
// device exists is for the owner of devices to say.
func (s *Schema) Validate() error {
	if err := CheckSemantic(s.Kind, s.DType, s.Semantic); err != nil {
		return err
	}
	switch {
	case s.Device.Type != DeviceCPU && s.Device.Type != DeviceCUDA:
		return invalid("device type is %d: expected 1 (cpu) or 2 (cuda)", s.Device.Type)
	case s.Device.Type == DeviceCPU && s.Device.ID != 0:
		return invalid("device cpu has id %d: expected 0", s.Device.ID)
	}
	if s.Kind == Array && len(s.RowShape) != 0 {
		return invalid("row_shape %s with kind array: expected an empty row_shape; rows of an array have their own lengths",
			formatShape(s.RowShape))
	}
	_, err := s.RowBytes()
	return err
}

// RowElements is the number of elements in one fixed row: the product of
// RowShape, 1 when it is empty.
func (s *Schema) RowElements() (uint64, error) {
	if len(s.RowShape) > MaxRowDims {
		return 0, invalid("row_shape has %d dimensions: expected at most %d", len(s.RowShape), MaxRowDims)
	}
	n := uint64(1)
	for i, dim := range s.RowShape {
		if dim == 0 {
			return 0, invalid("row_shape %s has 0 in dimension %d: a fixed row has at least one element; "+
				"use kind array for rows that may be empty", formatShape(s.RowShape), i)
		}
		hi, lo := bits.Mul64(n, dim)
		if hi != 0 || lo > math.MaxInt64 {
			return 0, invalid("row_shape %s has more than %d elements", formatShape(s.RowShape), int64(math.MaxInt64))
		}
		n = lo
	}
	return n, nil
}

// RowBytes is the number of bytes of one fixed row, of one element for arrays.
func (s *Schema) RowBytes() (uint64, error) {
	if err := s.DType.Validate(); err != nil {
		return 0, err
	}
	n, err := s.RowElements()
	if err != nil {
		return 0, err
	}
	hi, lo := bits.Mul64(n, uint64(s.DType.Size()))
	if hi != 0 || lo > math.MaxInt64 {
		return 0, invalid("a row of shape %s and element type %s has more than %d bytes",
			formatShape(s.RowShape), s.DType, int64(math.MaxInt64))
	}
	return lo, nil
}

// Equal reports whether both schemas are the same in every part.
func (s *Schema) Equal(o *Schema) bool {
	return s.Kind == o.Kind && s.DType == o.DType && slices.Equal(s.RowShape, o.RowShape) &&
		s.Semantic == o.Semantic && s.Device == o.Device
}

// Accept reports why a write of schema w does not fit the stored schema s, or
// nil. Semantic none in w is "no opinion": the stored one stays. The error
// names the part that differs with both its values.
func (s *Schema) Accept(w *Schema) error {
	const remedy = "; delete the attribute on these prims first to change it"
	switch {
	case s.Kind != w.Kind:
		return invalid("kind is %s but the attribute holds %s%s", w.Kind, s.Kind, remedy)
	case s.DType != w.DType:
		return invalid("element type is %s but the attribute holds %s%s", w.DType, s.DType, remedy)
	case !slices.Equal(s.RowShape, w.RowShape):
		return invalid("row_shape is %s but the attribute holds %s%s", formatShape(w.RowShape), formatShape(s.RowShape), remedy)
	case w.Semantic != SemanticNone && s.Semantic != w.Semantic:
		return invalid("semantic is %s but the attribute holds %s%s", w.Semantic, s.Semantic, remedy)
	case s.Device != w.Device:
		return invalid("device is %s but the attribute lies on %s%s", w.Device, s.Device, remedy)
	}
	return nil
}

// String shows all parts, as in "fixed float32x3 row_shape (480, 640) color on cpu".
func (s *Schema) String() string {
	text := s.Kind.String() + " " + s.DType.String()
	if len(s.RowShape) != 0 {
		text += " row_shape " + formatShape(s.RowShape)
	}
	if s.Semantic != SemanticNone {
		text += " " + s.Semantic.String()
	}
	return text + " on " + s.Device.String()
}

// ViewShape is the shape under which people see rows of a fixed column:
// (rows, *row_shape[, lanes]), with base elements of one lane.
func (s *Schema) ViewShape(rows int) []int64 {
	shape := make([]int64, 0, len(s.RowShape)+2)
	shape = append(shape, int64(rows))
	for _, dim := range s.RowShape {
		shape = append(shape, int64(dim))
	}
	if s.DType.Lanes > 1 {
		shape = append(shape, int64(s.DType.Lanes))
	}
	return shape
}

// View describes rows of a fixed host column, compact in data, under ViewShape.
// The tensor shares data. Data must hold at least that many rows.
func (s *Schema) View(data []byte, rows int, readOnly bool) (Tensor, error) {
	if s.Kind != Fixed || !s.Device.Host() {
		return Tensor{}, invalid("view of a column that is %s: expected kind fixed on cpu", s)
	}
	size, err := s.RowBytes()
	if err != nil {
		return Tensor{}, err
	}
	if rows < 0 || uint64(rows) > uint64(len(data))/size {
		return Tensor{}, invalid("view of %d rows of %d bytes: the data has %d bytes", rows, size, len(data))
	}
	lane := s.DType
	lane.Lanes = 1
	return Tensor{Data: data, Shape: s.ViewShape(rows), DType: lane, Device: s.Device, ReadOnly: readOnly}, nil
}

// ViewAt is View of rows in device memory, which begin at an address of this process on
// a device by this process's number.
func (s *Schema) ViewAt(address uintptr, device Device, rows int, readOnly bool) (Tensor, error) {
	if s.Kind != Fixed || device.Host() {
		return Tensor{}, invalid("device view of a column that is %s: expected kind fixed on a device", s)
	}
	lane := s.DType
	lane.Lanes = 1
	return Tensor{Address: address, Shape: s.ViewShape(rows), DType: lane, Device: device, ReadOnly: readOnly}, nil
}

// formatShape writes a shape as Python does: "()", "(3,)", "(480, 640, 3)".
func formatShape[T int64 | uint64](shape []T) string {
	var b strings.Builder
	b.WriteByte('(')
	for i, dim := range shape {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d", dim)
	}
	if len(shape) == 1 {
		b.WriteByte(',')
	}
	b.WriteByte(')')
	return b.String()
}
