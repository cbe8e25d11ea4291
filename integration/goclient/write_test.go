package goclient

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	callboard "callboard/clients/go"
	"callboard/integration/harness"

	"github.com/stretchr/testify/require"
)

// Refusals carry op id 0, the kind and the numbers, and change nothing
// (behaviour 6, 8, 15, 44, 64, 65, 102, 212, 224; rule R6).
func TestRefusalsAtSubmission(t *testing.T) {
	s := harness.Start(t).Dial("refusals")
	q := query(t, s, "/a", "/b", "/c")
	write(t, s, q, "x", []float32{1, 2, 3}, callboard.WriteOptions{Ordinal: 5})
	seal(t, s, 8)
	one := []float32{1, 2, 3}
	for _, c := range []struct {
		name   string
		attr   string
		values any
		o      callboard.WriteOptions
		want   error
		text   string
	}{
		{"flat buffer", "y", make([]float32, 9), callboard.WriteOptions{Ordinal: 9}, callboard.ErrInvalidArgument, "9"},
		{"two rows for three prims", "y", make([]float32, 2), callboard.WriteOptions{Ordinal: 9}, callboard.ErrInvalidArgument, "2"},
		{"too wide a row", "y", make([][300]float32, 3), callboard.WriteOptions{Ordinal: 9}, callboard.ErrNotSupported, "row_shape"},
		{"another type", "x", []float64{1, 2, 3}, callboard.WriteOptions{Ordinal: 9}, callboard.ErrInvalidArgument, "float64"},
		{"at the floor", "x", one, callboard.WriteOptions{Ordinal: 8}, callboard.ErrFloorViolation, "8"},
		{"unknown attribute below the floor", "z", one, callboard.WriteOptions{Ordinal: 8}, callboard.ErrFloorViolation, "8"},
		{"ordinal 0", "x", one, callboard.WriteOptions{}, callboard.ErrFloorViolation, "0"},
		{"reserved name", "@path", one, callboard.WriteOptions{Ordinal: 9}, callboard.ErrNotSupported, "@"},
		{"empty name", "", one, callboard.WriteOptions{Ordinal: 9}, callboard.ErrInvalidArgument, "empty"},
		{"array kind", "x", one, callboard.WriteOptions{Ordinal: 9, IsArray: true}, callboard.ErrInvalidArgument, "kind is array"},
		{"packed rows that do not divide", "y", make([]float32, 7), callboard.WriteOptions{Ordinal: 9, IsArray: true}, callboard.ErrInvalidArgument, "7 elements"},
		{"insert of prims that exist", "y", one, callboard.WriteOptions{Ordinal: 9, Insert: true}, callboard.ErrAlreadyExists, "carries attribute \"x\""},
		{"no values", "y", nil, callboard.WriteOptions{Ordinal: 9}, callboard.ErrInvalidArgument, "nil"},
		{"int", "y", []int{1, 2, 3}, callboard.WriteOptions{Ordinal: 9}, callboard.ErrInvalidArgument, "int"},
		{"strings", "y", []string{"a", "b", "c"}, callboard.WriteOptions{Ordinal: 9}, callboard.ErrInvalidArgument, "string"},
		{"rank 0", "y", float32(1), callboard.WriteOptions{Ordinal: 9}, callboard.ErrInvalidArgument, "rank 0"},
		{"token ids of 32 bits", "y", []uint32{1, 2, 3}, callboard.WriteOptions{Ordinal: 9, Semantic: 10}, callboard.ErrInvalidArgument, "uint32"},
		{"count 0", "x", one, callboard.WriteOptions{Ordinal: 9, Selection: &callboard.Selection{}}, callboard.ErrInvalidArgument, "count"},
		{"count beyond the query", "x", make([]float32, 5), callboard.WriteOptions{Ordinal: 9, Selection: &callboard.Selection{Count: 5}}, callboard.ErrInvalidArgument, "count"},
	} {
		t.Run(c.name, func(t *testing.T) {
			op, err := s.WriteAttribute(background, q, c.attr, c.values, c.o)
			require.Nil(t, op)
			require.ErrorIs(t, err, c.want)
			require.ErrorIs(t, err, callboard.ErrOpFailed)
			require.ErrorContains(t, err, c.text)
			var e *callboard.Error
			require.ErrorAs(t, err, &e)
			require.Zero(t, e.OpID)
		})
	}
	require.Equal(t, []float32{1, 2, 3}, read[float32](t, s, q, "x"))
	info, err := s.Info()
	require.NoError(t, err)
	require.Len(t, info.Attributes, 1, "a refused write made an attribute")
	require.ErrorIs(t, s.Declare(background, "w", callboard.DeclareOptions{}), callboard.ErrInvalidArgument)
	_, err = s.MapAttribute(background, q, "new", callboard.MapOptions{Ordinal: 9})
	require.ErrorIs(t, err, callboard.ErrInvalidArgument, "behaviour 177")
	_, err = s.AdvanceWriteFloor(9, callboard.SealOptions{Attributes: []string{"x"}})
	require.ErrorIs(t, err, callboard.ErrInvalidArgument)
	other := harness.Start(t).Dial("other")
	_, err = other.WriteAttribute(background, q, "x", one, callboard.WriteOptions{Ordinal: 9})
	require.ErrorIs(t, err, callboard.ErrInvalidHandle)
}

