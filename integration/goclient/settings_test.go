package goclient

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	callboard "callboard/clients/go"
	"callboard/integration/harness"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// attribute finds what a stage says of one attribute.
func attribute(t *testing.T, s *callboard.Stage, name string) callboard.AttributeInfo {
	t.Helper()
	info, err := s.Info()
	require.NoError(t, err)
	for _, a := range info.Attributes {
		if a.Name == name {
			return a
		}
	}
	t.Fatalf("no attribute %q in %+v", name, info.Attributes)
	return callboard.AttributeInfo{}
}

// D6, behaviour 15: all that can be declared, and what is said of it later; the settings of an attribute that exists can change, its schema cannot.
func TestDeclareStatesAndChangesSettings(t *testing.T) {
	stage := harness.Start(t)
	s, other := stage.Dial("declares"), stage.Dial("looks")
	pose := callboard.DeclareOptions{DType: tensor.Float32, RowShape: []uint64{2, 3}, Semantic: 0, Device: tensor.CPU, Retain: 2, Handoff: callboard.HandoffCopy}
	require.NoError(t, s.Declare(background, "pose", pose))
	a := attribute(t, other, "pose")
	require.Equal(t, tensor.Float32, a.DType)
	require.Equal(t, []uint64{2, 3}, a.RowShape)
	require.EqualValues(t, 2, a.Retain)
	require.Equal(t, callboard.HandoffCopy, a.Handoff)

	q := query(t, s, "/a")
	values := make([]float32, 6)
	for ordinal := uint64(1); ordinal <= 6; ordinal++ {
		values[0] = float32(ordinal)
		write(t, s, q, "pose", must(callboard.FromSlice(values, 1, 2, 3)), callboard.WriteOptions{Ordinal: ordinal})
		seal(t, s, ordinal)
	}
	asOf := func(ordinal uint64) error {
		r, err := other.ReadAttributes(background, q2(t, other), []string{"pose"}, callboard.ReadOptions{At: callboard.Ordinal(ordinal)})
		if err == nil {
			r.Release()
		}
		return err
	}
	require.NoError(t, asOf(5))
	require.ErrorIs(t, asOf(4), callboard.ErrOutOfRange, "two versions are kept")

	// No opinion leaves what there is; an opinion counts at once in every client, for what comes.
	require.NoError(t, s.Declare(background, "pose", callboard.DeclareOptions{DType: tensor.Float32, RowShape: []uint64{2, 3}}))
	require.EqualValues(t, 2, attribute(t, other, "pose").Retain)
	require.NoError(t, s.Declare(background, "pose", callboard.DeclareOptions{DType: tensor.Float32, RowShape: []uint64{2, 3}, Retain: 5, Handoff: callboard.HandoffAdopt}))
	a = attribute(t, other, "pose")
	require.EqualValues(t, 5, a.Retain)
	require.Equal(t, callboard.HandoffAdopt, a.Handoff)
	for ordinal := uint64(7); ordinal <= 12; ordinal++ {
		write(t, s, q, "pose", must(callboard.FromSlice(values, 1, 2, 3)), callboard.WriteOptions{Ordinal: ordinal})
		seal(t, s, ordinal)
	}
	require.NoError(t, asOf(8))
	require.ErrorIs(t, asOf(7), callboard.ErrOutOfRange, "five are kept")
	require.ErrorContains(t, asOf(7), "keeps 5 versions")

	for name, c := range map[string]struct {
		o    callboard.DeclareOptions
		want error
		text string
	}{
		"another type":      {callboard.DeclareOptions{DType: tensor.Float64, RowShape: []uint64{2, 3}}, callboard.ErrInvalidArgument, "float64"},
		"another row shape": {callboard.DeclareOptions{DType: tensor.Float32, RowShape: []uint64{6}}, callboard.ErrInvalidArgument, "row_shape is (6,)"},
		"a device":          {callboard.DeclareOptions{DType: tensor.Float32, RowShape: []uint64{2, 3}, Device: tensor.Device{Type: tensor.DeviceCUDA}}, callboard.ErrNotSupported, "host memory only"},
		"retain":            {callboard.DeclareOptions{DType: tensor.Float32, RowShape: []uint64{2, 3}, Retain: 1<<20 + 1}, callboard.ErrInvalidArgument, "1048577"},
		"handoff":           {callboard.DeclareOptions{DType: tensor.Float32, RowShape: []uint64{2, 3}, Handoff: 9}, callboard.ErrInvalidArgument, "9"},
	} {
		err := s.Declare(background, "pose", c.o)
		require.ErrorIs(t, err, c.want, name)
		require.ErrorContains(t, err, c.text, name)
	}
	require.EqualValues(t, 5, attribute(t, other, "pose").Retain, "a refused declaration changes nothing")
}

