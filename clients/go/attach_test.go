package callboard

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"callboard/protocol"
	"callboard/ring"
	"callboard/shm"

	"github.com/stretchr/testify/require"
)

// fakeBroker speaks the socket's side of a broker, with a lie where a test wants one.
type fakeBroker struct {
	t        *testing.T
	dir      string
	listener *shm.Listener
	layout   ring.Layout
	channel  *shm.Mapping
	server   *ring.Server
	root     *shm.Mapping
	fds      map[string]int
	serving  sync.WaitGroup
	mutex    sync.Mutex                  // what follows
	reply    func(*protocol.HelloReply)  // changes the answer to a hello
	answer   func(*shm.Conn, []byte)     // answers what comes after it
	keep     int                         // descriptors that are passed; 3
	hello    chan *protocol.HelloRequest // what the client said
	conns    chan *shm.Conn
}

const fakeGeneration = 77

func newFakeBroker(t *testing.T) *fakeBroker {
	b := &fakeBroker{t: t, fds: map[string]int{}, keep: 3, hello: make(chan *protocol.HelloRequest, 64), conns: make(chan *shm.Conn, 64)}
	var err error
	b.dir, err = os.MkdirTemp("", "cbfake-") // short: a socket's path has a limit
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(b.dir) })
	b.layout, err = ring.NewLayout(8, 8, 8, 4096, 8192)
	require.NoError(t, err)
	b.channel = b.object("channel", b.layout.TotalBytes)
	require.NoError(t, b.layout.WriteHeader(b.channel.Bytes(), ring.Identity{Incarnation: 5, Generation: fakeGeneration}))
	b.server, err = ring.NewServer(b.channel.Bytes(), b.layout)
	require.NoError(t, err)
	b.root = b.object("directory", protocol.DirectoryBytes)
	b.region(b.root, protocol.MagicDirectory)
	root, err := shm.View[protocol.DirectoryHeader](b.root.Bytes(), 0)
	require.NoError(t, err)
	copy(root.StageName[:], "fake")
	b.region(b.object("doorbell", protocol.DoorbellBytes), protocol.MagicDoorbell)
	b.listener, err = shm.Listen(filepath.Join(b.dir, shm.AttachSocket))
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.listener.Close(); b.serving.Wait() })
	b.serving.Go(b.accept)
	return b
}

func (b *fakeBroker) object(name string, size uint64) *shm.Mapping {
	o, err := shm.CreateObject(b.dir, name, size)
	require.NoError(b.t, err)
	m, err := o.Map(true)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = m.Close(); _ = o.Close() })
	b.fds[name] = int(o.File().Fd())
	return m
}

func (b *fakeBroker) region(m *shm.Mapping, magic uint64) {
	h, err := shm.View[protocol.RegionHeader](m.Bytes(), 0)
	require.NoError(b.t, err)
	*h = protocol.RegionHeader{Magic: magic, Version: protocol.VersionWord, SizeBytes: m.Size(), Generation: fakeGeneration}
}

func (b *fakeBroker) accept() {
	for {
		conn, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.serving.Go(func() { b.serve(conn) })
	}
}

func (b *fakeBroker) serve(conn *shm.Conn) {
	defer conn.Close()
	var buf [protocol.MessageBytesMax]byte
	n, _, err := conn.Recv(buf[:])
	if err != nil {
		return
	}
	if hello, ok := decode[protocol.HelloRequest](buf[:n]); ok {
		b.hello <- &hello
	}
	reply := protocol.HelloReply{Header: messageHeader[protocol.HelloReply](protocol.MessageHelloReply), Generation: fakeGeneration, Incarnation: 5,
		ChannelBytes: b.layout.TotalBytes, DirectoryBytes: protocol.DirectoryBytes, DoorbellBytes: protocol.DoorbellBytes}
	b.mutex.Lock()
	if b.reply != nil {
		b.reply(&reply)
	}
	var fds []int
	for _, name := range []string{"channel", "directory", "doorbell"}[:b.keep] {
		fds = append(fds, b.fds[name])
	}
	b.mutex.Unlock()
	if conn.Send(bytesOf(&reply), fds...) != nil {
		return
	}
	b.conns <- conn
	for {
		n, _, err := conn.Recv(buf[:])
		if err != nil {
			return
		}
		b.mutex.Lock()
		if b.answer != nil {
			b.answer(conn, buf[:n])
		}
		b.mutex.Unlock()
	}
}

