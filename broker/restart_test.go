package broker

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"callboard/control"
	"callboard/control/natstest"
	"callboard/protocol"
	"callboard/ring"
	"callboard/shm"
)

// abandon ends a broker as a kill does, as far as this process allows: nothing is said
// and nothing is removed.
func abandon(b *Broker) {
	b.do(func() { b.stopping, b.leaving = true, true })
	b.Close()
}

// next starts another broker over the same directories.
func next(t *testing.T, b *Broker, change func(*Config)) *Broker {
	t.Helper()
	config := b.config
	if change != nil {
		change(&config)
	}
	again, err := Start(config)
	require.NoError(t, err)
	t.Cleanup(again.Close)
	return again
}

// reattach takes a peer's channel up again with the next broker.
func (p *peer) reattach(b *Broker) {
	p.t.Helper()
	conn, err := shm.Dial(filepath.Join(b.RuntimeDir(), shm.AttachSocket))
	require.NoError(p.t, err)
	reply, files := say(p.t, conn, p.hello.Incarnation, p.hello.Generation)
	hello, ok := decode[protocol.HelloReply](reply, 0)
	require.True(p.t, ok)
	require.EqualValues(p.t, protocol.MessageHelloReply, hello.Header.Type, "%s", reply)
	require.Len(p.t, files, 3)
	_ = p.conn.Close()
	p.conn, p.hello = conn, hello
	_ = p.lock.Close() // only now: the lock never lapses (rule I3)
	p.lock = files[0]
	_ = files[1].Close()
	_ = files[2].Close()
	p.ring.Restart()
}

// refusedHello expects an answer of words to a hello of an earlier life.
func refusedHello(t *testing.T, b *Broker, incarnation, generation uint64, text string) {
	t.Helper()
	conn, err := shm.Dial(filepath.Join(b.RuntimeDir(), shm.AttachSocket))
	require.NoError(t, err)
	defer conn.Close()
	reply, files := say(t, conn, incarnation, generation)
	require.Empty(t, files)
	refusal, ok := decode[protocol.ErrorReply](reply, 0)
	require.True(t, ok)
	require.EqualValues(t, protocol.MessageErrorReply, refusal.Header.Type)
	require.Equal(t, protocol.StatusSessionEnded, protocol.Status(refusal.Status))
	require.Contains(t, cleanName(refusal.Text[:]), text)
}

func (p *peer) mapped(query, ordinal uint64) (session uint64, g protocol.GroupDescriptor) {
	p.t.Helper()
	done, raw := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: query, Ordinal: ordinal}, mapArguments("m", float32s))
	g, ok := decode[protocol.GroupDescriptor](raw, 0)
	require.True(p.t, ok)
	return done.Handle, g
}

