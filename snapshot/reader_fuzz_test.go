package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"callboard/protocol"
	"callboard/ring"

	"github.com/stretchr/testify/require"
)

// damagedStage is a copy of a real stage's memory that a test may spoil.
type damagedStage struct {
	root     []byte
	segments map[uint64][]byte
	ids      []uint64 // strings that exist
}

func realStage(t testing.TB) *damagedStage {
	s := newReaderStage(t, Config{Retain: 3}, 64<<20)
	ids := []uint64{s.path("/a"), s.path("/b"), s.path("/c")}
	for n := uint64(1); n < 70; n++ { // more than two pages of slots
		s.write(s.query(ids...), "x", 2, n, n, n, n)
		if n%10 == 9 {
			_, err := s.store.Delete(s.query(ids[n%3]), []string{"y"}, n)
			require.NoError(t, err)
		}
		s.write(s.query(ids[n%3]), "y", 1, n, n)
		s.writeRagged(s.query(ids[n%3], ids[(n+1)%3]), "z", n)
		if n%2 == 0 {
			_, _, err := s.store.Seal(n, protocol.ScopeAll, nil, 0)
			require.NoError(t, err)
			continue
		}
		for _, name := range []string{"x", "y", "z"} {
			_, _, err := s.store.Seal(n, protocol.ScopeInclude, []string{name}, 0)
			require.NoError(t, err)
		}
	}
	return &damagedStage{root: s.root, segments: s.segments, ids: ids}
}

// copyOf copies the memory anew, aligned as a mapping is, the used part of segments only.
func (d *damagedStage) copyOf() *damagedStage {
	c := &damagedStage{root: append(make([]byte, 0, len(d.root)), d.root...), segments: map[uint64][]byte{}, ids: d.ids}
	for id, mem := range d.segments {
		end := min(len(mem), 256<<10)
		c.segments[id] = append(make([]byte, 0, end), mem[:end]...)
	}
	return c
}

// readAll calls everything that a reader offers. Whatever the memory holds, it
// returns; a panic or a touch outside the slices would end the test (rule R5).
func (d *damagedStage) readAll(t testing.TB) (failures int) {
	l, err := ring.NewLayout(1, 1, 64, 1, 1)
	require.NoError(t, err)
	table, err := ring.NewPinTable(make([]byte, l.TotalBytes), l)
	require.NoError(t, err)
	note := func(err error) bool {
		if err == nil {
			return false
		}
		failures++
		var own *protocol.Error
		require.True(t, errors.As(err, &own), "%T: %v", err, err)
		require.NotEmpty(t, own.Text)
		return true
	}
	r, err := NewReader(d.root, func(id uint64) ([]byte, error) {
		if mem, ok := d.segments[id]; ok {
			return mem, nil
		}
		return nil, protocol.Errorf(protocol.StatusNotFound, "there is no segment %d", id)
	}, table)
	if note(err) {
		return failures
	}
	r.PinByBroker = func(slots []uint32) (uint64, error) {
		for _, slot := range slots {
			table.Store(int(slot), 0, r.Epoch())
		}
		return r.Epoch(), nil
	}
	_ = r.Directory()
	for _, id := range append(d.ids, 0, 1, r.root.IdentityTag<<40|1, r.root.IdentityTag<<40|7, 1<<63) {
		_, err := r.Text(id)
		note(err)
		_, _, err = r.Segment(id & 0xff)
		note(err)
	}
	_, err = r.WaitEpoch(1<<60, 0)
	note(err)
	_, err = r.WriteFloor("x")
	note(err)
	_, err = r.WriteFloor("unheard of")
	note(err)
	columns, err := r.AllColumns()
	if note(err) {
		return failures
	}
	list := NewPrimList(append([]uint64{99}, d.ids...))
	use := func(p *Pinned, v *Version) {
		if v.Column == nil {
			return
		}
		sum := byte(0)
		for _, b := range v.Data {
			sum += b
		}
		m, err := r.Rows(list, v)
		if !note(err) {
			for _, row := range m.Rows {
				_ = v.Data[uint64(row)*v.Column.RowBytes:][:v.Column.RowBytes]
				_ = v.RowOrdinal(row)
			}
			_ = m.Changed(v, 60).Has(1)
			if v.Column.IsArray() {
				rows, err := p.Ragged(v, m)
				note(err)
				for _, row := range rows {
					for _, b := range row {
						sum += b
					}
				}
			}
		}
		_, err = r.Prims(v)
		note(err)
	}
	for _, c := range columns {
		_ = c.Counters()
		_ = c.Schema.String()
		_, err := r.Columns(c.Name)
		note(err)
	}
	var p Pinned
	for i := 0; i < len(columns) && i < 5; i++ {
		if note(r.Pin(&p, columns[i], columns[0])) {
			continue
		}
		use(&p, p.Version(0))
		use(&p, p.Version(1))
		f, err := p.Floors()
		if !note(err) {
			_, err = f.OfName("y")
			note(err)
		}
		p.Release()
		for _, at := range []uint64{0, 1, 66, 67, 1 << 60} {
			if err := r.PinAt(&p, AsOf(at), columns[i]); err == nil {
				use(&p, p.Version(0))
				p.Release()
			} else if !expected(err) {
				note(err)
			}
		}
		_, err = r.Tombstones(list, columns[i], p.Epoch(), 3, protocol.Infinite)
		note(err)
	}
	if note(r.PinAll(&p)) {
		return failures
	}
	for i := 0; i < len(columns) && i < 5; i++ {
		v, err := p.Find(columns[i])
		if !note(err) {
			use(&p, &v)
		}
	}
	_, err = p.Floors()
	note(err)
	p.Release()
	require.Zero(t, table.InUse())
	return failures
}