func (b *fakeBroker) dial() (*Stage, error) {
	return Dial(context.Background(), Options{Stage: "fake", RuntimeDir: b.dir, Name: "a test"})
}

func (b *fakeBroker) attach() *Stage {
	s, err := b.dial()
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = s.Close() })
	return s
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func TestHelloSaysWhoAttaches(t *testing.T) {
	b := newFakeBroker(t)
	s, err := Dial(context.Background(), Options{Stage: "fake", RuntimeDir: b.dir, Name: "wörld", Guard: true, ReadOnly: true, PinCount: 16})
	require.NoError(t, err)
	defer s.Close()
	hello := <-b.hello
	require.EqualValues(t, protocol.LanguageGo, hello.Language)
	require.EqualValues(t, protocol.AttachGuard|protocol.AttachReadOnly, hello.Flags)
	require.EqualValues(t, os.Getpid(), hello.Pid)
	require.EqualValues(t, 16, hello.PinCount)
	require.Equal(t, "wörld", text(hello.Name[:]))
}

// Whatever is wrong with the answer, the error says so and nothing stays open
// (field report B11; rules R5, D10).
func TestFailedAttachLeavesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*fakeBroker)
		want  error
		text  string
	}{
		"another major version": {func(b *fakeBroker) {
			b.reply = func(r *protocol.HelloReply) { r.Header.Version = 9 << 16 }
		}, ErrIncompatibleVersion, "9.0"},
		"another message":   {func(b *fakeBroker) { b.reply = func(r *protocol.HelloReply) { r.Header.Type = 4 } }, ErrInternal, "type 4"},
		"no magic":          {func(b *fakeBroker) { b.reply = func(r *protocol.HelloReply) { r.Header.Magic = 1 } }, ErrInternal, "magic"},
		"two descriptors":   {func(b *fakeBroker) { b.keep = 2 }, ErrInternal, "2 descriptors"},
		"a longer channel":  {func(b *fakeBroker) { b.reply = func(r *protocol.HelloReply) { r.ChannelBytes += 4096 } }, ErrInternal, "bytes"},
		"a short channel":   {func(b *fakeBroker) { b.reply = func(r *protocol.HelloReply) { r.ChannelBytes = 4096 } }, ErrInternal, "SizeBytes"},
		"another directory": {func(b *fakeBroker) { b.reply = func(r *protocol.HelloReply) { r.DirectoryBytes = 8 } }, ErrIncompatibleVersion, "8 bytes"},
		"another generation": {func(b *fakeBroker) {
			b.reply = func(r *protocol.HelloReply) { r.Generation++ }
		}, ErrInternal, "generation"},
		"a directory of another version": {func(b *fakeBroker) { shm.StoreU32(b.root.Bytes(), 8, 3<<16) }, ErrIncompatibleVersion, "3.0"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFakeBroker(t)
			b.mutex.Lock()
			c.spoil(b)
			b.mutex.Unlock()
			before := openFiles(t)
			_, err := b.dial()
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.text)
			require.Eventually(t, func() bool { return openFiles(t) <= before }, 30*time.Second, 5*time.Millisecond, "descriptors stayed open")
		})
	}
}

