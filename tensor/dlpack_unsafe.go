package tensor

import (
	"math"
	"math/bits"
	"structs"
	"unsafe"
)

// The structs of dlpack.h, field by field. A test holds their offsets.

// DLDevice is a device type and its number: 8 bytes.
type DLDevice struct {
	_    structs.HostLayout
	Type int32
	ID   int32
}

// DLTensor is the plain descriptor: 48 bytes. Strides count elements. Shape and
// Strides are NDim values each, or nil when NDim is 0.
type DLTensor struct {
	_          structs.HostLayout
	Data       unsafe.Pointer
	Device     DLDevice
	NDim       int32
	DType      DType
	Shape      *int64
	Strides    *int64
	ByteOffset uint64
}

// DLManagedTensor is the unversioned form, which cannot say "read only": 64 bytes.
type DLManagedTensor struct {
	_          structs.HostLayout
	Tensor     DLTensor
	ManagerCtx unsafe.Pointer
	Deleter    unsafe.Pointer // void (*)(DLManagedTensor *)
}

// DLPackVersion is the version a managed tensor was made for.
type DLPackVersion struct {
	_     structs.HostLayout
	Major uint32
	Minor uint32
}

// DLManagedTensorVersioned is the form since DLPack 1.0: 80 bytes.
type DLManagedTensorVersioned struct {
	_          structs.HostLayout
	Version    DLPackVersion
	ManagerCtx unsafe.Pointer
	Deleter    unsafe.Pointer // void (*)(DLManagedTensorVersioned *)
	Flags      uint64
	Tensor     DLTensor
}

// Flags of DLManagedTensorVersioned.
const (
	FlagReadOnly uint64 = 1 << 0
	FlagIsCopied uint64 = 1 << 1
)

// DLPackMajor is the major version whose layouts these are.
const DLPackMajor = 1

// ImportManaged reads what a DLPack producer in this process made. The tensor aliases the data: nothing is copied but
// the shape. Strides must be those of row-major order, or nil, which producers before DLPack 1.2 write; where a
// dimension is 1 its stride does not matter, nor does any of an empty tensor. No alignment is asked for. A tensor of a CUDA
// device comes as its Address; what the producer has queued for it is the caller's to wait for.
//
// Ownership: the deleter stays the caller's to call, also on failure, and the tensor is good until then. The caller
// must trust the pointers: C tells nobody how much memory lies behind them.
//
// Errors: INVALID_ARGUMENT for nil and for what is no tensor; NOT_SUPPORTED for elements below 8 bits, for a device
// other than the CPU, pinned host memory and CUDA, and for strides of another order: take ImportManagedCopy.
func ImportManaged(m *DLManagedTensor) (Tensor, error) {
	if m == nil {
		return Tensor{}, noManaged()
	}
	return compactOf(describe(&m.Tensor))
}

// ImportVersioned is ImportManaged of the form since DLPack 1.0, and takes its read-only flag. Another major version is
// NOT_SUPPORTED: all but its deleter may mean anything.
func ImportVersioned(m *DLManagedTensorVersioned) (Tensor, error) {
	if err := m.check(); err != nil {
		return Tensor{}, err
	}
	t, err := compactOf(describe(&m.Tensor))
	t.ReadOnly = err == nil && m.Flags&FlagReadOnly != 0
	return t, err
}

// ImportManagedCopy copies a producer's tensor in host memory, of any strides (negative and 0 too), into row-major order.
// The producer's may go when this returns; its deleter stays the caller's to call.
func ImportManagedCopy(m *DLManagedTensor) (Tensor, error) {
	if m == nil {
		return Tensor{}, noManaged()
	}
	return copyOf(describe(&m.Tensor))
}

// ImportVersionedCopy is ImportManagedCopy of the form since DLPack 1.0. The copy may be written.
func ImportVersionedCopy(m *DLManagedTensorVersioned) (Tensor, error) {
	if err := m.check(); err != nil {
		return Tensor{}, err
	}
	return copyOf(describe(&m.Tensor))
}