// Gather, masks, counts and strides (behaviour 11, 18, 63, 70, 71, 76, 82).
func TestSelectionsAndStrides(t *testing.T) {
	s := harness.Start(t).Dial("selections")
	q := query(t, s, "/a", "/b", "/c", "/d")
	next := uint64(0)
	step := func(values any, selection *callboard.Selection) []float32 {
		next++
		write(t, s, q, "x", values, callboard.WriteOptions{Ordinal: next, Selection: selection})
		seal(t, s, next)
		return read[float32](t, s, q, "x")
	}
	reset := func() { step([]float32{5, 6, 7, 8}, nil) }
	reset()
	require.Equal(t, []float32{50, 60, 7, 8}, step([]float32{50, 60}, &callboard.Selection{Count: 2}))
	reset()
	require.Equal(t, []float32{90, 70, 80, 8}, step([]float32{70, 80, 90}, &callboard.Selection{Count: 3, IndexMap: []uint32{2, 0, 1}}))
	require.Equal(t, []float32{9, 9, 9, 9}, step([]float32{9}, &callboard.Selection{Count: callboard.AllPrims, IndexMap: []uint32{0, 0, 0, 0}}))
	reset()
	require.Equal(t, []float32{20, 6, 7, 8}, step([]float32{10, 20}, &callboard.Selection{Count: 1, IndexMap: []uint32{1}}))
	reset()
	require.Equal(t, []float32{5, 6, 70, 8}, step([]float32{0, 0, 70, 0}, &callboard.Selection{Count: 4, Mask: []uint64{1 << 2}}))

	every, err := callboard.FromSlice([]float32{1, -1, 2, -1, 3, -1, 4, -1})
	require.NoError(t, err)
	every.Shape, every.Strides = []int64{4}, []int64{2}
	require.Equal(t, []float32{1, 2, 3, 4}, step(every, nil))
	every.ByteOffset, every.Strides = 6*4, []int64{-2}
	require.Equal(t, []float32{4, 3, 2, 1}, step(every, nil))
	part := query(t, s, "/d", "/b")
	write(t, s, part, "x", []float32{40, 20}, callboard.WriteOptions{Ordinal: next + 1})
	seal(t, s, next+1)
	require.Equal(t, []float32{4, 20, 2, 40}, read[float32](t, s, q, "x"), "behaviour 18")
	require.Equal(t, []float32{40, 20}, read[float32](t, s, part, "x"))
}

// A payload above 64 KiB goes through a leased block, selections as well.
func TestLargeWrites(t *testing.T) {
	s := harness.Start(t).Dial("large")
	q := query(t, s, "/a", "/b")
	big := make([][]float64, 2)
	values := make([]float64, 2*20000)
	for i := range values {
		values[i] = float64(i)
	}
	big[0], big[1] = values[:20000], values[20000:]
	tensor, err := callboard.FromSlice(values, 2, 200, 100)
	require.NoError(t, err)
	write(t, s, q, "x", tensor, callboard.WriteOptions{Ordinal: 1, RowShape: []uint64{200, 100}})
	seal(t, s, 1)
	rows := read[[200][100]float64](t, s, q, "x")
	require.Equal(t, values[20000], rows[1][0][0])
	require.Equal(t, values[39999], rows[1][199][99])

	swapped, err := callboard.FromSlice(values, 2, 200, 100)
	require.NoError(t, err)
	write(t, s, q, "x", swapped, callboard.WriteOptions{Ordinal: 2, Selection: &callboard.Selection{Count: 2, IndexMap: []uint32{1, 0}}})
	seal(t, s, 2)
	rows = read[[200][100]float64](t, s, q, "x")
	require.Equal(t, values[20000], rows[0][0][0])
	write(t, s, q, "x", tensor, callboard.WriteOptions{Ordinal: 3, Selection: &callboard.Selection{Count: 2, Mask: []uint64{2}}})
	seal(t, s, 3)
	rows = read[[200][100]float64](t, s, q, "x")
	require.Equal(t, values[20000], rows[0][0][0], "row 0 was masked out")
	require.Equal(t, values[20000], rows[1][0][0])
	one := query(t, s, "/b")
	first, err := callboard.FromSlice(values[:20000], 1, 200, 100)
	require.NoError(t, err)
	write(t, s, one, "x", first, callboard.WriteOptions{Ordinal: 4})
	seal(t, s, 4)
	rows = read[[200][100]float64](t, s, q, "x")
	require.Equal(t, float64(1), rows[1][0][1])
}

