package callboard

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"time"

	"callboard/cudaipc"
	"callboard/protocol"
	"callboard/tensor"
)

// Device says where memory lies: a DLPack device type and a number. The number of a CUDA
// device is this process's own, as in "cuda:0": CUDA_VISIBLE_DEVICES may give other
// processes another order, so devices are matched by UUID. The zero Device leaves it to
// the attribute.
type Device = tensor.Device

// CPU is the host's memory.
var CPU = tensor.CPU

// CUDA is the device with a number of this process.
func CUDA(ordinal int) Device { return Device{Type: tensor.DeviceCUDA, ID: uint32(ordinal)} }

// cuda is what this process has of NVIDIA's driver, for all its stages. Nothing of it is
// there before somebody asks for device memory.
var cuda = struct {
	sync.Mutex
	load   func() (cudaipc.Driver, error)
	driver cudaipc.Driver
	gpus   map[cudaipc.UUID]*gpu
}{load: func() (cudaipc.Driver, error) { return cudaipc.Load("") }, gpus: map[cudaipc.UUID]*gpu{}}

// gpu is a device in this process while a stage uses it: its primary context, on a thread
// of its own, and what is imported there, each thing once however many stages share it
// (rule C2).
type gpu struct {
	uuid    cudaipc.UUID
	ordinal uint32
	thread  *cudaipc.Thread
	imports *cudaipc.Imports
	stream  cudaipc.Stream // the library's own
	users   int            // stages; under cuda's mutex
}

// cudaDriver loads the driver. A failure is not remembered (behaviour 306).
func cudaDriver() (cudaipc.Driver, error) {
	cuda.Lock()
	defer cuda.Unlock()
	return cudaDriverLocked()
}

func cudaDriverLocked() (cudaipc.Driver, error) {
	if cuda.driver == nil {
		d, err := cuda.load()
		if err != nil {
			return nil, &Error{Status: protocol.StatusNotSupported, Text: "device memory cannot be used in this process: " + err.Error() +
				"; `callboard doctor` says more; read and fill on the host instead (Device: CPU, Staging: CPU)", cause: err}
		}
		cuda.driver = d
	}
	return cuda.driver, nil
}

// openGPU takes a device, which close gives back.
func openGPU(uuid cudaipc.UUID) (*gpu, error) {
	cuda.Lock()
	defer cuda.Unlock()
	if g := cuda.gpus[uuid]; g != nil {
		g.users++
		return g, nil
	}
	d, err := cudaDriverLocked()
	if err != nil {
		return nil, err
	}
	ordinal, err := cudaipc.FindDevice(d, uuid)
	if err != nil {
		return nil, cudaError(err)
	}
	g := &gpu{uuid: uuid, ordinal: uint32(ordinal), users: 1}
	if g.thread, err = cudaipc.NewThread(d, ordinal); err != nil {
		return nil, cudaError(err)
	}
	err = g.thread.Do(func(d cudaipc.Driver) (err error) {
		g.stream, err = d.StreamCreate()
		return err
	})
	if err != nil {
		_ = g.thread.Close()
		return nil, cudaError(err)
	}
	g.imports = cudaipc.NewImports(g.thread)
	cuda.gpus[uuid] = g
	return g, nil
}

// close gives the device back: with the last stage its context goes, unless somebody else
// in this process has it too.
func (g *gpu) close() {
	cuda.Lock()
	defer cuda.Unlock()
	if g.users--; g.users > 0 {
		return
	}
	delete(cuda.gpus, g.uuid)
	_ = g.thread.Do(func(d cudaipc.Driver) error { return d.StreamDestroy(g.stream) })
	_ = g.thread.Close()
}

// The stream handles that mean no stream of the caller's making (cuda.h).
const perThreadStream = 2

// on runs f where the driver may be called for a stream: on the device's thread, or, for
// the default stream of the calling thread, there. Its context is the caller's business.
func (g *gpu) on(stream uint64, f func(cudaipc.Driver) error) error {
	if stream != perThreadStream {
		return g.thread.Do(f)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f(g.thread.Driver())
}

// finish waits for what is in a stream now. It asks an event of its own for it: others use
// the device's thread meanwhile.
func (g *gpu) finish(ctx context.Context, stream uint64) error {
	var event cudaipc.Event
	err := g.on(stream, func(d cudaipc.Driver) (err error) {
		if event, err = d.EventCreate(cudaipc.EventLocal); err != nil {
			return err
		}
		if err = d.EventRecord(event, cudaipc.Stream(stream)); err != nil {
			_ = d.EventDestroy(event)
		}
		return err
	})
	if err != nil {
		return cudaError(err)
	}
	err = g.thread.WaitFor(event, time.Now().Add(math.MaxInt64), func() bool { return ctx.Err() == nil })
	_ = g.thread.Do(func(d cudaipc.Driver) error { return d.EventDestroy(event) })
	if errors.Is(err, cudaipc.ErrProducerDied) { // as the wait says it
		return gaveUp(ctx, "the work in the stream")
	}
	return cudaError(err)
}

// cudaError gives a driver's error its kind: the driver's text names function and code.
func cudaError(err error) error {
	if err == nil {
		return nil
	}
	status := protocol.StatusInternal
	var own *Error
	var opening *cudaipc.ImportError
	switch {
	case errors.As(err, &own):
		return own
	case errors.Is(err, cudaipc.ErrOutOfMemory):
		status = protocol.StatusOutOfMemory
	case errors.Is(err, cudaipc.ErrOtherDevice), errors.As(err, &opening), errors.Is(err, cudaipc.ErrNotBuilt):
		status = protocol.StatusNotSupported
	case errors.Is(err, cudaipc.ErrInvalidHandle), errors.Is(err, cudaipc.ErrInvalidValue), errors.Is(err, cudaipc.ErrInvalidContext):
		status = protocol.StatusInvalidArgument
	}
	return &Error{Status: status, Text: err.Error(), cause: err}
}
