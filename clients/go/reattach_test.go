package callboard

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"callboard/protocol"
	"callboard/ring"
	"callboard/shm"

	"github.com/stretchr/testify/require"
)

// lives is a fake broker that is killed and comes back; it answers every operation with OK
// and notes the opcodes of each life.
type lives struct {
	*fakeBroker
	life   uint64
	ops    []uint32
	answer func(*protocol.SubmissionEntry, *protocol.CompletionEntry) bool // false: not at all
	stop   atomic.Bool
}

func newLives(t *testing.T) *lives {
	b := &lives{fakeBroker: newFakeBroker(t), life: 1}
	b.mutex.Lock()
	b.server = nil
	b.show()
	b.reply = func(r *protocol.HelloReply) {
		b.begin()
		r.RingGeneration, r.BrokerIncarnation = b.life, b.life
		if b.life > 1 {
			r.Reattached = 1
		}
	}
	b.mutex.Unlock()
	b.serving.Go(b.work)
	t.Cleanup(func() { b.stop.Store(true) })
	return b
}

// begin makes the rings of a life, with its hello. The caller holds mutex.
func (b *lives) begin() {
	require.NoError(b.t, b.layout.Restart(b.channel.Bytes(), ring.Identity{Incarnation: 5, Generation: fakeGeneration, RingGeneration: b.life}))
	var err error
	b.server, err = ring.NewServer(b.channel.Bytes(), b.layout)
	require.NoError(b.t, err)
}

// restart kills the broker, and another one is there.
func (b *lives) restart() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.server, b.ops = nil, nil
	_ = (<-b.conns).Close()
	b.life++
	b.show()
}

// show tells in the directory which life it is.
func (b *lives) show() {
	root, err := shm.View[protocol.DirectoryHeader](b.root.Bytes(), 0)
	require.NoError(b.t, err)
	atomic.StoreUint64(&root.BrokerIncarnation, b.life)
}

func (b *lives) work() {
	var entries [8]protocol.SubmissionEntry
	for !b.stop.Load() {
		time.Sleep(time.Millisecond)
		b.mutex.Lock()
		if b.server == nil {
			b.mutex.Unlock()
			continue
		}
		n, err := b.server.Drain(entries[:])
		for i := range entries[:n] {
			e := &entries[i]
			b.ops = append(b.ops, e.Opcode)
			done := protocol.CompletionEntry{OpID: e.OpID, Handle: b.life<<32 + uint64(len(b.ops))}
			if b.answer == nil || b.answer(e, &done) {
				b.server.Complete(&done)
			}
		}
		b.server.Flush()
		b.mutex.Unlock()
		if err != nil {
			b.t.Errorf("the client spoilt its ring: %v", err)
			return
		}
	}
}

// seen waits until the operations of this life are these, without waiting for more.
func (b *lives) seen(want ...uint32) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		b.mutex.Lock()
		defer b.mutex.Unlock()
		return slices.Equal(want, b.ops)
	}, 30*time.Second, time.Millisecond, "operations of life %d: %v, expected %v", b.life, &b.ops, want)
}

func (b *lives) nop(s *Stage) {
	b.t.Helper()
	_, err := s.client.call(context.Background(), request{what: "nothing", opcode: protocol.OpNop})
	require.NoError(b.t, err)
}

// B1: the client says who it was, makes its queries anew before anything else, and
// confirms that sessions of before are closed when the last one is, once. Op ids go on.
func TestReattachOnTheWire(t *testing.T) {
	b := newLives(t)
	s := b.attach()
	q, err := s.QueryFromPathList(context.Background(), nil)
	require.NoError(t, err)
	released, err := s.QueryFromPathList(context.Background(), nil)
	require.NoError(t, err)
	released.Release()
	first := q.handle.id.Load()
	m, err := s.client.openSession(context.Background(), mapRequest{query: q.handle, name: "x", schema: protocol.Schema{DtypeBits: 8, DtypeLanes: 1}})
	require.NoError(t, err)
	b.seen(protocol.OpQueryPaths, protocol.OpQueryPaths, protocol.OpQueryRelease, protocol.OpMap)
	last := s.client.lastOp
	<-b.hello

	b.restart()
	b.nop(s)
	hello := <-b.hello
	require.EqualValues(t, 5, hello.Incarnation)
	require.EqualValues(t, fakeGeneration, hello.Generation)
	require.EqualValues(t, protocol.LanguageGo, hello.Language)
	b.seen(protocol.OpQueryPaths, protocol.OpNop)
	require.Greater(t, q.handle.id.Load(), first)
	require.Greater(t, s.client.lastOp, last)
	op, err := s.client.submit(request{what: "an old query", opcode: protocol.OpDelete, query: q.handle, ordinal: 1})
	require.NoError(t, err)
	require.Equal(t, q.handle.id.Load(), op.request.handle)
	require.NoError(t, op.Wait(context.Background()))
	_, err = s.client.submit(request{what: "unmapping", opcode: protocol.OpUnmapGroup, life: m.life})
	require.ErrorIs(t, err, ErrBrokerRestarted)
	b.seen(protocol.OpQueryPaths, protocol.OpNop, protocol.OpDelete)
	require.True(t, m.abort())
	b.seen(protocol.OpQueryPaths, protocol.OpNop, protocol.OpDelete, protocol.OpSessionsClosed)
	b.nop(s)
	b.seen(protocol.OpQueryPaths, protocol.OpNop, protocol.OpDelete, protocol.OpSessionsClosed, protocol.OpNop)

	b.restart()
	require.Eventually(t, func() bool { // the delete that had ended well is lost, and told of
		op, err := s.AdvanceWriteFloor(1, SealOptions{})
		return err != nil && op == nil && s.client.settle(context.Background()) == nil
	}, 30*time.Second, time.Millisecond)
	b.nop(s)
	b.mutex.Lock()
	require.Equal(t, []uint32{protocol.OpQueryPaths, protocol.OpSessionsClosed}, b.ops[:2], "none is open: it is said at once")
	b.mutex.Unlock()
}

