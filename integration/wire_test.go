package integration

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
	"callboard/ring"
	"callboard/shm"
)

// wire is a client made of the protocol alone, so that tests can lie on purpose. It
// copies structs with encoding/binary: the layouts have no implicit padding.
type wire struct {
	conn      *shm.Conn
	hello     protocol.HelloReply
	lock      *os.File // the channel's descriptor, the proof of life
	channel   *shm.Mapping
	directory *shm.Mapping
	doorbell  *shm.Mapping
	layout    ring.Layout
	ring      *ring.Client
	bell      *ring.Bell
	lastOp    uint64
}

// attachWire attaches within the test's own process, and leaves at its end.
func attachWire(t *testing.T, socket, name string) *wire {
	t.Helper()
	w, err := dialWire(socket, name)
	require.NoError(t, err)
	t.Cleanup(w.close)
	return w
}

func dialWire(socket, name string) (*wire, error) {
	conn, err := shm.Dial(socket)
	if err != nil {
		return nil, err
	}
	w := &wire{conn: conn}
	if err := conn.Send(helloMessage(name)); err != nil {
		return nil, err
	}
	if err := w.receiveHello(); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// receiveHello takes the reply and maps what came with it.
func (w *wire) receiveHello() error {
	msg, files, err := receive(w.conn)
	if err != nil {
		return err
	}
	if err := unpack(msg, &w.hello); err != nil || len(files) != 3 {
		return errors.Join(err, refusal(msg))
	}
	for i, m := range []**shm.Mapping{&w.channel, &w.directory, &w.doorbell} {
		size := []uint64{w.hello.ChannelBytes, w.hello.DirectoryBytes, w.hello.DoorbellBytes}[i]
		if *m, err = shm.Map(files[i], size, i != 1); err != nil {
			return err
		}
	}
	w.lock = files[0]
	_ = files[1].Close()
	_ = files[2].Close()
	if w.layout, _, err = ring.ReadHeader(w.channel.Bytes()); err != nil {
		return err
	}
	if w.bell, err = ring.NewBell(w.doorbell.Bytes(), w.directory.Bytes()); err != nil {
		return err
	}
	w.ring, err = ring.NewClient(w.channel.Bytes(), w.layout, w.bell)
	return err
}

func (w *wire) close() {
	_ = w.conn.Close()
	if w.lock != nil {
		_ = w.lock.Close()
	}
	for _, m := range []*shm.Mapping{w.channel, w.directory, w.doorbell} {
		if m != nil {
			_ = m.Close()
		}
	}
}

// submit hands over an op with its arguments at the start of the area.
func (w *wire) submit(e protocol.SubmissionEntry, arguments []byte) error {
	w.lastOp++
	e.OpID = w.lastOp
	room, err := w.ring.Arguments(0, uint32(len(arguments)))
	if err != nil {
		return err
	}
	copy(room, arguments)
	e.ArgumentBytes, e.ResultBytes = uint32(len(arguments)), 4096
	return w.ring.Submit(&e)
}

// complete waits for the completion of an op and its results or text.
func (w *wire) complete() (protocol.CompletionEntry, []byte, error) {
	var done protocol.CompletionEntry
	for deadline := time.Now().Add(soon); time.Now().Before(deadline); {
		heard := w.ring.Listen()
		ok, err := w.ring.Poll(&done)
		if err != nil {
			return done, nil, err
		}
		if ok {
			room, err := w.ring.Result(0, done.ResultBytes)
			return done, append([]byte(nil), room...), err
		}
		if _, err := w.ring.Wait(heard, 20*time.Millisecond); err != nil {
			return done, nil, err
		}
	}
	return done, nil, fmt.Errorf("no completion came within %v", soon)
}

// do runs an op and wants a status; what came back is the results or the text.
func (w *wire) do(t *testing.T, want protocol.Status, e protocol.SubmissionEntry, arguments []byte) (protocol.CompletionEntry, []byte) {
	t.Helper()
	require.NoError(t, w.submit(e, arguments))
	done, result, err := w.complete()
	require.NoError(t, err)
	require.Equal(t, want, protocol.Status(done.Status), "text: %s", result)
	return done, result
}

// query makes a query of explicit paths: the op that shows that a session lives.
func (w *wire) query(t *testing.T, paths ...string) uint64 {
	t.Helper()
	done, _ := w.do(t, protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpQueryPaths}, stringList(paths...))
	return done.Handle
}