// B1, B2, D9: what was sealed stays where it is; what was not is gone; the rings begin
// anew and leftovers in them are not consumed; memory of open sessions is not leased
// again until the library says that they are closed; handles of before name nothing.
func TestRestart(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	q := p.query("/a", "/b")
	for ordinal := uint64(1); ordinal <= 3; ordinal++ {
		p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: ordinal}, writeArguments("x", float32s, 2, floats(float32(ordinal), 7)))
		p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpSeal, Ordinal: ordinal, Value: protocol.ScopeAll}, nil)
	}
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: 4}, writeArguments("x", float32s, 2, floats(4, 7)))
	session, leased := p.mapped(q, 9)
	generation, hello, sealed := b.generation.Number, p.hello, p.latest(1)
	_, data := p.segment(sealed.Block.Segment)
	abandon(b)
	p.submit(protocol.SubmissionEntry{Opcode: protocol.OpSeal, Ordinal: 8, Value: protocol.ScopeAll}, nil) // nobody is there

	b = next(t, b, nil)
	require.Equal(t, generation, b.generation.Number)
	p.reattach(b)
	require.EqualValues(t, 1, p.hello.Reattached)
	require.Equal(t, hello.Incarnation, p.hello.Incarnation)
	require.Equal(t, hello.RingGeneration+1, p.hello.RingGeneration)
	require.NotEqual(t, hello.BrokerIncarnation, p.hello.BrokerIncarnation)
	require.Equal(t, p.hello.BrokerIncarnation, p.root().BrokerIncarnation)
	require.EqualValues(t, 3, p.root().Epoch)
	require.Equal(t, sealed, p.latest(1), "the version is where it was")
	require.Equal(t, floats(3, 7), data.Bytes()[sealed.Block.OffsetBytes:][:8])
	_, id, err := ring.ReadHeader(p.channel.Bytes())
	require.NoError(t, err)
	require.Equal(t, p.hello.RingGeneration, id.RingGeneration)

	done, _ := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpNop}, nil)
	require.EqualValues(t, 3, done.Epoch, "the seal that was left in the ring was not consumed")
	p.do(protocol.StatusInvalidHandle, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: 4}, writeArguments("x", float32s, 2, floats(4, 7)))
	p.do(protocol.StatusInvalidHandle, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: session}, nil)
	q = p.query("/a", "/b")
	require.Greater(t, q, uint64(1)<<32, "never a handle of before")
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: 4}, writeArguments("x", float32s, 2, floats(5, 5)))
	sealing, _ := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpSeal, Ordinal: 4, Value: protocol.ScopeAll}, nil)
	require.EqualValues(t, 4, sealing.Epoch)

	same := func() bool {
		var there bool
		var open []uint64
		for range 8 {
			s, g := p.mapped(q, 20)
			open = append(open, s)
			there = there || g.Block.Segment == leased.Block.Segment && g.Block.OffsetBytes == leased.Block.OffsetBytes
		}
		for _, s := range open {
			p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: s, Flags: protocol.FlagAbort}, nil)
		}
		return there
	}
	require.False(t, same(), "somebody may still write there")
	free := func() (n uint64) {
		b.do(func() { n = b.memory.Usage().FreeBytes })
		return n
	}
	explained := func() (text string) {
		b.do(func() { text = b.memory.Explain(nil) })
		return text
	}
	before := free()
	require.Contains(t, explained(), "of before a restart", "an OUT_OF_MEMORY says where the memory is")
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpSessionsClosed}, nil)
	require.Greater(t, free(), before)
	require.NotContains(t, explained(), "of before a restart")
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpSessionsClosed}, nil) // twice is no harm
}

// I3: a channel that is found counts as live until its lock is free. Its pins keep what
// they kept before; then its object and its memory go.
func TestFoundChannelsKeepTheirPins(t *testing.T) {
	b := startBroker(t, func(c *Config) { c.Retain = 2 })
	reader, p := attachPeer(t, b), attachPeer(t, b)
	q := p.query("/a")
	publish := func(n int) {
		for range n {
			p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Flags: protocol.FlagNextOrdinal | protocol.FlagSeal}, writeArguments("x", float32s, 1, floats(1)))
		}
	}
	versions := func() (n int) {
		b.do(func() { n = len(b.store.Describe().Columns[0].Ordinals) })
		return n
	}
	publish(3)
	pins, err := ring.NewPinTable(reader.channel.Bytes(), reader.layout)
	require.NoError(t, err)
	slot, err := pins.Acquire()
	require.NoError(t, err)
	pins.Store(slot, protocol.PinAll, 3)
	abandon(b)

	b = next(t, b, nil)
	p.reattach(b)
	q = p.query("/a")
	publish(5)
	require.Equal(t, 3, versions(), "two are retained, one is pinned by a client that has not come back")
	channel := filepath.Join(b.MemoryDir(), channelName(reader))
	require.FileExists(t, channel)
	reader.close()
	require.Eventually(t, func() bool { _, err := os.Stat(channel); return errors.Is(err, os.ErrNotExist) }, patience, 5*time.Millisecond)
	publish(1)
	require.Equal(t, 2, versions())
	refusedHello(t, b, reader.hello.Incarnation, reader.hello.Generation, "not known")
}

