package callboard

import (
	"errors"

	"callboard/cudaipc"
	"callboard/protocol"
	"callboard/tensor"
)

// checkCUDA is checked of a tensor in device memory: its bytes cannot be looked at.
func checkCUDA(t *Tensor) error {
	if t.Device.Type != tensor.DeviceCUDA {
		return fail(protocol.StatusNotSupported, "the tensor lies on %s: expected the host or CUDA", t.Device)
	}
	n, err := t.Elements()
	if err == nil {
		err = t.CheckBounds()
	}
	switch {
	case err != nil:
		return asError(err)
	case n > 0 && t.Address == 0:
		return fail(protocol.StatusInvalidArgument, "the tensor lies on %s and has no address", t.Device)
	case !t.Compact():
		return fail(protocol.StatusNotSupported, "the tensor lies on %s and has strides %v for shape %v: in device memory it must be compact, row by row; make it contiguous first", t.Device, t.Strides, t.Shape)
	}
	return nil
}

// source is the device of a tensor that is written: here, and by the broker's number.
func (c *client) source(t *Tensor) (*gpu, Device, error) {
	device, err := c.ofBroker(t.Device)
	if err != nil {
		return nil, device, err
	}
	g, err := c.gpu(device.ID)
	if err != nil {
		return nil, device, err
	}
	n, err := t.Elements()
	at := uint64(t.Address) + t.ByteOffset
	if err == nil && c.devices.void(at, c.reader.StartedNs()) {
		err = fail(protocol.StatusBrokerRestarted, "the broker restarted, and the tensor lay in device memory of the time before, which is gone")
	}
	if err == nil {
		err = g.has(at, uint64(n)*uint64(t.DType.Size()))
	}
	return g, device, asError(err)
}

// void tells whether an address lies in an arena of a broker that is gone (rule B3).
func (d *devices) void(address, now uint64) bool {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for key, in := range d.imports {
		if key.sort == protocol.DeviceArena && key.generation != now && address-uint64(in.opened.Address) < in.opened.Export.Bytes {
			return true
		}
	}
	return false
}

// has asks the driver whose memory a tensor is that a caller says lies here (field report
// G18): a copy from another device's would give other bytes, and one from nowhere would cost
// the process its context.
func (g *gpu) has(address, bytes uint64) error {
	if bytes == 0 {
		return nil
	}
	last := address + (bytes - 1)
	return g.thread.Do(func(d cudaipc.Driver) error {
		for at := address; ; {
			if err := g.hasByte(d, at); err != nil {
				if at > address && errors.Is(err, ErrInvalidArgument) {
					return fail(protocol.StatusInvalidArgument, "the tensor is said to have %d bytes at %#x on GPU %d, but at most %d of them lie in memory of that GPU", bytes, address, g.ordinal, at-address)
				}
				return err
			}
			base, size, err := d.AddressRange(cudaipc.Pointer(at))
			next := uint64(base) + size // several mappings may follow each other, as some frameworks' allocators make them
			if err != nil {
				next = last // memory that the driver keeps no range of: the ends must do
			}
			if at == last || next > last {
				return nil
			}
			at = next
		}
	})
}

// hasByte asks it of one address.
func (g *gpu) hasByte(d cudaipc.Driver, address uint64) error {
	sort, err := d.PointerAttribute(address, cudaipc.PointerMemoryType)
	if err == nil {
		if managed, unknown := d.PointerAttribute(address, cudaipc.PointerIsManaged); unknown == nil && managed != 0 {
			return nil // it lies on every device
		}
		var ordinal uint64
		if ordinal, err = d.PointerAttribute(address, cudaipc.PointerDeviceOrdinal); err == nil {
			if sort == cudaipc.MemoryDevice && uint32(ordinal) == g.ordinal {
				return nil
			}
			of := "pinned memory of the host, of GPU"
			if sort == cudaipc.MemoryDevice {
				of = "memory of GPU"
			}
			return fail(protocol.StatusInvalidArgument, "the tensor is said to lie on GPU %d (device type %d), but at %#x is %s %d", g.ordinal, tensor.DeviceCUDA, address, of, int32(ordinal))
		}
	}
	if cudaipc.CodeOf(err) != cudaipc.ErrInvalidValue {
		return cudaError(err)
	}
	return fail(protocol.StatusInvalidArgument, "the tensor is said to lie on GPU %d (device type %d), but the driver knows nothing at %#x: is it memory of the host?", g.ordinal, tensor.DeviceCUDA, address)
}

// copyOnDevice queues the copy of the payload's rows into a session's group, and gives
// what the unmap waits for then. Neither stream nor tensor is waited for here.
func (p *payload) copyOnDevice(m *session) (CUDASync, error) {
	to, err := m.pointer(0)
	if err != nil {
		return CUDASync{}, err
	}
	stream := p.sync.Stream
	if stream == 0 {
		stream = uint64(p.gpu.stream)
	}
	from := uint64(p.tensor.Address) + p.tensor.ByteOffset
	dst := to.arena.at(to.place)
	err = p.gpu.on(stream, func(d cudaipc.Driver) error {
		if p.sync.WaitEvent != 0 {
			if err := d.StreamWaitEvent(cudaipc.Stream(stream), cudaipc.Event(p.sync.WaitEvent)); err != nil {
				return err
			}
		}
		if p.take == nil {
			return d.CopyDtoDAsync(cudaipc.Pointer(dst), cudaipc.Pointer(from), p.sizeBytes, cudaipc.Stream(stream))
		}
		for i := 0; i < len(p.take); { // by runs of neighbouring rows
			first, n := uint64(p.take[i]), 1
			for i+n < len(p.take) && uint64(p.take[i+n]) == first+uint64(n) {
				n++
			}
			err := d.CopyDtoDAsync(cudaipc.Pointer(dst+uint64(i)*p.rowBytes), cudaipc.Pointer(from+first*p.rowBytes), uint64(n)*p.rowBytes, cudaipc.Stream(stream))
			if err != nil {
				return err
			}
			i += n
		}
		return nil
	})
	if err != nil {
		return CUDASync{}, cudaError(err)
	}
	return CUDASync{Stream: stream}, nil
}
