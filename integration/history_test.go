package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
)

// author is a client of a history test: every call must succeed unless a test says
// otherwise.
type author struct {
	t     *testing.T
	ctx   context.Context
	stage *callboard.Stage
}

func newAuthor(t *testing.T, s *stage, name string) *author {
	return &author{t: t, ctx: t.Context(), stage: s.Dial(name)}
}

func (a *author) query(paths ...string) *callboard.Query {
	a.t.Helper()
	q, err := a.stage.QueryFromPathList(a.ctx, paths)
	require.NoError(a.t, err)
	return q
}

func (a *author) done(op *callboard.Op, err error) {
	a.t.Helper()
	require.NoError(a.t, err)
	require.NoError(a.t, op.Wait(a.ctx))
}

func (a *author) write(q *callboard.Query, name string, ordinal uint64, values any) {
	a.t.Helper()
	a.done(a.stage.WriteAttribute(a.ctx, q, name, values, callboard.WriteOptions{Ordinal: ordinal}))
}

func (a *author) delete(q *callboard.Query, ordinal uint64, names ...string) {
	a.t.Helper()
	a.done(a.stage.DeleteAttributes(q, names, ordinal))
}

func (a *author) seal(ordinal uint64) {
	a.t.Helper()
	a.done(a.stage.AdvanceWriteFloor(ordinal, callboard.SealOptions{}))
}

// delta is what a read holds: values, and what is gone, by path.
type delta struct {
	values  map[string]int64
	ordinal map[string]uint64
	gone    map[string]uint64
}

func (a *author) delta(r *callboard.Read, err error) delta {
	a.t.Helper()
	require.NoError(a.t, err)
	defer r.Release()
	d := delta{map[string]int64{}, map[string]uint64{}, map[string]uint64{}}
	for g, err := range r.Groups() {
		require.NoError(a.t, err)
		paths, err := a.stage.Resolve(g.Prims()...)
		require.NoError(a.t, err)
		ordinals := g.RowOrdinals()
		var rows []int64
		if !g.IsDelete() {
			rows, err = callboard.Values[int64](g)
			require.NoError(a.t, err)
		}
		for i, path := range paths {
			if g.IsDelete() {
				require.NotContains(a.t, d.gone, path)
				d.gone[path] = ordinals[i]
				continue
			}
			require.NotContains(a.t, d.values, path, "a prim is in two groups")
			d.values[path], d.ordinal[path] = rows[g.Row(i)], ordinals[i]
			require.LessOrEqual(a.t, ordinals[i], g.Ordinal())
		}
		g.Release()
	}
	return d
}

// Behaviour 328, 127, 133, 134, 150, 151: six ticks and a delete, read after the third and
// after the sixth.
func TestSixTicksWithADeleteGiveExactDeltas(t *testing.T) {
	s := startStage(t)
	a, reader := newAuthor(t, s, "author"), newAuthor(t, s, "reader")
	paths := []string{"/e0", "/e1", "/e2", "/e3", "/e4"}
	all := reader.query(paths...)
	tick := func(n int64, written ...int) {
		for _, i := range written {
			a.write(a.query(paths[i]), "x", uint64(n), []int64{100*n + int64(i)})
		}
	}
	since := func(n uint64) delta {
		return reader.delta(reader.stage.ReadAttributes(t.Context(), all, []string{"x"}, callboard.ReadOptions{Since: &n}))
	}
	tick(1, 0, 4)
	a.seal(1)
	tick(2, 4, 1)
	a.seal(2)
	tick(3, 1, 2)
	a.seal(3)
	snap, err := reader.stage.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"/e0": 100, "/e1": 301, "/e2": 302, "/e4": 204}, since(0).values)
	require.Empty(t, since(0).gone)
	cursor := snap.Cursor()
	snap.Release()
	require.EqualValues(t, 3, cursor.Epoch())
	tick(4, 3)
	a.seal(4)
	a.delete(a.query(paths[1]), 5)
	a.seal(5)
	tick(6, 0, 3)
	a.seal(6)
	snap, err = reader.stage.Snapshot(t.Context())
	require.NoError(t, err)
	defer snap.Release()
	for _, d := range []delta{since(3), reader.delta(snap.ReadSince(reader.ctx, all, cursor, "x"))} {
		require.Equal(t, map[string]int64{"/e0": 600, "/e3": 603}, d.values)
		require.Equal(t, map[string]uint64{"/e0": 6, "/e3": 6}, d.ordinal)
		require.Equal(t, map[string]uint64{"/e1": 5}, d.gone)
	}
	require.Equal(t, map[string]int64{"/e0": 600, "/e2": 302, "/e3": 603, "/e4": 204}, reader.delta(snap.ReadSince(reader.ctx, all, callboard.Cursor{}, "x")).values)
	latest := reader.delta(reader.stage.ReadAttributes(t.Context(), all, []string{"x"}, callboard.ReadOptions{}))
	require.Empty(t, latest.gone, "newest reads leave deleted prims out (behaviour 151)")
	require.NotContains(t, latest.values, "/e1")
	require.Equal(t, map[string]uint64{"/e0": 6, "/e2": 3, "/e3": 6, "/e4": 2}, latest.ordinal)
	require.Empty(t, since(6).values, "behaviour 129")
}

