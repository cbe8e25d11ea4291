package callboard

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"callboard/protocol"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// Every kind has a sentinel; operations are ErrOpFailed as well, waits that were
// given up are not (behaviour 207, 212, 222).
func TestErrorsAreOfTheirKind(t *testing.T) {
	texts := map[string]bool{}
	for s := protocol.StatusInvalidArgument; s < protocol.StatusCount; s++ {
		e := fail(s, "some %d", 7)
		for other := protocol.StatusInvalidArgument; other < protocol.StatusCount; other++ {
			require.Equal(t, s == other, errors.Is(e, sentinel(other)), "%s is %s", s, other)
		}
		require.Equal(t, s != protocol.StatusTimeout, errors.Is(refused(fail(s, "x")), ErrOpFailed))
		require.ErrorContains(t, e, s.String())
		require.False(t, texts[sentinel(s).Error()])
		texts[sentinel(s).Error()] = true
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(fmt.Errorf("enough"))
	err := gaveUp(ctx, "writing")
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorIs(t, err, context.Cause(ctx))
	require.NotErrorIs(t, err, ErrOpFailed)
	require.Nil(t, asError(nil))
	require.ErrorIs(t, asError(fmt.Errorf("wrapped: %w", protocol.Errorf(protocol.StatusLimit, "x"))), ErrLimit)
	require.ErrorIs(t, asError(fmt.Errorf("unheard of")), ErrInternal)
}

func TestFromSliceTakesNumbersAndArraysOfThem(t *testing.T) {
	f, err := FromSlice([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
	require.NoError(t, err)
	require.Equal(t, []int64{2, 3}, f.Shape)
	require.Equal(t, tensor.Float32, f.DType)
	require.Len(t, f.Data, 24)
	a, err := FromSlice([][3]uint16{{1, 2, 3}, {4, 5, 6}})
	require.NoError(t, err)
	require.Equal(t, []int64{2, 3}, a.Shape)
	require.Equal(t, tensor.Uint16, a.DType)
	b, err := FromSlice([][2][2]complex64{{}, {}, {}, {}}, 2, 2)
	require.NoError(t, err)
	require.Equal(t, []int64{2, 2, 2, 2}, b.Shape)
	none, err := FromSlice([]bool{})
	require.NoError(t, err)
	require.Equal(t, []int64{0}, none.Shape)

	_, err = FromSlice([]float32{1, 2}, 3)
	require.ErrorIs(t, err, ErrInvalidArgument)
	_, err = FromSlice([]float32{1, 2}, -1, -2)
	require.ErrorIs(t, err, ErrInvalidArgument)
	_, err = FromSlice([]int{1}) // its size is the machine's
	require.ErrorIs(t, err, ErrInvalidArgument)
	_, err = FromSlice([]string{"a"})
	require.ErrorIs(t, err, ErrInvalidArgument)
	_, err = FromSlice([][]float32{{1}})
	require.ErrorIs(t, err, ErrInvalidArgument)
}

func TestToTensorTakesWhatPeopleHold(t *testing.T) {
	for _, c := range []struct {
		values any
		shape  []int64
		dtype  DType
	}{
		{[]int8{1, 2}, []int64{2}, tensor.Int8},
		{[3]float64{}, []int64{3}, tensor.Float64},
		{[2][4]uint32{}, []int64{2, 4}, tensor.Uint32},
		{true, []int64{}, tensor.Bool},
		{int64(-1), []int64{}, tensor.Int64},
		{[]float32(nil), []int64{0}, tensor.Float32},
	} {
		got, err := toTensor(c.values)
		require.NoError(t, err, "%T", c.values)
		require.Equal(t, c.shape, got.Shape, "%T", c.values)
		require.Equal(t, c.dtype, got.DType, "%T", c.values)
		require.NoError(t, got.CheckBounds())
	}
	type number float32
	named, err := toTensor([]number{1})
	require.NoError(t, err)
	require.Equal(t, tensor.Float32, named.DType)
	for _, bad := range []any{nil, 1, "text", []string{}, map[string]int{}, struct{}{}, &struct{}{}} {
		_, err := toTensor(bad)
		require.ErrorIs(t, err, ErrInvalidArgument, "%T", bad)
	}
	_, err = toTensor(Tensor{Data: make([]byte, 3), Shape: []int64{1}, DType: tensor.Float32})
	require.ErrorIs(t, err, ErrInvalidArgument, "it lies outside its bytes")
	_, err = toTensor(Tensor{Data: []byte{0, 1, 2}, Shape: []int64{3}, DType: tensor.Bool})
	require.ErrorIs(t, err, ErrInvalidArgument, "a bool is 0 or 1 (field report G9)")
	_, err = toTensor(Tensor{Shape: []int64{1}, DType: tensor.Float32, Device: CUDA(0)})
	require.ErrorIs(t, err, ErrInvalidArgument, "it has no address")
	_, err = toTensor(Tensor{Shape: []int64{2, 2}, Strides: []int64{1, 2}, DType: tensor.Float32, Device: CUDA(0), Address: 1 << 40})
	require.ErrorIs(t, err, ErrNotSupported, "it is not compact")
	_, err = toTensor(Tensor{Shape: []int64{1}, DType: tensor.Float32, Device: tensor.Device{Type: 10}})
	require.ErrorIs(t, err, ErrNotSupported)
	_, err = toHostTensor(Tensor{Shape: []int64{1}, DType: tensor.Float32, Device: CUDA(0), Address: 1 << 40})
	require.ErrorIs(t, err, ErrNotSupported, "kind array lies on the host")
}

// Trailing dimensions fold into lanes, or are the declared row shape (behaviour 3, 4,
// 14, 15; rule L4).
func TestFoldSchemaOfNewAttributes(t *testing.T) {
	for _, c := range []struct {
		shape, rowShape []int64
		lanes           uint16
		bad             error
	}{
		{shape: []int64{2, 4, 4}, lanes: 16},
		{shape: []int64{2, 7}, lanes: 7},
		{shape: []int64{2, 255}, lanes: 255},
		{shape: []int64{2, 256}, bad: ErrNotSupported},
		{shape: []int64{2, 480, 640, 3}, rowShape: []int64{480, 640, 3}, lanes: 1},
		{shape: []int64{2, 480, 640, 3}, rowShape: []int64{480, 640}, lanes: 3},
		{shape: []int64{2, 480, 640, 3}, rowShape: []int64{640, 480}, bad: ErrInvalidArgument},
		{shape: []int64{2, 480, 640, 3}, rowShape: []int64{480}, bad: ErrNotSupported},
		{shape: []int64{2}, rowShape: []int64{3}, bad: ErrInvalidArgument},
		{shape: []int64{}, bad: ErrInvalidArgument},
		{shape: []int64{3}, bad: ErrInvalidArgument},
	} {
		n := 1
		for _, dim := range c.shape {
			n *= int(dim)
		}
		var rowShape []uint64
		for _, dim := range c.rowShape {
			rowShape = append(rowShape, uint64(dim))
		}
		s, rows, err := foldSchema(&Tensor{Data: make([]byte, n), Shape: c.shape, DType: tensor.Uint8, Device: tensor.CPU}, nil, rowShape, 2)
		if c.bad != nil {
			require.ErrorIs(t, asError(err), c.bad, "%v", c)
			continue
		}
		require.NoError(t, err, "%v", c)
		require.EqualValues(t, 2, rows)
		require.Equal(t, c.lanes, s.DType.Lanes, "%v", c)
	}
}

// ints is memory with rows for the tests of Rows.
type ints struct {
	data   []byte
	schema tensor.Schema
}

func (r ints) Bytes() ([]byte, error)    { return r.data, nil }
func (r ints) rowSchema() *tensor.Schema { return &r.schema }

func TestRowsChecksSizesAndElements(t *testing.T) {
	lanes, err := tensor.Float32.WithLanes(3)
	require.NoError(t, err)
	v := ints{make([]byte, 24), tensor.Schema{Kind: tensor.Fixed, DType: lanes, Device: tensor.CPU}}
	a, err := Rows[[3]float32](v)
	require.NoError(t, err)
	require.Len(t, a, 2)
	type point struct{ X, Y, Z float32 }
	p, err := Rows[point](v)
	require.NoError(t, err)
	require.Len(t, p, 2)
	flat, err := Values[float32](v)
	require.NoError(t, err)
	require.Len(t, flat, 6)

	_, err = Rows[[4]float32](v)
	require.ErrorContains(t, err, "16")
	require.ErrorIs(t, err, ErrInvalidArgument)
	_, err = Rows[[3]int32](v)
	require.ErrorIs(t, err, ErrInvalidArgument)
	_, err = Values[float64](v)
	require.ErrorIs(t, err, ErrInvalidArgument)
	_, err = Rows[struct {
		S *float32
		F float32
	}](v)
	require.ErrorIs(t, err, ErrInvalidArgument)
	wide := ints{make([]byte, 32), tensor.Schema{Kind: tensor.Fixed, DType: tensor.Uint64, RowShape: []uint64{2}, Device: tensor.CPU}}
	_, err = Rows[struct{ S string }](wide)
	require.ErrorIs(t, err, ErrInvalidArgument, "a string over shared bytes would be a wild pointer")
	_, err = Rows[[2]uint64](ints{wide.data[1:17], wide.schema})
	require.ErrorIs(t, err, ErrInvalidArgument, "misaligned memory")
	none, err := Rows[[2]uint64](ints{nil, wide.schema})
	require.NoError(t, err)
	require.Empty(t, none)
}

// The encoding of a string list, by hand (protocol.StringList).
func TestStringListEncoding(t *testing.T) {
	texts := []string{"/a", "", "/bcd"}
	dst := make([]byte, stringListBytes(texts))
	for i := range dst {
		dst[i] = 0xee // a room is not cleared
	}
	putStringList(dst, texts)
	require.Equal(t, []byte{
		3, 0, 0, 0, 28, 0, 0, 0,
		2, 0, 0, 0, '/', 'a', 0, 0,
		0, 0, 0, 0,
		4, 0, 0, 0, '/', 'b', 'c', 'd',
	}, dst)
}
