package snapshot

import (
	"encoding/binary"
	"testing"
	"time"

	"callboard/protocol"
	"callboard/ring"

	"github.com/stretchr/testify/require"
)

// An attribute never sealed shows nothing, and its floor is 0 (behaviour 101, 120).
func TestReaderOfAStageWithoutASealShowsNothing(t *testing.T) {
	s := newReaderStage(t, Config{}, 64<<20)
	r, table := s.reader(8)
	s.write(s.query(s.path("/a")), "x", 1, 7, 1)
	var p Pinned
	require.NoError(t, r.Pin(&p, s.column(r, "x")))
	require.Zero(t, p.Epoch())
	require.Nil(t, p.Version(0).Column)
	f, err := p.Floors()
	require.NoError(t, err)
	floor, err := f.OfName("x")
	require.NoError(t, err)
	require.Zero(t, floor)
	require.True(t, p.Release())
	require.Zero(t, table.InUse())
}

func TestReaderShowsWhatWasSealedWithItsFloors(t *testing.T) {
	s := newReaderStage(t, Config{}, 64<<20)
	r, table := s.reader(8)
	a, b, c := s.path("/a"), s.path("/b"), s.path("/c")
	s.write(s.query(a, b, c), "x", 3, 4, 10, 20, 30)
	_, _, err := s.store.Seal(4, protocol.ScopeInclude, []string{"x", "never written"}, 99)
	require.NoError(t, err)

	require.EqualValues(t, 1, r.Epoch())
	var p Pinned
	require.NoError(t, r.Pin(&p, s.column(r, "x")))
	v := p.Version(0)
	require.EqualValues(t, 3, v.Rows)
	require.EqualValues(t, 4, v.OrdinalHighest)
	require.EqualValues(t, 99, v.StampNs)
	require.Equal(t, rowsOf(3, 10, 20, 30), v.Data)

	whole, err := r.Rows(NewPrimList([]uint64{a, b, c}), v)
	require.NoError(t, err)
	require.True(t, whole.Dense)
	part, err := r.Rows(NewPrimList([]uint64{b, c}), v)
	require.NoError(t, err)
	require.True(t, part.Dense)
	require.EqualValues(t, 1, part.First)
	turned, err := r.Rows(NewPrimList([]uint64{c, s.path("/absent"), a}), v)
	require.NoError(t, err)
	require.False(t, turned.Dense)
	require.Equal(t, []uint64{c, a}, turned.Prims)
	require.Equal(t, []uint32{2, 0}, turned.Rows)
	require.Equal(t, []uint32{0, 2}, turned.Elements)

	f, err := p.Floors()
	require.NoError(t, err)
	require.EqualValues(t, 99, f.StampNs)
	for name, want := range map[string]uint64{"x": 4, "never written": 4, "unheard of": 0} {
		floor, err := f.OfName(name)
		require.NoError(t, err)
		require.Equal(t, want, floor, name)
	}
	for _, id := range []uint64{a, b, c} {
		text, err := r.Text(id)
		require.NoError(t, err)
		require.Equal(t, id, s.path(text))
	}
	p.Hold()
	require.False(t, p.Release())
	require.EqualValues(t, 2, table.InUse())
	require.True(t, p.Release())
	require.Zero(t, table.InUse())
	require.PanicsWithValue(t, "snapshot: a pin was released 1 times too often", func() { p.Release() })
}

// Ids of another generation are refused, never mis-resolved (behaviour 252, 269; rule L3).
func TestReaderRefusesIdsOfAnotherGeneration(t *testing.T) {
	s := newReaderStage(t, Config{Generation: 1}, 64<<20)
	r, _ := s.reader(8)
	id := s.path("/a")
	_, err := r.Text(id)
	require.NoError(t, err)
	other := newReaderStage(t, Config{Generation: 2}, 64<<20)
	foreign, _ := other.reader(8)
	other.path("/b")
	for _, bad := range []uint64{0, id + 1, 1 << 63} {
		_, err = r.Text(bad)
		require.ErrorIs(t, err, protocol.Errorf(protocol.StatusNotFound, ""))
	}
	_, err = foreign.Text(id)
	require.ErrorIs(t, err, protocol.Errorf(protocol.StatusNotFound, ""))
}

// A view keeps its bytes while newer versions come and go, in a chain of more
// slots than one page has (rules V1, V3, V4; behaviour 161).
func TestHeldPinsKeepTheirVersionsThroughManySeals(t *testing.T) {
	s := newReaderStage(t, Config{Retain: 1}, 64<<20)
	r, table := s.reader(256)
	q := s.query(s.path("/a"))
	held := make([]Pinned, 100) // each of an epoch of its own: more than 3 pages of slots
	for i := range held {
		s.write(q, "x", 8, uint64(i+1), uint64(i+1))
		_, _, err := s.store.Seal(uint64(i+1), protocol.ScopeAll, nil, 0)
		require.NoError(t, err)
		require.NoError(t, r.Pin(&held[i], s.column(r, "x")))
	}
	for i := range held {
		value, ok := stamp(held[i].Version(0).Data)
		require.True(t, ok)
		require.EqualValues(t, i+1, value)
		require.True(t, held[i].Release())
	}
	require.Zero(t, table.InUse())
	s.write(q, "x", 8, 1000, 5)
	_, _, err := s.store.Seal(1000, protocol.ScopeAll, nil, 0)
	require.NoError(t, err)
	require.LessOrEqual(t, len(s.store.findColumn("x").versions), 2, "released versions were not reclaimed")
}

