package gpu

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"callboard/control"
	"callboard/protocol"
)

// Rule C2: which device an index stands for, and handles for who may have them; what is not there is a status.
func TestBrokerAnswersForDevicesArenasAndEvents(t *testing.T) {
	m := start(t)
	w := m.attach()
	require.EqualValues(t, 1, w.hello.DeviceCount)
	require.NotZero(t, w.hello.Features&protocol.FeatureDevice)
	info := w.ask(protocol.DeviceInfo, 0, 0)
	require.Equal(t, protocol.StatusOK, protocol.Status(info.Status))
	require.NotZero(t, info.Uuid)
	require.NotZero(t, info.SizeBytes)
	require.Zero(t, info.Handle, "a device has none")
	require.Equal(t, protocol.StatusNotFound, protocol.Status(w.ask(protocol.DeviceInfo, 1, 0).Status))
	require.Equal(t, protocol.StatusNotFound, protocol.Status(w.ask(protocol.DeviceArena, 0, 1).Status), "segment 1 is the host's")
	require.Equal(t, protocol.StatusNotFound, protocol.Status(w.ask(protocol.DeviceArena, 0, 1<<60).Status))

	q := w.query("/a")
	session, g, _ := w.mapOnDevice(protocol.StatusOK, q, 1, "pose")
	require.EqualValues(t, 1, g.DeviceNumber)
	arena := w.ask(protocol.DeviceArena, 0, g.Block.Segment)
	require.Equal(t, protocol.StatusOK, protocol.Status(arena.Status))
	require.Equal(t, g.ArenaGeneration, arena.ArenaGeneration)
	require.Equal(t, info.Uuid, arena.Uuid)
	require.Zero(t, arena.SizeBytes%(2<<20), "rule C1")
	require.NotZero(t, arena.Handle)
	require.Equal(t, protocol.StatusNotFound, protocol.Status(m.attach().ask(protocol.DeviceArena, 0, g.Block.Segment).Status), "nothing for another client lies there yet")
	event := w.ask(protocol.DeviceEvent, g.EventIndex, 0)
	require.Equal(t, protocol.StatusOK, protocol.Status(event.Status))
	require.NotZero(t, event.Handle)
	require.Equal(t, protocol.StatusNotFound, protocol.Status(w.ask(protocol.DeviceEvent, g.EventIndex+1, 0).Status), "it belongs to no group")
	require.Equal(t, protocol.StatusNotFound, protocol.Status(m.attach().ask(protocol.DeviceEvent, g.EventIndex, 0).Status), "it is another client's")

	segment := protocol.SegmentRequest{Segment: g.Block.Segment}
	segment.Header = headerOf(protocol.MessageSegmentRequest, binary.Size(segment))
	reply := unpacked[protocol.SegmentReply](t, w.talk(packed(&segment)))
	require.Equal(t, protocol.StatusNotSupported, protocol.Status(reply.Status), "it is imported, not mapped")
	require.NotZero(t, reply.Sort&protocol.SegmentOnDevice)

	// Rule C3: an unmap names the group's own event, or none.
	unmap := func(want protocol.Status, op, index, used uint32) string {
		args := protocol.UnmapArguments{Selection: protocol.Selection{Count: protocol.All}, EventIndex: index, EventUsed: used}
		_, text := w.do(want, protocol.SubmissionEntry{Opcode: op, Handle: session}, &args)
		return string(text)
	}
	for _, op := range []uint32{protocol.OpUnmapGroup, protocol.OpUnmapAttribute} { // the latter ends the session with it
		if op == protocol.OpUnmapAttribute {
			session, g, _ = w.mapOnDevice(protocol.StatusOK, q, 2, "pose")
		}
		require.Contains(t, unmap(protocol.StatusInvalidArgument, op, g.EventIndex+1, 1), fmt.Sprintf("the group's own event is %d", g.EventIndex))
		require.Contains(t, unmap(protocol.StatusInvalidArgument, op, g.EventIndex, 2), "expected 0 or 1")
		unmap(protocol.StatusOK, op, g.EventIndex, 1) // never recorded: it counts as complete
		if op == protocol.OpUnmapGroup {
			require.Contains(t, unmap(protocol.StatusInvalidArgument, protocol.OpUnmapAttribute, g.EventIndex, 1), "still mapped")
			w.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: session})
		}
		require.Zero(t, m.gpu().EventsLeased)
	}
	w.do(protocol.StatusInvalidHandle, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: session})
	w.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpArenaClosed, Value: g.Block.Segment})
	w.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpArenaClosed, Value: g.Block.Segment}) // said twice: nothing
}

// What makes no sense ends its session alone.
func TestBrokerEndsSessionsOfMalformedDeviceRequests(t *testing.T) {
	m := start(t)
	for name, spoil := range map[string]func(*protocol.DeviceRequest){
		"sort":                func(r *protocol.DeviceRequest) { r.Sort = 9 },
		"size":                func(r *protocol.DeviceRequest) { r.Header.SizeBytes-- },
		"device with segment": func(r *protocol.DeviceRequest) { r.Sort, r.Segment = protocol.DeviceInfo, 7 },
		"event with segment":  func(r *protocol.DeviceRequest) { r.Sort, r.Segment = protocol.DeviceEvent, 7 },
		"arena with index":    func(r *protocol.DeviceRequest) { r.Sort, r.Index = protocol.DeviceArena, 7 },
	} {
		request := protocol.DeviceRequest{Sort: protocol.DeviceArena}
		request.Header = headerOf(protocol.MessageDeviceRequest, binary.Size(request))
		spoil(&request)
		last := unpacked[protocol.ErrorReply](t, m.attach().talk(packed(&request)))
		require.Equal(t, protocol.StatusSessionEnded, protocol.Status(last.Status), name)
		require.Contains(t, string(last.Text[:]), "malformed message", name)
	}
	require.EqualValues(t, 1, m.attach().hello.DeviceCount, "others go on")
}