func q2(t *testing.T, s *callboard.Stage) *callboard.Query { return query(t, s, "/a") }

// mapsOf counts the mappings of a file that is gone or not, in this process.
func mapsOf(t *testing.T, texts ...string) (n int) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		found := true
		for _, text := range texts {
			found = found && strings.Contains(line, text)
		}
		if found {
			n++
		}
	}
	return n
}

// S2, field reports A10, B14: memory that a delete frees goes back to the machine, and a reader that is idle unmaps it at its next call, whatever that is.
func TestRetiredSegmentsAreUnmappedAtTheNextCallOfAnyKind(t *testing.T) {
	stage := harness.Start(t, "--memory", "128MiB")
	s, idle := stage.Dial("writes"), stage.Dial("idle")
	const size = 24 << 20
	q := query(t, s, "/a")
	require.NoError(t, s.Declare(background, "large", callboard.DeclareOptions{DType: tensor.Uint8, RowShape: []uint64{size}, Retain: 1, Handoff: callboard.HandoffCopy}))
	write(t, s, q, "large", callboard.Tensor{Data: make([]byte, size), DType: tensor.Uint8, Shape: []int64{1, size}}, callboard.WriteOptions{Ordinal: 1})
	seal(t, s, 1)
	r, err := idle.ReadAttributes(background, query(t, idle, "/a"), []string{"large"}, callboard.ReadOptions{})
	require.NoError(t, err)
	for g, err := range r.Groups() {
		require.NoError(t, err)
		require.Len(t, must(g.Bytes()), size)
		g.Release()
	}
	r.Release()
	require.NotZero(t, mapsOf(t, "segment-"))
	op, err := s.DeleteAttributes(q, []string{"large"}, 2)
	require.NoError(t, err)
	require.NoError(t, op.Wait(background))
	for ordinal := uint64(2); ordinal <= 4; ordinal++ { // what the delete left is given up with later seals
		write(t, s, q, "small", []byte{1}, callboard.WriteOptions{Ordinal: ordinal})
		seal(t, s, ordinal)
	}
	// The next large thing has room only if what was freed is really given back.
	require.NoError(t, s.Declare(background, "larger", callboard.DeclareOptions{DType: tensor.Uint8, RowShape: []uint64{110 << 20}, Retain: 1}))
	m, err := s.MapAttribute(background, q, "larger", callboard.MapOptions{Ordinal: 5})
	require.NoError(t, err)
	m.Abort()
	require.Eventually(t, func() bool { return mapsOf(t, "segment-", "(deleted)") > 0 }, patience, time.Millisecond, "the idle reader still maps what is gone: else this test shows nothing")
	deadline := time.Now().Add(patience)
	for mapsOf(t, "segment-", "(deleted)") > 0 {
		require.True(t, time.Now().Before(deadline), fmt.Sprintf("%d mappings of retired segments are left", mapsOf(t, "segment-", "(deleted)")))
		_, _ = idle.Epoch(), s.Epoch()
		time.Sleep(time.Millisecond)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
