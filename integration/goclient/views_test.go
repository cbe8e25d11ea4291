package goclient

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	callboard "callboard/clients/go"
	"callboard/integration/harness"

	"github.com/stretchr/testify/require"
)

// What was dropped is given back and told (behaviour 165, 191).
func TestForgottenThingsAreGivenBack(t *testing.T) {
	b := harness.Start(t)
	var mutex sync.Mutex
	told := map[string]int{}
	o := b.Options("forgetful")
	o.Forgotten = func(what string) {
		mutex.Lock()
		defer mutex.Unlock()
		told[what]++
	}
	s, err := callboard.Dial(background, o)
	require.NoError(t, err)
	func() {
		_, err := s.Publish(background, "x", 1.0)
		require.NoError(t, err)
		_, err = s.Latest(background, "x")
		require.NoError(t, err)
		_, err = s.Snapshot(background)
		require.NoError(t, err)
		q, err := s.QueryFromPathList(background, []string{"/a"})
		require.NoError(t, err)
		_, err = s.MapAttribute(background, q, "x", callboard.MapOptions{Ordinal: 9, RowShape: []uint64{}})
		require.NoError(t, err)
		g, err := s.Latest(background, "x")
		require.NoError(t, err)
		g.Release() // no false alarm (behaviour 166)
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		mutex.Lock()
		defer mutex.Unlock()
		return len(told) == 4
	}, patience, 20*time.Millisecond)
	mutex.Lock()
	require.Equal(t, map[string]int{"a group": 1, "a snapshot": 1, "a query": 1, "a map session of attribute x": 1}, told)
	mutex.Unlock()
	info, err := s.Info()
	require.NoError(t, err)
	require.Zero(t, info.Pins)
	require.NoError(t, s.Close())
	runtime.GC()
	mutex.Lock()
	defer mutex.Unlock()
	require.Len(t, told, 4)
}

// Views outlive Close and the broker; everything else says that the session is over
// (rules I2, R4; behaviour 322).
func TestViewsOutliveCloseAndBroker(t *testing.T) {
	b := harness.Start(t)
	options := b.Options("publisher")
	options.ReattachWait = -1
	s, err := callboard.Dial(background, options)
	require.NoError(t, err)
	defer s.Close()
	viewer := b.Dial("viewer")
	_, err = s.Publish(background, "x", []float64{1, 2, 3})
	require.NoError(t, err)
	g, err := viewer.Latest(background, "x")
	require.NoError(t, err)
	require.NoError(t, viewer.Close())
	values, err := callboard.Values[float64](g)
	require.NoError(t, err)
	for i := range 20 { // the memory is not used anew while the view lives (rule I3)
		_, err := s.Publish(background, "x", []float64{9, 9, float64(i)})
		require.NoError(t, err)
	}
	require.Equal(t, []float64{1, 2, 3}, values)

	mine, err := s.Latest(background, "x")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := s.Follow(background, s.Epoch())
		ended <- err
	}()
	time.Sleep(20 * time.Millisecond)
	b.Kill9()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, callboard.ErrSessionEnded)
	case <-time.After(patience):
		t.Fatal("a waiting reader did not notice that the broker died")
	}
	_, err = s.Publish(background, "x", 1.0)
	require.Error(t, err)
	require.Equal(t, []float64{1, 2, 3}, values)
	copyOf, err := callboard.Values[float64](mine)
	require.NoError(t, err)
	require.Equal(t, []float64{9, 9, 19}, copyOf)
	mine.Release()
	g.Release()
}

// A broker that stops says why (rule R4).
func TestStoppedBrokerTellsWhy(t *testing.T) {
	b := harness.Start(t)
	s := b.Dial("client")
	b.Stop()
	_, err := s.Follow(background, s.Epoch())
	require.ErrorIs(t, err, callboard.ErrSessionEnded)
	require.ErrorContains(t, err, "stopped")
	_, err = callboard.Dial(background, b.Options("late"))
	require.ErrorIs(t, err, callboard.ErrNotFound)
	require.NoError(t, s.Close())
	require.Empty(t, b.Residue())
}

