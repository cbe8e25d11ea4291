package tensor

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func fixed(t testing.TB, name string, rowShape ...uint64) *Schema {
	return &Schema{Kind: Fixed, DType: dtype(t, name), RowShape: rowShape, Device: CPU}
}

// L4: a fixed row is prod(row_shape) elements.
func TestRowSizes(t *testing.T) {
	cases := []struct {
		name     string
		schema   *Schema
		elements uint64
		bytes    uint64
	}{
		{"scalar", fixed(t, "float32"), 1, 4},
		{"L4 an image is one row", fixed(t, "uint8", 480, 640, 3), 921600, 921600},
		{"lanes and shape", fixed(t, "float32x3", 2, 5), 10, 120},
		{"six dimensions", fixed(t, "uint8", 1, 2, 1, 2, 1, 2), 8, 8},
		{"largest", fixed(t, "uint8", math.MaxInt64), math.MaxInt64, math.MaxInt64},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, c.schema.Validate())
			n, err := c.schema.RowElements()
			require.NoError(t, err)
			require.Equal(t, c.elements, n)
			n, err = c.schema.RowBytes()
			require.NoError(t, err)
			require.Equal(t, c.bytes, n)
		})
	}
}

func TestSchemaValidateRefuses(t *testing.T) {
	gpu := func(s *Schema, d Device) *Schema { s.Device = d; return s }
	cases := []struct {
		name     string
		schema   *Schema
		mentions []string
	}{
		{"L4 seven dimensions", fixed(t, "uint8", 1, 1, 1, 1, 1, 1, 1), []string{"7 dimensions", "6"}},
		{"dimension 0", fixed(t, "uint8", 4, 0), []string{"(4, 0)", "dimension 1"}},
		{"product overflows 64 bits", fixed(t, "uint8", 1<<32, 1<<32), []string{"(4294967296, 4294967296)"}},
		{"product wraps to a small number", fixed(t, "uint8", 1<<63, 2, 3), []string{"elements"}},
		{"bytes overflow", fixed(t, "float64", 1<<60), []string{"bytes", "float64"}},
		{"array with row shape", &Schema{Kind: Array, DType: Float32, RowShape: []uint64{3}, Device: CPU}, []string{"(3,)", "array"}},
		{"43 lanes 0", &Schema{Kind: Fixed, DType: DType{Code: 2, Bits: 32}, Device: CPU}, []string{"0 lanes"}},
		{"51 semantic", &Schema{Kind: Fixed, DType: Uint32, Semantic: SemanticTokenID, Device: CPU}, []string{"token_id"}},
		{"no device", gpu(fixed(t, "uint8"), Device{}), []string{"device type is 0"}},
		{"unknown device", gpu(fixed(t, "uint8"), Device{Type: 10}), []string{"device type is 10"}},
		{"230 cpu 1", gpu(fixed(t, "uint8"), Device{Type: DeviceCPU, ID: 1}), []string{"id 1"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			requireRefused(t, c.schema.Validate(), InvalidArgument, c.mentions...)
		})
	}
	require.NoError(t, gpu(fixed(t, "uint8"), Device{Type: DeviceCUDA, ID: 7}).Validate())
}

// Behaviour 28, 44, 45, 59: what must match, and the text names both sides.
func TestSchemaAccept(t *testing.T) {
	stored := fixed(t, "float32x3", 2)
	stored.Semantic = SemanticPoint
	change := func(f func(*Schema)) *Schema {
		w := *stored
		f(&w)
		return &w
	}
	cases := []struct {
		name     string
		write    *Schema
		mentions []string
	}{
		{"equal", change(func(*Schema) {}), nil},
		{"59 none is no opinion", change(func(w *Schema) { w.Semantic = SemanticNone }), nil},
		{"59 another semantic", change(func(w *Schema) { w.Semantic = SemanticColor }), []string{"color", "point"}},
		{"28 kind", change(func(w *Schema) { w.Kind = Array }), []string{"array", "fixed", "delete"}},
		{"44 element type", change(func(w *Schema) { w.DType = Float64 }), []string{"float64", "float32x3", "delete"}},
		{"44 lanes", change(func(w *Schema) { w.DType.Lanes = 2 }), []string{"float32x2", "float32x3"}},
		{"row shape", change(func(w *Schema) { w.RowShape = nil }), []string{"()", "(2,)"}},
		{"device", change(func(w *Schema) { w.Device = Device{2, 1} }), []string{"cuda:1", "cpu"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := stored.Accept(c.write)
			require.Equal(t, c.name == "equal", stored.Equal(c.write))
			if c.mentions == nil {
				require.NoError(t, err)
				return
			}
			requireRefused(t, err, InvalidArgument, c.mentions...)
		})
	}
	// 59, the other way round: a semantic on a column without one is a difference.
	plain := fixed(t, "float32x3", 2)
	requireRefused(t, plain.Accept(stored), InvalidArgument, "point", "none")
	// 45: bool and uint8 have the same size and are not the same.
	requireRefused(t, fixed(t, "bool").Accept(fixed(t, "uint8")), InvalidArgument, "uint8", "bool")
}

// L4, behaviour 278: views are (rows, *row_shape[, lanes]).
func TestViewShape(t *testing.T) {
	require.Equal(t, []int64{5}, fixed(t, "float32").ViewShape(5))
	require.Equal(t, []int64{2, 3}, fixed(t, "float32x3").ViewShape(2))
	require.Equal(t, []int64{1, 480, 640, 3}, fixed(t, "uint8", 480, 640, 3).ViewShape(1))
	require.Equal(t, []int64{4, 2, 3}, fixed(t, "float64x3", 2).ViewShape(4))
}

func TestViewSharesDataAndChecksIt(t *testing.T) {
	data := make([]byte, 24)
	v, err := fixed(t, "float32x3").View(data, 2, true)
	require.NoError(t, err)
	require.Same(t, &data[0], &v.Data[0])
	require.Equal(t, Float32, v.DType)
	require.True(t, v.ReadOnly)
	require.NoError(t, v.CheckBounds())
	_, err = fixed(t, "float32x3").View(data, 3, true)
	requireRefused(t, err, InvalidArgument, "3 rows of 12 bytes", "24 bytes")
	_, err = fixed(t, "float32x3").View(data, -1, true)
	requireRefused(t, err, InvalidArgument, "-1 rows")
	_, err = (&Schema{Kind: Array, DType: Uint8, Device: CPU}).View(data, 1, true)
	requireRefused(t, err, InvalidArgument, "array")
}

func TestSchemaString(t *testing.T) {
	s := fixed(t, "float32x3", 480, 640)
	s.Semantic = SemanticColor
	s.Device = Device{DeviceCUDA, 1}
	require.Equal(t, "fixed float32x3 row_shape (480, 640) color on cuda:1", s.String())
	require.Equal(t, "array uint8 on cpu", (&Schema{Kind: Array, DType: Uint8, Device: CPU}).String())
}
