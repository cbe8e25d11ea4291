package broker

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
	"callboard/ring"
	"callboard/shm"
)

// patience is how long a test waits for what must come: machines that run tests are busy.
const patience = 30 * time.Second

// peer is a client made of the wire alone, so that tests can lie on purpose.
type peer struct {
	t         *testing.T
	conn      *shm.Conn
	hello     protocol.HelloReply
	channel   *shm.Mapping
	directory *shm.Mapping
	doorbell  *shm.Mapping
	lock      *os.File // the channel's descriptor: the proof of life
	layout    ring.Layout
	ring      *ring.Client
	lastOp    uint64
}

// startBroker starts a stage in directories of its own and checks at the end that
// nothing of it is left.
func startBroker(t *testing.T, change func(*Config)) *Broker {
	t.Helper()
	base, err := os.MkdirTemp("", "cb-")
	require.NoError(t, err)
	t.Setenv("CALLBOARD_RUNTIME_DIR", filepath.Join(base, "run"))
	require.NoError(t, os.Mkdir(filepath.Join(base, "shm"), 0o700))
	config := Config{Stage: "test", ShmDir: filepath.Join(base, "shm"), MemoryBytes: 64 << 20}
	if change != nil {
		change(&config)
	}
	b, err := Start(config)
	require.NoError(t, err)
	t.Cleanup(func() {
		b.Close()
		left, _ := filepath.Glob(filepath.Join(base, "*", "*"))
		require.Empty(t, left, "a broker that stops leaves nothing (field report A4)")
		_ = os.RemoveAll(base)
	})
	return b
}

func attachPeer(t *testing.T, b *Broker) *peer {
	t.Helper()
	conn, err := shm.Dial(filepath.Join(b.RuntimeDir(), shm.AttachSocket))
	require.NoError(t, err)
	p := &peer{t: t, conn: conn}
	t.Cleanup(p.close)
	reply, files := say(t, conn, 0, 0)
	var ok bool
	p.hello, ok = decode[protocol.HelloReply](reply, 0)
	require.True(t, ok)
	require.Len(t, files, 3, "channel, directory, doorbell")
	for i, m := range []**shm.Mapping{&p.channel, &p.directory, &p.doorbell} {
		size := []uint64{p.hello.ChannelBytes, p.hello.DirectoryBytes, p.hello.DoorbellBytes}[i]
		*m, err = shm.Map(files[i], size, i != 1)
		require.NoError(t, err)
	}
	p.lock = files[0]
	_ = files[1].Close()
	_ = files[2].Close()
	p.layout, _, err = ring.ReadHeader(p.channel.Bytes())
	require.NoError(t, err)
	bell, err := ring.NewBell(p.doorbell.Bytes(), p.directory.Bytes())
	require.NoError(t, err)
	p.ring, err = ring.NewClient(p.channel.Bytes(), p.layout, bell)
	require.NoError(t, err)
	return p
}

// say sends a hello and gives the answer.
func say(t *testing.T, conn *shm.Conn, incarnation, generation uint64) ([]byte, []*os.File) {
	t.Helper()
	request := protocol.HelloRequest{Header: header(protocol.MessageHelloRequest), Features: storeFeatures, Incarnation: incarnation, Generation: generation}
	request.Header.SizeBytes = uint32(len(encode(&request)))
	copy(request.Name[:], "peer")
	require.NoError(t, conn.Send(encode(&request)))
	var buf [protocol.MessageBytesMax]byte
	n, files, err := conn.RecvWithin(patience, buf[:])
	require.NoError(t, err)
	return buf[:n], files
}

func (p *peer) close() {
	_ = p.conn.Close()
	if p.lock != nil {
		_ = p.lock.Close()
	}
	_ = p.channel.Close()
}

func (p *peer) root() *protocol.DirectoryHeader {
	d, err := shm.View[protocol.DirectoryHeader](p.directory.Bytes(), 0)
	require.NoError(p.t, err)
	return d
}

// submit hands an op over with its arguments at the start of the areas.
func (p *peer) submit(e protocol.SubmissionEntry, arguments []byte) uint64 {
	p.t.Helper()
	p.lastOp++
	e.OpID = p.lastOp
	room, err := p.ring.Arguments(0, uint32(len(arguments)))
	require.NoError(p.t, err)
	copy(room, arguments)
	e.ArgumentBytes, e.ResultBytes = uint32(len(arguments)), 4096
	require.NoError(p.t, p.ring.Submit(&e))
	return e.OpID
}

