package goclient

import (
	"context"
	"fmt"
	"testing"
	"time"

	callboard "callboard/clients/go"
	"callboard/integration/harness"

	"github.com/stretchr/testify/require"
)

// Publish, Latest, Map and Watch: the first five minutes.
func TestShortForm(t *testing.T) {
	b := harness.Start(t)
	s, viewer := b.Dial("publisher"), b.Dial("viewer")
	_, err := viewer.Latest(background, "camera/rgb")
	require.ErrorIs(t, err, callboard.ErrNotFound)

	frame := make([]uint8, 48*64*3)
	for i := range frame {
		frame[i] = uint8(i)
	}
	tensor, err := callboard.FromSlice(frame, 48, 64, 3)
	require.NoError(t, err)
	ordinal, err := s.Publish(background, "camera/rgb", tensor)
	require.NoError(t, err)
	require.EqualValues(t, 1, ordinal)
	g, err := viewer.Latest(background, "camera/rgb")
	require.NoError(t, err)
	require.Equal(t, []int64{48, 64, 3}, g.Shape())
	pixels, err := callboard.Values[uint8](g)
	require.NoError(t, err)
	require.Equal(t, frame, pixels)

	uint8s, err := callboard.ParseDType("uint8")
	require.NoError(t, err)
	m, err := s.Map(background, "camera/rgb", []int{48, 64, 3}, uint8s)
	require.NoError(t, err)
	defer m.Abort()
	memory, err := callboard.Values[uint8](m)
	require.NoError(t, err)
	for i := range memory {
		memory[i] = 7
	}
	view, err := m.Array()
	require.NoError(t, err)
	require.Equal(t, []int64{48, 64, 3}, view.Shape)
	require.NoError(t, m.Commit(background))
	_, err = m.Bytes()
	require.ErrorIs(t, err, callboard.ErrInvalidHandle, "behaviour 187")
	require.Equal(t, frame, pixels, "the held view changed (behaviour 159)")
	g.Release()
	g, err = viewer.Latest(background, "camera/rgb")
	require.NoError(t, err)
	require.EqualValues(t, 2, g.Ordinal())
	require.True(t, g.Adopted(), "a whole column that was filled in place is not copied (design D6)")
	pixels, err = callboard.Values[uint8](g)
	require.NoError(t, err)
	require.EqualValues(t, 7, pixels[0])
	g.Release()

	for _, values := range []any{3.5, [2]int32{1, 2}, []float64{1, 2, 3}} {
		name := fmt.Sprintf("%T", values)
		_, err = s.Publish(background, name, values)
		require.NoError(t, err)
		g, err := viewer.Latest(background, name)
		require.NoError(t, err)
		again, err := s.Publish(background, name, g) // a view is a value as well
		require.NoError(t, err)
		require.EqualValues(t, 2, again)
		g.Release()
	}
	_, err = s.Publish(background, "camera/rgb", []float32{1})
	require.ErrorIs(t, err, callboard.ErrInvalidArgument)
}