// Behaviour 120, 121, 123, 131, 135, 158; rules O4, O5: the state as of an ordinal, exactly,
// or a refusal that says why.
func TestReadsAsOfAnOrdinal(t *testing.T) {
	s := startStage(t, "--retain", "3")
	a := newAuthor(t, s, "author")
	q := a.query("/a", "/b")
	at := func(n uint64, since *uint64) (*callboard.Read, error) {
		return a.stage.ReadAttributes(t.Context(), q, []string{"x"}, callboard.ReadOptions{At: &n, Since: since})
	}
	_, err := at(1, nil)
	require.ErrorIs(t, err, callboard.ErrFloorViolation, "nobody wrote it")
	require.Empty(t, a.delta(at(0, nil)).values)
	for n := int64(1); n <= 6; n++ {
		a.write(q, "x", uint64(10*n), []int64{n, -n})
		if n == 2 {
			_, err = at(20, nil)
			require.ErrorIs(t, err, callboard.ErrFloorViolation)
			require.Equal(t, map[string]int64{"/a": 1, "/b": -1}, a.delta(at(10, nil)).values, "behaviour 121")
			require.Empty(t, a.delta(at(5, nil)).values, "before the first there was nothing")
		}
		a.seal(uint64(10*n + 5))
	}
	held, err := at(47, nil)
	require.NoError(t, err)
	_, err = at(30, nil)
	require.ErrorIs(t, err, callboard.ErrOutOfRange)
	_, err = at(66, nil)
	require.ErrorIs(t, err, callboard.ErrFloorViolation)
	require.ErrorContains(t, err, "66")
	require.Equal(t, map[string]int64{"/a": 6, "/b": -6}, a.delta(at(65, nil)).values)
	a.delete(a.query("/a"), 70, "x")
	a.write(a.query("/b"), "x", 71, []int64{7})
	a.write(a.query("/b"), "x", 72, []int64{8})
	a.seal(71)
	a.seal(80)
	require.Equal(t, map[string]int64{"/a": 6, "/b": -6}, a.delta(at(69, nil)).values, "behaviour 158")
	_, err = at(70, nil)
	require.ErrorIs(t, err, callboard.ErrOutOfRange, "70 and 71 were sealed in one step")
	d := a.delta(at(71, callboard.Ordinal(65)))
	require.Equal(t, map[string]int64{"/b": 7}, d.values)
	require.Equal(t, map[string]uint64{"/a": 70}, d.gone)
	_, err = at(71, callboard.Ordinal(72))
	require.ErrorIs(t, err, callboard.ErrInvalidArgument)
	for range 10 {
		a.write(a.query("/b"), "x", a.floor("x")+1, []int64{0})
		a.seal(a.floor("x") + 1)
	}
	require.Equal(t, map[string]int64{"/a": 4, "/b": -4}, a.delta(held, nil).values, "what is held stays (behaviour 156)")
}

func (a *author) floor(name string) uint64 {
	floor, err := a.stage.WriteFloor(name)
	require.NoError(a.t, err)
	return floor
}

