package snapshot

import (
	"encoding/binary"
	"sync"
	"testing"

	"callboard/protocol"
	"callboard/ring"
	"callboard/tensor"

	"github.com/stretchr/testify/require"
)

// readerStage is a store and the memory that readers see, in plain Go memory: the
// race detector knows its atomics.
type readerStage struct {
	t        testing.TB
	store    *Store
	memory   *Memory
	root     []byte
	mutex    sync.RWMutex
	segments map[uint64][]byte
	pinAsked chan pinAsked // served by whoever owns the store: serve
}

type pinAsked struct {
	pins   *ring.Pins
	slots  []uint32
	answer chan uint64
}

func newReaderStage(t testing.TB, config Config, limit uint64) *readerStage {
	s := &readerStage{t: t, root: make([]byte, protocol.DirectoryBytes), segments: map[uint64][]byte{}, pinAsked: make(chan pinAsked, 64)}
	s.memory = NewMemory(limit)
	s.memory.Grow = func(r GrowRequest) {
		bytes := make([]byte, r.SizeBytes)
		s.mutex.Lock()
		s.segments[r.ID] = bytes
		s.mutex.Unlock()
		s.memory.Grown(r, &Segment{ID: r.ID, Bytes: bytes}, nil)
	}
	s.memory.Retired = func(seg *Segment) {
		s.mutex.Lock()
		delete(s.segments, seg.ID)
		s.mutex.Unlock()
	}
	if config.Generation == 0 {
		config.Generation = 12345
	}
	if config.Retain == 0 {
		config.Retain = 2
	}
	if config.UnsealedBytesMax == 0 {
		config.UnsealedBytesMax = limit
	}
	if config.Handoff == 0 {
		config.Handoff = protocol.HandoffAdopt
	}
	config.CopyInlineBytes = 1 << 40 // no jobs: nothing here waits for a pool of workers
	var err error
	s.store, err = NewStore(config, s.root, s.memory)
	require.NoError(t, err)
	return s
}

func (s *readerStage) segment(id uint64) ([]byte, error) {
	s.mutex.RLock()
	defer s.mutex.RUnlock()
	if mem, ok := s.segments[id]; ok {
		return mem, nil
	}
	return nil, protocol.Errorf(protocol.StatusNotFound, "no segment %d", id)
}

// channelPins is a client's pins as the store asks for them.
type channelPins struct {
	t    testing.TB
	pins *ring.Pins
}

func (c channelPins) AppendPins(dst []Pin) []Pin {
	err := c.pins.Scan(func(_ int, epoch uint64, attribute uint32) {
		dst = append(dst, Pin{Epoch: epoch, Attribute: attribute})
	})
	if err != nil {
		panic(err)
	}
	return dst
}

// reader attaches a client. The store's owner must call it, or nobody use the store.
func (s *readerStage) reader(pinCount uint32) (*Reader, *ring.PinTable) {
	l, err := ring.NewLayout(1, 1, pinCount, 1, 1)
	require.NoError(s.t, err)
	mem := make([]byte, l.TotalBytes)
	table, err := ring.NewPinTable(mem, l)
	require.NoError(s.t, err)
	pins, err := ring.NewPins(mem, l)
	require.NoError(s.t, err)
	s.store.AddPins(channelPins{s.t, pins})
	r, err := NewReader(s.root, s.segment, table)
	require.NoError(s.t, err)
	r.PinByBroker = func(slots []uint32) (uint64, error) {
		ask := pinAsked{pins: pins, slots: slots, answer: make(chan uint64)}
		s.pinAsked <- ask
		return <-ask.answer, nil
	}
	return r, table
}

// serve does what the broker's loop does for OpPin; the store's owner calls it.
func (s *readerStage) serve() {
	for {
		select {
		case ask := <-s.pinAsked:
			for _, slot := range ask.slots {
				if _, err := ask.pins.Store(slot, s.store.Epoch()); err != nil {
					panic(err)
				}
			}
			ask.answer <- s.store.Epoch()
		default:
			return
		}
	}
}

func (s *readerStage) path(text string) uint64 {
	id, err := s.store.Intern(protocol.StringPath, text)
	require.NoError(s.t, err)
	return id
}

func (s *readerStage) query(ids ...uint64) *Query {
	q := NewQuery()
	for _, id := range ids {
		q.Add(id)
	}
	return q
}

// uint64s is the schema of rows of n uint64.
func uint64s(n uint16) protocol.Schema {
	return protocol.Schema{Kind: protocol.KindFixed, DtypeCode: tensor.CodeUint, DtypeBits: 64, DtypeLanes: n, DeviceType: 1}
}

// rowsOf makes rows of width uint64 each, every word of row i being values[i].
func rowsOf(width int, values ...uint64) []byte {
	var b []byte
	for _, v := range values {
		for range width {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	return b
}

func everything() tensor.Selection { return tensor.Selection{Count: tensor.All} }

func (s *readerStage) write(q *Query, name string, width uint16, ordinal uint64, values ...uint64) {
	_, job, err := s.store.Write(&Target{Query: q, Name: name, Schema: uint64s(width), Ordinal: ordinal}, rowsOf(int(width), values...), uint64(len(values)), everything(), false)
	require.NoError(s.t, err)
	require.Nil(s.t, job)
}

// stamp reads the row's words, which must all be the same; ok is false when not.
func stamp(row []byte) (value uint64, ok bool) {
	value = binary.LittleEndian.Uint64(row)
	for i := 8; i < len(row); i += 8 {
		if binary.LittleEndian.Uint64(row[i:]) != value {
			return value, false
		}
	}
	return value, true
}

func (s *readerStage) column(r *Reader, name string) *Column {
	columns, err := r.Columns(name)
	require.NoError(s.t, err)
	require.Len(s.t, columns, 1)
	return columns[0]
}

// writeRagged writes rows of one to seven words of n to a query's prims.
func (s *readerStage) writeRagged(q *Query, name string, n uint64) {
	s.t.Helper()
	target := Target{Query: q, Name: name, Schema: uint64s(1), Ordinal: n}
	target.Schema.Kind = protocol.KindArray
	var bytes []byte
	for i := range q.Size() {
		words := 1 + (n+3*i)%7
		target.ElementSizes = append(target.ElementSizes, words)
		bytes = append(bytes, rowsOf(int(words), n)...)
	}
	_, job, err := s.store.Write(&target, bytes, q.Size(), everything(), false)
	require.NoError(s.t, err)
	require.Nil(s.t, job)
}
