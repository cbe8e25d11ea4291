package callboard

import (
	"callboard/cudaipc"
	"callboard/protocol"
)

// CUDASync says what must be done before rows in device memory are there (rule C3). Both
// are handles of the driver in this process, as CUDA's runtime, PyTorch and others have
// them too; the zero CUDASync is for rows that are there already.
//
// What was queued in Stream so far is waited for, and WaitEvent's latest record: not by
// this call, but by the broker. Rows that were not waited for are sealed as they are
// then.
type CUDASync struct {
	// Stream is a CUstream of the device's primary context; 1 its legacy default stream, 2
	// the default stream of the calling thread (of a goroutine that is locked to one, and has
	// the context current); 0 none.
	Stream uint64
	// WaitEvent is a CUevent that was recorded; 0 none.
	WaitEvent uint64
}

// one is the sync of a call that takes at most one.
func one(syncs []CUDASync) (CUDASync, error) {
	switch len(syncs) {
	case 0:
		return CUDASync{}, nil
	case 1:
		return syncs[0], nil
	}
	return CUDASync{}, refused(fail(protocol.StatusInvalidArgument, "%d syncs are given: rows wait for one; make a stream wait for the others first", len(syncs)))
}

// deviceGroup is what a map group in device memory needs here.
type deviceGroup struct {
	place        place
	arena, event *imported
}

func (d *deviceGroup) device() Device { return CUDA(int(d.arena.gpu.ordinal)) }

func (d *deviceGroup) where() string { return d.device().String() }

// takeGroup opens a group's arena and event, before anybody fills it.
func (c *client) takeGroup(g *protocol.GroupDescriptor) (d deviceGroup, err error) {
	d.place = place{block: g.Block, number: g.DeviceNumber, generation: g.ArenaGeneration}
	if d.arena, err = c.use(d.place); err != nil {
		return d, err
	}
	if d.event, err = c.useEvent(d.place, g.EventIndex); err != nil {
		c.unuse(d.arena)
	}
	return d, err
}

// leaveDevice gives up what its groups used. The caller holds mutex; nobody writes there
// any more.
func (m *session) leaveDevice() {
	for i := range m.device {
		m.client.unuse(m.device[i].arena)
		m.client.unuse(m.device[i].event)
	}
	m.device = m.device[:0:0]
}

// record has group i's event recorded behind what sync names (rule C3); used is 0 where
// there is nothing to wait for. The caller holds mutex.
func (m *session) record(i int, sync CUDASync) (event, used uint32, err error) {
	if sync == (CUDASync{}) {
		return 0, 0, nil
	}
	if m.device == nil {
		return 0, 0, m.noSync()
	}
	d := &m.device[i]
	g := d.arena.gpu
	stream := cudaipc.Stream(sync.Stream)
	if stream == 0 {
		stream = g.stream
	}
	err = g.on(sync.Stream, func(driver cudaipc.Driver) error {
		if sync.WaitEvent != 0 {
			if err := driver.StreamWaitEvent(stream, cudaipc.Event(sync.WaitEvent)); err != nil {
				return err
			}
		}
		return driver.EventRecord(d.event.opened.Event, stream)
	})
	if err != nil {
		return 0, 0, named(m.name, cudaError(err))
	}
	d.event.queued.Store(true)
	return m.groups[i].EventIndex, 1, nil
}

func (m *session) noSync() error {
	if m.device == nil {
		return fail(protocol.StatusInvalidArgument, "attribute %q: a CUDASync is given and the session is filled on the host: wait for your device before you unmap", m.name)
	}
	return fail(protocol.StatusInvalidArgument, "attribute %q: the session has several groups: give each group's CUDASync with its own Unmap", m.name)
}

// onDevice is where group i lies in device memory: nil on the host, and of a group that is
// gone.
func (m *session) onDevice(i int) *deviceGroup {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.usable(i) != nil || m.device == nil {
		return nil
	}
	d := m.device[i]
	return &d
}

// pointer is onDevice for who needs it to be there.
func (m *session) pointer(i int) (*deviceGroup, error) {
	d := m.onDevice(i)
	if d != nil {
		return d, nil
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if err := m.usable(i); err != nil {
		return nil, err
	}
	return nil, onHost(m.name)
}

// Device is where the group's memory lies, by this process's number.
func (g *MapGroup) Device() Device {
	if d := g.inner.onDevice(g.index); d != nil {
		return d.device()
	}
	return CPU
}

// DevicePointer is the address, in this process, of the first of Rows rows in device
// memory: a CUdeviceptr. The device is Device; the host cannot follow it. Whoever has work
// queued that fills it says so at the unmap, by a CUDASync. INVALID_ARGUMENT for host
// memory, which has Bytes.
func (g *MapGroup) DevicePointer() (uint64, error) {
	d, err := g.inner.pointer(g.index)
	if err != nil {
		return 0, err
	}
	return d.arena.at(d.place), nil
}

// Event is the group's event, a CUevent of this process, which the unmap records. It may be
// waited for, in this process, by what must come after the group's work; it is the
// broker's and is not to be destroyed.
func (g *MapGroup) Event() (uint64, error) {
	d, err := g.inner.pointer(g.index)
	if err != nil {
		return 0, err
	}
	return uint64(d.event.opened.Event), nil
}

// Device is MapGroup.Device of a session of one group.
func (m *MapSession) Device() Device { return m.group().Device() }

// DevicePointer is MapGroup.DevicePointer of a session of one group.
func (m *MapSession) DevicePointer() (uint64, error) {
	if m.inner.split {
		return 0, m.several()
	}
	return m.group().DevicePointer()
}

// group is the only one of a session.
func (m *MapSession) group() *MapGroup { return &MapGroup{session: m, inner: m.inner} }

func onHost(name string) error {
	return fail(protocol.StatusInvalidArgument, "attribute %q: this is host memory, which has no device pointer: use Bytes, Rows or Values, or ask for a device", name)
}
