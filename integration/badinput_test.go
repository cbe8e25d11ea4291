package integration

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/control"
	"callboard/protocol"
	"callboard/shm"
)

// noise gives n random bytes, with runs of zeros and of ones among them: those find more.
func noise(r *rand.Rand, n int) []byte {
	out := make([]byte, 0, n+8)
	for len(out) < n {
		word := r.Uint64()
		switch r.IntN(4) {
		case 0:
			word = 0
		case 1:
			word = ^uint64(0) >> r.IntN(64)
		}
		out = binary.LittleEndian.AppendUint64(out, word)
	}
	return out[:n]
}

// A client writes garbage over its whole channel while it is attached: rings, pins, header
// and arguments. Its own session may end; nobody else notices. Rules R5, S3; field report B4.
func TestGarbageInTheChannel(t *testing.T) {
	s := startStage(t)
	other := s.Dial("other")
	unharmed(t, other)
	random := randomness(t)
	for round := range 20 {
		w := attachWire(t, s.socket(), "garbage")
		mem := w.channel.Bytes()
		switch round % 4 {
		case 0: // everything
			copy(mem, noise(random, len(mem)))
		case 1: // the control words: indices, bells, marks
			copy(mem[protocol.ChannelControlOffset:], noise(random, 2048))
		case 2: // entries, then a tail that says they are there
			copy(mem[w.layout.SqOffset:], noise(random, 64*int(w.layout.SqEntries)))
			shm.StoreU64(mem, protocol.ChannelControlOffset, uint64(1+random.IntN(int(w.layout.SqEntries))))
		case 3: // pins, and a high-water mark beyond them
			copy(mem[w.layout.PinOffset:], noise(random, 16*int(w.layout.PinCount)))
			mark, _ := reflect.TypeFor[protocol.ChannelControl]().FieldByName("PinHighWater")
			shm.StoreU32(mem, protocol.ChannelControlOffset+int(mark.Offset), random.Uint32())
		}
		w.bell.Ring()
		unharmed(t, other)
		w.close()
	}
	s.settled(t, "other")
	unharmed(t, other)
}

// Random entries that are well-formed as far as the ring looks: known opcodes, rooms in
// their areas, and random bytes as arguments. Each gets one completion or ends the
// session. Rules R5, K3.
func TestGarbageEntries(t *testing.T) {
	s := startStage(t)
	other := s.Dial("other")
	unharmed(t, other)
	random := randomness(t)
	statuses := map[protocol.Status]int{}
	for range 20 {
		w := attachWire(t, s.socket(), "garbage")
		query := w.query(t, "/a", "/b")
		for range 150 {
			e := protocol.SubmissionEntry{Opcode: 1 + random.Uint32N(17), Flags: random.Uint32N(16), Handle: random.Uint64N(4), Ordinal: random.Uint64N(5), Value: random.Uint64N(4)}
			if random.IntN(3) == 0 {
				e.Handle = query
			}
			arguments := noise(random, 8*random.IntN(60))
			if random.IntN(2) == 0 { // nearly right: one byte of a good map is wrong
				arguments = mapArguments("garbage/map", uint64s)
				if random.IntN(2) == 0 {
					array := uint64s
					array.Kind = protocol.KindArray
					arguments = mapArguments("garbage/rows", array, 1, 2)
				}
				e.Opcode = protocol.OpMap
				arguments[random.IntN(len(arguments))] ^= byte(1 << random.IntN(8))
			}
			require.NoError(t, w.submit(e, arguments))
			done, text, err := w.complete()
			require.NoError(t, err, "opcode %d", e.Opcode)
			require.Equal(t, w.lastOp, done.OpID)
			status := protocol.Status(done.Status)
			statuses[status]++
			if status != protocol.StatusOK {
				require.NotEmpty(t, text, "%v without a text for opcode %d", status, e.Opcode)
				require.NotEqual(t, protocol.StatusInternal, status, "a peer's bad value is not our bug: %s", text)
			}
		}
		w.close()
		unharmed(t, other)
	}
	t.Logf("statuses: %v", statuses)
	require.Greater(t, len(statuses), 3)
}

// Malformed entries end the session, with a text that names the field. Rule R5.
func TestMalformedEntriesNameTheField(t *testing.T) {
	s := startStage(t)
	other := s.Dial("other")
	for name, spoil := range map[string]func(*protocol.SubmissionEntry){
		"Opcode":              func(e *protocol.SubmissionEntry) { e.Opcode = 4711 },
		"ArgumentOffsetBytes": func(e *protocol.SubmissionEntry) { e.ArgumentOffsetBytes = 1 << 31 },
		"ResultOffsetBytes":   func(e *protocol.SubmissionEntry) { e.ResultOffsetBytes = 1 << 31 },
		"OpID":                func(e *protocol.SubmissionEntry) { e.OpID = 0 },
	} {
		w := attachWire(t, s.socket(), "malformed")
		e := protocol.SubmissionEntry{OpID: 1, Opcode: protocol.OpNop}
		spoil(&e)
		require.NoError(t, w.ring.Submit(&e))
		text := w.endText(t)
		require.Contains(t, text, name)
		unharmed(t, other)
	}
}

