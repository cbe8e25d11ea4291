package integration

import (
	"testing"
	"time"

	callboard "callboard/clients/go"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// What Go programs give to DLPack consumers and take from producers, without cgo; goclient has threads of C.

func floats(t *testing.T, values []float32, shape ...int) callboard.Tensor {
	t.Helper()
	in, err := callboard.FromSlice(values, shape...)
	require.NoError(t, err)
	return in
}

// Behaviour 278, 280, 281, 282, 284, 286: a read group in both forms.
func TestExportsOfAReadGroup(t *testing.T) {
	a := newAuthor(t, startStage(t), "author")
	q := a.query("/a", "/b")
	a.write(q, "points", 1, floats(t, []float32{1, 2, 3, 4, 5, 6}, 2, 3))
	a.seal(1)
	g := a.group(q, "points")
	array, err := g.Array()
	require.NoError(t, err)
	require.Equal(t, []int64{2, 3}, array.Shape)
	flat, err := callboard.Values[float32](g)
	require.NoError(t, err)
	require.Equal(t, []float32{1, 2, 3, 4, 5, 6}, flat)

	v, err := g.ExportVersioned(0, 0)
	require.NoError(t, err)
	require.Equal(t, uint32(1), v.Version.Major)
	require.Equal(t, tensor.FlagReadOnly, v.Flags)
	require.Equal(t, [2]int32{1, 0}, [2]int32{v.Tensor.Device.Type, v.Tensor.Device.ID})
	shared, err := tensor.ImportVersioned(v)
	require.NoError(t, err)
	require.Equal(t, []int64{2, 3}, shared.Shape)
	require.Equal(t, tensor.Float32, shared.DType)
	require.True(t, shared.ReadOnly)
	require.Same(t, &array.Data[0], &shared.Data[0])
	_, err = g.ExportManaged(0, 0) // it cannot say "read-only"
	require.ErrorIs(t, err, callboard.ErrNotSupported)

	copied, err := g.ExportVersioned(0, tensor.FlagIsCopied)
	require.NoError(t, err)
	require.Equal(t, tensor.FlagIsCopied, copied.Flags)
	m, err := g.ExportManaged(0, tensor.FlagIsCopied)
	require.NoError(t, err)
	own, err := tensor.ImportManaged(m)
	require.NoError(t, err)
	require.False(t, own.ReadOnly)
	require.Equal(t, array.Data, own.Data)
	own.Data[0] ^= 0xff // the consumer's
	require.NotEqual(t, own.Data[0], shared.Data[0])
	tensor.Discard(v)
	g.Release()
	second, err := tensor.ImportVersioned(copied) // independent of the group
	require.NoError(t, err)
	require.False(t, second.ReadOnly)
	require.Equal(t, own.Data[1:], second.Data[1:])
	tensor.Discard(m)
	tensor.Discard(copied)
}

// Behaviour 290.
func TestAnExportOwnsAPin(t *testing.T) {
	a := newAuthor(t, startStage(t), "author")
	q := a.query("/a", "/b", "/c")
	a.write(q, "x", 1, []float32{1, 2, 3})
	a.seal(1)
	g := a.group(q, "x")
	v, err := g.ExportVersioned(0, 0)
	require.NoError(t, err)
	view, err := tensor.ImportVersioned(v)
	require.NoError(t, err)
	before := append([]byte(nil), view.Data...)
	g.Release()
	_, err = g.ExportVersioned(0, 0)
	require.ErrorIs(t, err, callboard.ErrInvalidHandle)
	for ordinal := uint64(2); ordinal < 30; ordinal++ { // versions enough that every block would be reused
		a.write(q, "x", ordinal, []float32{9, 9, float32(ordinal)})
		a.seal(ordinal)
	}
	pins := func() int {
		info, err := a.stage.Info()
		require.NoError(t, err)
		return info.Pins
	}
	require.Positive(t, pins())
	require.Equal(t, before, view.Data)
	tensor.Discard(v)
	require.Eventually(t, func() bool { return pins() == 0 }, soon, time.Millisecond)
}

// Behaviour 196, 280: a map group is writable unless the export is asked read-only.
func TestExportsOfAMapGroup(t *testing.T) {
	a := newAuthor(t, startStage(t), "author")
	q := a.query("/a", "/b")
	points, err := callboard.ParseDType("float32x3")
	require.NoError(t, err)
	m, err := a.stage.MapAttribute(a.ctx, q, "filled", callboard.MapOptions{Ordinal: 1, DType: points})
	require.NoError(t, err)
	source := floats(t, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
	for g, err := range m.Groups(a.ctx) {
		require.NoError(t, err)
		v, err := g.ExportVersioned(0, 0)
		require.NoError(t, err)
		require.Zero(t, v.Flags)
		frozen, err := g.ExportVersioned(0, tensor.FlagReadOnly)
		require.NoError(t, err)
		require.Equal(t, tensor.FlagReadOnly, frozen.Flags)
		out, err := tensor.ImportVersioned(v)
		require.NoError(t, err)
		require.False(t, out.ReadOnly)
		require.Equal(t, []int64{2, 3}, out.Shape)
		copy(out.Data, source.Data)
		seen, err := tensor.ImportVersioned(frozen)
		require.NoError(t, err)
		require.True(t, seen.ReadOnly)
		require.Equal(t, source.Data, seen.Data)
		tensor.Discard(frozen)
		tensor.Discard(v)
	}
	a.done(m.UnmapAttribute())
	a.seal(1)
	g := a.group(q, "filled")
	defer g.Release()
	values, err := callboard.Values[float32](g)
	require.NoError(t, err)
	require.Equal(t, []float32{1, 2, 3, 4, 5, 6}, values)
}

// Behaviour 291, 298: both forms; what the producer has may change and go as soon as the call returns.
func TestWhatAProducerHasIsCopied(t *testing.T) {
	a := newAuthor(t, startStage(t), "author")
	q := a.query("/a", "/b", "/c")
	for ordinal := uint64(1); ordinal <= 2; ordinal++ {
		source := floats(t, []float32{1, 2, float32(ordinal)})
		var in callboard.Tensor
		var discard func()
		if ordinal == 1 {
			v, err := tensor.ExportVersioned(&source, tensor.FlagReadOnly, nil)
			require.NoError(t, err)
			in, err = tensor.ImportVersioned(v)
			require.NoError(t, err)
			require.True(t, in.ReadOnly)
			discard = func() { tensor.Discard(v) }
		} else {
			m, err := tensor.ExportManaged(&source, 0, nil)
			require.NoError(t, err)
			in, err = tensor.ImportManaged(m)
			require.NoError(t, err)
			discard = func() { tensor.Discard(m) }
		}
		op, err := a.stage.WriteAttribute(a.ctx, q, "x", in, callboard.WriteOptions{Ordinal: ordinal})
		clear(source.Data)
		discard()
		a.done(op, err)
		a.seal(ordinal)
		g := a.group(q, "x")
		values, err := callboard.Values[float32](g)
		require.NoError(t, err)
		require.Equal(t, []float32{1, 2, float32(ordinal)}, values)
		g.Release()
	}
}

// Behaviour 292, 297: lanes that an explicit fold made are the attribute's; 255 of them, and no more.
func TestFoldedTensorsAreWritten(t *testing.T) {
	a := newAuthor(t, startStage(t), "author")
	q := a.query("/a", "/b")
	for i, c := range []struct {
		name  string
		shape []int
		lanes int
	}{{"two by three", []int{2, 3}, 3}, {"two by four", []int{2, 4}, 4}, {"cube", []int{2, 2, 2}, 4}, {"widest", []int{2, 255}, 255}} {
		values := make([]float32, 2*c.lanes)
		for n := range values {
			values[n] = float32(n)
		}
		source := floats(t, values, c.shape...)
		folded, err := source.FoldLanes(c.lanes)
		require.NoError(t, err)
		m, err := tensor.ExportManaged(&folded, 0, nil)
		require.NoError(t, err)
		in, err := tensor.ImportManaged(m)
		require.NoError(t, err)
		require.Equal(t, []int64{2}, in.Shape)
		require.Same(t, &source.Data[0], &in.Data[0])
		a.write(q, c.name, uint64(i+1), in)
		tensor.Discard(m)
		a.seal(uint64(i + 1))
		g := a.group(q, c.name)
		require.Equal(t, callboard.DType{Code: tensor.CodeFloat, Bits: 32, Lanes: uint16(c.lanes)}, g.DType())
		require.Equal(t, []int64{2, int64(c.lanes)}, g.Shape())
		got, err := callboard.Values[float32](g)
		require.NoError(t, err)
		require.Equal(t, values, got)
		g.Release()
	}
	wide := floats(t, make([]float32, 512), 2, 256)
	_, err := wide.FoldLanes(256)
	require.ErrorIs(t, err, tensor.ErrInvalidArgument)
	extent := int64(0)
	_, err = tensor.ImportManaged(&tensor.DLManagedTensor{Tensor: tensor.DLTensor{Device: tensor.DLDevice{Type: 1}, NDim: 1,
		DType: tensor.DType{Code: tensor.CodeFloat, Bits: 32, Lanes: 256}, Shape: &extent}})
	require.ErrorIs(t, err, tensor.ErrInvalidArgument)
	require.ErrorContains(t, err, "expected 1 to 255")
}

// Behaviour 295, 300: (4, 3) is 12 numbers of an array attribute, and its rows go out one by one.
func TestRowsOfArraysAreExportedOneByOne(t *testing.T) {
	a := newAuthor(t, startStage(t), "author")
	q := a.query("/a", "/b")
	source := floats(t, []float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 4, 3)
	m, err := tensor.ExportManaged(&source, 0, nil)
	require.NoError(t, err)
	in, err := tensor.ImportManaged(m)
	require.NoError(t, err)
	a.writeRows(q, "numbers", 1, in)
	tensor.Discard(m)
	points, err := source.FoldLanes(3)
	require.NoError(t, err)
	none := points
	none.Shape, none.Data = []int64{0}, nil
	a.writeRows(q, "points", 1, []callboard.Tensor{points, none})
	a.seal(1)
	for _, c := range []struct {
		name   string
		shapes [2][]int64
		data   [2][]byte
	}{
		{"numbers", [2][]int64{{6}, {6}}, [2][]byte{source.Data[:24], source.Data[24:]}},
		{"points", [2][]int64{{4, 3}, {0, 3}}, [2][]byte{source.Data, nil}},
	} {
		g := a.group(q, c.name)
		for i, shape := range c.shapes {
			v, err := g.ExportVersioned(i, 0)
			require.NoError(t, err)
			row, err := tensor.ImportVersioned(v)
			require.NoError(t, err)
			require.Equal(t, shape, row.Shape)
			require.Equal(t, tensor.Float32, row.DType)
			require.Equal(t, string(c.data[i]), string(row.Data))
			tensor.Discard(v)
		}
		_, err := g.ExportVersioned(2, 0)
		require.ErrorIs(t, err, callboard.ErrInvalidArgument)
		g.Release()
	}
}
