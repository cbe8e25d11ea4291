package callboard

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/cudaipc"
	"callboard/protocol"
	"callboard/shm"
	"callboard/tensor"
)

// fakeDriver is as much of a driver as a client calls; it notes what was called.
type fakeDriver struct {
	cudaipc.Driver // the rest must not be called

	mutex   sync.Mutex
	calls   []string
	devices []cudaipc.UUID // by this process's ordinal
	refuse  cudaipc.Code   // an import
	pending bool           // events are not complete
	turns   int            // nor for so many looks
	memory  []fakeMemory
}

// fakeMemory is what a process has at some addresses.
type fakeMemory struct{ base, size, sort, managed, ordinal uint64 }

func (d *fakeDriver) PointerAttribute(address uint64, what cudaipc.PointerAttribute) (uint64, error) {
	for _, m := range d.memory {
		if address >= m.base && address < m.base+m.size {
			return map[cudaipc.PointerAttribute]uint64{cudaipc.PointerMemoryType: m.sort, cudaipc.PointerIsManaged: m.managed, cudaipc.PointerDeviceOrdinal: m.ordinal}[what], nil
		}
	}
	return 0, &cudaipc.Error{Code: cudaipc.ErrInvalidValue, Function: "cuPointerGetAttribute"}
}

func (d *fakeDriver) note(format string, args ...any) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.calls = append(d.calls, fmt.Sprintf(format, args...))
	return nil
}

// taken gives the calls since the last time whose names contain one of words.
func (d *fakeDriver) taken(words ...string) (out []string) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for _, call := range d.calls {
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(call, w) }) {
			out = append(out, call)
		}
	}
	d.calls = nil
	return out
}

func (d *fakeDriver) DeviceCount() (int, error)                         { return len(d.devices), nil }
func (d *fakeDriver) DeviceGet(n int) (cudaipc.Device, error)           { return cudaipc.Device(n), nil }
func (d *fakeDriver) DeviceName(cudaipc.Device) (string, error)         { return "a fake", nil }
func (d *fakeDriver) DeviceUUID(n cudaipc.Device) (cudaipc.UUID, error) { return d.devices[n], nil }
func (d *fakeDriver) DeviceMemory(cudaipc.Device) (uint64, error)       { return 1 << 30, nil }
func (d *fakeDriver) RetainPrimary(cudaipc.Device) (cudaipc.Context, error) {
	return 7, d.note("retain")
}
func (d *fakeDriver) ReleasePrimary(cudaipc.Device) error   { return d.note("release") }
func (d *fakeDriver) SetCurrent(cudaipc.Context) error      { return nil }
func (d *fakeDriver) StreamCreate() (cudaipc.Stream, error) { return 99, nil }
func (d *fakeDriver) StreamDestroy(cudaipc.Stream) error    { return nil }
func (d *fakeDriver) IPCCloseMemHandle(p cudaipc.Pointer) error {
	return d.note("close %#x", uint64(p))
}
func (d *fakeDriver) EventCreate(cudaipc.EventFlags) (cudaipc.Event, error) { return 7, nil }
func (d *fakeDriver) EventDestroy(e cudaipc.Event) error                    { return d.note("destroy event %d", e) }
func (d *fakeDriver) EventRecord(e cudaipc.Event, s cudaipc.Stream) error {
	return d.note("record %d on %d", e, s)
}
func (d *fakeDriver) EventQuery(cudaipc.Event) (bool, error) {
	d.turns--
	return !d.pending && d.turns < 0, nil
}
func (d *fakeDriver) StreamWaitEvent(s cudaipc.Stream, e cudaipc.Event) error {
	return d.note("%d waits for %d", s, e)
}

func (d *fakeDriver) IPCOpenMemHandle(h cudaipc.Handle) (cudaipc.Pointer, error) {
	if d.refuse != 0 {
		return 0, &cudaipc.Error{Code: d.refuse, Function: "cuIpcOpenMemHandle_v2"}
	}
	return cudaipc.Pointer(h[0]) << 32, d.note("open %d", h[0])
}