// Behaviour 92 to 98, 186, 229: INSERT over the ring and at submission.
func TestInsertIsRefusedWherePrimsExist(t *testing.T) {
	s := startStage(t)
	a, other := newAuthor(t, s, "a"), newAuthor(t, s, "b")
	insert := callboard.WriteOptions{Ordinal: 2, Insert: true}
	q := a.query("/new")
	a.done(a.stage.WriteAttribute(t.Context(), q, "x", []int64{1}, insert))
	op, err := other.stage.WriteAttribute(t.Context(), other.query("/new"), "y", []float32{1}, insert) // not sealed: only the broker knows
	require.NoError(t, err)
	require.ErrorIs(t, op.Wait(t.Context()), callboard.ErrAlreadyExists)
	a.seal(2)
	insert.Ordinal = 3
	_, err = other.stage.WriteAttribute(t.Context(), other.query("/fresh", "/new"), "y", []float32{1, 2}, insert)
	require.ErrorIs(t, err, callboard.ErrAlreadyExists)
	require.ErrorContains(t, err, "/new")
	_, err = a.stage.MapAttribute(t.Context(), q, "x", callboard.MapOptions{Ordinal: 3, Insert: true})
	require.ErrorIs(t, err, callboard.ErrAlreadyExists)
	a.delete(q, 3)
	insert.Ordinal = 4
	a.done(a.stage.WriteAttribute(t.Context(), q, "x", []int64{2}, insert))
}

// Behaviour 28, 46, 60, 153; rule L6: one name, a group for each schema that its prims
// carry; a delete frees a prim for another.
func TestOneNameWithSeveralSchemas(t *testing.T) {
	s := startStage(t)
	a := newAuthor(t, s, "author")
	one, two, both := a.query("/one"), a.query("/two"), a.query("/two", "/one")
	a.write(one, "x", 1, []float32{1.5})
	a.write(two, "x", 1, []int64{2})
	a.seal(1)
	types := func() (out []string) {
		r, err := a.stage.ReadAttributes(t.Context(), both, []string{"x"}, callboard.ReadOptions{})
		require.NoError(t, err)
		defer r.Release()
		for g, err := range r.Groups() {
			require.NoError(t, err)
			paths, err := a.stage.Resolve(g.Prims()...)
			require.NoError(t, err)
			out = append(out, fmt.Sprintf("%v %v", g.DType(), paths))
			g.Release()
		}
		return out
	}
	require.Equal(t, []string{"float32 [/one]", "int64 [/two]"}, types())
	_, err := a.stage.WriteAttribute(t.Context(), one, "x", []int64{3}, callboard.WriteOptions{Ordinal: 2})
	require.ErrorIs(t, err, callboard.ErrInvalidArgument)
	require.ErrorContains(t, err, "int64")
	require.ErrorContains(t, err, "float32")
	a.delete(one, 2, "x")
	a.write(one, "x", 3, []int64{3}) // not sealed yet
	a.seal(3)
	require.Equal(t, []string{"int64 [/two /one]"}, types())
	d := a.delta(a.stage.ReadAttributes(t.Context(), both, []string{"x"}, callboard.ReadOptions{Since: callboard.Ordinal(1)}))
	require.Equal(t, map[string]int64{"/one": 3}, d.values)
	require.Empty(t, d.gone, "it carries the name again")
	m, err := a.stage.MapAttribute(t.Context(), one, "x", callboard.MapOptions{Ordinal: 4})
	require.NoError(t, err)
	defer m.Abort()
	values, err := callboard.Values[int64](m)
	require.NoError(t, err)
	require.Len(t, values, 1)
}

func init() { roles["ticker"] = ticker }

// tickerConfig is what a ticker does; whoever has it knows the outcome.
type tickerConfig struct {
	Seed  uint64
	Ticks uint64
}

func tickerPath(i int) string { return fmt.Sprintf("/p%02d", i) }

const tickerPrims = 20

// step is what one tick changes: a prim is written, both of its attributes with the tick's number, or deleted.
func (c *tickerConfig) steps() func() (prim int, deleted bool) {
	random := rand.New(rand.NewPCG(c.Seed, 0))
	return func() (int, bool) { return random.IntN(tickerPrims), random.IntN(5) == 0 }
}

