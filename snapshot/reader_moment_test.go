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

// Behaviour 120, 123: what was sealed for the first time after a read's epoch has no version as of an ordinal, though that
// of its seal is lower.
func TestAsOfAnOrdinalShowsNothingSealedFirstAfterItsEpoch(t *testing.T) {
	s := newReaderStage(t, Config{Retain: 8}, 64<<20)
	r, table := s.reader(16)
	q := s.query(s.path("/a"))
	seal := func(n uint64, name string) {
		_, _, err := s.store.Seal(n, protocol.ScopeInclude, []string{name}, n)
		require.NoError(t, err)
	}
	s.write(q, "x", 8, 1, 1)
	s.write(q, "y", 8, 1, 1)
	seal(1000, "x")
	s.write(s.query(s.path("/b")), "x", 16, 1001, 1001) // a second schema, whose first version comes as late
	x, err := r.Columns("x")
	require.NoError(t, err)
	require.Len(t, x, 2)
	columns := []*Column{x[0], x[1], s.column(r, "y")}

	begun := func(p *Pinned) { // as pinAt begins
		p.begin(r, false)
		require.NoError(t, r.pinEpoch(p, 1))
		floors, ok, err := r.find(p.columns[0], p.epoch)
		require.NoError(t, err)
		require.True(t, ok)
		p.floors, err = r.version(p.columns[0], &floors)
		require.NoError(t, err)
	}
	moments := []Moment{Common(), AsOf(1), AsOf(0), AtStamp(2000, false), AtStamp(2000, true)}
	overtaken := make([]Pinned, len(moments))
	for i := range overtaken {
		begun(&overtaken[i])
	}
	seal(1001, "x")
	seal(1, "y")
	for i, m := range moments {
		p := &overtaken[i]
		err := r.pinColumnsAt(p, m, columns)
		if m == AsOf(1) {
			requireStatus(t, protocol.StatusFloorViolation, err)
			require.ErrorContains(t, err, `attribute "y"`)
		} else {
			require.NoError(t, err)
			require.Nil(t, p.Version(1).Column, "moment %d: the second schema", i)
			require.Nil(t, p.Version(2).Column, "moment %d: y at epoch %d", i, p.Epoch())
			require.Equal(t, m != AsOf(0), p.Version(0).Column != nil, "moment %d", i)
		}
		if m == Common() {
			require.EqualValues(t, 1000, p.Ordinal())
		}
		p.drop()
	}
	var now Pinned
	require.NoError(t, r.PinAt(&now, Common(), columns...))
	require.EqualValues(t, 1, now.Ordinal())
	require.EqualValues(t, 1, now.Version(2).OrdinalHighest)
	require.True(t, now.Release())
	require.Zero(t, table.InUse())
}

// Behaviour 46: a column that came while the names were looked up, and was sealed in one step with others, is in the
// view, too.
func TestAColumnBornWhileNamesAreLookedUpIsPinned(t *testing.T) {
	for _, m := range []*Moment{nil, {by: byCommon}, {by: byOrdinal, at: 2}, {by: byStamp, at: 20}} {
		s := newReaderStage(t, Config{Retain: 8}, 64<<20)
		r, table := s.reader(16)
		q := s.query(s.path("/a"))
		s.write(q, "x", 8, 1, 1)
		_, _, err := s.store.Seal(1, protocol.ScopeAll, nil, 10)
		require.NoError(t, err)
		born := false
		r.segments = func(id uint64) ([]byte, error) { // the first look at an entry, after that at their count
			if !born {
				born = true
				s.write(q, "x", 8, 2, 2)
				s.write(q, "late", 8, 2, 2)
				_, _, err := s.store.Seal(2, protocol.ScopeAll, nil, 20)
				require.NoError(t, err)
			}
			return s.segment(id)
		}
		var p Pinned
		require.NoError(t, r.PinNamed(&p, m, "late", "x"))
		require.True(t, born)
		require.Len(t, p.Columns(), 2)
		for i, name := range []string{"late", "x"} {
			require.Equal(t, name, p.Columns()[i].Name)
			require.NotNil(t, p.Version(i).Column, name)
			require.EqualValues(t, 2, p.Version(i).OrdinalHighest)
		}
		require.True(t, p.Release())
		require.Zero(t, table.InUse())
	}
}