// Garbage instead of a hello, of every size, with descriptors, in floods. Rule R5; field
// reports B9, B11.
func TestGarbageOnTheSocket(t *testing.T) {
	s := startStage(t)
	other := s.Dial("other")
	unharmed(t, other)
	s.settled(t, "other")
	before := len(openFiles(t, s.PID()))
	random := randomness(t)
	dial := func() *shm.Conn {
		conn, err := shm.Dial(s.socket())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	for round := range 60 {
		conn := dial()
		msg := noise(random, random.IntN(2*protocol.MessageBytesMax))
		if round%3 == 0 && len(msg) > 16 { // right magic and type, the rest garbage
			copy(msg, helloMessage("garbage")[:12])
		}
		if conn.Send(msg) == nil && len(msg) > 0 {
			reply, files, err := receive(conn)
			if err == nil {
				require.Empty(t, files, "garbage is not given a channel")
				require.NotNil(t, errorReply(reply))
				require.NotEmpty(t, textOf(errorReply(reply)))
			} else {
				require.ErrorIs(t, err, io.EOF)
			}
		}
		require.NoError(t, conn.Close())
	}
	// A good hello and many descriptors that nobody asked for; net sends what ours refuses to.
	raw, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: s.socket(), Net: "unixpacket"})
	require.NoError(t, err)
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	_, _, err = raw.WriteMsgUnix(helloMessage("descriptors"), syscall.UnixRights(slices.Repeat([]int{int(null.Fd())}, 200)...), nil)
	require.NoError(t, err)
	_, _ = raw.Read(make([]byte, protocol.MessageBytesMax)) // a reply or a refusal, both are right
	require.NoError(t, raw.Close())
	// After the hello.
	for _, msg := range [][]byte{noise(random, 40), helloMessage("twice"), noise(random, protocol.MessageBytesMax), {1}} {
		w := attachWire(t, s.socket(), "garbage")
		require.NoError(t, w.conn.Send(msg))
		require.Contains(t, w.endText(t), "malformed message")
		w.close()
	}
	// A flood that never speaks, and one that never listens.
	var flood []*shm.Conn
	for range 200 {
		flood = append(flood, dial())
	}
	unharmed(t, other)
	w := attachWire(t, s.socket(), "deaf")
	request := message(&protocol.SegmentRequest{Header: messageHeader(protocol.MessageSegmentRequest), Segment: 1})
	for range 5000 {
		if w.conn.SendWithin(0, request) != nil {
			break
		}
	}
	unharmed(t, other)
	w.close()
	for _, conn := range flood {
		_ = conn.Close()
	}
	s.settled(t, "other")
	require.Eventually(t, func() bool { return len(openFiles(t, s.PID())) <= before }, soon, 10*time.Millisecond,
		"descriptors that were sent or accepted are closed: %d before", before)
	unharmed(t, other)
}