// wait takes the next completion and its results or text.
func (p *peer) wait() (protocol.CompletionEntry, []byte) {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		var done protocol.CompletionEntry
		heard := p.ring.Listen()
		ok, err := p.ring.Poll(&done)
		require.NoError(p.t, err)
		if ok {
			room, err := p.ring.Result(0, done.ResultBytes)
			require.NoError(p.t, err)
			return done, append([]byte(nil), room...)
		}
		_, err = p.ring.Wait(heard, 10*time.Millisecond)
		require.NoError(p.t, err)
	}
	p.t.Fatal("no completion came")
	return protocol.CompletionEntry{}, nil
}

// do submits an op and expects a status.
func (p *peer) do(want protocol.Status, e protocol.SubmissionEntry, arguments []byte) (protocol.CompletionEntry, []byte) {
	p.t.Helper()
	id := p.submit(e, arguments)
	done, result := p.wait()
	require.Equal(p.t, id, done.OpID)
	require.Equal(p.t, want, protocol.Status(done.Status), "text: %s", result)
	return done, result
}

// query makes a query of explicit paths.
func (p *peer) query(paths ...string) uint64 {
	p.t.Helper()
	done, ids := p.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpQueryPaths}, listOf(paths...))
	require.Len(p.t, ids, 8*len(paths))
	require.EqualValues(p.t, len(paths), done.Count)
	return done.Handle
}

func listOf(texts ...string) []byte {
	body := []byte{}
	for _, text := range texts {
		n := uint32(len(text))
		body = append(body, encode(&n)...)
		body = append(body, text...)
		for len(body)%4 != 0 {
			body = append(body, 0)
		}
	}
	head := protocol.StringList{Count: uint32(len(texts)), TotalBytes: uint32(8 + len(body))}
	return append(append([]byte{}, encode(&head)...), body...)
}

var float32s = protocol.Schema{Kind: protocol.KindFixed, DtypeCode: 2, DtypeBits: 32, DtypeLanes: 1, DeviceType: 1}

// writeArguments are those of a plain write of rows given as bytes.
func writeArguments(name string, schema protocol.Schema, rows uint64, payload []byte) []byte {
	args := protocol.WriteArguments{EntryCount: 1}
	w := protocol.WriteEntry{Schema: schema, PayloadRows: rows, Selection: protocol.Selection{Count: protocol.All}}
	at := uint32(len(encode(&args)) + len(encode(&w)))
	w.NameOffsetBytes, w.NameBytes = at, uint32(len(name))
	at = (at + w.NameBytes + 7) &^ 7
	w.Payload = protocol.BlockRef{OffsetBytes: uint64(at), LengthBytes: uint64(len(payload))}
	out := append(append([]byte{}, encode(&args)...), encode(&w)...)
	out = append(out, name...)
	for uint32(len(out)) < at {
		out = append(out, 0)
	}
	return append(out, payload...)
}

func mapArguments(name string, schema protocol.Schema) []byte {
	m := protocol.MapArguments{Schema: schema, NameOffsetBytes: uint32(len(encode(&protocol.MapArguments{}))), NameBytes: uint32(len(name))}
	return append(append([]byte{}, encode(&m)...), name...)
}

// segment asks the socket for a segment and maps it.
func (p *peer) segment(id uint64) (protocol.SegmentReply, *shm.Mapping) {
	p.t.Helper()
	request := protocol.SegmentRequest{Header: header(protocol.MessageSegmentRequest), Segment: id}
	request.Header.SizeBytes = uint32(len(encode(&request)))
	require.NoError(p.t, p.conn.Send(encode(&request)))
	var buf [protocol.MessageBytesMax]byte
	n, files, err := p.conn.RecvWithin(patience, buf[:])
	require.NoError(p.t, err)
	reply, ok := decode[protocol.SegmentReply](buf[:n], 0)
	require.True(p.t, ok)
	if len(files) == 0 {
		return reply, nil
	}
	m, err := shm.Map(files[0], reply.SizeBytes, reply.Writable == 1)
	require.NoError(p.t, err)
	_ = files[0].Close()
	p.t.Cleanup(func() { _ = m.Close() })
	return reply, m
}
