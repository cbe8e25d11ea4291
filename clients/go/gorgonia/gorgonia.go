package gorgonia

import (
	"gorgonia.org/cu"

	callboard "callboard/clients/go"
)

// OnDevice is memory that may lie on a device: a Group, a MapGroup, a MapSession of one
// group.
type OnDevice interface {
	Device() callboard.Device
	DevicePointer() (uint64, error)
}

// Pointer is where the memory of a group begins on its device. The errors are those of
// DevicePointer.
func Pointer(g OnDevice) (cu.DevicePtr, error) {
	p, err := g.DevicePointer()
	return cu.DevicePtr(p), err
}

// Device is where the memory of a group lies: cu.CPU for the host's.
func Device(g OnDevice) cu.Device {
	d := g.Device()
	if d.Host() {
		return cu.CPU
	}
	return cu.Device(d.ID)
}

// After is what an unmap or a write waits for: all that was queued in stream so far, and
// event's latest record, nil for none. cu.NoStream is no stream to wait for.
func After(stream cu.Stream, event *cu.Event) callboard.CUDASync {
	sync := callboard.CUDASync{Stream: handleOfStream(&stream)}
	if event != nil {
		sync.WaitEvent = handleOfEvent(event)
	}
	return sync
}

// Event is the event of a group that is filled, for work of this process that must come
// after it: Stream.Wait. It is recorded by the unmap and is not to be destroyed.
func Event(g *callboard.MapGroup) (e cu.Event, err error) {
	handle, err := g.Event()
	if err != nil {
		return e, err
	}
	return eventOf(handle), nil
}

// Tensor describes memory of cu's, compact, for a write: on which device it lies, and as
// what. It must stay as it is until the write's Op is done.
func Tensor(p cu.DevicePtr, on cu.Device, dtype callboard.DType, shape ...int) callboard.Tensor {
	t := callboard.Tensor{Address: uintptr(p), DType: dtype, Device: callboard.CUDA(int(on)), Shape: []int64{}}
	for _, dim := range shape {
		t.Shape = append(t.Shape, int64(dim))
	}
	return t
}
