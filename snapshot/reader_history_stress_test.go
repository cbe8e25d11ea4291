package snapshot

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"callboard/protocol"

	"github.com/stretchr/testify/require"
)

// stressPrims is how many prims the history's formula goes round.
const stressPrims = 8

// stressValue is what prim i holds as of ordinal n, and since when; deleted prims are
// not there. Ordinal m is about prim m%8: it writes m, or every fifth round deletes.
func stressValue(i, n uint64) (ordinal uint64, there bool) {
	if n < i || n-(n-i)%stressPrims == 0 {
		return 0, false
	}
	m := n - (n-i)%stressPrims
	return m, m/stressPrims%5 != 4
}

// Readers as of ordinals, and readers from cursor to cursor, beside a store that writes,
// deletes and seals as fast as it can: every state is exactly that of its ordinal, and
// deltas miss nothing (rules V5, O4, O6, O7; behaviour 123, 144, 158). Under the race
// detector it checks the order of every access to row ordinals, layouts and tombstones.
func TestReadersOfHistoryWhileTheStoreSeals(t *testing.T) {
	seals := uint64(100_000)
	if testing.Short() || raceEnabled {
		seals = 5_000
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := newReaderStage(t, Config{Retain: 6}, 64<<20)
	prims := make([]uint64, stressPrims)
	for i := range prims {
		prims[i] = s.path(fmt.Sprintf("/p%d", i))
	}
	single := make([]*Query, len(prims))
	for i := range single {
		single[i] = s.query(prims[i])
	}
	step := func(n uint64) {
		i := n % stressPrims
		if n/stressPrims%5 == 4 {
			_, err := s.store.Delete(single[i], []string{"x"}, n)
			require.NoError(t, err)
		} else {
			s.write(single[i], "x", 4, n, n)
		}
		if n%7 != 0 { // now and then two ordinals are sealed at once
			_, _, err := s.store.Seal(n, protocol.ScopeAll, nil, n)
			require.NoError(t, err)
		}
	}
	for n := uint64(1); n < 20; n++ {
		step(n)
	}
	var stop atomic.Bool
	var exact, refused, deltas atomic.Uint64
	var group sync.WaitGroup
	for k := range 4 {
		r, table := s.reader(64)
		list := NewPrimList(prims)
		column := s.column(r, "x")
		work := func(random *rand.Rand) error { return readAsOf(r, list, column, random, &exact, &refused) }
		if k%2 == 1 {
			state, cursor := map[uint64]uint64{}, uint64(0)
			work = func(*rand.Rand) (err error) {
				deltas.Add(1)
				cursor, err = readDelta(r, list, column, state, cursor)
				return err
			}
		}
		group.Add(1)
		go func() {
			defer group.Done()
			random := rand.New(rand.NewPCG(seed, uint64(k)))
			for !stop.Load() {
				if err := work(random); err != nil {
					t.Errorf("reader %d: %v", k, err)
					return
				}
			}
			if table.InUse() != 0 {
				t.Errorf("reader %d left %d pins", k, table.InUse())
			}
		}()
	}
	n, begin := uint64(20), time.Now()
	for ; moreSeals(n, seals, begin, &exact, &deltas) && !t.Failed(); n++ {
		step(n)
		s.serve()
	}
	stop.Store(true)
	finished := make(chan struct{})
	go func() { group.Wait(); close(finished) }()
	for done := false; !done; {
		s.serve()
		select {
		case <-finished:
			done = true
		case <-time.After(time.Millisecond):
		}
	}
	t.Logf("%d states as of ordinals, %d not retained, %d deltas beside %d seals", exact.Load(), refused.Load(), deltas.Load(), n)
	require.NotZero(t, exact.Load())
	require.NotZero(t, deltas.Load())
}

// readAsOf reads the state of a recent ordinal and checks every row of it.
func readAsOf(r *Reader, list *PrimList, column *Column, random *rand.Rand, exact, refused *atomic.Uint64) error {
	floor, err := r.WriteFloor("x")
	if err != nil {
		return err
	}
	at := floor - min(floor, random.Uint64N(8))
	moments := []Moment{AsOf(at), Common(), AtStamp(at, false)} // stamps are ordinals here
	var p Pinned
	if err := r.PinAt(&p, moments[random.IntN(len(moments))], column); err != nil {
		if errors.Is(err, protocol.Errorf(protocol.StatusOutOfRange, "")) {
			refused.Add(1)
			return nil
		}
		return err
	}
	defer p.Release()
	exact.Add(1)
	v := p.Version(0)
	if at = p.Ordinal(); at == 0 {
		at = v.StampNs // of the last seal at or before it
	}
	return checkStress(r, list, v, at)
}

// checkStress compares a version with the formula at an ordinal.
func checkStress(r *Reader, list *PrimList, v *Version, at uint64) error {
	m, err := r.Rows(list, v)
	if err != nil {
		return err
	}
	there := 0
	for i := range uint64(stressPrims) {
		if _, ok := stressValue(i, at); ok {
			there++
		}
	}
	if len(m.Prims) != there {
		return fmt.Errorf("as of %d there are %d prims, expected %d", at, len(m.Prims), there)
	}
	for i, row := range m.Rows {
		want, ok := stressValue(uint64(m.Elements[i]), at)
		got, whole := stamp(v.Data[uint64(row)*v.Column.RowBytes:][:v.Column.RowBytes])
		if !ok || !whole || got != want || v.RowOrdinal(row) != want {
			return fmt.Errorf("as of %d prim %d holds %d (whole: %v) of ordinal %d, expected %d (there: %v)", at, m.Elements[i], got, whole, v.RowOrdinal(row), want, ok)
		}
	}
	return nil
}

// readDelta puts what changed since cursor on top of state, which must then be what is
// there, and returns the next cursor.
func readDelta(r *Reader, list *PrimList, column *Column, state map[uint64]uint64, cursor uint64) (uint64, error) {
	var p Pinned
	if err := r.PinAll(&p); err != nil {
		return cursor, err
	}
	defer p.Release()
	f, err := p.Floors()
	if err != nil {
		return cursor, err
	}
	floor := f.Of(column.NameID)
	v, err := p.Find(column)
	if err != nil {
		return cursor, err
	}
	m, err := r.Rows(list, &v)
	if err != nil {
		return cursor, err
	}
	stones, err := r.Tombstones(list, column, p.Epoch(), cursor, protocol.Infinite)
	if err != nil {
		return cursor, err
	}
	for _, stone := range stones {
		if stone.Ordinal <= cursor || stone.Ordinal > floor {
			return cursor, fmt.Errorf("a delete of ordinal %d between %d and %d", stone.Ordinal, cursor, floor)
		}
		delete(state, uint64(stone.Element))
	}
	changed := m.Changed(&v, cursor)
	for i, row := range changed.Rows {
		state[uint64(changed.Elements[i])] = v.RowOrdinal(row)
	}
	for i := range uint64(stressPrims) {
		want, there := stressValue(i, floor)
		if got, ok := state[i]; ok != there || there && got != want {
			return cursor, fmt.Errorf("after the delta from %d to %d prim %d has %d (there: %v), expected %d (%v)", cursor, floor, i, got, ok, want, there)
		}
	}
	return floor, checkStress(r, list, &v, floor)
}