func (d *fakeDriver) AddressRange(p cudaipc.Pointer) (cudaipc.Pointer, uint64, error) {
	for _, m := range d.memory {
		if uint64(p) >= m.base && uint64(p) < m.base+m.size {
			if m.size == unranged {
				return 0, 0, &cudaipc.Error{Code: cudaipc.ErrInvalidValue, Function: "cuMemGetAddressRange_v2"}
			}
			return cudaipc.Pointer(m.base), m.size, nil
		}
	}
	return p, 2 << 20, nil
}

func (d *fakeDriver) IPCOpenEventHandle(h cudaipc.Handle) (cudaipc.Event, error) {
	return cudaipc.Event(h[0]), d.note("open event %d", h[0])
}

// gpuBroker is a fake broker with two devices, of which this process sees the same in the
// other order.
func gpuBroker(t *testing.T) (*fakeBroker, *fakeDriver) {
	uuids := []cudaipc.UUID{{1}, {2}}
	d := &fakeDriver{devices: []cudaipc.UUID{{2}, {1}}}
	useDriver(t, func() (cudaipc.Driver, error) { return d, nil })
	b := newFakeBroker(t)
	b.startedAt(5)
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.answer = func(conn *shm.Conn, msg []byte) {
		ask, ok := decode[protocol.DeviceRequest](msg)
		if !ok || ask.Header.Type != protocol.MessageDeviceRequest {
			return
		}
		reply := protocol.DeviceReply{Header: messageHeader[protocol.DeviceReply](protocol.MessageDeviceReply), Sort: ask.Sort, Index: ask.Index,
			ArenaGeneration: 5, SizeBytes: 2 << 20, Uuid: uuids[0]}
		switch ask.Sort {
		case protocol.DeviceInfo:
			if ask.Index >= uint32(len(uuids)) {
				reply.Status, reply.Uuid = uint32(protocol.StatusNotFound), cudaipc.UUID{} // with one it would be a device that is away
				break
			}
			reply.DeviceID, reply.Uuid = ask.Index, uuids[ask.Index]
		case protocol.DeviceArena:
			reply.Handle[0] = byte(ask.Segment)
		case protocol.DeviceEvent:
			reply.Handle[0] = byte(100 + ask.Index)
		}
		_ = conn.Send(bytesOf(&reply))
	}
	return b, d
}

func (b *fakeBroker) startedAt(ns uint64) {
	root, err := shm.View[protocol.DirectoryHeader](b.root.Bytes(), 0)
	require.NoError(b.t, err)
	root.StartedNs = ns
}

func useDriver(t *testing.T, load func() (cudaipc.Driver, error)) {
	cuda.Lock()
	defer cuda.Unlock()
	before := cuda.load
	cuda.load, cuda.driver = load, nil
	t.Cleanup(func() {
		cuda.Lock()
		defer cuda.Unlock()
		require.Empty(t, cuda.gpus, "a device is still open")
		cuda.load, cuda.driver = before, nil
	})
}

func placeIn(segment uint64) place {
	return place{block: protocol.BlockRef{Segment: segment, OffsetBytes: 512, LengthBytes: 64}, number: 1, generation: 5}
}

// Devices are matched by UUID in both directions (field reports F10, G18), and the driver is loaded by the first who
// needs it.
func TestDevicesAreMatchedByUUID(t *testing.T) {
	loads := 0
	b, d := gpuBroker(t)
	cuda.load = func() (cudaipc.Driver, error) { loads++; return d, nil }
	s := b.attach()
	_, err := s.AdvanceWriteFloor(1, SealOptions{})
	require.NoError(t, err)
	require.Zero(t, loads, "a client of host memory loads no driver")

	got, err := s.client.ofBroker(CUDA(0))
	require.NoError(t, err)
	require.Equal(t, CUDA(1), got)
	got, err = s.client.local(1)
	require.NoError(t, err)
	require.Equal(t, CUDA(1), got)
	require.Equal(t, 1, loads)

	_, err = s.client.ofBroker(CUDA(2))
	require.ErrorIs(t, err, ErrInvalidArgument)
	require.ErrorContains(t, err, "sees 2")
	d.devices = append(d.devices, cudaipc.UUID{3})
	_, err = s.client.ofBroker(CUDA(2))
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorContains(t, err, "GPU-03")
	require.ErrorContains(t, err, "of the broker's 2 devices")
	_, err = s.client.ofBroker(Device{Type: 1, ID: 1})
	require.ErrorIs(t, err, ErrInvalidArgument)
	_, err = s.client.ofBroker(Device{Type: 10})
	require.ErrorIs(t, err, ErrNotSupported)
}

