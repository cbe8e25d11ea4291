package tensor

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFoldFixed(t *testing.T) {
	cases := []struct {
		name   string
		dtype  string
		shape  []int64
		schema *Schema
		rows   uint64
		want   string // the folded type; "" when refused
		code   Code
		text   []string
	}{
		{name: "1 one lane", dtype: "float32", shape: []int64{3}, rows: 3, want: "float32"},
		{name: "2 lanes in the type", dtype: "float32x3", shape: []int64{3}, rows: 3, want: "float32x3"},
		{name: "3 one trailing axis", dtype: "float32", shape: []int64{2, 3}, rows: 2, want: "float32x3"},
		{name: "4 several trailing axes", dtype: "float64", shape: []int64{2, 4, 4}, rows: 2, want: "float64x16"},
		{name: "trailing axis of lanes", dtype: "float32x3", shape: []int64{2, 2}, rows: 2, want: "float32x6"},
		{name: "trailing ones", dtype: "float32", shape: []int64{2, 1, 1}, rows: 2, want: "float32"},
		{name: "14 seven lanes", dtype: "float64", shape: []int64{4, 7}, rows: 4, want: "float64x7"},
		{name: "15 widest row", dtype: "uint8", shape: []int64{1, 255}, rows: 1, want: "uint8x255"},
		{name: "19 empty set", dtype: "float32", shape: []int64{0, 3}, rows: 0, want: "float32x3"},
		{name: "70 free rows with an index map", dtype: "float32", shape: []int64{9}, rows: AnyRows, want: "float32"},

		{name: "6 flat component buffer", dtype: "float32", shape: []int64{9}, rows: 3,
			code: InvalidArgument, text: []string{"(9,)", "9 rows", "expected 3"}},
		{name: "6 flat buffer onto a 3-lane column", dtype: "float32", shape: []int64{9}, rows: 3, schema: fixed(t, "float32x3"),
			code: InvalidArgument, text: []string{"9 rows", "expected 3"}},
		{name: "8 too few rows", dtype: "float32", shape: []int64{2}, rows: 3, code: InvalidArgument, text: []string{"2 rows", "expected 3"}},
		{name: "8 too many rows", dtype: "float32", shape: []int64{4}, rows: 3, code: InvalidArgument, text: []string{"4 rows", "expected 3"}},
		{name: "13 rank zero", dtype: "float32", shape: nil, rows: 1, code: InvalidArgument, text: []string{"rank 0", "(1,)"}},
		{name: "15 row too wide", dtype: "float32", shape: []int64{2, 256}, rows: 2, code: NotSupported, text: []string{"255 lanes", "(256,)"}},
		{name: "15 an image without row_shape", dtype: "uint8", shape: []int64{1, 480, 640, 3}, rows: 1,
			code: NotSupported, text: []string{"row_shape=(480, 640, 3)"}},
		{name: "15 width wraps 64 bits", dtype: "uint8", shape: []int64{0, 1 << 62, 4, 3}, rows: 0, code: NotSupported, text: []string{"lanes"}},
		{name: "15 lanes of the type count", dtype: "float32x128", shape: []int64{1, 2}, rows: 1, code: NotSupported, text: []string{"float32x128"}},
		{name: "row of no elements", dtype: "float32", shape: []int64{2, 0}, rows: 2, code: InvalidArgument, text: []string{"(2, 0)", "0 elements"}},
		{name: "negative dimension", dtype: "float32", shape: []int64{2, -3}, rows: 2, code: InvalidArgument, text: []string{"-3"}},
		{name: "43 lanes 0", dtype: "", shape: []int64{2}, rows: 2, code: InvalidArgument, text: []string{"0 lanes"}},
		{name: "shape wraps 64 bits", dtype: "float32", shape: []int64{1 << 62, 1 << 62}, rows: 1 << 62, code: InvalidArgument, text: []string{"bytes"}},

		{name: "L4 declared image", dtype: "uint8", shape: []int64{1, 480, 640, 3}, rows: 1, schema: fixed(t, "uint8", 480, 640, 3), want: "uint8"},
		{name: "L4 lanes as trailing axis", dtype: "uint8", shape: []int64{1, 480, 640, 3}, rows: 1, schema: fixed(t, "uint8x3", 480, 640), want: "uint8x3"},
		{name: "L4 lanes in the type", dtype: "uint8x3", shape: []int64{1, 480, 640}, rows: 1, schema: fixed(t, "uint8x3", 480, 640), want: "uint8x3"},
		{name: "4 onto an existing 16-lane column", dtype: "float64", shape: []int64{2, 4, 4}, rows: 2, schema: fixed(t, "float64x16"), want: "float64x16"},
		{name: "L4 another row shape", dtype: "uint8", shape: []int64{1, 640, 480, 3}, rows: 1, schema: fixed(t, "uint8", 480, 640, 3),
			code: InvalidArgument, text: []string{"(640, 480, 3)", "(480, 640, 3)"}},
		{name: "L4 row flattened", dtype: "uint8", shape: []int64{1, 921600}, rows: 1, schema: fixed(t, "uint8", 480, 640, 3),
			code: InvalidArgument, text: []string{"(921600,)", "(480, 640, 3)"}},
		{name: "L4 row shape missing", dtype: "uint8", shape: []int64{1}, rows: 1, schema: fixed(t, "uint8", 3), code: InvalidArgument, text: []string{"()", "(3,)"}},
		{name: "L4 another number of lanes", dtype: "float32", shape: []int64{2, 5, 4}, rows: 2, schema: fixed(t, "float32x3", 5),
			code: InvalidArgument, text: []string{"float32x4", "float32x3"}},
		{name: "44 element type of the column", dtype: "float64", shape: []int64{2, 3}, rows: 2, schema: fixed(t, "float32x3"),
			code: InvalidArgument, text: []string{"float64x3", "float32x3"}},
		{name: "45 uint8 onto bool", dtype: "uint8", shape: []int64{2}, rows: 2, schema: fixed(t, "bool"), code: InvalidArgument, text: []string{"uint8", "bool"}},
		{name: "28 array column", dtype: "uint8", shape: []int64{2}, rows: 2, schema: &Schema{Kind: Array, DType: Uint8, Device: CPU},
			code: InvalidArgument, text: []string{"fixed", "array"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := Tensor{Shape: c.shape, Device: CPU}
			if c.dtype != "" {
				in.DType = dtype(t, c.dtype)
			}
			rows, d, err := FoldFixed(&in, c.schema, c.rows)
			if c.want == "" {
				requireRefused(t, err, c.code, c.text...)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, d.String())
			require.Equal(t, uint64(c.shape[0]), rows)
		})
	}
}

