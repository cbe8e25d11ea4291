package goclient

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	callboard "callboard/clients/go"
	"callboard/integration/harness"

	"github.com/stretchr/testify/require"
)

var background = context.Background()

// patience is how long a test waits for what must come: machines that run tests are busy.
const patience = 30 * time.Second

func seal(t *testing.T, s *callboard.Stage, ordinal uint64) {
	t.Helper()
	op, err := s.AdvanceWriteFloor(ordinal, callboard.SealOptions{})
	require.NoError(t, err)
	require.NoError(t, op.Wait(background))
}

func query(t *testing.T, s *callboard.Stage, paths ...string) *callboard.Query {
	t.Helper()
	q, err := s.QueryFromPathList(background, paths)
	require.NoError(t, err)
	t.Cleanup(q.Release)
	return q
}

func write(t *testing.T, s *callboard.Stage, q *callboard.Query, name string, values any, o callboard.WriteOptions) {
	t.Helper()
	op, err := s.WriteAttribute(background, q, name, values, o)
	require.NoError(t, err)
	require.NoError(t, op.Wait(background))
}

// read gives the rows of an attribute's prims, in the query's order.
func read[T any](t *testing.T, s *callboard.Stage, q *callboard.Query, name string) []T {
	t.Helper()
	r, err := s.ReadAttributes(background, q, []string{name}, callboard.ReadOptions{})
	require.NoError(t, err)
	defer r.Release()
	g, err := r.Group(name)
	require.NoError(t, err)
	defer g.Release()
	rows, err := callboard.Rows[T](g)
	require.NoError(t, err)
	out := make([]T, len(g.Prims()))
	for i := range out {
		out[i] = rows[g.Row(i)]
	}
	return out
}

// The whole way once (behaviour 1, 231, 326).
func TestMinimalLoop(t *testing.T) {
	b := harness.Start(t)
	s := b.Dial("loop")
	q := query(t, s, "/a", "/b", "/c")
	write(t, s, q, "x", []float32{2.5, -1, 0}, callboard.WriteOptions{Ordinal: 1})

	r, err := s.ReadAttributes(background, q, []string{"x"}, callboard.ReadOptions{})
	require.NoError(t, err)
	for range r.Groups() {
		t.Error("nothing is readable before it is sealed (behaviour 120)")
	}
	r.Release()
	seal(t, s, 1)

	r, err = s.ReadAttributes(background, q, []string{"x", "absent"}, callboard.ReadOptions{})
	require.NoError(t, err)
	n := 0
	for g, err := range r.Groups() {
		require.NoError(t, err)
		n++
		require.Equal(t, "x", g.Attribute())
		require.Equal(t, []int64{3}, g.Shape())
		require.EqualValues(t, 1, g.Ordinal())
		require.EqualValues(t, 1, g.Floor())
		require.Nil(t, g.IndexMap())
		require.Equal(t, q.Prims(), g.Prims())
		r.Release() // the groups stay (behaviour 160)
		rows, err := callboard.Rows[float32](g)
		require.NoError(t, err)
		require.Equal(t, []float32{2.5, -1, 0}, rows)
		_, err = callboard.Rows[float64](g)
		require.ErrorIs(t, err, callboard.ErrInvalidArgument)
		g.Release()
		g.Release()
		_, err = g.Bytes()
		require.ErrorIs(t, err, callboard.ErrInvalidHandle, "behaviour 164")
	}
	require.Equal(t, 1, n)
	texts, err := s.Resolve(q.Prims()...)
	require.NoError(t, err)
	require.Equal(t, []string{"/a", "/b", "/c"}, texts)
	_, err = s.Resolve(0)
	require.ErrorIs(t, err, callboard.ErrNotFound)
	info, err := s.Info()
	require.NoError(t, err)
	require.Equal(t, b.Stage, info.Stage)
	require.Zero(t, info.Pins)
	require.Len(t, info.Attributes, 1)
	require.EqualValues(t, 3, info.Attributes[0].Rows)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = s.WriteFloor("x")
	require.ErrorIs(t, err, callboard.ErrSessionEnded)
	b.Stop()
	require.Empty(t, b.Residue())
}

// A read-only client may read and is told that it may not write.
func TestReadOnlyClients(t *testing.T) {
	b := harness.Start(t)
	s := b.Dial("publisher")
	_, err := s.Publish(background, "x", 1.5)
	require.NoError(t, err)
	o := b.Options("reader")
	o.ReadOnly = true
	r, err := callboard.Dial(background, o)
	require.NoError(t, err)
	defer r.Close()
	g, err := r.Latest(background, "x")
	require.NoError(t, err)
	g.Release()
	_, err = r.Publish(background, "x", 1.5)
	require.ErrorIs(t, err, callboard.ErrAccessDenied)
}

func mustDType(t *testing.T, name string) callboard.DType {
	t.Helper()
	d, err := callboard.ParseDType(name)
	require.NoError(t, err)
	return d
}

// Attaching where nothing is lists every place (behaviour 223; rule I5).
func TestDialWithoutABrokerNamesThePlaces(t *testing.T) {
	t.Setenv("CALLBOARD_RUNTIME_DIR", t.TempDir()+"/nothing")
	_, err := callboard.Dial(background, callboard.Options{Stage: "nobody"})
	require.ErrorIs(t, err, callboard.ErrNotFound)
	require.ErrorContains(t, err, os.Getenv("CALLBOARD_RUNTIME_DIR"))
	_, err = callboard.Dial(background, callboard.Options{Stage: "no/name"})
	require.ErrorIs(t, err, callboard.ErrInvalidArgument)
}

// The quick start runs as it stands.
func TestExampleRuns(t *testing.T) {
	b := harness.Start(t)
	root, err := harness.Root()
	require.NoError(t, err)
	run := exec.Command("go", "run", "./examples/go")
	run.Dir, run.Env = root, b.Env()
	out, err := run.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "uint8 [480 640 3] of ordinal 1, pose [0 0 1 0 0 0 1]")
}