// V3: versions that a reader kept go at the start when no reader is there any more: the
// recovery record is of the last seal and may tell of them still.
func TestRestartWithoutReadersKeepsNoDeadVersions(t *testing.T) {
	b := startBroker(t, func(c *Config) { c.Retain = 2 })
	reader, p := attachPeer(t, b), attachPeer(t, b)
	pins, err := ring.NewPinTable(reader.channel.Bytes(), reader.layout)
	require.NoError(t, err)
	slot, err := pins.Acquire()
	require.NoError(t, err)
	q := p.query("/a")
	for ordinal := uint64(1); ordinal <= 5; ordinal++ {
		p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: ordinal, Flags: protocol.FlagSeal}, writeArguments("x", float32s, 1, floats(1)))
		pins.Store(slot, protocol.PinAll, 1)
	}
	versions := func() (n int) {
		b.do(func() { n = len(b.store.Describe().Columns[0].Ordinals) })
		return n
	}
	require.Equal(t, 3, versions())
	reader.close()
	p.close()
	require.Eventually(t, func() bool {
		left, _ := filepath.Glob(filepath.Join(b.MemoryDir(), shm.ChannelPrefix+"*"))
		return len(left) == 0
	}, patience, 5*time.Millisecond)
	require.Equal(t, 2, versions())
	abandon(b)
	b = next(t, b, nil)
	require.Equal(t, 2, versions())
}

// I1, B1: only a client that an earlier life had attached is taken up, once.
func TestReattachRefused(t *testing.T) {
	b := startBroker(t, nil)
	p, gone := attachPeer(t, b), attachPeer(t, b)
	refusedHello(t, b, p.hello.Incarnation, p.hello.Generation, "attached")
	refusedHello(t, b, 12345, p.hello.Generation, "not known")
	abandon(b)
	b = next(t, b, nil)
	refusedHello(t, b, p.hello.Incarnation, p.hello.Generation-1, "started anew")
	p.reattach(b)
	refusedHello(t, b, p.hello.Incarnation, p.hello.Generation, "attached")
	_ = p.conn.Close()
	require.Eventually(t, func() bool {
		attached := 0
		b.do(func() {
			for _, c := range b.clients {
				if c.attached {
					attached++
				}
			}
		})
		return attached == 0
	}, patience, 5*time.Millisecond)
	refusedHello(t, b, p.hello.Incarnation, p.hello.Generation, "has ended")
	shm.StoreU64(gone.channel.Bytes(), 0, 7) // its magic
	abandon(b)
	b = next(t, b, nil)
	refusedHello(t, b, gone.hello.Incarnation, gone.hello.Generation, "damaged")
}

// S1: what cannot be recovered is said and given up, and so is everything with Fresh.
func TestUnrecoverableGenerationIsGivenUp(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"magic":               func(dir string) error { return patch(filepath.Join(dir, directoryName), 0, 0xff) },
		"no directory":        func(dir string) error { return os.Remove(filepath.Join(dir, directoryName)) },
		"short":               func(dir string) error { return os.Truncate(filepath.Join(dir, doorbellName), 8) },
		"empty":               func(dir string) error { return os.Truncate(filepath.Join(dir, directoryName), 0) },
		"header of a segment": func(dir string) error { return patch(filepath.Join(dir, segmentPrefix+"1"), 0, 0) },
		"pipe":                func(dir string) error { return replace(filepath.Join(dir, doorbellName), pipe) },
		"link":                func(dir string) error { return replace(filepath.Join(dir, directoryName), link) },
		"a directory":         func(dir string) error { return replace(filepath.Join(dir, directoryName), directory) },
		"segment":             func(dir string) error { return replace(filepath.Join(dir, segmentPrefix+"1"), pipe) },
		"channel": func(dir string) error {
			channels, _ := filepath.Glob(filepath.Join(dir, shm.ChannelPrefix+"*"))
			return replace(channels[0], link)
		},
		"fresh": nil,
	} {
		t.Run(name, func(t *testing.T) {
			b := startBroker(t, nil)
			before := b.generation
			p := attachPeer(t, b)
			q := p.query("/a")
			p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: 1, Flags: protocol.FlagSeal}, writeArguments("x", float32s, 1, floats(1)))
			abandon(b)
			if spoil != nil {
				require.NoError(t, spoil(before.Path))
			}
			b = next(t, b, func(c *Config) { c.Fresh = spoil == nil })
			require.NotEqual(t, before.Number, b.generation.Number)
			require.NoDirExists(t, before.Path)
			require.Equal(t, spoil != nil, strings.Contains(b.damaged, "cannot be recovered"), b.damaged)
			known := 0
			b.do(func() { known = len(b.clients) })
			require.Zero(t, known, "those of before")
			p = attachPeer(t, b)
			p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpNop}, nil)
		})
	}
}

// replace puts something else in an object's place.
func replace(path string, with func(path string) error) error {
	return errors.Join(os.Remove(path), with(path))
}