// Many goroutines of one Stage, and flooding it: what was accepted always has room to come back (behaviour 217, 219, 220;
// field report E11).
func TestManyGoroutinesAndFloods(t *testing.T) {
	s := harness.Start(t).Dial("busy")
	var group sync.WaitGroup
	var full atomic.Int64
	for i := range 8 {
		group.Add(1)
		go func() {
			defer group.Done()
			name := fmt.Sprintf("a%d", i)
			q, err := s.QueryFromPathList(background, []string{"/p"})
			if err != nil {
				t.Error(err)
				return
			}
			defer q.Release()
			for n := uint64(1); n < 200; {
				op, err := s.WriteAttribute(background, q, name, []uint64{n}, callboard.WriteOptions{Ordinal: n})
				if errors.Is(err, callboard.ErrQueueFull) {
					full.Add(1)
					runtime.Gosched()
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				done, err := s.AdvanceWriteFloor(n, callboard.SealOptions{Scope: callboard.ScopeInclude, Attributes: []string{name}})
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(done.Wait(background), op.Wait(background)); err != nil {
					t.Error(err)
					return
				}
				n++
			}
			if rows := read[uint64](t, s, q, name); rows[0] != 199 {
				t.Errorf("%s is %d", name, rows[0])
			}
		}()
	}
	group.Wait()

	// Without waiting: earlier ops are unaffected by the refusal, and a retry works.
	var ops []*callboard.Op
	q := query(t, s, "/p")
	for {
		op, err := s.WriteAttribute(background, q, "flood", []uint64{uint64(len(ops))}, callboard.WriteOptions{Ordinal: 1})
		if err != nil {
			require.ErrorIs(t, err, callboard.ErrQueueFull)
			break
		}
		if ops = append(ops, op); len(ops) == 20000 {
			t.Log("the broker was faster than the flood")
			break
		}
	}
	for i, op := range ops {
		require.NoError(t, op.Wait(background))
		if i > 0 {
			require.Greater(t, op.ID(), ops[i-1].ID(), "behaviour 206")
		}
	}
	ops[0].Release()
	require.ErrorIs(t, ops[0].Wait(background), callboard.ErrInvalidHandle, "behaviour 214")
}

// A wait that is given up is no failure of the op (behaviour 207).
func TestPollingAndGivingUp(t *testing.T) {
	s := harness.Start(t).Dial("poller")
	q := query(t, s, "/p")
	over, cancel := context.WithCancel(background)
	cancel()
	op, err := s.WriteAttribute(background, q, "x", []float32{1}, callboard.WriteOptions{Ordinal: 1})
	require.NoError(t, err)
	for {
		if err = op.Wait(over); err == nil {
			break
		}
		require.ErrorIs(t, err, callboard.ErrTimeout)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, callboard.ErrOpFailed)
	}
	require.True(t, op.Done())
	later, err := s.WriteAttribute(background, q, "x", []float32{2}, callboard.WriteOptions{Ordinal: 2})
	require.NoError(t, err)
	require.NoError(t, later.Wait(background), "a second unsealed ordinal is accepted")
	// The prim is not sealed yet, so that only the broker can tell that it exists (behaviour 94).
	bad, err := s.WriteAttribute(background, q, "x", []float32{3}, callboard.WriteOptions{Ordinal: 3, Insert: true})
	require.NoError(t, err)
	err = bad.Wait(background)
	require.ErrorIs(t, err, callboard.ErrAlreadyExists)
	require.ErrorIs(t, err, callboard.ErrOpFailed)
	require.Equal(t, err, bad.Wait(background), "the error stays with the op (behaviour 211)")
	seal(t, s, 3)
	require.Equal(t, []float32{2}, read[float32](t, s, q, "x"), "the refused write left its mark")
}
