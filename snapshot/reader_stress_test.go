package snapshot

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"callboard/protocol"

	"github.com/stretchr/testify/require"
)

// Readers beside a store that seals as fast as it can: no row is torn, what was
// written at one ordinal is seen at one epoch, floors included, epochs never go
// back, and a view keeps its bytes until it is let go (rules V1 to V6, V9;
// behaviour 146, 161). Memory is Go's, so that the race detector checks the order of
// every access; the words themselves are the ones that processes share.
func TestReadersSeeWholeTicksWhileTheStoreSeals(t *testing.T) {
	seals := uint64(200_000)
	if testing.Short() || raceEnabled {
		seals = 10_000
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)

	s := newReaderStage(t, Config{Retain: 2}, 64<<20)
	arena := s.memory.NewArena(protocol.SegmentClient, 7, "the producer", false)
	prims := make([]uint64, 8)
	for i := range prims {
		prims[i] = s.path(fmt.Sprintf("/p%d", i))
	}
	whole := s.query(prims...)
	pairs := make([]*Query, 4)
	for i := range pairs {
		pairs[i] = s.query(prims[2*i+1], prims[2*i])
	}
	step := func(n uint64) {
		s.write(whole, "copied", 16, n, n, n, n, n, n, n, n, n)
		m, job, err := s.store.Map(t, arena, &Target{Query: whole, Name: "adopted", Schema: uint64s(16), Ordinal: n}, protocol.InitNone, 0)
		require.NoError(t, err)
		require.Nil(t, job)
		copy(m.groups[0].block.Bytes, rowsOf(16, n, n, n, n, n, n, n, n))
		_, job, err = s.store.UnmapGroup(m, 0, everything(), true, false)
		require.NoError(t, err)
		require.Nil(t, job)
		s.store.EndSession(m)
		s.write(pairs[n%4], "scattered", 16, n, n, n)
		s.writeRagged(pairs[n%4], "ragged", n)
		_, _, err = s.store.Seal(n, protocol.ScopeAll, nil, n)
		require.NoError(t, err)
	}
	step(1)
	s.write(whole, "scattered", 16, 2, 0, 0, 0, 0, 0, 0, 0, 0)
	s.writeRagged(whole, "ragged", 2)
	step(2)

	var stop atomic.Bool
	var reads atomic.Uint64
	var group sync.WaitGroup
	for i := range 4 {
		r, table := s.reader(64)
		group.Add(1)
		go func() {
			defer group.Done()
			defer func() {
				if table.InUse() != 0 {
					t.Errorf("reader %d left %d pins", i, table.InUse())
				}
			}()
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			columns := []*Column{s.column(r, "copied"), s.column(r, "adopted"), s.column(r, "scattered"), s.column(r, "ragged")}
			views := make([]Pinned, 4) // some are held on while others come and go
			kept := make([]uint64, len(views))
			last := uint64(0)
			for !stop.Load() {
				k := random.IntN(len(views))
				p := &views[k]
				if kept[k] != 0 {
					if n, err := checkTick(p, columns); err != nil || n != kept[k] {
						t.Errorf("reader %d: a view of ordinal %d shows %d: %v", i, kept[k], n, err)
						return
					}
					p.Release()
					kept[k] = 0
				}
				var err error
				if random.IntN(3) == 0 {
					err = r.PinAll(p)
				} else {
					err = r.Pin(p, columns...)
				}
				if err != nil {
					t.Errorf("reader %d: %v", i, err)
					return
				}
				n, err := checkTick(p, columns)
				if err != nil || n < last {
					t.Errorf("reader %d: ordinal %d after %d: %v", i, n, last, err)
					return
				}
				last, kept[k] = n, n
				reads.Add(1)
			}
			for k := range views {
				if kept[k] != 0 {
					views[k].Release()
				}
			}
		}()
	}
	n, begin := uint64(3), time.Now()
	for ; moreSeals(n, seals, begin, &reads) && !t.Failed(); n++ {
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
	t.Logf("%d reads beside %d seals", reads.Load(), n)
	require.NotZero(t, reads.Load())
}

// moreSeals tells whether a stress goes on: up to so many seals, for a minute, since a machine with one processor may
// give each reader ten milliseconds between two of them; and until everybody has read something.
func moreSeals(n, seals uint64, begin time.Time, done ...*atomic.Uint64) bool {
	return n < seals && time.Since(begin) < time.Minute ||
		slices.ContainsFunc(done, func(reads *atomic.Uint64) bool { return reads.Load() == 0 })
}

// checkTick looks at all that a view shows and returns its ordinal.
func checkTick(p *Pinned, columns []*Column) (ordinal uint64, err error) {
	f, err := p.Floors()
	if err != nil {
		return 0, err
	}
	ordinal = f.Global
	if f.StampNs != ordinal {
		return 0, fmt.Errorf("floor %d has stamp %d", ordinal, f.StampNs)
	}
	for i, c := range columns {
		var v Version
		if p.all {
			if v, err = p.Find(c); err != nil {
				return 0, err
			}
		} else {
			v = *p.Version(i)
		}
		if v.Column == nil || v.Rows != 8 || v.OrdinalHighest != ordinal {
			return 0, fmt.Errorf("%s: %d rows of ordinal %d beside floor %d", c.Name, v.Rows, v.OrdinalHighest, ordinal)
		}
		newest, rows := uint64(0), make([][]byte, v.Rows)
		if c.IsArray() {
			if rows, err = p.Ragged(&v, &RowMap{Rows: []uint32{0, 1, 2, 3, 4, 5, 6, 7}}); err != nil {
				return 0, err
			}
		}
		for row := range v.Rows {
			if !c.IsArray() {
				rows[row] = v.Data[row*c.RowBytes:][:c.RowBytes]
			}
			value, ok := stamp(rows[row])
			if !ok {
				return 0, fmt.Errorf("%s: row %d is torn: %v", c.Name, row, rows[row])
			}
			if c.Name != "scattered" && !c.IsArray() && value != ordinal || value > ordinal {
				return 0, fmt.Errorf("%s: row %d is of ordinal %d beside floor %d", c.Name, row, value, ordinal)
			}
			newest = max(newest, value)
		}
		if newest != ordinal {
			return 0, fmt.Errorf("%s: the newest row is of ordinal %d, the floor is %d", c.Name, newest, ordinal)
		}
	}
	return ordinal, nil
}

// Random writes and seals show a reader what a naive model holds, at every epoch
// that is still held (behaviour 18, 91, 104 to 113).
func TestRandomWritesAndSealsAgreeWithANaiveModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	rounds := 60
	if testing.Short() || raceEnabled {
		rounds = 10
	}
	for range rounds {
		runModel(t, random)
	}
}

