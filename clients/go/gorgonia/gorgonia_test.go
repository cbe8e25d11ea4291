package gorgonia

import (
	"testing"

	"gorgonia.org/cu"

	callboard "callboard/clients/go"
)

type fake struct {
	device  callboard.Device
	pointer uint64
}

func (f fake) Device() callboard.Device       { return f.device }
func (f fake) DevicePointer() (uint64, error) { return f.pointer, nil }

// Handles of cu go to the client as the driver has them, and come back.
func TestHandlesAreTheDrivers(t *testing.T) {
	device, err := cu.GetDevice(0)
	if err != nil {
		t.Fatal(err)
	}
	context, err := device.RetainPrimaryCtx()
	if err != nil {
		t.Fatal(err)
	}
	context.Lock()
	defer context.Unlock()
	if err := cu.SetCurrentContext(context); err != nil {
		t.Fatal(err)
	}
	stream, err := cu.MakeStream(cu.NonBlocking)
	if err != nil {
		t.Fatal(err)
	}
	event, err := cu.MakeEvent(cu.DisableTiming)
	if err != nil {
		t.Fatal(err)
	}
	if err := event.Record(stream); err != nil {
		t.Fatal(err)
	}
	sync := After(stream, &event)
	if sync.Stream < 4096 || sync.WaitEvent < 4096 || sync.Stream == sync.WaitEvent {
		t.Fatalf("After gives %+v: expected two handles", sync)
	}
	if After(cu.NoStream, nil) != (callboard.CUDASync{}) {
		t.Fatal("NoStream is something to wait for")
	}
	again := eventOf(sync.WaitEvent)
	if err := stream.Wait(again, 0); err != nil { // the driver knows it
		t.Fatal(err)
	}
	if err := stream.Synchronize(); err != nil {
		t.Fatal(err)
	}

	on := fake{callboard.CUDA(1), 0x7f0000001000}
	if p, err := Pointer(on); err != nil || p != 0x7f0000001000 || Device(on) != 1 || Device(fake{device: callboard.CPU}) != cu.CPU {
		t.Fatal(p, err, Device(on))
	}
	dtype, _ := callboard.ParseDType("float32")
	got := Tensor(0x7f0000001000, 1, dtype, 2, 3)
	if n, err := got.Bytes(); err != nil || n != 24 || got.Address != 0x7f0000001000 || got.Device != callboard.CUDA(1) {
		t.Fatal(got, err)
	}
}
