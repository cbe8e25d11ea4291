package snapshot

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"callboard/protocol"

	"github.com/stretchr/testify/require"
)

// What was sealed last at or before a stamp, or the nearer of its neighbours; what was given up is not guessed.
func TestStampsFindTheLastOrTheNearestVersion(t *testing.T) {
	s := newReaderStage(t, Config{Retain: 3}, 64<<20)
	r, table := s.reader(8)
	q := s.query(s.path("/a"))
	seal := func(n, stampNs uint64) {
		s.write(q, "x", 8, n, n)
		_, _, err := s.store.Seal(n, protocol.ScopeAll, nil, stampNs)
		require.NoError(t, err)
	}
	at := func(m Moment) (uint64, error) {
		var p Pinned
		if err := r.PinAt(&p, m, s.column(r, "x")); err != nil {
			return 0, err
		}
		defer p.Release()
		if p.Version(0).Column == nil {
			return 0, nil
		}
		return p.Version(0).OrdinalHighest, nil
	}
	require.NotPanics(t, func() { s.write(q, "x", 8, 1, 1) })
	for _, m := range []Moment{AtStamp(100, false), AtStamp(100, true), Common()} {
		n, err := at(m)
		require.NoError(t, err)
		require.Zero(t, n, "nothing is sealed")
	}
	for n := uint64(1); n <= 3; n++ {
		seal(n, 90+10*n)
	}
	for _, c := range []struct{ at, before, nearest uint64 }{{0, 0, 1}, {99, 0, 1}, {100, 1, 1}, {105, 1, 1}, {106, 1, 2}, {110, 2, 2}, {116, 2, 3},
		{120, 3, 3}, {125, 3, 3}, {^uint64(0), 3, 3}} {
		for nearest, want := range map[bool]uint64{false: c.before, true: c.nearest} {
			got, err := at(AtStamp(c.at, nearest))
			require.NoError(t, err)
			require.Equal(t, want, got, "stamp %d, nearest %v", c.at, nearest)
		}
	}
	for n := uint64(4); n <= 9; n++ { // those of 1 to 6 are given up
		seal(n, 90+10*n)
	}
	for _, nearest := range []bool{false, true} {
		for _, stampNs := range []uint64{0, 100, 149} {
			_, err := at(AtStamp(stampNs, nearest))
			requireStatus(t, protocol.StatusOutOfRange, err)
			require.ErrorContains(t, err, fmt.Sprint("stamp ", stampNs))
		}
		n, err := at(AtStamp(170, nearest))
		require.NoError(t, err)
		require.EqualValues(t, 8, n)
	}
	require.Zero(t, table.InUse())
}

// Columns that are sealed by themselves are read at the newest ordinal that none of them is behind, and each has
// exactly its state of it.
func TestCommonOrdinalIsTheLowestFloor(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	s := newReaderStage(t, Config{Retain: 100}, 64<<20)
	r, table := s.reader(16)
	q := s.query(s.path("/a"))
	names := []string{"x", "y", "z", "declared"}
	s.write(q, "declared", 8, 1_000_000, 1) // never sealed
	floors := map[string]uint64{}
	states := map[string][]uint64{"x": {0}, "y": {0}, "z": {0}} // the last ordinal written, by ordinal
	var columns []*Column
	for range 500 {
		name := names[random.IntN(3)]
		floors[name]++
		n, last := floors[name], states[name][floors[name]-1]
		if random.IntN(3) > 0 {
			s.write(q, name, 8, n, n)
			last = n
		}
		states[name] = append(states[name], last)
		_, _, err := s.store.Seal(n, protocol.ScopeInclude, []string{name}, 0)
		require.NoError(t, err)
		if max(floors["x"], floors["y"], floors["z"])-min(floors["x"], floors["y"], floors["z"]) > 50 {
			break
		}
		columns = columns[:0]
		for _, name := range names {
			all, err := r.Columns(name)
			require.NoError(t, err)
			columns = append(columns, all...)
		}
		want := uint64(0)
		for name, floor := range floors {
			if written := slices.Max(states[name]) > 0; written && (want == 0 || floor < want) {
				want = floor
			}
		}
		var p Pinned
		require.NoError(t, r.PinAt(&p, Common(), columns...))
		require.Equal(t, want, p.Ordinal())
		for i, c := range columns {
			switch v := p.Version(i); {
			case c.Name == "declared" || len(states[c.Name]) <= int(want) || states[c.Name][want] == 0:
				require.Nil(t, v.Column, c.Name)
			default:
				require.Equal(t, states[c.Name][want], v.OrdinalHighest, "%s at %d, floors %v, column %v", c.Name, want, floors, v.Column != nil)
			}
		}
		require.True(t, p.Release())
	}
	require.Zero(t, table.InUse())
}