// A broker that lies about the ring ends the session; nothing is believed (rule R5).
func TestLiesOnTheRingEndTheSession(t *testing.T) {
	for name, lie := range map[string]func(b *fakeBroker, e *protocol.SubmissionEntry){
		"an op that was never submitted": func(b *fakeBroker, e *protocol.SubmissionEntry) {
			b.server.Complete(&protocol.CompletionEntry{OpID: 999})
			b.server.Flush()
		},
		"results larger than their room": func(b *fakeBroker, e *protocol.SubmissionEntry) {
			b.server.Complete(&protocol.CompletionEntry{OpID: e.OpID, ResultBytes: e.ResultBytes + 1})
			b.server.Flush()
		},
		"more completions than ops": func(b *fakeBroker, e *protocol.SubmissionEntry) {
			control := protocol.ChannelControlOffset
			shm.StoreU64(b.channel.Bytes(), control+256, 7) // CqTail
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFakeBroker(t)
			s := b.attach()
			op, err := s.AdvanceWriteFloor(1, SealOptions{})
			require.NoError(t, err)
			var entries [1]protocol.SubmissionEntry
			n, err := b.server.Drain(entries[:])
			require.NoError(t, err)
			require.Equal(t, 1, n)
			lie(b, &entries[0])
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			require.ErrorIs(t, op.Wait(ctx), ErrInternal)
			_, err = s.AdvanceWriteFloor(2, SealOptions{})
			require.ErrorIs(t, err, ErrInternal)
		})
	}
}

// A broker that never answers makes nobody wait at submission (rule R6; behaviour 219);
// room that was refused is not lost.
func TestSubmissionNeverWaits(t *testing.T) {
	b := newFakeBroker(t)
	s := b.attach()
	var ops []*Op
	for {
		op, err := s.AdvanceWriteFloor(1, SealOptions{})
		if err != nil {
			require.ErrorIs(t, err, ErrQueueFull)
			break
		}
		ops = append(ops, op)
	}
	require.Len(t, ops, 8, "as many as the ring has entries")
	require.False(t, ops[0].Done())
	var entries [8]protocol.SubmissionEntry
	n, err := b.server.Drain(entries[:])
	require.NoError(t, err)
	for i := range n {
		b.server.Complete(&protocol.CompletionEntry{OpID: entries[i].OpID, Value: 3})
	}
	b.server.Flush()
	for _, op := range ops {
		require.NoError(t, op.Wait(context.Background()))
		require.EqualValues(t, 3, op.Floor())
	}
	require.Equal(t, []room{{0, 4096}}, s.client.arguments.free)
	require.Equal(t, []room{{0, 8192}}, s.client.results.free)
	_, err = s.AdvanceWriteFloor(1, SealOptions{})
	require.NoError(t, err)
	_, err = s.AdvanceWriteFloor(1, SealOptions{Scope: ScopeInclude, Attributes: make([]string, 0, 1)})
	require.NoError(t, err)
}

// Close ends what is outstanding, whoever waits for it (behaviour 174).
func TestCloseEndsOutstandingOps(t *testing.T) {
	b := newFakeBroker(t)
	s := b.attach()
	op, err := s.AdvanceWriteFloor(1, SealOptions{})
	require.NoError(t, err)
	waited := make(chan error, 1)
	go func() { waited <- op.Wait(context.Background()) }()
	time.Sleep(10 * time.Millisecond)
	require.NoError(t, s.Close())
	select {
	case err := <-waited:
		require.ErrorIs(t, err, ErrSessionEnded)
		require.ErrorIs(t, err, ErrOpFailed)
	case <-time.After(30 * time.Second):
		t.Fatal("the wait goes on after Close")
	}
	require.ErrorIs(t, op.Wait(context.Background()), ErrSessionEnded)
	require.Zero(t, s.client.holders.Load())
}

