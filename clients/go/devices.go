package callboard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"callboard/cudaipc"
	"callboard/protocol"
	"callboard/tensor"
)

// devices is what a stage has of device memory in this process. Empty until a group or a
// read is of device memory.
type devices struct {
	stale atomic.Bool // dropImports may find something to close

	mutex   sync.Mutex
	uuids   map[uint32]cudaipc.UUID // of the broker's devices, by its number
	gpus    map[cudaipc.UUID]*gpu
	imports map[importKey]*imported
	opening int  // imports on their way, which the broker counts already
	left    bool // the stage is being closed: nothing is opened any more
}

// importKey names an arena by its segment or an event by its index, and the life of the
// broker that made it.
type importKey struct {
	sort       uint32 // protocol.DeviceArena or DeviceEvent
	id         uint64
	generation uint64
}

func (k importKey) String() string {
	if k.sort == protocol.DeviceEvent {
		return fmt.Sprintf("event %d", k.id)
	}
	return fmt.Sprintf("device arena %d", k.id)
}

// imported is an arena or an event in this process. It stays open while nobody uses it,
// until its segment is retired or its broker gone (rules B3, C6).
type imported struct {
	gpu    *gpu
	opened *cudaipc.Import
	uses   int         // by views, sessions and exports
	going  bool        // to be closed with its last use
	queued atomic.Bool // an event that was recorded for a group whose unmap has not ended
}

// place is where something lies in device memory: BlockRef, device number and arena
// generation of a version or a group.
type place struct {
	block      protocol.BlockRef
	number     uint32 // 1 + the broker's index of the device
	generation uint64
}