func pipe(path string) error      { return syscall.Mkfifo(path, 0o600) }
func link(path string) error      { return os.Symlink("/dev/zero", path) }
func directory(path string) error { return os.MkdirAll(filepath.Join(path, "full"), 0o700) }

func patch(path string, at int64, b byte) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte{b}, at)
	return errors.Join(err, f.Close())
}

// S1: the newest generation is recovered, older ones and half-made objects go; a start
// that fails for another reason leaves it as it was.
func TestFailedStartKeepsTheGeneration(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	q := p.query("/a")
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: 1, Flags: protocol.FlagSeal}, writeArguments("x", float32s, 1, floats(1)))
	config, dir := b.config, b.MemoryDir()
	abandon(b)
	older := filepath.Join(filepath.Dir(dir), "12345")
	require.NoError(t, os.Mkdir(older, 0o700))
	draft := filepath.Join(dir, ".new-segment-99")
	require.NoError(t, os.WriteFile(draft, nil, 0o600))

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	config.NATSPort = taken.Addr().(*net.TCPAddr).Port
	_, err = Start(config)
	require.Error(t, err, "its port is taken")
	require.DirExists(t, dir)
	b = next(t, b, nil)
	require.Equal(t, dir, b.MemoryDir())
	require.NoDirExists(t, older)
	require.NoFileExists(t, draft)
	p.reattach(b)
	require.EqualValues(t, 1, p.root().Epoch)
}

// askToLeave asks a broker for its stage; 0 is any generation.
func askToLeave(t *testing.T, b *Broker, generation uint64) *shm.Conn {
	t.Helper()
	conn, err := shm.Dial(filepath.Join(b.RuntimeDir(), shm.AttachSocket))
	require.NoError(t, err)
	request := protocol.TakeoverRequest{Header: header(protocol.MessageTakeoverRequest), Generation: generation}
	request.Header.SizeBytes = uint32(len(encode(&request)))
	require.NoError(t, conn.Send(encode(&request)))
	return conn
}

// S1: a broker that runs keeps others out, unless it is asked to leave; it removes
// nothing then, and whoever asked goes on with its stage and its NATS port.
func TestTakeover(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	q := p.query("/a")
	p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: 1, Flags: protocol.FlagSeal}, writeArguments("x", float32s, 1, floats(1)))
	_, err := Start(b.config)
	require.ErrorContains(t, err, "running already")
	require.ErrorContains(t, err, "--takeover")

	conn := askToLeave(t, b, 7)
	var buf [protocol.MessageBytesMax]byte
	n, _, err := conn.RecvWithin(patience, buf[:])
	require.NoError(t, err)
	refusal, _ := decode[protocol.ErrorReply](buf[:n], 0)
	require.Equal(t, protocol.StatusNotFound, protocol.Status(refusal.Status), "another generation is meant")
	_ = conn.Close()

	var ended sync.WaitGroup
	ended.Go(func() { <-b.Left(); b.Close() })
	before, dir := b.generation.Number, b.MemoryDir()
	b = next(t, b, func(c *Config) { c.Takeover = true })
	ended.Wait()
	require.Equal(t, before, b.generation.Number)
	require.Equal(t, dir, b.MemoryDir())
	n, files, err := p.conn.RecvWithin(patience, buf[:])
	require.Zero(t, n, "it hangs up without a word")
	require.Empty(t, files)
	require.Error(t, err)
	p.reattach(b)
	require.EqualValues(t, 1, p.root().Epoch)
}

