package tensor

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The offsets of dlpack.h on 64-bit machines.
func TestDLPackLayout(t *testing.T) {
	var (
		d DLTensor
		m DLManagedTensor
		v DLManagedTensorVersioned
		e DType
	)
	cases := []struct {
		name      string
		got, want uintptr
	}{
		{"DLDataType", unsafe.Sizeof(e), 4},
		{"DLDataType.bits", unsafe.Offsetof(e.Bits), 1},
		{"DLDataType.lanes", unsafe.Offsetof(e.Lanes), 2},
		{"DLDevice", unsafe.Sizeof(DLDevice{}), 8},
		{"DLPackVersion", unsafe.Sizeof(DLPackVersion{}), 8},
		{"DLTensor", unsafe.Sizeof(d), 48},
		{"DLTensor.data", unsafe.Offsetof(d.Data), 0},
		{"DLTensor.device", unsafe.Offsetof(d.Device), 8},
		{"DLTensor.ndim", unsafe.Offsetof(d.NDim), 16},
		{"DLTensor.dtype", unsafe.Offsetof(d.DType), 20},
		{"DLTensor.shape", unsafe.Offsetof(d.Shape), 24},
		{"DLTensor.strides", unsafe.Offsetof(d.Strides), 32},
		{"DLTensor.byte_offset", unsafe.Offsetof(d.ByteOffset), 40},
		{"DLManagedTensor", unsafe.Sizeof(m), 64},
		{"DLManagedTensor.manager_ctx", unsafe.Offsetof(m.ManagerCtx), 48},
		{"DLManagedTensor.deleter", unsafe.Offsetof(m.Deleter), 56},
		{"DLManagedTensorVersioned", unsafe.Sizeof(v), 80},
		{"DLManagedTensorVersioned.manager_ctx", unsafe.Offsetof(v.ManagerCtx), 8},
		{"DLManagedTensorVersioned.deleter", unsafe.Offsetof(v.Deleter), 16},
		{"DLManagedTensorVersioned.flags", unsafe.Offsetof(v.Flags), 24},
		{"DLManagedTensorVersioned.dl_tensor", unsafe.Offsetof(v.Tensor), 32},
		{"the link that the deleters write", unsafe.Offsetof(versionedExport{}.link), 80},
		{"the same of the other form", unsafe.Offsetof(legacyExport{}.link), 80},
	}
	for _, c := range cases {
		require.Equal(t, c.want, c.got, c.name)
	}
	require.Equal(t, [2]uint64{1, 2}, [2]uint64{FlagReadOnly, FlagIsCopied}) // behaviour 281
}

func int64s(p *int64, n int) []int64 { return unsafe.Slice(p, n) }

// Behaviour 288, field report G15: release runs once for each deleter, whichever goroutine called it and in any order.
func TestDeletersOnManyThreads(t *testing.T) {
	const threads, each = 2, 1000
	batches := int64(200)
	if testing.Short() {
		batches = 50
	}
	var released atomic.Int64
	count := func() { released.Add(1) }
	data := counting(24)
	in := Tensor{Data: data, Shape: []int64{2, 3}, DType: Float32, Device: CPU}
	var ready atomic.Int64
	var group sync.WaitGroup
	for range threads {
		group.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var legacy [each]*DLManagedTensor
			var versioned [each]*DLManagedTensorVersioned
			for batch := range batches {
				for i := range legacy {
					var err, other error
					legacy[i], err = ExportManaged(&in, 0, count)
					versioned[i], other = ExportVersioned(&in, FlagReadOnly, count)
					if err = errors.Join(err, other); err != nil {
						panic(err)
					}
				}
				// They meet, and do nothing else: in a few instructions one may put its own over the other's.
				for ready.Add(1); ready.Load() < (batch+1)*threads; {
					runtime.Gosched()
				}
				for i := range legacy {
					Discard(versioned[i])
					Discard(legacy[i])
				}
			}
		})
	}
	group.Wait()
	require.Eventually(t, func() bool { return released.Load() == 2*threads*batches*each }, 10*time.Second, time.Millisecond)
	requireNothingLent(t)
}

func requireNothingLent(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		lent.mutex.Lock()
		defer lent.mutex.Unlock()
		return len(lent.by) == 0
	}, 10*time.Second, time.Millisecond)
}

// What a consumer holds stays, and stays in its place, though Go refers to it no more.
func TestAnExportKeepsItsMemory(t *testing.T) {
	released := make(chan struct{})
	m, err := ExportVersioned(&Tensor{Data: counting(1 << 16), Shape: []int64{256, 256}, DType: Uint8, Device: CPU}, 0, func() { close(released) })
	require.NoError(t, err)
	for range 3 {
		runtime.GC()
		_ = bytes.Repeat([]byte{0xee}, 1<<16)
	}
	require.Equal(t, counting(1<<16), unsafe.Slice((*byte)(m.Tensor.Data), 1<<16))
	require.Equal(t, []int64{256, 256}, int64s(m.Tensor.Shape, 2))
	require.Equal(t, []int64{256, 1}, int64s(m.Tensor.Strides, 2))
	select {
	case <-released:
		t.Fatal("released while a consumer has it")
	default:
	}
	Discard(m)
	select {
	case <-released:
	case <-time.After(10 * time.Second):
		t.Fatal("not released")
	}
}