// NATS: garbage requests, too large ones, and what an observer may not do. Design D3; rule L5.
func TestGarbageOverNATS(t *testing.T) {
	s := startStage(t)
	other := s.Dial("other")
	unharmed(t, other)
	random := randomness(t)
	ctx := within(t, soon)
	for _, subject := range []string{s.names.Describe(), s.names.Floor(), control.SubjectDescribeAll} {
		for _, data := range [][]byte{noise(random, 100), []byte("{"), []byte(`{"attributes":7}`), []byte(`[]`), []byte(strings.Repeat("[", 5000))} {
			reply, err := s.nats.RequestWithContext(ctx, subject, data)
			require.NoError(t, err)
			require.Equal(t, control.CodeBadRequest, reply.Header.Get("Nats-Service-Error-Code"), "%s %.40q: %s", subject, data, reply.Data)
			require.NotEmpty(t, reply.Header.Get("Nats-Service-Error"))
		}
		huge, err := s.nats.RequestWithContext(ctx, subject, noise(random, 900<<10))
		require.NoError(t, err)
		require.Equal(t, control.CodeTooLarge, huge.Header.Get("Nats-Service-Error-Code"))
	}
	unknown := control.Request(ctx, s.nats, s.names.Describe(), control.DescribeRequest{Attributes: []string{"no/such"}}, new(description))
	require.ErrorContains(t, unknown, `"no/such"`)

	info, err := control.ReadRuntimeFile(filepath.Join(s.RuntimeDir, control.RuntimeFileName))
	require.NoError(t, err)
	var refused atomic.Int32
	observer, err := control.Connect(info, control.RoleObserver, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) { refused.Add(1) }))
	require.NoError(t, err)
	defer observer.Close()
	var forged atomic.Int32
	stop, err := control.Subscribe(s.nats, s.names.All(), func(_ string, data []byte) {
		if strings.Contains(string(data), "forged") {
			forged.Add(1)
		}
	})
	require.NoError(t, err)
	defer stop()
	for _, subject := range []string{s.names.Commit(), s.names.Health(), s.names.Client(), "_INBOX.somebody"} {
		require.NoError(t, observer.Publish(subject, []byte("forged")))
	}
	require.NoError(t, observer.Flush())
	require.Eventually(t, func() bool { return refused.Load() == 4 }, soon, 10*time.Millisecond, "the server tells of each refusal")
	require.NoError(t, s.nats.Flush())
	require.Zero(t, forged.Load(), "an observer cannot make events up")
	require.NoError(t, control.Request(ctx, observer, s.names.Describe(), control.DescribeRequest{}, new(description)))
	unharmed(t, other)

	info.Full.Password = "guessed"
	_, err = control.Connect(info, control.RoleFull)
	require.Error(t, err)
	_, err = nats.Connect(info.URL)
	require.ErrorIs(t, err, nats.ErrAuthorization)
}

// Wrong values get a precise error at once, with the numbers in question, and change
// nothing. Rule R6; field report E7; behaviour 6, 8, 13, 44, 45, 65, 102, 120, 187, 231.
func TestWrongValuesGetPreciseErrors(t *testing.T) {
	s := startStage(t)
	c := s.Dial("client")
	ctx := within(t, soon)
	q, err := c.QueryFromPathList(ctx, []string{"/a", "/b", "/c"})
	require.NoError(t, err)
	op, err := c.WriteAttribute(ctx, q, "pose", [][3]float32{{1}, {2}, {3}}, callboard.WriteOptions{Ordinal: 5})
	require.NoError(t, err)
	require.NoError(t, op.Wait(ctx))
	require.NoError(t, seal(ctx, c, 5))
	epoch := c.Epoch()

	write := func(values any, o callboard.WriteOptions) error {
		op, err := c.WriteAttribute(ctx, q, "pose", values, o)
		if err != nil {
			return err
		}
		return op.Wait(ctx)
	}
	good := [][3]float32{{1}, {2}, {3}}
	for _, c := range []struct {
		what  string
		err   error
		is    error
		texts []string
	}{
		{"another type", write([][3]float64{{}, {}, {}}, callboard.WriteOptions{Ordinal: 6}), callboard.ErrInvalidArgument, []string{"float64", "float32"}},
		{"another lane count", write([][2]float32{{}, {}, {}}, callboard.WriteOptions{Ordinal: 6}), callboard.ErrInvalidArgument, []string{"2", "3"}},
		{"too few rows", write([][3]float32{{}, {}}, callboard.WriteOptions{Ordinal: 6}), callboard.ErrInvalidArgument, []string{"2", "3"}},
		{"too many rows", write(make([][3]float32, 4), callboard.WriteOptions{Ordinal: 6}), callboard.ErrInvalidArgument, []string{"4", "3"}},
		{"at the floor", write(good, callboard.WriteOptions{Ordinal: 5}), callboard.ErrFloorViolation, []string{"ordinal 5", "floor"}},
		{"below the floor", write(good, callboard.WriteOptions{Ordinal: 2}), callboard.ErrFloorViolation, []string{"2", "5"}},
		{"ordinal 0", write(good, callboard.WriteOptions{}), callboard.ErrFloorViolation, []string{"0", "5"}},
		{"array kind", write(good, callboard.WriteOptions{Ordinal: 6, IsArray: true}), callboard.ErrInvalidArgument, []string{"kind is array", "fixed"}},
		{"a string", write("text", callboard.WriteOptions{Ordinal: 6}), callboard.ErrInvalidArgument, []string{"string"}},
		{"another row shape", write(good, callboard.WriteOptions{Ordinal: 6, RowShape: []uint64{7}}), callboard.ErrInvalidArgument, []string{"7"}},
	} {
		require.ErrorIs(t, c.err, c.is, c.what)
		for _, text := range c.texts {
			require.ErrorContains(t, c.err, text, c.what)
		}
	}
	reserved, err := c.WriteAttribute(ctx, q, "@floor", good, callboard.WriteOptions{Ordinal: 6})
	require.Nil(t, reserved)
	require.ErrorIs(t, err, callboard.ErrNotSupported)
	_, err = c.QueryFromPathList(ctx, []string{"/fine", "no slash"})
	require.ErrorIs(t, err, callboard.ErrInvalidArgument)
	require.ErrorContains(t, err, "no slash")
	_, err = c.MapAttribute(ctx, q, "pose", callboard.MapOptions{Ordinal: 5})
	require.ErrorIs(t, err, callboard.ErrFloorViolation)
	_, err = c.MapAttribute(ctx, q, "new", callboard.MapOptions{Ordinal: 6})
	require.ErrorIs(t, err, callboard.ErrInvalidArgument)
	q.Release()
	_, err = c.WriteAttribute(ctx, q, "pose", good, callboard.WriteOptions{Ordinal: 6})
	require.ErrorIs(t, err, callboard.ErrInvalidHandle)
	require.Equal(t, epoch, c.Epoch(), "nothing changed")
	unharmed(t, c)

	// The broker checks the same again: a client library that does not is no danger.
	w := attachWire(t, s.socket(), "unchecked")
	query := w.query(t, "/a", "/b", "/c")
	_, text := w.do(t, protocol.StatusFloorViolation, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: query, Ordinal: 5}, mapArguments("pose", protocol.Schema{}))
	require.Contains(t, string(text), "5")
	_, text = w.do(t, protocol.StatusInvalidHandle, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: 4711, Ordinal: 9}, mapArguments("pose", protocol.Schema{}))
	require.Contains(t, string(text), "4711")
	_, text = w.do(t, protocol.StatusInvalidHandle, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: 4711}, nil)
	require.Contains(t, string(text), "4711")
	_, text = w.do(t, protocol.StatusInvalidArgument, protocol.SubmissionEntry{Opcode: protocol.OpQueryPaths}, stringList("no slash"))
	require.Contains(t, string(text), "no slash")
	array := uint64s
	array.Kind = protocol.KindArray
	_, text = w.do(t, protocol.StatusInvalidArgument, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: query, Ordinal: 9}, mapArguments("rows", array, 1, 2))
	require.Contains(t, string(text), "element_sizes has 2 entries for 3 prims")
	_, text = w.do(t, protocol.StatusInvalidArgument, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: query, Ordinal: 9}, mapArguments("rows", array, 1, 2, 3)[:100])
	require.Contains(t, string(text), "100 bytes")
	_, text = w.do(t, protocol.StatusOutOfMemory, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: query, Ordinal: 9}, mapArguments("rows", array, 1, 1<<61, 3))
	require.Contains(t, string(text), "row 1")
}