// ticker makes ticks as fast as they are taken, a hundred ahead, and says when all are sealed.
func ticker(p *part) error {
	var config tickerConfig
	p.read(&config)
	ctx, s, err := dialRole("ticker", false)
	if err != nil {
		return err
	}
	var single []*callboard.Query
	for i := range tickerPrims {
		q, err := s.QueryFromPathList(ctx, []string{tickerPath(i)})
		if err != nil {
			return err
		}
		single = append(single, q)
	}
	var pending []*callboard.Op
	keep := func(op *callboard.Op, err error) error {
		if pending = append(pending, op); err == nil && len(pending) > 100 {
			err = pending[0].Wait(ctx)
			pending = pending[1:]
		}
		return err
	}
	step := config.steps()
	for n := uint64(1); n <= config.Ticks; n++ {
		prim, deleted := step()
		if deleted {
			err = keep(s.DeleteAttributes(single[prim], nil, n))
		}
		for _, name := range []string{"x", "y"} {
			if !deleted && err == nil {
				err = keep(s.WriteAttribute(ctx, single[prim], name, []int64{int64(n)}, callboard.WriteOptions{Ordinal: n}))
			}
		}
		if err == nil {
			err = keep(s.AdvanceWriteFloor(n, callboard.SealOptions{}))
		}
		if err != nil {
			return fmt.Errorf("tick %d: %w", n, err)
		}
	}
	for _, op := range pending {
		if err := op.Wait(ctx); err != nil {
			return err
		}
	}
	p.say("done")
	return nil
}

// Behaviour 144, 146, 329; rule O6: a producer and a consumer, two processes at their own
// rates. Neither is refused, no snapshot shows half a tick, and what the consumer puts
// together from deltas is what there is: each change in exactly one of them, deletes
// included.
func TestDeltasFromCursorToCursorMissNothing(t *testing.T) {
	config := tickerConfig{Seed: uint64(time.Now().UnixNano()), Ticks: 100_000}
	if testing.Short() {
		config.Ticks = 3000
	}
	t.Logf("seed %d", config.Seed)
	s := startStage(t, "--retain", "1")
	consumer := newAuthor(t, s, "consumer")
	var paths []string
	for i := range tickerPrims {
		paths = append(paths, tickerPath(i))
	}
	all, state, cursor, deltas := consumer.query(paths...), map[string]int64{}, callboard.Cursor{}, 0
	seen := map[int64]bool{}
	producer := spawn(t, "ticker", config, s.Env())
	for end := false; !end; {
		select {
		case line, more := <-producer.Lines():
			require.True(t, more, "the producer was refused: %s", producer.Stderr())
			require.Equal(t, `"done"`, line)
			end = true // one more look, at the last state
		default:
		}
		snap, err := consumer.stage.Snapshot(t.Context())
		require.NoError(t, err)
		d, twin := consumer.delta(snap.ReadSince(consumer.ctx, all, cursor, "x")), consumer.delta(snap.ReadSince(consumer.ctx, all, cursor, "y"))
		require.Equal(t, d, twin, "half a tick")
		floor, err := snap.Floor("x")
		require.NoError(t, err)
		for path := range d.gone {
			require.NotContains(t, d.values, path)
			delete(state, path)
		}
		for path, value := range d.values {
			require.False(t, seen[value], "tick %d comes twice", value)
			require.LessOrEqual(t, uint64(value), floor)
			require.EqualValues(t, value, d.ordinal[path])
			seen[value], state[path] = true, value
		}
		whole := consumer.delta(snap.Read(consumer.ctx, all, "x"))
		require.Equal(t, whole.values, state, "the deltas add up")
		cursor = snap.Cursor()
		snap.Release()
		deltas++
	}
	final, step := map[string]int64{}, config.steps()
	for n := range config.Ticks {
		if prim, deleted := step(); deleted {
			delete(final, paths[prim])
		} else {
			final[paths[prim]] = int64(n + 1)
		}
	}
	require.Equal(t, final, state)
	require.Greater(t, deltas, 10)
	t.Logf("%d deltas beside %d ticks", deltas, config.Ticks)
}