// segment asks the socket for a segment and maps what it gets; nil when it gets none.
func (w *wire) segment(t *testing.T, id uint64) (reply protocol.SegmentReply, m *shm.Mapping) {
	t.Helper()
	require.NoError(t, w.conn.Send(message(&protocol.SegmentRequest{Header: messageHeader(protocol.MessageSegmentRequest), Segment: id})))
	msg, files, err := receive(w.conn)
	require.NoError(t, err)
	require.NoError(t, unpack(msg, &reply))
	if len(files) == 0 {
		return reply, nil
	}
	m, err = shm.Map(files[0], reply.SizeBytes, reply.Writable == 1)
	require.NoError(t, err)
	_ = files[0].Close()
	t.Cleanup(func() { _ = m.Close() })
	return reply, m
}

// endText waits for the broker's last word: the text with which it ends the session.
func (w *wire) endText(t *testing.T) string {
	t.Helper()
	msg, files, err := receive(w.conn)
	require.NoError(t, err, "the broker says why before it hangs up")
	require.Empty(t, files)
	reply := errorReply(msg)
	require.NotNil(t, reply, "%d bytes", len(msg))
	require.Equal(t, protocol.StatusSessionEnded, protocol.Status(reply.Status))
	_, _, err = receive(w.conn)
	require.ErrorIs(t, err, io.EOF)
	return textOf(reply)
}

// receive takes one message.
func receive(conn *shm.Conn) ([]byte, []*os.File, error) {
	buf := make([]byte, protocol.MessageBytesMax)
	n, files, err := conn.RecvWithin(soon, buf)
	return buf[:n], files, err
}

// errorReply decodes an ErrorReply; nil for anything else.
func errorReply(msg []byte) *protocol.ErrorReply {
	var reply protocol.ErrorReply
	if unpack(msg, &reply) != nil || reply.Header.Type != protocol.MessageErrorReply {
		return nil
	}
	return &reply
}

func textOf(reply *protocol.ErrorReply) string {
	for i, c := range reply.Text {
		if c == 0 {
			return string(reply.Text[:i])
		}
	}
	return string(reply.Text[:])
}

func refusal(msg []byte) error {
	if reply := errorReply(msg); reply != nil {
		return protocol.Errorf(protocol.Status(reply.Status), "%s", textOf(reply))
	}
	return errors.New("neither a hello reply nor an error reply came")
}

func helloMessage(name string) []byte {
	request := protocol.HelloRequest{Header: messageHeader(protocol.MessageHelloRequest), Features: ^uint64(0), Pid: uint32(os.Getpid())}
	copy(request.Name[:], name)
	return message(&request)
}

func messageHeader(kind uint32) protocol.MessageHeader {
	return protocol.MessageHeader{Magic: protocol.MagicMessage, Version: protocol.VersionWord, Type: kind}
}

// message packs a message and states its size.
func message(v any) []byte {
	raw := pack(v)
	binary.LittleEndian.PutUint32(raw[12:], uint32(len(raw)))
	return raw
}

func pack(v any) []byte {
	raw, err := binary.Append(nil, binary.LittleEndian, v)
	if err != nil {
		panic(err)
	}
	return raw
}

func unpack(raw []byte, v any) error {
	_, err := binary.Decode(raw, binary.LittleEndian, v)
	return err
}

// stringList packs a StringList.
func stringList(texts ...string) []byte {
	var body []byte
	for _, text := range texts {
		body = binary.LittleEndian.AppendUint32(body, uint32(len(text)))
		body = append(body, text...)
		for len(body)%4 != 0 {
			body = append(body, 0)
		}
	}
	return append(pack(&protocol.StringList{Count: uint32(len(texts)), TotalBytes: uint32(8 + len(body))}), body...)
}

var uint64s = protocol.Schema{Kind: protocol.KindFixed, DtypeCode: 1, DtypeBits: 64, DtypeLanes: 1, DeviceType: 1}

// mapArguments packs the arguments of a map of one attribute.
func mapArguments(name string, schema protocol.Schema, elementSizes ...uint64) []byte {
	m := protocol.MapArguments{Schema: schema, NameOffsetBytes: uint32(binary.Size(protocol.MapArguments{})), NameBytes: uint32(len(name))}
	sizes := (m.NameOffsetBytes + m.NameBytes + 7) &^ 7
	if len(elementSizes) == 0 {
		return append(pack(&m), name...)
	}
	m.ElementSizesOffsetBytes, m.ElementSizesCount = sizes, uint32(len(elementSizes))
	raw := append(pack(&m), name...)
	return append(append(raw, make([]byte, int(sizes)-len(raw))...), pack(elementSizes)...)
}