// unranged is the size of fake memory of which the driver gives no range.
const unranged = 0x7777

// Whose memory a tensor is says the driver, not the caller: another device's, the host's, and what nobody knows are
// refused before anything is copied (field report G18).
func TestWhoseMemoryATensorIs(t *testing.T) {
	b, d := gpuBroker(t)
	s := b.attach()
	d.memory = []fakeMemory{
		{base: 0x100000, size: 0x1000, sort: cudaipc.MemoryDevice, ordinal: 1},
		{base: 0x101000, size: 0x1000, sort: cudaipc.MemoryDevice, ordinal: 1},
		{base: 0x102000, size: 0x1000, sort: cudaipc.MemoryDevice, ordinal: 0},
		{base: 0x200000, size: 0x1000, sort: cudaipc.MemoryHost, ordinal: 1},
		{base: 0x300000, size: 0x1000, sort: cudaipc.MemoryHost, managed: 1, ordinal: 0},
		{base: 0x400000, size: unranged, sort: cudaipc.MemoryDevice, ordinal: 1},
	}
	for _, c := range []struct {
		at, offset, elements uint64
		says                 string
	}{
		{0x100000, 0, 0x400, ""},
		{0x100000, 0xffc, 1, ""},
		{0x100000, 0, 0x800, ""}, // one mapping behind the other
		{0x100000, 0, 0, ""},
		{64, 0, 0, ""},
		{0x300000, 0, 0x400, ""},
		{0x400000, 0, unranged / 4, ""},
		{0x100000, 0, 0x801, "the tensor is said to have 8196 bytes at 0x100000 on GPU 1, but at most 8192 of them lie in memory of that GPU"},
		{0x101000, 4, 0x400, "to have 4096 bytes at 0x101004 on GPU 1, but at most 4092 of"},
		{0x300000, 0, 0x401, "4100 bytes at 0x300000 on GPU 1, but at most 4096 of"},
		{0x400000, 0, unranged/4 + 1, "but at most 30583 of"},
		{0x102000, 0, 1, "the tensor is said to lie on GPU 1 (device type 2), but at 0x102000 is memory of GPU 0"},
		{0x200000, 0, 1, "the tensor is said to lie on GPU 1 (device type 2), but at 0x200000 is pinned memory of the host, of GPU 1"},
		{64, 0, 1, "the tensor is said to lie on GPU 1 (device type 2), but the driver knows nothing at 0x40: is it memory of the host?"},
		{^uint64(3), 0, 2, "the driver knows nothing at 0xfffffffffffffffc"},
	} {
		g, device, err := s.client.source(&Tensor{Address: uintptr(c.at), ByteOffset: c.offset, Shape: []int64{int64(c.elements)}, DType: tensor.Float32, Device: CUDA(1)})
		if c.says == "" {
			require.NoError(t, err, "%#x", c.at)
			require.Equal(t, CUDA(0), device, "the broker's number")
			require.EqualValues(t, 1, g.ordinal)
			continue
		}
		require.ErrorIs(t, err, ErrInvalidArgument)
		require.ErrorContains(t, err, c.says)
	}
}

// A broker that tells of devices without end is not believed (rule R5).
func TestDevicesWithoutEnd(t *testing.T) {
	b, _ := gpuBroker(t)
	b.mutex.Lock()
	b.answer = func(conn *shm.Conn, msg []byte) {
		if ask, ok := decode[protocol.DeviceRequest](msg); ok && ask.Header.Type == protocol.MessageDeviceRequest {
			_ = conn.Send(bytesOf(&protocol.DeviceReply{Header: messageHeader[protocol.DeviceReply](protocol.MessageDeviceReply), Status: uint32(protocol.StatusNotFound),
				Sort: ask.Sort, Index: ask.Index, ArenaGeneration: 5, Uuid: cudaipc.UUID{9}}))
		}
	}
	b.mutex.Unlock()
	_, err := b.attach().client.ofBroker(CUDA(0))
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorContains(t, err, "the broker tells of 256 devices and of no end of them")
}