// modelState is what a stage shows at one epoch.
type modelState struct {
	epoch  uint64
	values map[string]map[uint64]uint64 // attribute → prim → value
	floors map[string]uint64
	base   uint64
}

func (m *modelState) clone() modelState {
	c := modelState{epoch: m.epoch, values: map[string]map[uint64]uint64{}, floors: map[string]uint64{}, base: m.base}
	for name, rows := range m.values {
		c.values[name] = map[uint64]uint64{}
		for prim, value := range rows {
			c.values[name][prim] = value
		}
	}
	for name, floor := range m.floors {
		c.floors[name] = floor
	}
	return c
}

func (m *modelState) floor(name string) uint64 { return max(m.floors[name], m.base) }

func runModel(t *testing.T, random *rand.Rand) {
	s := newReaderStage(t, Config{Retain: uint32(1 + random.IntN(3))}, 64<<20)
	r, table := s.reader(512)
	names := []string{"x", "y", "z"}
	prims := make([]uint64, 12)
	for i := range prims {
		prims[i] = s.path(fmt.Sprintf("/p%d", i))
	}
	pick := func() []uint64 {
		ids := make([]uint64, 1+random.IntN(len(prims)))
		for i := range ids {
			ids[i] = prims[random.IntN(len(prims))]
		}
		return ids
	}
	lists := make([]*PrimList, 6)
	for i := range lists {
		lists[i] = NewPrimList(pick())
	}
	sealed := modelState{values: map[string]map[uint64]uint64{}, floors: map[string]uint64{}}
	pending := map[string]map[uint64]uint64{} // at one ordinal for each name
	at := map[string]uint64{}
	type holding struct {
		p     *Pinned
		state modelState
	}
	var held []holding
	value := uint64(0)
	for range 200 {
		switch name := names[random.IntN(len(names))]; random.IntN(6) {
		case 0, 1, 2:
			if pending[name] == nil {
				pending[name] = map[uint64]uint64{}
				at[name] = sealed.floor(name) + 1 + uint64(random.IntN(3))
			}
			ids := pick()
			values := make([]uint64, len(ids))
			for i, id := range ids { // of duplicate targets the last one wins
				value++
				values[i] = value
				pending[name][id] = value
			}
			s.write(s.query(ids...), name, 2, at[name], values...)
		case 3:
			scope, scoped, ordinal := uint64(random.IntN(3)), []string(nil), sealed.floor(name)+uint64(random.IntN(3))
			covered := func(n string) bool {
				return scope == protocol.ScopeAll || (n == name) == (scope == protocol.ScopeInclude)
			}
			if scope != protocol.ScopeAll {
				scoped = []string{name}
			}
			before := s.store.Epoch()
			_, _, err := s.store.Seal(ordinal, scope, scoped, 0)
			require.NoError(t, err)
			if s.store.Epoch() == before {
				continue
			}
			if scope == protocol.ScopeAll {
				sealed.base = max(sealed.base, ordinal)
			}
			for _, n := range names {
				_, known := at[n]
				if covered(n) && (known || scope == protocol.ScopeInclude) {
					sealed.floors[n] = max(sealed.floors[n], ordinal)
				}
				if covered(n) && pending[n] != nil && at[n] <= ordinal {
					if sealed.values[n] == nil {
						sealed.values[n] = map[uint64]uint64{}
					}
					for id, v := range pending[n] {
						sealed.values[n][id] = v
					}
					delete(pending, n)
				}
			}
			sealed.epoch = s.store.Epoch()
		case 4:
			h := holding{p: new(Pinned), state: sealed.clone()}
			require.NoError(t, r.PinAll(h.p))
			held = append(held, h)
			if len(held) > 20 {
				held[0].p.Release()
				held = held[1:]
			}
		case 5:
			for _, h := range held {
				checkState(t, r, h.p, &h.state, names, lists)
			}
			var now Pinned
			require.NoError(t, r.PinAll(&now))
			checkState(t, r, &now, &sealed, names, lists)
			now.Release()
		}
	}
	for _, h := range held {
		checkState(t, r, h.p, &h.state, names, lists)
		h.p.Release()
	}
	require.Zero(t, table.InUse())
}