// S1: a takeover that was given up before it was answered changes nothing, and one that
// comes while another is answered is refused.
func TestTakeoverThatGaveUpChangesNothing(t *testing.T) {
	b := startBroker(t, nil)
	p := attachPeer(t, b)
	hold := func(asked ...func(*shm.Conn) error) { // as a broker that is stopped for a while
		stands, held := make(chan struct{}), make(chan struct{})
		release := sync.OnceFunc(func() { close(held) })
		defer release() // also where a check fails: nothing else lets the loop go on
		b.later(func() { close(stands); <-held })
		<-stands // what is asked now comes after it
		for _, then := range asked {
			require.NoError(t, then(askToLeave(t, b, 0)))
		}
		require.Eventually(t, func() bool {
			b.mailbox.mu.Lock()
			defer b.mailbox.mu.Unlock()
			return len(b.mailbox.full) >= len(asked)
		}, patience, time.Millisecond)
		release()
	}
	hold((*shm.Conn).Close, (*shm.Conn).StopReceiving)
	for range 10 {
		p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpNop}, nil)
	}
	require.False(t, b.leaving)
	select {
	case <-b.Left():
		require.Fail(t, "it leaves, and nobody comes after it")
	default:
	}

	var conns []*shm.Conn
	keep := func(c *shm.Conn) error { conns = append(conns, c); return nil }
	hold(keep, keep)
	<-b.Left()
	answers := map[uint32]int{}
	for _, conn := range conns {
		var buf [protocol.MessageBytesMax]byte
		n, _, err := conn.RecvWithin(patience, buf[:])
		require.NoError(t, err)
		head, _ := decode[protocol.MessageHeader](buf[:n], 0)
		answers[head.Type]++
		_ = conn.Close()
	}
	require.Equal(t, map[uint32]int{protocol.MessageTakeoverReply: 1, protocol.MessageErrorReply: 1}, answers)
	b.Close()
	next(t, b, nil)
}

// S1: of two that start over one dead generation one wins, and the other is told why.
func TestTwoStartsOverOneDeadGeneration(t *testing.T) {
	b := startBroker(t, nil)
	config, generation := b.config, b.generation.Number
	abandon(b)
	var both [2]*Broker
	var errs [2]error
	var starts sync.WaitGroup
	for i := range both {
		starts.Go(func() { both[i], errs[i] = Start(config) })
	}
	starts.Wait()
	won := 0
	for i := range both {
		if errs[i] == nil {
			won++
			require.Equal(t, generation, both[i].generation.Number)
			t.Cleanup(both[i].Close)
			continue
		}
		require.ErrorContains(t, errs[i], "running already")
	}
	require.Equal(t, 1, won)
}

// What observers hear of a restart: the next life of the broker, what it recovered or could
// not, who came back, and commits that go on from the epoch of before.
func TestRestartIsAnnounced(t *testing.T) {
	bus := natstest.Serve(t, &server.Options{Username: "u", Password: "p"})
	url := strings.Replace(bus.ClientURL(), "nats://", "nats://u:p@", 1)
	observer, err := nats.Connect(url)
	require.NoError(t, err)
	defer observer.Close()
	events := make(chan *nats.Msg, 1000)
	_, err = observer.ChanSubscribe("callboard.>", events)
	require.NoError(t, err)
	require.NoError(t, observer.Flush())
	type event struct {
		Broker, Epoch, Event, Code string
		Numbers                    map[string]string
	}
	heard := func(kind string, ok func(event) bool) event {
		t.Helper()
		for limit := time.After(patience); ; {
			select {
			case m := <-events:
				var e event
				require.NoError(t, json.Unmarshal(m.Data, &e))
				if strings.HasSuffix(m.Subject, "."+kind) && ok(e) {
					return e
				}
			case <-limit:
				require.FailNow(t, "not heard", kind)
			}
		}
	}
	seal := func(p *peer, q, ordinal uint64) {
		p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpWrite, Handle: q, Ordinal: ordinal, Flags: protocol.FlagSeal}, writeArguments("x", float32s, 1, floats(1)))
	}

	b := startBroker(t, func(c *Config) { c.External = &control.External{URL: url} })
	p := attachPeer(t, b)
	seal(p, p.query("/a"), 1)
	first := heard("commit", func(e event) bool { return e.Epoch == "1" })
	abandon(b)
	b = next(t, b, nil)
	recovered := heard("health", func(e event) bool { return e.Code == HealthRecovered })
	require.NotEqual(t, first.Broker, recovered.Broker)
	require.Equal(t, "1", recovered.Numbers["epoch"])
	require.Equal(t, "1", recovered.Numbers["columns"])
	require.Equal(t, "1", recovered.Numbers["clients"])
	p.reattach(b)
	heard("client", func(e event) bool { return e.Event == control.ClientReattached && e.Broker == recovered.Broker })
	seal(p, p.query("/a"), 2)
	heard("commit", func(e event) bool { return e.Epoch == "2" && e.Broker == recovered.Broker })
	abandon(b)
	require.NoError(t, patch(filepath.Join(b.MemoryDir(), directoryName), 0, 0xff))
	next(t, b, nil)
	heard("health", func(e event) bool { return e.Code == HealthUnrecovered })
}