// A driver that does not load is asked for again (behaviour 306); without one a device's number is the broker's.
func TestADriverThatDoesNotLoadIsNotRemembered(t *testing.T) {
	b, d := gpuBroker(t)
	why := error(&cudaipc.LibraryError{Path: "libcuda.so.1", Reason: "no such file"})
	cuda.load = func() (cudaipc.Driver, error) {
		if why != nil {
			return nil, why
		}
		return d, nil
	}
	s := b.attach()
	got, err := s.client.ofBroker(CUDA(0))
	require.NoError(t, err)
	require.Equal(t, CUDA(0), got, "the broker's number")
	_, err = s.client.ofBroker(CUDA(7))
	require.ErrorIs(t, err, ErrNotSupported)
	_, err = s.client.use(placeIn(3))
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorContains(t, err, "no such file")
	require.ErrorContains(t, err, "Device: CPU")
	why = nil
	in, err := s.client.use(placeIn(3))
	require.NoError(t, err)
	require.EqualValues(t, 3<<32+512, in.at(placeIn(3)))
}

// Each arena is opened once in the process, however many stages use it, and closed with the last (rule C2; field
// reports F4, F8).
func TestImportsAreSharedByTheProcess(t *testing.T) {
	b, d := gpuBroker(t)
	one, other := b.attach(), b.attach()
	first, err := one.client.use(placeIn(3))
	require.NoError(t, err)
	again, err := one.client.use(placeIn(3))
	require.NoError(t, err)
	require.Same(t, first, again)
	_, err = other.client.use(placeIn(3))
	require.NoError(t, err)
	require.Equal(t, []string{"retain", "open 3"}, d.taken("retain", "open", "close"))

	require.NoError(t, one.Close())
	require.Empty(t, d.taken("close", "release"), "the other stage has it")
	require.NoError(t, other.Close())
	require.Equal(t, []string{"close 0x300000000", "release"}, d.taken("close", "release"))
}

// What the broker says of a place is believed as far as it fits the arena, and what the driver refuses comes with
// advice (field report F9; error 201).
func TestImportsThatFailSayWhy(t *testing.T) {
	b, d := gpuBroker(t)
	s := b.attach()
	far := placeIn(3)
	far.block.OffsetBytes = 2<<20 - 63
	_, err := s.client.use(far)
	require.ErrorIs(t, err, ErrInternal)
	require.ErrorContains(t, err, "2097152")

	d.refuse = cudaipc.ErrInvalidContext
	_, err = s.client.use(placeIn(4))
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorContains(t, err, "pid namespace")
	d.refuse = 0
	_, err = s.client.use(placeIn(4))
	require.NoError(t, err, "a failure is not remembered")
}

// An unmap waits on its own side, records, and says so; with nothing to wait for it does nothing (rule C3, behaviour
// 303; field report F1).
func TestUnmapRecordsTheGroupsEvent(t *testing.T) {
	b, d := gpuBroker(t)
	s := b.attach()
	g := protocol.GroupDescriptor{Block: placeIn(3).block, DeviceNumber: 1, ArenaGeneration: 5, EventIndex: 4}
	group, err := s.client.takeGroup(&g)
	require.NoError(t, err)
	m := &session{client: s.client, name: "x", groups: []protocol.GroupDescriptor{g}, gone: []bool{false}, device: []deviceGroup{group}}
	d.taken()
	for _, c := range []struct {
		sync  CUDASync
		calls []string
	}{
		{CUDASync{}, nil},
		{CUDASync{Stream: 1}, []string{"record 104 on 1"}},
		{CUDASync{Stream: 2}, []string{"record 104 on 2"}},
		{CUDASync{WaitEvent: 8}, []string{"99 waits for 8", "record 104 on 99"}},
		{CUDASync{Stream: 50, WaitEvent: 8}, []string{"50 waits for 8", "record 104 on 50"}},
	} {
		event, used, err := m.record(0, c.sync)
		require.NoError(t, err)
		require.Equal(t, c.calls, d.taken("record", "waits"))
		require.Equal(t, c.calls != nil, used == 1)
		if used == 1 {
			require.EqualValues(t, 4, event)
		}
	}
	_, err = one([]CUDASync{{}, {}})
	require.ErrorIs(t, err, ErrInvalidArgument)
	_, err = m.memory(0)
	require.NoError(t, err, "no bytes")
	m.groups[0].Rows, m.row = 4, 4
	_, err = m.memory(0)
	require.ErrorIs(t, err, ErrInvalidArgument)
	require.ErrorContains(t, err, "Staging: CPU")
	m.device = nil
	_, _, err = m.record(0, CUDASync{Stream: 1})
	require.ErrorContains(t, err, "filled on the host")
}