// A column born after the epoch is no part of the view, and one pin shows all
// that there is at its epoch (rule O6).
func TestPinOfEverythingIsOneEpoch(t *testing.T) {
	s := newReaderStage(t, Config{Retain: 1}, 64<<20)
	r, _ := s.reader(8)
	q := s.query(s.path("/a"))
	seal := func(n uint64) {
		_, _, err := s.store.Seal(n, protocol.ScopeAll, nil, 0)
		require.NoError(t, err)
	}
	s.write(q, "x", 1, 1, 11)
	seal(1)
	var p Pinned
	require.NoError(t, r.PinAll(&p))
	defer p.Release()
	for n := uint64(2); n < 50; n++ {
		s.write(q, "x", 1, n, n)
		s.write(q, "y", 1, n, n)
		seal(n)
	}
	v, err := p.Find(s.column(r, "x"))
	require.NoError(t, err)
	require.EqualValues(t, 11, binary.LittleEndian.Uint64(v.Data))
	v, err = p.Find(s.column(r, "y"))
	require.NoError(t, err)
	require.Nil(t, v.Column)
	f, err := p.Floors()
	require.NoError(t, err)
	require.EqualValues(t, 1, f.Global)
}

// A reader that pins more than its share is refused by name, and may go on when it
// lets go (rule V7). The same version counts once.
func TestPinnedBytesHaveALimitThatNamesTheOldestPins(t *testing.T) {
	s := newReaderStage(t, Config{Retain: 1, PinnedBytesMax: 200}, 64<<20)
	r, table := s.reader(64)
	q := s.query(s.path("/a"))
	next := uint64(0)
	step := func() {
		next++
		s.write(q, "camera", 10, next, next) // 80 bytes
		_, _, err := s.store.Seal(next, protocol.ScopeAll, nil, 0)
		require.NoError(t, err)
	}
	var first, second, third, all Pinned
	step()
	require.NoError(t, r.Pin(&first, s.column(r, "camera")))
	require.NoError(t, r.Pin(&all, s.column(r, "camera")))
	step()
	require.NoError(t, r.Pin(&second, s.column(r, "camera")))
	step()
	err := r.Pin(&third, s.column(r, "camera"))
	require.ErrorIs(t, err, protocol.Errorf(protocol.StatusLimit, ""))
	require.ErrorContains(t, err, `"camera" at epoch 1`)
	require.ErrorContains(t, err, "160")
	require.NoError(t, r.PinAll(&third))
	_, err = third.Find(s.column(r, "camera"))
	require.ErrorIs(t, err, protocol.Errorf(protocol.StatusLimit, ""))
	third.Release()
	first.Release()
	require.Error(t, r.Pin(&third, s.column(r, "camera")), "the version is still held once")
	all.Release()
	require.NoError(t, r.Pin(&third, s.column(r, "camera")))
	third.Release()
	second.Release()
	require.Zero(t, table.InUse())
	require.Zero(t, r.accounts.bytes)
	require.Empty(t, r.accounts.held)
	require.Nil(t, r.accounts.oldest)
}

func TestWithoutPinSlotsAReadIsRefusedAndLeavesNothing(t *testing.T) {
	s := newReaderStage(t, Config{}, 64<<20)
	r, table := s.reader(2)
	s.write(s.query(s.path("/a")), "x", 1, 1, 1)
	_, _, err := s.store.Seal(1, protocol.ScopeAll, nil, 0)
	require.NoError(t, err)
	var p, second Pinned
	require.NoError(t, r.Pin(&p, s.column(r, "x")))
	err = r.Pin(&second, s.column(r, "x"))
	require.ErrorIs(t, err, protocol.Errorf(protocol.StatusLimit, ""))
	p.Release()
	require.Zero(t, table.InUse())
}