func noManaged() error { return invalid("managed: expected a DLPack tensor, got NULL") }

func (m *DLManagedTensorVersioned) check() error {
	if m == nil {
		return noManaged()
	}
	if m.Version.Major != DLPackMajor {
		return notSupported("the tensor comes as DLPack %d.%d: expected %d.x", m.Version.Major, m.Version.Minor, DLPackMajor)
	}
	return nil
}

func compactOf(t Tensor, err error) (Tensor, error) {
	if err != nil {
		return Tensor{}, err
	}
	if !t.Compact() {
		return Tensor{}, notSupported("DLPack tensor has shape %s and strides %s: without a copy it must be row-major; import it with a copy",
			formatShape(t.Shape), formatShape(t.Strides))
	}
	t.Strides = nil
	return t, nil
}

func copyOf(t Tensor, err error) (Tensor, error) {
	if err == nil {
		err = t.checkHost() // who copies device memory must know its streams
	}
	if err != nil {
		return Tensor{}, err
	}
	return t.Copy()
}

// describe is the tensor that a producer's struct describes. Its word is checked as far as it can be. Data spans
// exactly the elements.
func describe(d *DLTensor) (Tensor, error) {
	if d.NDim < 0 || d.NDim > MaxDims {
		return Tensor{}, invalid("DLPack tensor has ndim %d: expected 0 to %d", d.NDim, MaxDims)
	}
	if d.NDim > 0 && d.Shape == nil {
		return Tensor{}, invalid("DLPack tensor has ndim %d and shape NULL", d.NDim)
	}
	device := Device{Type: uint32(d.Device.Type), ID: uint32(d.Device.ID)}
	if d.Device.Type < 1 || d.Device.ID < 0 || device.Type == DeviceCPU && device.ID != 0 {
		return Tensor{}, invalid("DLPack tensor is on device (%d, %d): expected a type from 1 and a number from 0, which is 0 for the CPU",
			d.Device.Type, d.Device.ID)
	}
	if !device.Host() && device.Type != DeviceCUDA {
		return Tensor{}, notSupported("DLPack tensor is on device (%d, %d): expected the CPU, pinned host memory or CUDA, types %d, %d and %d; copy it there first",
			d.Device.Type, d.Device.ID, DeviceCPU, DeviceCUDAHost, DeviceCUDA)
	}
	t := Tensor{DType: d.DType, Device: device, Shape: copyInt64s(d.Shape, d.NDim)}
	if d.Strides != nil && d.NDim > 0 {
		t.Strides = copyInt64s(d.Strides, d.NDim)
	}
	low, high, err := t.extent()
	if err != nil {
		return Tensor{}, err
	}
	if high == 0 { // empty: nothing is read, so any pointer will do
		return t, nil
	}
	if d.Data == nil {
		return Tensor{}, invalid("DLPack tensor of shape %s has no data", formatShape(t.Shape))
	}
	address := uint64(uintptr(d.Data))
	first, carry := bits.Add64(address, d.ByteOffset, 0)
	if carry != 0 {
		return Tensor{}, invalid("DLPack tensor has byte_offset %d: that is beyond the address space", d.ByteOffset)
	}
	if uint64(-low) > first || uint64(high) > math.MaxUint64-first || high > math.MaxInt64+low {
		return Tensor{}, invalid("DLPack tensor has shape %s and strides %s: it reaches beyond the address space",
			formatShape(t.Shape), t.formatStrides())
	}
	if device.Type == DeviceCUDA {
		t.Address, t.ByteOffset = uintptr(d.Data), d.ByteOffset
		return t, nil
	}
	from := unsafe.Add(d.Data, int(d.ByteOffset)+int(low)) // the sum may wrap, and then means the same address
	t.Data = unsafe.Slice((*byte)(from), high-low)
	t.ByteOffset = uint64(-low)
	return t, nil
}

// copyInt64s takes a private copy of a C array of n values.
func copyInt64s(p *int64, n int32) []int64 {
	if n == 0 {
		return nil
	}
	return append([]int64(nil), unsafe.Slice(p, n)...)
}