func TestWatchShowsEachChangeOnce(t *testing.T) {
	b := harness.Start(t)
	s, viewer := b.Dial("publisher"), b.Dial("viewer")
	ctx, cancel := context.WithTimeout(background, patience)
	defer cancel()
	const last = 50
	go func() {
		for i := uint64(1); i <= last; i++ {
			_, _ = s.Publish(background, "noise", i)
			if _, err := s.Publish(background, "tick", i); err != nil {
				t.Error(err)
			}
		}
	}()
	seen := uint64(0)
	for snap, err := range viewer.Watch(ctx, "tick") {
		require.NoError(t, err)
		g, err := snap.Latest(ctx, "tick")
		require.NoError(t, err)
		values, err := callboard.Values[uint64](g)
		require.NoError(t, err)
		require.Greater(t, values[0], seen)
		floor, err := snap.Floor("tick")
		require.NoError(t, err)
		require.Equal(t, floor, values[0], "a snapshot's floors are of its epoch (rule V9)")
		seen = values[0]
		g.Release()
		if seen == last {
			break
		}
	}
	require.EqualValues(t, last, seen)
	short, cancelShort := context.WithTimeout(background, 30*time.Millisecond)
	defer cancelShort()
	_, err := viewer.Follow(short, viewer.Epoch())
	require.ErrorIs(t, err, callboard.ErrTimeout)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// Sessions (behaviour 175, 176, 180, 184, 188, 191).
func TestMapSessions(t *testing.T) {
	s := harness.Start(t).Dial("sessions")
	q := query(t, s, "/a", "/b")
	dtype, err := callboard.ParseDType("float32x3")
	require.NoError(t, err)
	m, err := s.MapAttribute(background, q, "p", callboard.MapOptions{Ordinal: 1, DType: dtype, Init: callboard.InitZero})
	require.NoError(t, err)
	var last *callboard.MapGroup
	for g, err := range m.Groups(background) {
		require.NoError(t, err)
		require.Equal(t, q.Prims(), g.Prims())
		rows, err := callboard.Rows[[3]float32](g)
		require.NoError(t, err)
		require.Equal(t, [][3]float32{{}, {}}, rows)
		rows[1] = [3]float32{1, 2, 3}
		op, err := m.UnmapGroup(g)
		require.NoError(t, err)
		require.NoError(t, op.Wait(background))
		last = g
	}
	_, err = m.UnmapGroup(last)
	require.ErrorIs(t, err, callboard.ErrInvalidHandle, "behaviour 188")
	_, err = last.Bytes()
	require.ErrorIs(t, err, callboard.ErrInvalidHandle)
	require.NoError(t, m.Commit(background))
	require.ErrorIs(t, m.Commit(background), callboard.ErrInvalidHandle)
	m.Abort()
	seal(t, s, 1)
	require.Equal(t, [][3]float32{{}, {1, 2, 3}}, read[[3]float32](t, s, q, "p"))

	m, err = s.MapAttribute(background, q, "p", callboard.MapOptions{Ordinal: 2, Init: callboard.InitCurrent})
	require.NoError(t, err)
	rows, err := callboard.Rows[[3]float32](m)
	require.NoError(t, err)
	require.Equal(t, [3]float32{1, 2, 3}, rows[1])
	rows[0][0] = 99
	m.Abort()
	seal(t, s, 2)
	require.Equal(t, [][3]float32{{}, {1, 2, 3}}, read[[3]float32](t, s, q, "p"), "an aborted session was published (rule M3)")

	m, err = s.MapAttribute(background, q, "p", callboard.MapOptions{Ordinal: 3})
	require.NoError(t, err)
	seal(t, s, 3) // never waits for open sessions (rule O3)
	require.ErrorIs(t, m.Commit(background), callboard.ErrFloorViolation)
	_, err = s.MapAttribute(background, q, "p", callboard.MapOptions{Ordinal: 3})
	require.ErrorIs(t, err, callboard.ErrFloorViolation)
	_, err = s.MapAttribute(background, q, "p", callboard.MapOptions{Ordinal: 4, RowShape: []uint64{2}})
	require.ErrorIs(t, err, callboard.ErrInvalidArgument, "behaviour 179")
}

// GUARD: a store after the unmap faults where it is made (rule M1, behaviour 189). The
// memory is writable again when it is leased anew.
func TestGuardMakesUnmappedMemoryReadOnly(t *testing.T) {
	b := harness.Start(t)
	o := b.Options("guarded")
	o.Guard = true
	s, err := callboard.Dial(background, o)
	require.NoError(t, err)
	defer s.Close()
	dtype, err := callboard.ParseDType("uint64")
	require.NoError(t, err)
	for n := range uint64(30) {
		m, err := s.Map(background, "x", []int{700}, dtype)
		require.NoError(t, err)
		values, err := callboard.Values[uint64](m)
		require.NoError(t, err)
		for i := range values {
			values[i] = n
		}
		require.NoError(t, m.Commit(background))
		require.True(t, faults(func() { values[0] = 1 }), "round %d: the late store was not caught", n)
		g, err := s.Latest(background, "x")
		require.NoError(t, err)
		got, err := callboard.Values[uint64](g)
		require.NoError(t, err)
		require.Equal(t, n, got[0])
		require.True(t, faults(func() { got[0] = 1 }), "a reader's memory is writable (rule G2)")
		g.Release()
	}
}
