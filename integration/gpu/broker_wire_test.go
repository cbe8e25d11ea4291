package gpu

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/protocol"
	"callboard/ring"
	"callboard/shm"
)

// wire is a client made of the protocol alone, so that tests can see handles and lie on purpose.
type wire struct {
	t      *testing.T
	conn   *shm.Conn
	hello  protocol.HelloReply
	ring   *ring.Client
	lastOp uint64
	drop   []func() error
}

// leave closes everything that the session gave: its lock is free then, and the process goes on.
func (w *wire) leave() {
	for _, drop := range append(w.drop, w.conn.Close) {
		_ = drop()
	}
}

func packed(v any) []byte {
	var out bytes.Buffer
	if err := binary.Write(&out, binary.LittleEndian, v); err != nil {
		panic(err)
	}
	return out.Bytes()
}

func unpacked[T any](t *testing.T, b []byte) (v T) {
	t.Helper()
	require.NoError(t, binary.Read(bytes.NewReader(b), binary.LittleEndian, &v))
	return v
}

func headerOf(kind uint32, size int) protocol.MessageHeader {
	return protocol.MessageHeader{Magic: protocol.MagicMessage, Version: protocol.VersionWord, Type: kind, SizeBytes: uint32(size)}
}

// attach attaches in the test's own process, which loads no driver for it.
func (m *machine) attach() *wire {
	m.t.Helper()
	conn, err := shm.Dial(filepath.Join(m.RuntimeDir, shm.AttachSocket))
	require.NoError(m.t, err)
	w := &wire{t: m.t, conn: conn}
	m.t.Cleanup(w.leave)
	hello := protocol.HelloRequest{Features: ^uint64(0)}
	hello.Header = headerOf(protocol.MessageHelloRequest, binary.Size(hello))
	copy(hello.Name[:], "wire")
	require.NoError(m.t, conn.Send(packed(&hello)))
	var buf [protocol.MessageBytesMax]byte
	n, files, err := conn.RecvWithin(patience, buf[:])
	require.NoError(m.t, err)
	w.hello = unpacked[protocol.HelloReply](m.t, buf[:n])
	require.Len(m.t, files, 3)
	var maps [3]*shm.Mapping
	for i, size := range []uint64{w.hello.ChannelBytes, w.hello.DirectoryBytes, w.hello.DoorbellBytes} {
		maps[i], err = shm.Map(files[i], size, i != 1)
		require.NoError(m.t, err)
		w.drop = append(w.drop, maps[i].Close, files[i].Close)
	}
	layout, _, err := ring.ReadHeader(maps[0].Bytes())
	require.NoError(m.t, err)
	bell, err := ring.NewBell(maps[2].Bytes(), maps[1].Bytes())
	require.NoError(m.t, err)
	w.ring, err = ring.NewClient(maps[0].Bytes(), layout, bell)
	require.NoError(m.t, err)
	return w
}

// do runs an op, and wants a status.
func (w *wire) do(want protocol.Status, e protocol.SubmissionEntry, arguments ...any) (protocol.CompletionEntry, []byte) {
	w.t.Helper()
	var raw []byte
	for _, a := range arguments {
		if text, ok := a.(string); ok {
			raw = append(raw, text...)
		} else {
			raw = append(raw, packed(a)...)
		}
	}
	w.lastOp++
	e.OpID, e.ArgumentBytes, e.ResultBytes = w.lastOp, uint32(len(raw)), 4096
	room, err := w.ring.Arguments(0, e.ArgumentBytes)
	require.NoError(w.t, err)
	copy(room, raw)
	require.NoError(w.t, w.ring.Submit(&e))
	for end := time.Now().Add(patience); time.Now().Before(end); {
		var done protocol.CompletionEntry
		heard := w.ring.Listen()
		ok, err := w.ring.Poll(&done)
		require.NoError(w.t, err)
		if ok {
			result, err := w.ring.Result(0, done.ResultBytes)
			require.NoError(w.t, err)
			require.Equal(w.t, want, protocol.Status(done.Status), "%s", result)
			return done, bytes.Clone(result)
		}
		_, err = w.ring.Wait(heard, 20*time.Millisecond)
		require.NoError(w.t, err)
	}
	w.t.Fatal("no completion came")
	return protocol.CompletionEntry{}, nil
}

// ask sends a DeviceRequest.
func (w *wire) ask(sort, index uint32, segment uint64) protocol.DeviceReply {
	w.t.Helper()
	request := protocol.DeviceRequest{Sort: sort, Index: index, Segment: segment}
	request.Header = headerOf(protocol.MessageDeviceRequest, binary.Size(request))
	return unpacked[protocol.DeviceReply](w.t, w.talk(packed(&request)))
}

// talk sends a message and gives the answer.
func (w *wire) talk(message []byte) []byte {
	w.t.Helper()
	require.NoError(w.t, w.conn.Send(message))
	var buf [protocol.MessageBytesMax]byte
	n, files, err := w.conn.RecvWithin(patience, buf[:])
	require.NoError(w.t, err)
	require.Empty(w.t, files, "device memory comes without descriptors")
	return bytes.Clone(buf[:n])
}

// query makes one of a path.
func (w *wire) query(path string) uint64 {
	w.t.Helper()
	for len(path)%4 != 0 {
		path += "x"
	}
	done, _ := w.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpQueryPaths}, protocol.StringList{Count: 1, TotalBytes: uint32(8 + 4 + len(path))}, uint32(len(path)), path)
	return done.Handle
}

// mapOnDevice maps a row of bytes on device 0.
func (w *wire) mapOnDevice(want protocol.Status, query, ordinal uint64, name string) (session uint64, g protocol.GroupDescriptor, text string) {
	w.t.Helper()
	args := protocol.MapArguments{NameBytes: uint32(len(name)), NameOffsetBytes: uint32(binary.Size(protocol.MapArguments{})),
		Schema: protocol.Schema{Kind: protocol.KindFixed, DtypeCode: 1, DtypeBits: 8, DtypeLanes: 1, DeviceType: 2, RowDimensions: 1, RowShape: [6]uint64{4096}}}
	done, raw := w.do(want, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: query, Ordinal: ordinal}, &args, name)
	if want != protocol.StatusOK {
		return 0, g, string(raw)
	}
	return done.Handle, unpacked[protocol.GroupDescriptor](w.t, raw), ""
}