// Of a copy nothing is lent: release comes at once, and not for what failed.
func TestACopyReleasesAtOnce(t *testing.T) {
	in := Tensor{Data: counting(8), Shape: []int64{2}, DType: Float32, Device: CPU, ReadOnly: true}
	released := 0
	_, err := ExportManaged(&in, 0, func() { released++ })
	requireRefused(t, err, NotSupported, "read-only") // behaviour 282
	require.Zero(t, released)
	m, err := ExportManaged(&in, FlagIsCopied, func() { released++ })
	require.NoError(t, err)
	require.Equal(t, 1, released)
	*(*byte)(m.Tensor.Data) = 99 // the consumer's
	require.Equal(t, counting(8), in.Data)
	Discard(m)
	requireNothingLent(t)
	require.Equal(t, 1, released)
}

// A deleter that is called twice is the consumer's fault: it ends no loop and releases nothing twice, and is told.
func TestADeleterCalledTwice(t *testing.T) {
	said := make(chan string, 1)
	OnFault(func(text string) { said <- text })
	t.Cleanup(func() { OnFault(nil) })
	var released atomic.Int64
	m, err := ExportManaged(&Tensor{Data: counting(4), Shape: []int64{1}, DType: Float32, Device: CPU}, 0, func() { released.Add(1) })
	require.NoError(t, err)
	Discard(m)
	require.Eventually(t, func() bool { return released.Load() == 1 }, 10*time.Second, time.Millisecond)
	Discard(m)
	select {
	case text := <-said:
		require.Contains(t, text, "twice")
	case <-time.After(10 * time.Second):
		t.Fatal("nobody is told")
	}
	requireNothingLent(t)
	m, err = ExportManaged(&Tensor{Data: counting(4), Shape: []int64{1}, DType: Float32, Device: CPU}, 0, func() { released.Add(1) })
	require.NoError(t, err)
	Discard(m)
	require.Eventually(t, func() bool { return released.Load() == 2 }, 10*time.Second, time.Millisecond)
}

func TestNoTensorIsRefused(t *testing.T) {
	_, err := ExportManaged(nil, 0, nil)
	requireRefused(t, err, InvalidArgument, "NULL")
	_, err = ExportVersioned(nil, 0, nil)
	requireRefused(t, err, InvalidArgument, "NULL")
	_, err = BufferOf(nil)
	requireRefused(t, err, InvalidArgument, "NULL")
	_, err = (*Tensor)(nil).Copy()
	requireRefused(t, err, InvalidArgument, "NULL")
	_, err = ImportManaged(nil)
	requireRefused(t, err, InvalidArgument, "got NULL")
	_, err = ImportVersioned(nil)
	requireRefused(t, err, InvalidArgument, "got NULL")
	_, err = ImportManagedCopy(nil)
	requireRefused(t, err, InvalidArgument, "got NULL")
	_, err = ImportVersionedCopy(nil)
	requireRefused(t, err, InvalidArgument, "got NULL")
}

// The shape of what came in is a private copy: the producer may change its own.
func TestAnImportedShapeIsPrivate(t *testing.T) {
	shape := []int64{0, 3}
	in, err := ImportManaged(&DLManagedTensor{Tensor: DLTensor{Device: DLDevice{Type: 1}, NDim: 2, DType: Float32, Shape: &shape[0]}})
	require.NoError(t, err)
	shape[0] = 9
	require.Equal(t, []int64{0, 3}, in.Shape)
}

// A tensor in device memory goes out with its offset in data, canonical strides and this process's number of the device
// (field reports G1, G4, G18), and comes back as an address; nobody follows it.
func TestDeviceTensorsGoOutAndIn(t *testing.T) {
	const address = 0x7f0000000000
	released := make(chan struct{})
	in := Tensor{Address: address, ByteOffset: 256, Shape: []int64{2, 1, 3}, DType: Float32, Device: Device{DeviceCUDA, 1}, ReadOnly: true}
	m, err := ExportVersioned(&in, 0, func() { close(released) })
	require.NoError(t, err)
	require.EqualValues(t, address+256, uintptr(m.Tensor.Data))
	require.Zero(t, m.Tensor.ByteOffset)
	require.Equal(t, DLDevice{Type: 2, ID: 1}, m.Tensor.Device)
	require.Equal(t, []int64{3, 3, 1}, int64s(m.Tensor.Strides, 3))
	require.Equal(t, FlagReadOnly, m.Flags)

	back, err := ImportVersioned(m)
	require.NoError(t, err)
	require.Equal(t, Tensor{Address: address + 256, Shape: []int64{2, 1, 3}, DType: Float32, Device: in.Device, ReadOnly: true}, back)
	_, err = ImportVersionedCopy(m)
	require.ErrorContains(t, err, "device type 2")
	Discard(m)
	<-released

	_, err = ExportVersioned(&in, FlagIsCopied, nil)
	require.ErrorContains(t, err, "device type 2")
	in.Address = 0
	_, err = ExportVersioned(&in, 0, nil)
	require.ErrorContains(t, err, "cuda:1")
}
