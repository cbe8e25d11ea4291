package callboard

import (
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
	return g, device, err
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
