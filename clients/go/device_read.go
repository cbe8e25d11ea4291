package callboard

import (
	"context"

	"callboard/protocol"
	"callboard/snapshot"
	"callboard/tensor"
)

// Device is where the group's rows lie, by this process's number; where no CUDA driver is
// in the process, by the broker's.
func (g *Group) Device() Device {
	number := g.part.place.number
	if number == 0 {
		return CPU
	}
	d, err := g.hold.view.client.local(number)
	if err != nil {
		return CUDA(int(number - 1))
	}
	return d
}

// DevicePointer is the address, in this process, of the first of Rows rows in device
// memory: a CUdeviceptr on Device. There is nothing to wait for: what is sealed is there.
// It is read-only by contract: the driver cannot make it so, and what is stored there
// everybody sees.
//
// The group is to be released when the device is done with the rows, not when the work
// that reads them is queued: by ReleaseAfter, or behind a synchronized stream (rule V8).
//
// Errors: INVALID_ARGUMENT for host memory, INVALID_HANDLE after Release, BROKER_RESTARTED
// for rows that went with their broker; NOT_SUPPORTED where this process cannot reach the
// device, with what to do.
func (g *Group) DevicePointer() (uint64, error) {
	_, address, err := g.address()
	return address, err
}

func (g *Group) address() (*imported, uint64, error) {
	if err := g.hold.usable("the group"); err != nil {
		return nil, 0, err
	}
	p := g.part.place
	if p.number == 0 || g.IsDelete() {
		return nil, 0, onHost(g.Attribute())
	}
	in, err := g.hold.view.use(p)
	if err != nil {
		return nil, 0, named(g.Attribute(), err)
	}
	address := in.at(p)
	if g.part.rows.Dense {
		address += uint64(g.part.rows.First) * g.part.version.Column.RowBytes
	}
	return in, address, nil
}

// ReleaseAfter waits until all that was queued in a stream before the call has ended, and
// gives a group in device memory back then (rule V8). The stream is a CUstream of Device; 1 is
// its legacy default stream, 2 the default stream of the calling thread (see CUDASync).
//
// On an error the group stays. ErrTimeout when ctx ends first; INVALID_ARGUMENT for stream 0
// and host memory; of a handle that is no stream, whatever the driver makes of it.
func (g *Group) ReleaseAfter(ctx context.Context, stream uint64) error {
	held, err := g.Retain() // whoever else releases it meanwhile
	if err != nil {
		return err
	}
	defer held.Release()
	if g.part.place.number == 0 || g.IsDelete() {
		return fail(protocol.StatusInvalidArgument, "attribute %q: the group lies on the host: wait for your device, then Release it", g.Attribute())
	}
	if stream == 0 {
		return fail(protocol.StatusInvalidArgument, "attribute %q: stream is 0: 1 is the legacy default stream, and without one there is Release", g.Attribute())
	}
	on, err := g.hold.view.client.gpu(g.part.place.number - 1)
	if err == nil {
		err = on.finish(ctx, stream)
	}
	if err != nil {
		return named(g.Attribute(), err)
	}
	g.Release()
	return nil
}

func (g *Group) deviceArray() (Tensor, error) {
	in, address, err := g.address()
	if err != nil {
		return Tensor{}, err
	}
	return g.rowSchema().ViewAt(uintptr(address), CUDA(int(in.gpu.ordinal)), g.Rows(), true)
}

// On gives the same rows in other memory, as a group to be released on its own: CPU for
// the host's, or a CUDA device. Where they lie there already it costs nothing; else the
// broker makes the copy, once for each version and for all who ask, and this waits for it
// (rule C5).
//
// Errors: NOT_SUPPORTED for kind array and a device that the broker does not serve;
// OUT_OF_MEMORY; OUT_OF_RANGE for a version that is not there any more.
func (g *Group) On(ctx context.Context, device Device) (*Group, error) {
	p := *g.part
	if err := g.hold.usable("the group"); err != nil {
		return nil, err
	}
	if err := g.hold.elsewhere(ctx, &p, device); err != nil {
		return nil, err
	}
	other, err := newGroup(g.hold, &p)
	if err != nil {
		return nil, err
	}
	other.single = g.single
	return other, nil
}

// placeOf is where a version lies; of one that went with its broker, in no life.
func (c *client) placeOf(v *snapshot.Version) place {
	p := place{block: v.Block, number: v.DeviceNumber}
	if p.number != 0 && !v.Void {
		p.generation = c.reader.StartedNs()
	}
	return p
}

// elsewhere makes a part one of the same rows on another device. The hold's pin covers the
// version.
func (h *hold) elsewhere(ctx context.Context, p *part, device Device) error {
	c := h.view.client
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	device, err := c.ofBroker(device)
	if err != nil {
		return named(p.name, err)
	}
	number := uint32(0)
	if device.Type == tensor.DeviceCUDA {
		number = device.ID + 1
	}
	v := &p.version
	if number == p.place.number || p.deleted != nil || device == (Device{}) {
		return nil
	}
	if v.Column.IsArray() || v.Column == pathColumn {
		return fail(protocol.StatusNotSupported, "attribute %q: attributes of kind array, and paths, are read on the host", p.name)
	}
	size := v.Rows * v.Column.RowBytes
	if size == 0 {
		return nil
	}
	op, err := c.call(ctx, request{what: "copying attribute " + p.name, opcode: protocol.OpMirror, handle: uint64(v.Column.Index), ordinal: v.Birth, value: uint64(number), results: sizeOf[protocol.MirrorResults]()})
	if err != nil {
		return err
	}
	m, ok := decode[protocol.MirrorResults](op.content)
	if !ok || m.DeviceNumber != number || m.Block.LengthBytes < size {
		return fail(protocol.StatusInternal, "the broker described a copy of %d bytes for device number %d in %d bytes: it has %d, for number %d", size, number, len(op.content), m.Block.LengthBytes, m.DeviceNumber)
	}
	schema := v.Column.Schema
	schema.Device = deviceFor(device, nil)
	p.schema, p.place, v.Data = &schema, place{m.Block, m.DeviceNumber, m.ArenaGeneration}, nil
	if number != 0 {
		return nil
	}
	mem, err := c.segment(m.Block.Segment)
	if err != nil {
		return asError(err)
	}
	if all := uint64(len(mem)); m.Block.OffsetBytes > all || size > all-m.Block.OffsetBytes {
		return fail(protocol.StatusInternal, "the broker says that a copy of %d bytes lies at %d of segment %d, which has %d", size, m.Block.OffsetBytes, m.Block.Segment, all)
	}
	v.Data = mem[m.Block.OffsetBytes:][:size:size]
	return nil
}