// Behaviour 292: the explicit fold shares the pointer and keeps code and bits.
func TestFoldLanes(t *testing.T) {
	data := make([]byte, 64)
	cases := []struct {
		name           string
		shape, strides []int64
		lanes          int
		want, wantStep []int64
	}{
		{"(2,3) as 3", []int64{2, 3}, nil, 3, []int64{2}, nil},
		{"(2,4) as 4", []int64{2, 4}, []int64{4, 1}, 4, []int64{2}, []int64{1}},
		{"(2,2,2) as 4", []int64{2, 2, 2}, nil, 4, []int64{2}, nil},
		{"every second row", []int64{2, 2}, []int64{4, 1}, 2, []int64{2}, []int64{2}},
		{"rows backwards", []int64{2, 2}, []int64{-2, 1}, 2, []int64{2}, []int64{-1}},
		{"lone row, odd stride", []int64{1, 2}, []int64{7, 1}, 2, []int64{1}, []int64{0}},
		{"one lane", []int64{2, 3}, nil, 1, []int64{2, 3}, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := Tensor{Data: data, Shape: c.shape, Strides: c.strides, DType: Float32, Device: CPU}
			out, err := in.FoldLanes(c.lanes)
			require.NoError(t, err)
			require.Equal(t, c.want, out.Shape)
			require.Equal(t, c.wantStep, out.Strides)
			require.Same(t, &data[0], &out.Data[0])
			require.Equal(t, DType{Code: CodeFloat, Bits: 32, Lanes: uint16(c.lanes)}, out.DType)
		})
	}
	refused := []struct {
		name           string
		shape, strides []int64
		lanes          int
	}{
		{"(2,3) as 2", []int64{2, 3}, nil, 2},
		{"(2,2,3) as 2", []int64{2, 2, 3}, nil, 2},
		{"(3,) as 9", []int64{3}, nil, 9},
		{"gaps between lanes", []int64{2, 2}, []int64{4, 2}, 2},
		{"rows overlap", []int64{2, 2}, []int64{1, 1}, 2},
		{"no elements", []int64{2, 0}, nil, 3},
		{"256 lanes", []int64{2, 256}, nil, 256}, // 297
		{"0 lanes", []int64{2, 3}, nil, 0},
		{"huge dimension", []int64{1, math.MaxInt64 / 4}, nil, 200},
	}
	for _, c := range refused {
		t.Run(c.name, func(t *testing.T) {
			in := Tensor{Shape: c.shape, Strides: c.strides, DType: Float32, Device: CPU}
			_, err := in.FoldLanes(c.lanes)
			requireRefused(t, err, InvalidArgument, "lanes")
		})
	}
	// 297: 255 lanes of exactly 255 elements.
	in := Tensor{Shape: []int64{255}, DType: Float32, Device: CPU}
	out, err := in.FoldLanes(255)
	require.NoError(t, err)
	require.Empty(t, out.Shape)
}

