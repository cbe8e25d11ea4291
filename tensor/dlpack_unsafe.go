package tensor

import (
	"math"
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

// Export describes t for a DLPack consumer. Strides are always written, and of
// compact data they are the canonical ones also where a dimension has size 1,
// since consumers differ in what they expect there. Rank zero has neither shape
// nor strides. Pinned host memory is given as plain host memory.
//
// Ownership: the descriptor, its shape and its strides are one Go allocation
// that t's data does not refer to; whoever passes them to C pins them
// (runtime.Pinner) and keeps the data alive for as long. DLTensor has no
// read-only flag: the caller carries t.ReadOnly into the managed form.
func Export(t *Tensor) (*DLTensor, error) {
	if err := t.CheckBounds(); err != nil {
		return nil, err
	}
	rank := len(t.Shape)
	d := &DLTensor{
		Device:     DLDevice{Type: int32(t.Device.Type), ID: int32(t.Device.ID)},
		NDim:       int32(rank),
		DType:      t.DType,
		ByteOffset: t.ByteOffset,
	}
	if t.Device.Host() {
		d.Device = DLDevice{Type: int32(DeviceCPU)}
		d.Data = unsafe.Pointer(unsafe.SliceData(t.Data))
	} else {
		// A device address is no Go pointer; it is carried as one, never followed.
		d.Data = *(*unsafe.Pointer)(unsafe.Pointer(&t.Address))
	}
	if rank == 0 {
		return d, nil
	}
	both := make([]int64, 2*rank)
	copy(both, t.Shape)
	strides := both[rank:]
	if t.Compact() {
		canonicalStrides(strides, t.Shape)
	} else {
		copy(strides, t.Strides)
	}
	d.Shape, d.Strides = &both[0], &strides[0]
	return d, nil
}

// canonicalStrides are those of a compact row-major tensor. A dimension of size
// 0 counts as 1, so that empty tensors get sound strides too; since such a shape
// has no checked product, the strides may wrap there, where none is ever used.
func canonicalStrides(strides, shape []int64) {
	step := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = step
		step *= max(shape[i], 1)
	}
}

// Import reads a descriptor that a DLPack producer in this process made. The
// tensor aliases the data: nothing is copied but shape and strides. Strides may
// be nil (producers before DLPack 1.2) and mean compact then. No alignment is
// asked for. The caller keeps the producer's tensor alive, and must trust the
// pointers: C tells nobody how much memory lies behind them.
//
// Host data become Data, which spans exactly the elements; of device data only
// Address is kept.
func Import(d *DLTensor) (Tensor, error) {
	if d == nil {
		return Tensor{}, invalid("DLPack tensor is NULL")
	}
	if d.NDim < 0 || d.NDim > MaxDims {
		return Tensor{}, invalid("DLPack tensor has ndim %d: expected 0 to %d", d.NDim, MaxDims)
	}
	if d.NDim > 0 && d.Shape == nil {
		return Tensor{}, invalid("DLPack tensor has ndim %d but shape is NULL", d.NDim)
	}
	if d.Device.Type < 1 || d.Device.ID < 0 {
		return Tensor{}, invalid("DLPack tensor has device type %d, id %d: expected a type from 1 and an id from 0",
			d.Device.Type, d.Device.ID)
	}
	if uint32(d.Device.Type) == DeviceCPU && d.Device.ID != 0 {
		return Tensor{}, invalid("DLPack tensor is on cpu device %d: expected 0", d.Device.ID)
	}
	t := Tensor{
		DType:  d.DType,
		Device: Device{Type: uint32(d.Device.Type), ID: uint32(d.Device.ID)},
		Shape:  copyInt64s(d.Shape, d.NDim),
	}
	if d.Strides != nil && d.NDim > 0 {
		t.Strides = copyInt64s(d.Strides, d.NDim)
	}
	low, high, err := t.extent()
	if err != nil {
		return Tensor{}, err
	}
	switch {
	case high == 0: // empty: nothing is read, so any pointer will do
		return t, nil
	case d.Data == nil:
		return Tensor{}, invalid("DLPack tensor of shape %s has data NULL", formatShape(t.Shape))
	case d.ByteOffset > math.MaxInt64-uint64(high) || high > math.MaxInt64+low:
		return Tensor{}, invalid("DLPack tensor has byte_offset %d and spans bytes %d to %d from there: that exceeds 64 bits",
			d.ByteOffset, low, high)
	}
	if !t.Device.Host() {
		t.Address, t.ByteOffset = uintptr(d.Data), d.ByteOffset
		return t, nil
	}
	first := int64(d.ByteOffset) + low
	address := uint64(uintptr(d.Data))
	if first < 0 && uint64(-first) > address || first+(high-low) > 0 && uint64(first+(high-low)) > math.MaxUint64-address {
		return Tensor{}, invalid("DLPack tensor spans bytes %d to %d of data at %#x: that is outside of all memory",
			first, first+(high-low), address)
	}
	t.Data = unsafe.Slice((*byte)(unsafe.Add(d.Data, first)), high-low)
	t.ByteOffset = uint64(-low)
	return t, nil
}

// ImportVersioned is Import of the managed form since DLPack 1.0: it refuses
// another major version, whose layout is unknown, and takes the read-only flag.
// The deleter stays the caller's to call.
func ImportVersioned(m *DLManagedTensorVersioned) (Tensor, error) {
	if m == nil {
		return Tensor{}, invalid("DLPack managed tensor is NULL")
	}
	if m.Version.Major != DLPackMajor {
		return Tensor{}, notSupported("DLPack managed tensor has version %d.%d: expected major version %d",
			m.Version.Major, m.Version.Minor, DLPackMajor)
	}
	t, err := Import(&m.Tensor)
	t.ReadOnly = m.Flags&FlagReadOnly != 0
	return t, err
}

// copyInt64s takes a private copy of a C array of n values.
func copyInt64s(p *int64, n int32) []int64 {
	if n == 0 {
		return nil
	}
	return append([]int64(nil), unsafe.Slice(p, n)...)
}