// uuid asks which device the broker means by a number, once; one that it does not serve now each time anew, since being
// asked is what makes it try.
func (c *client) uuid(index uint32) (cudaipc.UUID, error) {
	d := &c.devices
	d.mutex.Lock()
	uuid, known := d.uuids[index]
	d.mutex.Unlock()
	if known {
		return uuid, nil
	}
	reply, err := c.askDevice(protocol.DeviceInfo, index, 0)
	if errors.Is(err, ErrNotFound) && reply.Uuid != (cudaipc.UUID{}) {
		return reply.Uuid, nil // the broker says why it does not serve it now, when something is to be done there
	}
	if err != nil {
		return uuid, err
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.uuids == nil {
		d.uuids = map[uint32]cudaipc.UUID{}
	}
	d.uuids[index] = reply.Uuid
	return reply.Uuid, nil
}

// gpu is the broker's device with a number, in this process.
func (c *client) gpu(index uint32) (*gpu, error) {
	uuid, err := c.uuid(index)
	if err != nil {
		return nil, err
	}
	d := &c.devices
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if g := d.gpus[uuid]; g != nil {
		return g, nil
	}
	g, err := openGPU(uuid)
	if err != nil {
		return nil, err
	}
	if d.gpus == nil {
		d.gpus = map[cudaipc.UUID]*gpu{}
	}
	d.gpus[uuid] = g
	return g, nil
}

// local is a place's device by this process's number.
func (c *client) local(number uint32) (Device, error) {
	if number == 0 {
		return CPU, nil
	}
	g, err := c.gpu(number - 1)
	if err != nil {
		return Device{}, err
	}
	return Device{Type: tensor.DeviceCUDA, ID: g.ordinal}, nil
}

// devicesMax bounds how many devices a broker is believed to have: as many as event indices can name.
const devicesMax = 256

// ofBroker is a device of this process by the broker's number. Without a driver here the
// number is the broker's own.
func (c *client) ofBroker(given Device) (Device, error) {
	switch {
	case given == Device{} || given == CPU:
		return given, nil
	case given.Type == tensor.DeviceCPU:
		return given, fail(protocol.StatusInvalidArgument, "device cpu has id %d: expected 0", given.ID)
	case given.Type != tensor.DeviceCUDA:
		return given, fail(protocol.StatusNotSupported, "device is %s: expected the CPU or CUDA, types %d and %d", given, tensor.DeviceCPU, tensor.DeviceCUDA)
	}
	none := func(err error) error {
		if errors.Is(err, ErrNotSupported) {
			return fail(protocol.StatusNotSupported, "device is %s: the broker serves host memory only; `callboard doctor` says why", given)
		}
		return fail(protocol.StatusNotSupported, "device is %s, which the broker does not serve: %s; `callboard info` lists what it serves, `callboard doctor` says why not more", given, asError(err).(*Error).Text)
	}
	d, err := cudaDriver()
	if err != nil {
		if _, err := c.uuid(given.ID); err != nil {
			return given, none(err)
		}
		return given, nil
	}
	count, err := d.DeviceCount()
	if err != nil {
		return given, cudaError(err)
	}
	if int64(given.ID) >= int64(count) {
		return given, fail(protocol.StatusInvalidArgument, "device is %s: this process sees %d CUDA devices", given, count)
	}
	_, info, err := cudaipc.Describe(d, int(given.ID))
	if err != nil {
		return given, cudaError(err)
	}
	for index := uint32(0); ; index++ {
		if index == devicesMax {
			return given, none(fail(protocol.StatusNotFound, "the broker tells of %d devices and of no end of them", index))
		}
		uuid, err := c.uuid(index)
		switch {
		case errors.Is(err, ErrNotSupported):
			return given, none(err)
		case errors.Is(err, ErrNotFound):
			return given, none(fail(protocol.StatusNotFound, "it is %s (%v) here, and of the broker's %d devices it is none", info.Name, info.UUID, index))
		case err != nil:
			return given, err
		case uuid == info.UUID:
			return Device{Type: tensor.DeviceCUDA, ID: index}, nil
		}
	}
}

// askDevice asks the broker over the socket (rule C2), or the next one.
func (c *client) askDevice(sort, index uint32, segment uint64) (reply protocol.DeviceReply, err error) {
	request := protocol.DeviceRequest{Header: messageHeader[protocol.DeviceRequest](protocol.MessageDeviceRequest), Sort: sort, Index: index, Segment: segment}
	for {
		if reply, err = c.askDeviceOnce(&request); !errors.Is(err, ErrBrokerRestarted) {
			return reply, err
		}
		if err := c.settle(context.Background()); err != nil {
			return reply, err
		}
	}
}

func (c *client) askDeviceOnce(request *protocol.DeviceRequest) (reply protocol.DeviceReply, err error) {
	c.talking.Lock()
	defer c.talking.Unlock()
	if err := c.alive(); err != nil {
		return reply, err
	}
	var buf [protocol.MessageBytesMax]byte
	msg, files, err := c.talk(bytesOf(request), buf[:])
	files.close()
	if err != nil {
		return reply, err
	}
	reply, ok := decode[protocol.DeviceReply](msg)
	if err := checkMessage(msg, ok, protocol.MessageDeviceReply); err != nil {
		return reply, err
	}
	if reply.Sort != request.Sort || reply.Index != request.Index {
		return reply, fail(protocol.StatusInternal, "the broker answered for device object %d of sort %d, asked was %d of %d", reply.Index, reply.Sort, request.Index, request.Sort)
	}
	if status := protocol.Status(reply.Status); status != protocol.StatusOK {
		what := fmt.Sprintf("device %d", request.Index)
		if request.Sort != protocol.DeviceInfo {
			what = importKey{sort: request.Sort, id: max(request.Segment, uint64(request.Index))}.String()
		}
		return reply, fail(status, "the broker has no %s (any more)", what)
	}
	return reply, nil
}

// use gives the import of the arena that a place lies in; it stays open until unuse.
func (c *client) use(p place) (*imported, error) {
	a, err := c.importOf(importKey{protocol.DeviceArena, p.block.Segment, p.generation}, p.number-1)
	if err != nil {
		return nil, err
	}
	if size := a.opened.Export.Bytes; p.block.OffsetBytes > size || p.block.LengthBytes > size-p.block.OffsetBytes {
		c.unuse(a)
		return nil, fail(protocol.StatusInternal, "the broker says %d bytes at %d of device arena %d, which has %d", p.block.LengthBytes, p.block.OffsetBytes, p.block.Segment, size)
	}
	return a, nil
}

// useEvent is use for the event of a group that lies at p (rule C3).
func (c *client) useEvent(p place, index uint32) (*imported, error) {
	return c.importOf(importKey{protocol.DeviceEvent, uint64(index), p.generation}, p.number-1)
}

// importOf gives an import on the broker's device with a number, and counts the use.
func (c *client) importOf(key importKey, index uint32) (*imported, error) {
	d := &c.devices
	if key.generation != c.reader.StartedNs() {
		return nil, fail(protocol.StatusBrokerRestarted, "%s went with the broker that made it; read or map the attribute anew", key)
	}
	in, err := d.known(key)
	if in != nil || err != nil {
		return in, err
	}
	defer d.opened()
	g, err := c.gpu(index)
	if err != nil {
		return nil, err
	}
	// Of an arena the segment names it, of an event the number.
	number, segment := uint32(0), key.id
	if key.sort == protocol.DeviceEvent {
		number, segment = uint32(key.id), 0
	}
	reply, err := c.askDevice(key.sort, number, segment)
	if err != nil {
		return nil, err
	}
	if reply.ArenaGeneration != key.generation || reply.Uuid != g.uuid {
		return nil, fail(protocol.StatusInternal, "the broker gave %s as of generation %d on %v: expected %d on %v", key, reply.ArenaGeneration, cudaipc.UUID(reply.Uuid), key.generation, g.uuid)
	}
	x, err := cudaipc.ExportOf(&reply)
	if err != nil {
		return nil, fail(protocol.StatusInternal, "%v", err)
	}
	x.Index = uint32(key.id)         // with the generation it tells apart what several brokers export
	opened, err := g.imports.Open(x) // which may take long
	if err != nil {
		return nil, cudaError(err)
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if in := d.imports[key]; in != nil { // somebody else was faster
		_, _ = opened.Close()
		in.uses++
		return in, nil
	}
	in = &imported{gpu: g, opened: opened, uses: 1}
	if d.imports == nil {
		d.imports = map[importKey]*imported{}
	}
	d.imports[key] = in
	return in, nil
}

// known counts one more use of what is open; nil: the caller is to open it, and to call
// opened then.
func (d *devices) known(key importKey) (*imported, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	in := d.imports[key]
	switch {
	case in != nil:
		in.uses++
	case d.left:
		return nil, fail(protocol.StatusSessionEnded, "this stage was closed; dial again")
	default:
		d.opening++
	}
	return in, nil
}

func (d *devices) opened() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.opening--
}

func (c *client) unuse(in *imported) {
	d := &c.devices
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if in.uses--; in.uses == 0 && in.going {
		d.stale.Store(true)
	}
}

// at is the address, in this process, of a place in the arena.
func (in *imported) at(p place) uint64 { return uint64(in.opened.Address) + p.block.OffsetBytes }

// dropImports closes what nobody uses of arenas that left service and of what went with
// its broker. It tells the broker of the first (rule C6).
func (c *client) dropImports() {
	d := &c.devices
	if !d.stale.Load() || !d.stale.Swap(false) {
		return
	}
	now := c.reader.StartedNs()
	var closed []uint64
	d.mutex.Lock()
	if d.opening > 0 { // of one that the broker was told of, another opening must not come after it
		d.stale.Store(true)
		d.mutex.Unlock()
		return
	}
	late := d.pending(now)
	for key, in := range d.imports {
		retired := key.generation == now
		if !retired && late {
			d.stale.Store(true) // what was queued still fills it: the next call looks again
			continue
		}
		if retired {
			if key.sort != protocol.DeviceArena {
				continue
			}
			if e, ok, err := c.reader.Segment(key.id); err != nil || !ok || e.State != protocol.SegmentRetired {
				continue
			}
		}
		if in.going = true; in.uses > 0 {
			continue
		}
		delete(d.imports, key)
		if _, err := in.opened.Close(); err != nil {
			tell(slog.LevelWarn, logHandle, "stage %s: closing %s: %v", c.options.Stage, key, err)
		}
		if retired {
			closed = append(closed, key.id)
		}
	}
	d.mutex.Unlock()
	c.tellClosed(closed)
}

// tellClosed tells the broker of arenas that this process has closed.
func (c *client) tellClosed(arenas []uint64) {
	if len(arenas) == 0 {
		return
	}
	c.mutex.Lock()
	for _, id := range arenas {
		c.deferred = append(c.deferred, request{what: "closing a device arena", opcode: protocol.OpArenaClosed, value: id, life: c.life})
	}
	c.mutex.Unlock()
	c.drain()
}

// leaveDevices closes the arenas that nobody uses, and waits until the broker has heard of
// it: then it need not wait for the end of this process (rules B4, C6). What views and
// sessions use stays, as does all where work that was handed over goes on for more than a
// second.
func (c *client) leaveDevices() {
	d := &c.devices
	d.mutex.Lock()
	used := d.gpus != nil
	d.left = true
	for range quietTurns {
		if !d.pending(0) {
			break
		}
		d.mutex.Unlock()
		time.Sleep(quietTurn)
		d.mutex.Lock()
	}
	var closed []uint64
	if used && d.opening == 0 && !d.pending(0) {
		now := c.reader.StartedNs()
		for key, in := range d.imports {
			if key.sort != protocol.DeviceArena || key.generation != now || in.uses > 0 {
				continue
			}
			delete(d.imports, key)
			if _, err := in.opened.Close(); err == nil {
				closed = append(closed, key.id)
			}
		}
	}
	d.mutex.Unlock()
	if !used {
		return
	}
	c.tellClosed(closed)
	ctx, cancel := context.WithTimeout(context.Background(), leaveMax)
	defer cancel()
	for ctx.Err() == nil {
		heard := c.ring.Listen()
		c.drain()
		if !c.toBeTold() {
			return
		}
		c.waitTurn(ctx, heard)
	}
}

const (
	leaveMax   = 2 * time.Second // bounds how long Close waits for the broker
	quietTurns = 200             // and how often it looks for the end of work that was handed over
	quietTurn  = 5 * time.Millisecond
)

// toBeTold tells whether the broker has yet to hear of a closed arena.
func (c *client) toBeTold() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.ended.Load() != nil || c.gap.Load() != nil {
		return false
	}
	for _, op := range c.ops {
		if op.request.opcode == protocol.OpArenaClosed {
			return true
		}
	}
	return slices.ContainsFunc(c.deferred, func(r request) bool { return r.opcode == protocol.OpArenaClosed && r.life == c.life })
}

// pending tells whether work that was handed over goes on, in memory of brokers that are
// gone: nobody else waits for it there. The caller holds mutex.
func (d *devices) pending(now uint64) bool {
	for key, in := range d.imports {
		if key.sort != protocol.DeviceEvent || key.generation == now || !in.queued.Load() {
			continue
		}
		done := true
		err := in.gpu.thread.Do(func(driver cudaipc.Driver) (err error) {
			done, err = driver.EventQuery(in.opened.Event)
			return err
		})
		if err == nil && !done {
			return true
		}
	}
	return false
}

// restarted forgets how the broker of before counted its devices.
func (d *devices) restarted() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.uuids = nil
	d.stale.Store(true)
}

// close gives everything back; nobody uses any of it, but what was queued may: then it is
// left to the end of the process.
func (d *devices) close() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.pending(0) {
		return
	}
	for _, in := range d.imports {
		_, _ = in.opened.Close()
	}
	for _, g := range d.gpus {
		g.close()
	}
	d.imports, d.gpus = nil, nil
}
