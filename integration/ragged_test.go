package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/protocol"
	"callboard/tensor"
)

// writeRows writes kind array.
func (a *author) writeRows(q *callboard.Query, name string, ordinal uint64, values any) {
	a.t.Helper()
	a.done(a.stage.WriteAttribute(a.ctx, q, name, values, callboard.WriteOptions{Ordinal: ordinal, IsArray: true}))
}

// rows are the newest rows of an array attribute.
func rows[T any](a *author, q *callboard.Query, name string) (all [][]T) {
	a.t.Helper()
	g := a.group(q, name)
	defer g.Release()
	require.True(a.t, g.IsArray())
	for i := range g.Prims() {
		row, err := callboard.Row[T](g, i)
		require.NoError(a.t, err)
		all = append(all, slices.Clone(row))
	}
	return all
}

// group is the newest state of an attribute, to be released.
func (a *author) group(q *callboard.Query, name string) *callboard.Group {
	a.t.Helper()
	r, err := a.stage.ReadAttributes(a.ctx, q, []string{name}, callboard.ReadOptions{})
	require.NoError(a.t, err)
	defer r.Release()
	g, err := r.Group(name)
	require.NoError(a.t, err)
	return g
}

// Behaviour 20, 21, 24, 26, 29, 35, 36, 37: what Go programs hold becomes rows and comes back.
func TestRaggedValuesOfGo(t *testing.T) {
	s := startStage(t)
	a := newAuthor(t, s, "author")
	q := a.query("/a", "/b", "/c")

	a.writeRows(q, "slices", 1, [][]float32{{1, 2, 3, 4}, {}, {6, 7}})
	a.writeRows(q, "packed", 1, []float32{1, 2, 3, 4, 5, 6})
	a.writeRows(q, "flat", 1, [][3]float32{{1, 2, 3}, {4, 5, 6}}) // nothing folds
	points, err := callboard.FromSlice([]float32{1, 2, 3, 4, 5, 6})
	require.NoError(t, err)
	points.Shape, points.DType.Lanes = []int64{2}, 3
	none := points
	none.Shape, none.Data = []int64{0}, nil
	a.writeRows(q, "points", 1, []callboard.Tensor{points, none, points})
	strided, err := callboard.FromSlice([]float32{1, 0, 2, 0, 3})
	require.NoError(t, err)
	strided.Shape, strided.Strides = []int64{3}, []int64{2}
	a.writeRows(q, "strided", 1, []any{strided, []float32{9}, [1]float32{8}})
	texts := []string{"", "a", "€ and more"}
	a.done(a.stage.WriteAttribute(a.ctx, q, "texts", texts, callboard.WriteOptions{Ordinal: 1, IsArray: true, Semantic: tensor.SemanticString}))
	a.seal(1)

	require.Equal(t, [][]float32{{1, 2, 3, 4}, nil, {6, 7}}, rows[float32](a, q, "slices"))
	require.Equal(t, [][]float32{{1, 2}, {3, 4}, {5, 6}}, rows[float32](a, q, "packed"))
	require.Equal(t, [][]float32{{1, 2}, {3, 4}, {5, 6}}, rows[float32](a, q, "flat"))
	require.Equal(t, [][][3]float32{{{1, 2, 3}, {4, 5, 6}}, nil, {{1, 2, 3}, {4, 5, 6}}}, rows[[3]float32](a, q, "points"))
	require.Equal(t, [][]float32{{1, 2, 3}, {9}, {8}}, rows[float32](a, q, "strided"))

	g := a.group(q, "texts")
	defer g.Release()
	got, err := callboard.Texts(g)
	require.NoError(t, err)
	require.Equal(t, texts, got)
	empty, err := g.Tensor(0)
	require.NoError(t, err)
	require.Equal(t, []int64{0}, empty.Shape)
	require.True(t, empty.ReadOnly)
	exported, err := g.ExportVersioned(1, 0) // behaviour 300: each row is a tensor of its own
	require.NoError(t, err)
	back, err := tensor.ImportVersioned(exported)
	require.NoError(t, err)
	require.Equal(t, []byte("a"), back.Data)
	require.True(t, back.ReadOnly)
	tensor.Discard(exported)
	for _, err := range []error{second(g.Bytes()), second(g.Array()), second(callboard.Values[uint8](g)), second(callboard.Rows[uint8](g)), second(g.Tensor(3)), second(g.Tensor(-1)), second(callboard.Row[uint16](g, 1))} {
		require.ErrorIs(t, err, callboard.ErrInvalidArgument)
	}
	a.writeRows(q, "copies", 2, g) // a group's rows can be written as they are
	a.seal(2)
	require.Equal(t, [][]byte{nil, []byte("a"), []byte(texts[2])}, rows[byte](a, q, "copies"))
	g.Release()
	require.ErrorIs(t, second(g.Tensor(1)), callboard.ErrInvalidHandle)
}

func second[T any](_ T, err error) error { return err }