// Lies about a segment are errors and leave no mapping: what a descriptor leads to is known by the id within, and an
// object smaller than said is not touched (rules S2, R5; field reports B13, E7).
func TestLiesAboutSegments(t *testing.T) {
	b := newFakeBroker(t)
	b.region(b.object("segment", 8192), protocol.MagicSegment)
	head := func(name string, change func(h *protocol.RegionHeader)) string {
		m := b.object(name, 8192)
		b.region(m, protocol.MagicSegment)
		h, err := shm.View[protocol.RegionHeader](m.Bytes(), 0)
		require.NoError(t, err)
		h.RegionID = 1
		change(h)
		return name
	}
	head("other", func(h *protocol.RegionHeader) { h.RegionID = 3 })
	head("older", func(h *protocol.RegionHeader) { h.Generation-- })
	head("bare", func(h *protocol.RegionHeader) { h.Version = 0 })
	head("newer", func(h *protocol.RegionHeader) { h.Version = 9 << 16 })
	object := map[string]string{"made anew": "other", "of another generation": "older", "not finished": "bare", "of another version": "newer", "truth": head("true", func(*protocol.RegionHeader) {})}
	ok := protocol.SegmentReply{Header: messageHeader[protocol.SegmentReply](protocol.MessageSegmentReply), Segment: 1, SizeBytes: 8192}
	for name, c := range map[string]struct {
		lie   func(r *protocol.SegmentReply)
		files int
		write bool
		text  string
	}{
		"truth":                    {func(*protocol.SegmentReply) {}, 1, false, ""},
		"larger than its object":   {func(r *protocol.SegmentReply) { r.SizeBytes = 1 << 40 }, 1, false, "8192"},
		"of no size":               {func(r *protocol.SegmentReply) { r.SizeBytes = 0 }, 1, false, "0 bytes"},
		"another segment":          {func(r *protocol.SegmentReply) { r.Segment = 2 }, 1, false, "segment 2"},
		"without a descriptor":     {func(*protocol.SegmentReply) {}, 0, false, "0 descriptors"},
		"refused":                  {func(r *protocol.SegmentReply) { r.Status = uint32(protocol.StatusNotFound) }, 0, false, "NOT_FOUND"},
		"not writable, yet leased": {func(*protocol.SegmentReply) {}, 1, true, "write"},
		"made anew":                {func(*protocol.SegmentReply) {}, 1, false, "is segment 3"}, // field report A25
		"of another generation":    {func(*protocol.SegmentReply) {}, 1, false, "made anew"},
		"not finished":             {func(*protocol.SegmentReply) {}, 1, false, "version 0x0"},
		"of another version":       {func(*protocol.SegmentReply) {}, 1, false, "9.0"},
	} {
		t.Run(name, func(t *testing.T) {
			b.mutex.Lock()
			b.answer = func(conn *shm.Conn, _ []byte) {
				reply := ok
				c.lie(&reply)
				var fds []int
				for range c.files {
					fds = append(fds, b.fds[cmp.Or(object[name], "segment")])
				}
				_ = conn.Send(bytesOf(&reply), fds...)
			}
			b.mutex.Unlock()
			s, err := b.dial()
			require.NoError(t, err)
			defer s.Close()
			if c.write {
				_, err = s.client.writableSegment(1)
			} else {
				_, err = s.client.segment(1)
			}
			if c.text == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.text)
			require.Empty(t, s.client.segments)
		})
	}
}

// A broker that hangs up while it is asked ends the session with what it said last.
func TestTheBrokersLastWordIsTheReason(t *testing.T) {
	b := newFakeBroker(t)
	s := b.attach()
	conn := <-b.conns
	last := protocol.ErrorReply{Header: messageHeader[protocol.ErrorReply](protocol.MessageErrorReply), Status: uint32(protocol.StatusSessionEnded)}
	copy(last.Text[:], "malformed ring entry: nonsense")
	require.NoError(t, conn.Send(bytesOf(&last)))
	require.NoError(t, conn.Close())
	_, err := s.Follow(context.Background(), 0)
	require.ErrorIs(t, err, ErrSessionEnded)
	require.ErrorContains(t, err, "nonsense")
	_, err = s.client.segment(1)
	require.ErrorContains(t, err, "nonsense")
}

// A directory of another stage is not taken for the one that was named; without a name
// it is taken as it is.
func TestTheStageThatWasNamedIsMeant(t *testing.T) {
	b := newFakeBroker(t)
	_, err := Dial(context.Background(), Options{Stage: "other", RuntimeDir: b.dir})
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorContains(t, err, `serves stage "fake", not "other"`)
	t.Setenv("CALLBOARD_STAGE", "")
	s, err := Dial(context.Background(), Options{RuntimeDir: b.dir})
	require.NoError(t, err)
	require.NoError(t, s.Close())
}