// A reader that holds too much is refused by name and goes on when it lets go; the
// writer never notices (rule V7; field report E13: who holds what, since when).
func TestPinnedBytesLimit(t *testing.T) {
	b := harness.Start(t, "--memory", "64MiB")
	s := b.Dial("publisher")
	frame := make([]byte, 4<<20)
	var held []*callboard.Group
	for {
		_, err := s.Publish(background, "camera", frame)
		require.NoError(t, err)
		g, err := s.Latest(background, "camera")
		if err != nil {
			require.ErrorIs(t, err, callboard.ErrLimit)
			require.ErrorContains(t, err, `"camera" at epoch 1 (held for `)
			break
		}
		held = append(held, g)
		require.Less(t, len(held), 16)
	}
	require.NotEmpty(t, held)
	for _, g := range held {
		g.Release()
	}
	g, err := s.Latest(background, "camera")
	require.NoError(t, err)
	g.Release()
}

// Stamped rows under a producer in this process and readers of their own
// attachments: no torn row, no mixed epoch (behaviour 146).
func TestReadersSeeWholeTicks(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	ticks := uint64(5000)
	if testing.Short() {
		ticks = 500
	}
	b := harness.Start(t, "--retain", "2")
	s := b.Dial("producer")
	paths := []string{"/a", "/b", "/c", "/d"}
	q := query(t, s, paths...)
	tick := func(n uint64) {
		row := [8]uint64{n, n, n, n, n, n, n, n}
		rows := [][8]uint64{row, row, row, row}
		_, err := s.WriteAttribute(background, q, "copied", rows, callboard.WriteOptions{Ordinal: n})
		require.NoError(t, err)
		m, err := s.MapAttribute(background, q, "mapped", callboard.MapOptions{Ordinal: n, DType: mustDType(t, "uint64x8")})
		require.NoError(t, err)
		memory, err := callboard.Rows[[8]uint64](m)
		require.NoError(t, err)
		copy(memory, rows)
		_, err = m.UnmapAttribute()
		require.NoError(t, err)
		op, err := s.AdvanceWriteFloor(n, callboard.SealOptions{StampNs: n})
		require.NoError(t, err)
		require.NoError(t, op.Wait(background))
	}
	tick(1)
	var stop atomic.Bool
	var reads atomic.Int64
	var group sync.WaitGroup
	for i := range 2 {
		r := b.Dial(fmt.Sprintf("reader %d", i))
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		rq := query(t, r, paths...)
		group.Add(1)
		go func() {
			defer group.Done()
			last := uint64(0)
			for !stop.Load() {
				n, err := checkTick(r, rq, random.IntN(2) == 0)
				if err != nil || n < last {
					t.Errorf("reader %d: tick %d after %d: %v", i, n, last, err)
					return
				}
				last = n
				reads.Add(1)
			}
		}()
	}
	for n := uint64(2); (n <= ticks || reads.Load() == 0) && !t.Failed(); n++ { // a machine with one processor may read late
		tick(n)
	}
	stop.Store(true)
	group.Wait()
	t.Logf("%d reads beside %d ticks", reads.Load(), ticks)
	require.NotZero(t, reads.Load())
}

func checkTick(s *callboard.Stage, q *callboard.Query, whole bool) (uint64, error) {
	var r *callboard.Read
	var err error
	if whole {
		snap, err := s.Snapshot(background)
		if err != nil {
			return 0, err
		}
		defer snap.Release()
		r, err = snap.Read(background, q, "copied", "mapped")
		if err != nil {
			return 0, err
		}
	} else if r, err = s.ReadAttributes(background, q, []string{"copied", "mapped"}, callboard.ReadOptions{}); err != nil {
		return 0, err
	}
	defer r.Release()
	tick, groups := uint64(0), 0
	for g, err := range r.Groups() {
		if err != nil {
			return 0, err
		}
		rows, err := callboard.Rows[[8]uint64](g)
		if err != nil {
			return 0, err
		}
		if groups++; tick == 0 {
			tick = g.Floor()
		}
		for i := range rows {
			for _, word := range rows[i] {
				if word != tick || g.Floor() != tick || g.Ordinal() != tick {
					return 0, fmt.Errorf("%s: row %d is %v at ordinal %d and floor %d, expected %d", g.Attribute(), i, rows[i], g.Ordinal(), g.Floor(), tick)
				}
			}
		}
		g.Release()
	}
	if groups != 2 {
		return 0, fmt.Errorf("%d groups, expected 2", groups)
	}
	return tick, nil
}