// V2: operation PIN is asked again; what the broker that went may have stored does not
// stand in the way.
func TestPinIsAskedAgain(t *testing.T) {
	b := newLives(t)
	s := b.attach()
	slot, err := s.client.pins.Acquire()
	require.NoError(t, err)
	b.mutex.Lock()
	pins, err := ring.NewPins(b.channel.Bytes(), b.layout)
	require.NoError(t, err)
	b.answer = func(e *protocol.SubmissionEntry, done *protocol.CompletionEntry) bool {
		if e.Opcode != protocol.OpPin {
			return true
		}
		done.Epoch = 40 + b.life
		if _, err := pins.Store(uint32(slot), done.Epoch); err != nil {
			t.Error(err)
		}
		return b.life > 1
	}
	b.mutex.Unlock()
	epoch := make(chan uint64, 1)
	go func() {
		e, err := s.client.pinByBroker([]uint32{uint32(slot)})
		if err != nil {
			t.Error(err)
		}
		epoch <- e
	}()
	b.seen(protocol.OpPin)
	b.restart()
	require.EqualValues(t, 42, <-epoch)
	require.EqualValues(t, 42, s.client.pins.Epoch(slot))
}

// B1: an operation may be under way while several brokers come and go: a slow one, on a busy machine. Its query is the same.
func TestAQueryIsLookedUpBeforeTwoRestarts(t *testing.T) {
	b := newLives(t)
	s := b.attach()
	q, err := s.QueryFromPathList(context.Background(), nil)
	require.NoError(t, err)
	query, err := q.use(s.client)
	require.NoError(t, err)
	seen := map[uint64]bool{}
	for range 3 {
		op, err := s.client.submit(request{what: "deleting", opcode: protocol.OpDelete, query: query, ordinal: 1, flags: protocol.FlagAbort}) // not refused for what the restart lost
		require.NoError(t, err)
		require.NoError(t, op.Wait(context.Background()))
		require.Equal(t, q.handle.id.Load(), op.request.handle)
		require.False(t, seen[op.request.handle], "each broker gives it another number")
		seen[op.request.handle] = true
		b.restart()
		b.nop(s)
	}
}

// Whatever is wrong with the answer to a hello of before ends the session, and says why
// (rules I1, R5).
func TestReattachIsChecked(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(b *lives, r *protocol.HelloReply)
		text  string
	}{
		"a new client":       {func(_ *lives, r *protocol.HelloReply) { r.Reattached = 0 }, "does not know"},
		"another client":     {func(_ *lives, r *protocol.HelloReply) { r.Incarnation++ }, "does not know"},
		"another generation": {func(_ *lives, r *protocol.HelloReply) { r.Generation++ }, "does not know"},
		"another channel":    {func(b *lives, _ *protocol.HelloReply) { b.fds["channel"] = b.fds["doorbell"] }, "another channel"},
		"another version":    {func(_ *lives, r *protocol.HelloReply) { r.Header.Version = 9 << 16 }, "9.0"},
		"too few":            {func(b *lives, _ *protocol.HelloReply) { b.keep = 2 }, "2 descriptors"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLives(t)
			s := b.attach()
			before := openFiles(t)
			b.mutex.Lock()
			b.reply = func(r *protocol.HelloReply) {
				b.begin()
				r.Reattached = 1
				c.spoil(b, r)
			}
			b.mutex.Unlock()
			b.restart()
			_, err := s.client.call(context.Background(), request{what: "nothing", opcode: protocol.OpNop})
			require.ErrorIs(t, err, ErrSessionEnded)
			require.ErrorContains(t, err, c.text)
			require.Eventually(t, func() bool { return openFiles(t) <= before }, 30*time.Second, 5*time.Millisecond)
		})
	}
}

// unsealed: what a failed seal has told is not told again (rule B1).
func TestUnsealedThatWasTold(t *testing.T) {
	u := unsealed{}
	for name, ordinal := range map[string]uint64{"a": 3, "b": 5} {
		u.note(&request{opcode: protocol.OpWrite, names: []string{name}, at: ordinal})
	}
	u.note(&request{opcode: protocol.OpDelete, at: 2})
	u.note(&request{opcode: protocol.OpWrite, names: []string{"sealed"}, at: 9, flags: protocol.FlagSeal})
	u.note(&request{opcode: protocol.OpMap, names: []string{"mapped"}, at: 9})
	require.Equal(t, unsealed{"a": 3, "b": 5, "": 2}, u)
	u.told(&request{opcode: protocol.OpSeal, value: protocol.ScopeInclude, names: []string{"b"}, at: 4})
	require.Equal(t, unsealed{"a": 3, "b": 5, "": 2}, u, "b lies above that seal")
	u.told(&request{opcode: protocol.OpSeal, value: protocol.ScopeInclude, names: []string{"a"}, at: 4})
	require.Equal(t, unsealed{"b": 5, "": 2}, u)
	u.told(&request{opcode: protocol.OpSeal, value: protocol.ScopeExclude, names: []string{"b"}, at: 9})
	require.Equal(t, unsealed{"b": 5}, u)
	u.told(&request{opcode: protocol.OpSeal, value: protocol.ScopeAll, at: 5})
	require.Empty(t, u)
}