// After 16 attempts the broker pins (rule V2).
func TestAReaderThatIsOvertakenAsksTheBroker(t *testing.T) {
	s := newReaderStage(t, Config{}, 64<<20)
	r, table := s.reader(8)
	s.write(s.query(s.path("/a")), "x", 1, 1, 1)
	_, _, err := s.store.Seal(1, protocol.ScopeAll, nil, 0)
	require.NoError(t, err)
	c := s.column(r, "x")
	c.entry.Horizon = 5 // as if the broker were always ahead
	asked := 0
	r.PinByBroker = func(slots []uint32) (uint64, error) {
		asked++
		c.entry.Horizon = 1
		for i, slot := range slots {
			require.Zero(t, table.Epoch(int(slot)))
			table.Store(int(slot), []uint32{c.Index, protocol.FloorColumn}[i], 1)
		}
		return 1, nil
	}
	var p Pinned
	require.NoError(t, r.Pin(&p, c))
	require.Equal(t, 1, asked)
	require.EqualValues(t, 1, p.Version(0).Rows)
	p.Release()
	require.Zero(t, table.InUse())

	c.entry.Horizon = 5
	r.PinByBroker = nil
	require.ErrorIs(t, r.Pin(&p, c), protocol.Errorf(protocol.StatusTimeout, ""))
	require.Zero(t, table.InUse())

	// A broker that did not answer may still store: its slots are lost, not reused.
	r.PinByBroker = func([]uint32) (uint64, error) {
		return 0, protocol.Errorf(protocol.StatusSessionEnded, "gone")
	}
	require.ErrorIs(t, r.Pin(&p, c), protocol.Errorf(protocol.StatusSessionEnded, ""))
	require.Equal(t, 2, table.InUse())
}

func TestWaitEpochIsOneBoundedTurn(t *testing.T) {
	s := newReaderStage(t, Config{}, 64<<20)
	r, _ := s.reader(8)
	start := time.Now()
	epoch, err := r.WaitEpoch(0, 20*time.Millisecond)
	require.NoError(t, err)
	require.Zero(t, epoch)
	require.GreaterOrEqual(t, time.Since(start), 15*time.Millisecond)
	_, err = r.WaitEpoch(0, time.Hour)
	require.NoError(t, err)
	require.Less(t, time.Since(start), 30*time.Second, "a turn ends after 100 ms (rule R4)")

	q := s.query(s.path("/a"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		time.Sleep(10 * time.Millisecond)
		s.write(q, "x", 1, 1, 1)
		_, _, err := s.store.Seal(1, protocol.ScopeAll, nil, 0)
		require.NoError(t, err)
	}()
	for epoch = 0; epoch == 0; {
		epoch, err = r.WaitEpoch(0, time.Second)
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, epoch)
	<-done
}

func TestNewReaderRefusesWhatIsNoDirectory(t *testing.T) {
	s := newReaderStage(t, Config{}, 64<<20)
	l, err := ring.NewLayout(1, 1, 4, 1, 1)
	require.NoError(t, err)
	pins, err := ring.NewPinTable(make([]byte, l.TotalBytes), l)
	require.NoError(t, err)
	_, err = NewReader(nil, s.segment, pins)
	require.ErrorIs(t, err, protocol.Errorf(protocol.StatusInternal, ""))
	_, err = NewReader(s.root[:8192], s.segment, pins)
	require.ErrorIs(t, err, protocol.Errorf(protocol.StatusInternal, ""))
	s.store.root.Header.Version = 2 << 16
	_, err = NewReader(s.root, s.segment, pins)
	require.ErrorIs(t, err, protocol.Errorf(protocol.StatusIncompatibleVersion, ""))
	require.ErrorContains(t, err, "2.0")
	require.ErrorContains(t, err, "1.0")
	s.store.root.Header.Version = protocol.VersionWord
	s.store.root.Header.Magic++
	_, err = NewReader(s.root, s.segment, pins)
	require.ErrorIs(t, err, protocol.Errorf(protocol.StatusInternal, ""))
}

// A warm read of one attribute takes no memory from Go's heap (style: allocation).
func TestWarmReadTakesNoMemory(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates on its own: counts are not looked at")
	}
	s := newReaderStage(t, Config{}, 64<<20)
	r, _ := s.reader(8)
	a, b := s.path("/a"), s.path("/b")
	s.write(s.query(a, b), "x", 4, 1, 1, 2)
	_, _, err := s.store.Seal(1, protocol.ScopeAll, nil, 0)
	require.NoError(t, err)
	prims := NewPrimList([]uint64{b, a})
	var p Pinned
	read := func() {
		columns, err := r.Columns("x")
		if err != nil || len(columns) != 1 {
			t.Fatal(err)
		}
		if err := r.Pin(&p, columns[0]); err != nil {
			t.Fatal(err)
		}
		m, err := r.Rows(prims, p.Version(0))
		if err != nil || len(m.Rows) != 2 {
			t.Fatal(err)
		}
		f, err := p.Floors()
		if err != nil || f.Of(columns[0].NameID) != 1 {
			t.Fatal(err)
		}
		p.Release()
	}
	read()
	if n := testing.AllocsPerRun(1000, read); n != 0 && !raceEnabled {
		t.Fatalf("a warm read took memory %v times, expected 0", n)
	}
}

func BenchmarkReadOneAttribute(b *testing.B) {
	s := newReaderStage(b, Config{}, 64<<20)
	r, _ := s.reader(8)
	s.write(s.query(s.path("/a")), "x", 4, 1, 1)
	_, _, err := s.store.Seal(1, protocol.ScopeAll, nil, 0)
	require.NoError(b, err)
	c := s.column(r, "x")
	var p Pinned
	b.ReportAllocs()
	for b.Loop() {
		if err := r.Pin(&p, c); err != nil {
			b.Fatal(err)
		}
		p.Release()
	}
}