// Behaviour 22, 25, 28, 33, 34, 75, 78, 86, 182: what is wrong is named before anything is
// submitted.
func TestWrongRaggedValuesAreRefusedAtOnce(t *testing.T) {
	s := startStage(t)
	a := newAuthor(t, s, "author")
	q := a.query("/a", "/b", "/c")
	a.write(q, "fixed", 1, []float32{1, 2, 3})
	lanes, err := callboard.FromSlice(make([]float32, 9))
	require.NoError(t, err)
	lanes.Shape, lanes.DType.Lanes = []int64{3}, 3
	a.writeRows(q, "lanes", 1, lanes)
	a.seal(1)
	for _, c := range []struct {
		name      string
		values    any
		selection *callboard.Selection
		text      string
	}{
		{"x", make([]float32, 7), nil, "7 elements: they do not divide into 3 rows, a number that comes from the number of addressed prims"},
		{"x", make([]float32, 10), &callboard.Selection{Count: 2, IndexMap: []uint32{0, 2}}, "10 elements: they do not divide into 3 rows, a number that comes from the highest index map entry"},
		{"x", [][]float32{{1}, {2}}, nil, "2 tensors are given for 3 addressed prims: there is none for prim 2"},
		{"x", [][]float32{{1}, {2}, {3}, {4}}, nil, "4 tensors are given for 3 addressed prims: there is no prim for tensor 3"},
		{"x", [][]float32{{1}}, &callboard.Selection{Count: 3, Mask: []uint64{1}}, "1 tensors are given for 3 addressed prims: there is none for prim 1; a mask leaves out targets"},
		{"x", [][]float32{{1}, {2}}, &callboard.Selection{Count: 2, IndexMap: []uint32{0, 2}}, "index map"},
		{"x", []any{[]float32{1}, []float64{2}, []float32{3}}, nil, "tensor 1 has elements of float64: those before it have float32"},
		{"x", []any{[]float32{1}, float32(2), []float32{3}}, nil, "tensor 1: it has rank 0"},
		{"x", [][]int{{1}}, nil, "tensor 0: []int holds no numbers"},
		{"lanes", make([][3]float32, 3), nil, "element type is float32 but the attribute holds float32x3"},
		{"fixed", []float32{1, 2, 3}, nil, "kind is array but the attribute holds fixed"},
	} {
		_, err := a.stage.WriteAttribute(a.ctx, q, c.name, c.values, callboard.WriteOptions{Ordinal: 2, IsArray: true, Selection: c.selection})
		require.ErrorIs(t, err, callboard.ErrInvalidArgument)
		require.ErrorContains(t, err, c.text)
		require.ErrorContains(t, err, `"`+c.name+`"`)
	}
	_, err = a.stage.WriteAttribute(a.ctx, q, "lanes", []float32{1, 2, 3}, callboard.WriteOptions{Ordinal: 2})
	require.ErrorContains(t, err, "kind array")
	for text, o := range map[string]callboard.MapOptions{
		"element_sizes has 2 entries for 3 prims":           {DType: tensor.Float32, IsArray: true, ElementSizes: []uint64{1, 2}},
		"element_sizes has 3 entries but the kind is fixed": {DType: tensor.Float32, ElementSizes: []uint64{1, 2, 3}},
	} {
		o.Ordinal = 2
		_, err := a.stage.MapAttribute(a.ctx, q, "x", o)
		require.ErrorIs(t, err, callboard.ErrInvalidArgument)
		require.ErrorContains(t, err, text)
	}
}