// All events are leased: the next map is refused, and none is lost by that.
func TestBrokerRefusesMoreGroupsThanEvents(t *testing.T) {
	m := startWith(t, nil, nil, "--gpu", "required", "--gpu-events", "2")
	w := m.attach()
	q := w.query("/a")
	first, _, _ := w.mapOnDevice(protocol.StatusOK, q, 1, "a")
	w.mapOnDevice(protocol.StatusOK, q, 1, "b")
	for range 3 {
		_, _, text := w.mapOnDevice(protocol.StatusQueueFull, q, 1, "c")
		require.Contains(t, text, "--gpu-events")
	}
	w.do(protocol.StatusOK, protocol.SubmissionEntry{Opcode: protocol.OpUnmapAttribute, Handle: first, Flags: protocol.FlagAbort})
	eventually(t, func() bool { return m.gpu().EventsFree == 1 }, "the event comes back")
	w.mapOnDevice(protocol.StatusOK, q, 1, "c")
}

// description is what the broker tells of itself.
func (m *machine) description() (d control.Description) {
	m.t.Helper()
	out := m.program("info", "--json")
	require.NoError(m.t, json.Unmarshal([]byte(out), &d), out)
	return d
}

func (m *machine) gpu() control.DeviceDescription { return m.description().GPU.Devices[0] }

// Rule C2: a handle is a bearer token for reading and writing. Whatever the broker says over NATS, to anybody, there
// is none in it; device, arena, offset, length and event are.
func TestBrokerTellsNoHandleOverNATS(t *testing.T) {
	m := start(t)
	info, err := control.ReadRuntimeFile(filepath.Join(m.RuntimeDir, control.RuntimeFileName))
	require.NoError(t, err)
	conn, err := control.Connect(info, control.RoleFull)
	require.NoError(t, err)
	defer conn.Close()
	var mu sync.Mutex
	var all [][]byte
	var groups []control.GroupEvent
	_, err = conn.Subscribe(">", func(msg *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, bytes.Clone(msg.Data), []byte(fmt.Sprint(msg.Subject, msg.Header)))
		if strings.Contains(msg.Subject, ".group.") {
			var g control.GroupEvent
			if json.Unmarshal(msg.Data, &g) == nil {
				groups = append(groups, g)
			}
		}
	})
	require.NoError(t, err)
	require.NoError(t, conn.Flush())

	w := m.attach()
	_, g, _ := w.mapOnDevice(protocol.StatusOK, w.query("/a"), 1, "held")
	handles := [][64]byte{w.ask(protocol.DeviceArena, 0, g.Block.Segment).Handle, w.ask(protocol.DeviceEvent, g.EventIndex, 0).Handle}
	p, r := m.client("producer"), m.client("reader")
	p.do(order{Do: "cycle", Name: "pose", Prims: []int{1, 2}, Bytes: large, Device: "cuda:0", Ordinal: 2, Value: 1, Count: 3, Sync: "stream"})
	r.do(order{Do: "read", Name: "pose", Prims: []int{1, 2}})
	for _, a := range m.gpu().Arenas {
		handles = append(handles, w.ask(protocol.DeviceArena, 0, a.Segment).Handle)
	}
	require.NotEmpty(t, m.program("read", "pose"))
	p.kill()
	eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(groups) > 0 }, "a group is announced")
	time.Sleep(50 * time.Millisecond) // what is late is a loss for this test alone

	mu.Lock()
	defer mu.Unlock()
	require.Greater(t, len(all), 20)
	for _, h := range handles {
		require.NotZero(t, h)
		for _, part := range [][]byte{h[:32], h[32:]} {
			if bytes.Equal(part, make([]byte, 32)) {
				continue
			}
			forms := [][]byte{part, []byte(hex.EncodeToString(part)), []byte(strings.ToUpper(hex.EncodeToString(part))), []byte(numbers(part))}
			for shift := range 3 { // base64 depends on where the bytes begin
				text := base64.StdEncoding.EncodeToString(part[shift : shift+24])
				forms = append(forms, []byte(text), []byte(strings.NewReplacer("+", "-", "/", "_").Replace(text)))
			}
			for _, said := range all {
				for _, form := range forms {
					require.NotContains(t, string(said), string(form))
				}
			}
		}
	}
	on := groups[0].Device
	require.EqualValues(t, 2, on.Type)
	require.Regexp(t, `^GPU-[0-9a-f-]{36}$`, on.UUID)
	require.Equal(t, g.Block.Segment, uint64(on.Arena))
	require.Equal(t, g.ArenaGeneration, on.Generation)
	require.NotNil(t, on.Event)
	require.Equal(t, g.EventIndex, *on.Event)
	require.Equal(t, g.Block.OffsetBytes, groups[0].Block.OffsetBytes)
	require.EqualValues(t, 4096, groups[0].Block.LengthBytes)
}

// numbers is how JSON shows an array of bytes.
func numbers(b []byte) string {
	out := strings.ReplaceAll(fmt.Sprint(b), " ", ",")
	return strings.Trim(out, "[]")
}