// A client that attached read-only may not write, and one client's handles are not
// another's. Rule L3.
func TestForeignHandlesAndReadOnlyClients(t *testing.T) {
	s := startStage(t)
	ctx := within(t, soon)
	o := s.Options("reader")
	o.ReadOnly = true
	reader, err := callboard.Dial(ctx, o)
	require.NoError(t, err)
	defer reader.Close()
	_, err = reader.Publish(ctx, "value", []uint64{1})
	require.ErrorIs(t, err, callboard.ErrAccessDenied)
	owner, thief := attachWire(t, s.socket(), "owner"), attachWire(t, s.socket(), "thief")
	query := owner.query(t, "/a")
	done, _ := owner.do(t, protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpMap, Handle: query, Ordinal: 1}, mapArguments("mine", uint64s))
	thief.do(t, protocol.StatusInvalidHandle, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: done.Handle}, nil)
	thief.do(t, protocol.StatusInvalidHandle, protocol.SubmissionEntry{Opcode: protocol.OpQueryRelease, Handle: query}, nil)
	owner.do(t, protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: done.Handle}, nil)
	unharmed(t, s.Dial("other"))
}

// A reader that pins more than its share gets LIMIT, which names its oldest pins; writers
// go on. Rule V7; field reports B7, E15.
func TestPinningWithoutEndHurtsNoWriter(t *testing.T) {
	s := startStage(t, "--retain", "1") // 64 MiB, of which one reader may pin 16
	other, greedy := s.Dial("other"), s.Dial("greedy")
	ctx := within(t, soon)
	var refused error
	for i := range 40 {
		_, err := other.Publish(ctx, "large/value", make([]byte, 1<<20))
		require.NoError(t, err, "write %d", i)
		g, err := greedy.Latest(ctx, "large/value")
		if err != nil {
			refused = err
			continue
		}
		t.Cleanup(g.Release)
	}
	require.ErrorIs(t, refused, callboard.ErrLimit)
	require.ErrorContains(t, refused, "large/value")
	require.ErrorContains(t, refused, fmt.Sprint(16<<20))
	unharmed(t, other)
}