func checkState(t *testing.T, r *Reader, p *Pinned, want *modelState, names []string, lists []*PrimList) {
	t.Helper()
	require.Equal(t, want.epoch, p.Epoch())
	f, err := p.Floors()
	require.NoError(t, err)
	for _, name := range names {
		floor, err := f.OfName(name)
		require.NoError(t, err)
		require.Equal(t, want.floor(name), floor, "floor of %s", name)
		columns, err := r.Columns(name)
		require.NoError(t, err)
		var v Version
		if len(columns) > 0 {
			v, err = p.Find(columns[0])
			require.NoError(t, err)
		}
		if want.values[name] == nil {
			require.Nil(t, v.Column)
			continue
		}
		require.NotNil(t, v.Column, "%s at epoch %d", name, p.Epoch())
		for _, l := range lists {
			m, err := r.Rows(l, &v)
			require.NoError(t, err)
			var prims []uint64
			for _, id := range l.IDs() {
				if _, ok := want.values[name][id]; ok {
					prims = append(prims, id)
				}
			}
			require.Equal(t, prims, m.Prims)
			for i, id := range m.Prims {
				got, ok := stamp(v.Data[uint64(m.Rows[i])*v.Column.RowBytes:][:v.Column.RowBytes])
				require.True(t, ok)
				require.Equal(t, want.values[name][id], got, "%s of prim %d at epoch %d", name, id, p.Epoch())
			}
		}
	}
}