// Behaviour 278, 300: lanes become the last axis, and folding undoes it.
func TestSplitLanes(t *testing.T) {
	in := Tensor{Shape: []int64{2}, DType: dtype(t, "float32x3"), Device: CPU}
	out := in.SplitLanes()
	require.Equal(t, []int64{2, 3}, out.Shape)
	require.Nil(t, out.Strides)
	require.Equal(t, Float32, out.DType)
	require.Equal(t, []int64{2}, in.Shape)

	in.Strides = []int64{-2}
	out = in.SplitLanes()
	require.Equal(t, []int64{-6, 1}, out.Strides)
	back, err := out.FoldLanes(3)
	require.NoError(t, err)
	require.Equal(t, in, back)

	one := Tensor{Shape: []int64{2}, DType: Uint8, Device: CPU}
	require.Equal(t, one, one.SplitLanes())
}

// Whatever folds keeps its bytes: rows times the folded size is what was there.
func FuzzFoldFixed(f *testing.F) {
	f.Add(uint8(2), uint8(32), uint16(1), int64(2), int64(3), int64(1), uint8(2), uint64(2), uint64(3), true)
	f.Add(uint8(1), uint8(8), uint16(3), int64(1), int64(480), int64(640), uint8(3), uint64(1), uint64(480), true)
	f.Add(uint8(2), uint8(64), uint16(255), int64(-1), int64(1<<62), int64(4), uint8(3), AnyRows, uint64(0), false)
	f.Fuzz(func(t *testing.T, code, bits uint8, lanes uint16, a, b, c int64, rank uint8, rows, rowDim uint64, declared bool) {
		in := Tensor{DType: DType{Code: code, Bits: bits, Lanes: lanes}, Shape: []int64{a, b, c}[:rank%4], Device: CPU}
		var schema *Schema
		if declared {
			schema = &Schema{Kind: Fixed, DType: in.DType, RowShape: []uint64{rowDim}, Device: CPU}
		}
		have, d, err := FoldFixed(&in, schema, rows)
		if err != nil {
			var e *Error
			require.ErrorAs(t, err, &e)
			require.NotEmpty(t, e.Text)
			return
		}
		require.NoError(t, d.Validate())
		require.True(t, rows == AnyRows || have == rows)
		total, err := in.Bytes()
		require.NoError(t, err)
		perRow := uint64(d.Size())
		if declared {
			require.Equal(t, schema.DType, d)
			perRow *= rowDim
		}
		if total > 0 {
			require.Equal(t, uint64(total), have*perRow)
		}
	})
}