// expected tells whether an error is what a sound stage says of a read as of an ordinal.
func expected(err error) bool {
	e := StatusError(err)
	return e.Status == protocol.StatusOutOfRange || e.Status == protocol.StatusFloorViolation
}

// spoil writes one interesting word somewhere.
func (d *damagedStage) spoil(where, what uint64) {
	mem := d.root
	if n := where % uint64(len(d.segments)+1); n > 0 {
		for _, m := range d.segments {
			if n--; n == 0 {
				mem = m
				break
			}
		}
	}
	// Most of a segment is empty: its beginning is what is spoilt.
	used := min(len(mem), 96<<10)
	off := where / 16 % uint64(used-8)
	switch what % 8 {
	case 0, 1, 2:
		interesting := [...]uint64{0, 1, 2, 1 << 31, 1<<32 - 1, 1 << 40, 1 << 62, 1 << 63, protocol.Infinite, protocol.Infinite - 63, 4096, 1 << 20}
		binary.LittleEndian.PutUint64(mem[off&^7:], interesting[what/8%uint64(len(interesting))])
	case 3:
		binary.LittleEndian.PutUint64(mem[off&^7:], what)
	case 4:
		binary.LittleEndian.PutUint32(mem[off&^3:], uint32(what/8))
	case 5:
		word := binary.LittleEndian.Uint64(mem[off&^7:])
		binary.LittleEndian.PutUint64(mem[off&^7:], word+what/8%9-4)
	default:
		mem[off] ^= byte(1 << (what / 8 % 8))
	}
}

func TestUndamagedStageReadsWithoutFailures(t *testing.T) {
	d := realStage(t)
	// Four ids of the seven asked for were never given out.
	require.LessOrEqual(t, d.copyOf().readAll(t), 4)
}

// Whatever damage the directory and the segments have, every reader function
// returns a value or an error that is about something (rule R5).
func TestDamagedDirectoriesEndInErrors(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	real := realStage(t)
	rounds, failures := 4000, 0
	if testing.Short() || raceEnabled {
		rounds = 200
	}
	for range rounds {
		d := real.copyOf()
		hurt := 1 + random.IntN(20)
		if random.IntN(20) == 0 { // all of the root at once
			for i := 64; i < len(d.root); i++ {
				d.root[i] = byte(random.Uint32())
			}
		}
		for range hurt {
			d.spoil(random.Uint64(), random.Uint64())
		}
		failures += d.readAll(t)
	}
	t.Logf("%d failures in %d damaged stages", failures, rounds)
	require.Greater(t, failures, rounds, "the damage was not met")
}

// Every word of the root in turn, with values that bounds are broken by.
func TestEveryWordOfTheRootMayLie(t *testing.T) {
	real := realStage(t)
	step := 8
	if testing.Short() || raceEnabled {
		step = 8 * 31
	}
	for off := 64; off+8 <= 4096; off += step {
		for _, word := range []uint64{0, 1, 1 << 33, protocol.Infinite, protocol.Infinite - 4096} {
			d := &damagedStage{root: append([]byte(nil), real.root...), segments: real.segments, ids: real.ids}
			binary.LittleEndian.PutUint64(d.root[off:], word)
			require.NotPanics(t, func() { d.readAll(t) }, fmt.Sprintf("word %#x at %d", word, off))
		}
	}
}

func FuzzReaderOverDamagedMemory(f *testing.F) {
	real := realStage(f)
	f.Add([]byte("0123456789abcdef"))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := real.copyOf()
		for len(data) >= 16 {
			d.spoil(binary.LittleEndian.Uint64(data), binary.LittleEndian.Uint64(data[8:]))
			data = data[16:]
		}
		d.readAll(t)
	})
}