// Behaviour 63, 76, 77, 82, 180, 182: payloads beyond the argument area, selections of
// them, and sessions whose rows grow and shrink.
func TestLargeRaggedPayloadsAndSessions(t *testing.T) {
	s := startStage(t)
	a := newAuthor(t, s, "author")
	q := a.query("/a", "/b", "/c", "/d")
	big := func(n int, first uint32) (row []uint32) {
		for i := range n {
			row = append(row, first+uint32(i))
		}
		return row
	}
	want := [][]uint32{big(50_000, 1), big(1, 2), nil, big(70_000, 3)}
	a.writeRows(q, "x", 1, want)
	a.seal(1)
	require.Equal(t, want, rows[uint32](a, q, "x"))

	want[0], want[1] = big(30_000, 4), big(20_000, 5)
	a.done(a.stage.WriteAttribute(a.ctx, q, "x", want[:2], callboard.WriteOptions{Ordinal: 2, IsArray: true, Selection: &callboard.Selection{Count: 2}}))
	a.seal(2)
	require.Equal(t, want, rows[uint32](a, q, "x"))

	masked := [][]uint32{big(1, 0), big(40_000, 6), big(1, 0), big(5, 7)}
	a.done(a.stage.WriteAttribute(a.ctx, q, "x", masked, callboard.WriteOptions{Ordinal: 3, IsArray: true, Selection: &callboard.Selection{Count: 4, Mask: []uint64{0b1010}}}))
	a.seal(3)
	want[1], want[3] = masked[1], masked[3]
	require.Equal(t, want, rows[uint32](a, q, "x"))

	mapped := [][]uint32{big(20_000, 8), big(20_000, 9)}
	a.done(a.stage.WriteAttribute(a.ctx, q, "x", mapped, callboard.WriteOptions{Ordinal: 4, IsArray: true, Selection: &callboard.Selection{Count: 3, IndexMap: []uint32{1, 1, 0}}}))
	a.seal(4)
	want[0], want[1], want[2] = mapped[1], mapped[1], mapped[0]
	require.Equal(t, want, rows[uint32](a, q, "x"))

	m, err := a.stage.MapAttribute(a.ctx, q, "x", callboard.MapOptions{Ordinal: 5, Init: callboard.InitCurrent, ElementSizes: []uint64{3, 0, 20_001, 1}})
	require.NoError(t, err)
	defer m.Abort()
	for g, err := range m.Groups(a.ctx) {
		require.NoError(t, err)
		require.True(t, g.IsArray())
		for i, row := range [][]uint32{want[0][:3], nil, append(slices.Clone(want[2]), 0), want[3][:1]} {
			got, err := callboard.Row[uint32](g, i)
			require.NoError(t, err)
			require.Equal(t, row, slices.Clone(got), "init current gives as much as there is room for")
			if i == 0 {
				copy(got, []uint32{70, 71, 72})
			}
			want[i] = slices.Clone(got)
		}
		require.ErrorIs(t, second(g.Array()), callboard.ErrInvalidArgument)
		op, err := m.UnmapGroup(g)
		require.NoError(t, err)
		require.NoError(t, op.Wait(a.ctx))
		require.True(t, op.Adopted())
		require.ErrorIs(t, second(g.Tensor(0)), callboard.ErrInvalidHandle)
	}
	require.NoError(t, m.Commit(a.ctx))
	a.seal(5)
	require.Equal(t, want, rows[uint32](a, q, "x"))
}

// Behaviour 127, 147, 151: changes of rows with lengths of their own, and deletes.
func TestRaggedChanges(t *testing.T) {
	s := startStage(t)
	a := newAuthor(t, s, "author")
	q, b := a.query("/a", "/b", "/c"), a.query("/b")
	a.writeRows(q, "x", 1, []string{"one", "two", "three"})
	a.seal(1)
	held := a.group(q, "x")
	defer held.Release()
	a.writeRows(b, "x", 2, []string{strings.Repeat("longer", 100)})
	a.delete(a.query("/c"), 3, "x")
	a.seal(3)
	r, err := a.stage.ReadAttributes(a.ctx, q, []string{"x"}, callboard.ReadOptions{Since: callboard.Ordinal(1)})
	require.NoError(t, err)
	defer r.Release()
	deletes := 0
	for g, err := range r.Groups() {
		require.NoError(t, err)
		defer g.Release()
		paths, err := a.stage.Resolve(g.Prims()...)
		require.NoError(t, err)
		if g.IsDelete() {
			require.Equal(t, []string{"/c"}, paths)
			deletes++
			continue
		}
		require.Equal(t, []string{"/b"}, paths)
		texts, err := callboard.Texts(g)
		require.NoError(t, err)
		require.Equal(t, []string{strings.Repeat("longer", 100)}, texts)
	}
	require.Equal(t, 1, deletes)
	texts, err := callboard.Texts(held)
	require.NoError(t, err)
	require.Equal(t, []string{"one", "two", "three"}, texts)
	asOf, err := a.stage.ReadAttributes(a.ctx, b, []string{"x"}, callboard.ReadOptions{At: callboard.Ordinal(1)})
	require.NoError(t, err)
	defer asOf.Release()
	g, err := asOf.Group("x")
	require.NoError(t, err)
	defer g.Release()
	texts, err = callboard.Texts(g)
	require.NoError(t, err)
	require.Equal(t, []string{"two"}, texts)
}

// A producer cuts off memory that rows of everybody's version lie in. When the broker
// moves them, what is gone reads as zeros; nobody else notices. Rule S3, field report B4.
func TestB4TruncatedUnderRowsThatMove(t *testing.T) {
	s := startStage(t)
	other := newAuthor(t, s, "other")
	q := other.query("/a", "/b", "/c")
	w := attachWire(t, s.socket(), "truncating")
	schema := uint64s
	schema.Kind = protocol.KindArray
	done, raw := w.do(t, protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: w.query(t, "/a", "/b", "/c"), Ordinal: 1}, mapArguments("x", schema, 1000, 1000, 500))
	var g protocol.GroupDescriptor
	require.NoError(t, unpack(raw, &g))
	require.EqualValues(t, 20_000, g.Block.LengthBytes)
	w.do(t, protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: done.Handle}, nil)
	other.seal(1)
	require.NoError(t, os.Truncate(filepath.Join(s.memoryDir(t), fmt.Sprintf("segment-%d", g.Block.Segment)), 0))
	other.writeRows(other.query("/a", "/b"), "x", 2, [][]uint64{{1}, {2, 3}})
	other.seal(2)
	require.Equal(t, [][]uint64{{1}, {2, 3}, make([]uint64, 500)}, rows[uint64](other, q, "x"))
	w.close()
	unharmed(t, other.stage)
}