// Imports of a broker that is gone are void, and closed when nobody uses them and what was queued is done (rule B3).
func TestImportsOfABrokerThatIsGone(t *testing.T) {
	b, d := gpuBroker(t)
	s := b.attach()
	in, err := s.client.use(placeIn(3))
	require.NoError(t, err)
	event, err := s.client.useEvent(placeIn(3), 4)
	require.NoError(t, err)
	event.queued.Store(true)
	s.client.unuse(event)

	b.startedAt(6)
	s.client.devices.restarted()
	d.taken()
	_, err = s.client.use(placeIn(3))
	require.ErrorIs(t, err, ErrBrokerRestarted)
	d.memory = []fakeMemory{{base: 3 << 32, size: 4 << 20, sort: cudaipc.MemoryDevice, ordinal: 1}}
	for at, void := range map[uint64]bool{0: true, 2<<20 - 4: true, 2 << 20: false} {
		_, _, err = s.client.source(&Tensor{Address: 3 << 32, ByteOffset: at, Shape: []int64{1}, DType: tensor.Float32, Device: CUDA(1)})
		if !void {
			require.NoError(t, err, "that is memory of its own")
			continue
		}
		require.ErrorIs(t, err, ErrBrokerRestarted)
		require.ErrorContains(t, err, "the tensor lay in device memory of the time before, which is gone")
	}
	d.pending = true
	s.client.dropImports()
	require.Empty(t, d.taken("close", "destroy"), "work is queued that fills it")
	d.pending = false
	s.client.dropImports()
	require.Equal(t, []string{"destroy event 104"}, d.taken("close", "destroy"), "the arena is in use")
	s.client.unuse(in)
	s.client.dropImports()
	require.Equal(t, []string{"close 0x300000000"}, d.taken("close", "destroy"))
}

// Close waits for work that was handed over, and not for ever: what it may still reach stays open (rule B4).
func TestClosingWhileWorkGoesOn(t *testing.T) {
	for name, turns := range map[string]int{"which ends": 3, "which does not": quietTurns + 10} {
		t.Run(name, func(t *testing.T) {
			b, d := gpuBroker(t)
			s := b.attach()
			in, err := s.client.use(placeIn(3))
			require.NoError(t, err)
			event, err := s.client.useEvent(placeIn(3), 4)
			require.NoError(t, err)
			event.queued.Store(true)
			s.client.unuse(event)
			s.client.unuse(in)
			d.turns = turns
			require.NoError(t, s.Close())
			if closed := []string{"close 0x300000000", "destroy event 104", "release"}; turns < quietTurns {
				require.Equal(t, closed, d.taken("close", "destroy", "release"))
				return
			}
			require.Empty(t, d.taken("close", "destroy", "release"))
			d.turns = 0
			s.client.devices.close()
		})
	}
}

// The wait for a stream is for what is queued there now, and as long as its context says.
func TestAStreamIsWaitedFor(t *testing.T) {
	b, d := gpuBroker(t)
	in, err := b.attach().client.use(placeIn(3))
	require.NoError(t, err)
	d.turns = 3
	d.taken()
	require.NoError(t, in.gpu.finish(context.Background(), 50))
	require.Equal(t, []string{"record 7 on 50", "destroy event 7"}, d.taken("record", "destroy"))
	require.Negative(t, d.turns, "it was asked until it was done")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	d.pending = true
	err = in.gpu.finish(ctx, 50)
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []string{"record 7 on 50", "destroy event 7"}, d.taken("record", "destroy"))
	d.pending = false
}
