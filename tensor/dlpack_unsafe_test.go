package tensor

import (
	"math"
	"testing"
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
	}
	for _, c := range cases {
		require.Equal(t, c.want, c.got, c.name)
	}
	require.Equal(t, [2]uint64{1, 2}, [2]uint64{FlagReadOnly, FlagIsCopied}) // behaviour 281
}

func int64s(p *int64, n int) []int64 { return unsafe.Slice(p, n) }

// G1, G2, G4: strides are always written, in elements, canonical when compact.
func TestExportWritesStrides(t *testing.T) {
	data := make([]byte, 480)
	cases := []struct {
		name                 string
		shape, strides, want []int64
	}{
		{"G1 compact", []int64{2, 3, 4}, nil, []int64{12, 4, 1}},
		{"G2 strided", []int64{2, 3}, []int64{8, 2}, []int64{8, 2}},
		{"G4 size-1 dimensions", []int64{1, 3, 1}, []int64{99, 1, 7}, []int64{3, 1, 1}},
		{"empty", []int64{0, 3}, nil, []int64{3, 1}},
		{"empty inside", []int64{2, 0, 3}, nil, []int64{3, 3, 1}},
		{"broadcast", []int64{4}, []int64{0}, []int64{0}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := Tensor{Data: data, ByteOffset: 4, Shape: c.shape, Strides: c.strides, DType: Float32, Device: CPU}
			d, err := Export(&in)
			require.NoError(t, err)
			require.Equal(t, int32(len(c.shape)), d.NDim)
			require.Equal(t, c.shape, int64s(d.Shape, len(c.shape)))
			require.Equal(t, c.want, int64s(d.Strides, len(c.shape)))
			require.Equal(t, unsafe.Pointer(&data[0]), d.Data)
			require.Equal(t, uint64(4), d.ByteOffset)
			require.Equal(t, DLDevice{Type: 1}, d.Device)
		})
	}
}

// G3: rank zero has neither shape nor strides, and one element.
func TestExportRankZero(t *testing.T) {
	in := Tensor{Data: counting(8), Shape: []int64{}, DType: Float64, Device: CPU}
	d, err := Export(&in)
	require.NoError(t, err)
	require.Zero(t, d.NDim)
	require.Nil(t, d.Shape)
	require.Nil(t, d.Strides)
	back, err := Import(d)
	require.NoError(t, err)
	require.Empty(t, back.Shape)
	n, err := back.Elements()
	require.NoError(t, err)
	require.Equal(t, int64(1), n)
	require.Equal(t, in.Data, back.Data)
}

// Behaviour 286: our pinned host memory is host memory; a GPU is itself.
func TestExportDevice(t *testing.T) {
	in := Tensor{Data: make([]byte, 4), Shape: []int64{1}, DType: Float32, Device: Device{Type: DeviceCUDAHost}}
	d, err := Export(&in)
	require.NoError(t, err)
	require.Equal(t, DLDevice{Type: 1}, d.Device)

	in = Tensor{Address: 0x7f0000000000, ByteOffset: 256, Shape: []int64{1000}, DType: Float32, Device: Device{DeviceCUDA, 3}}
	d, err = Export(&in)
	require.NoError(t, err)
	require.Equal(t, DLDevice{Type: 2, ID: 3}, d.Device)
	require.Equal(t, uintptr(0x7f0000000000), uintptr(d.Data))
	back, err := Import(d)
	require.NoError(t, err)
	require.Nil(t, back.Data)
	require.Equal(t, in.Address, back.Address)
	require.Equal(t, uint64(256), back.ByteOffset)
	requireRefused(t, back.Gather(make([]byte, 4000)), NotSupported, "cuda:3")
}

func TestExportRefusesWhatIsOutOfBounds(t *testing.T) {
	_, err := Export(&Tensor{Data: make([]byte, 7), Shape: []int64{2}, DType: Float32, Device: CPU})
	requireRefused(t, err, InvalidArgument, "0 to 8", "7 bytes")
}

// Behaviour 291 and G1: aliased, not copied; absent strides are compact.
func TestImport(t *testing.T) {
	data := counting(100)
	shape := []int64{3, 2}
	for _, c := range []struct {
		name    string
		strides []int64
		offset  uint64
		start   int // of the bytes spanned
		length  int
	}{
		{"G1 NULL strides", nil, 8, 8, 24},
		{"explicit", []int64{2, 1}, 0, 0, 24},
		{"11 negative", []int64{-4, 1}, 40, 8, 40},
		{"11 zero", []int64{0, 1}, 5, 5, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &DLTensor{Data: unsafe.Pointer(&data[0]), Device: DLDevice{Type: 1}, NDim: 2, DType: Float32,
				Shape: &shape[0], Strides: unsafe.SliceData(c.strides), ByteOffset: c.offset}
			in, err := Import(d)
			require.NoError(t, err)
			require.NoError(t, in.CheckBounds())
			require.Same(t, &data[c.start], &in.Data[0])
			require.Len(t, in.Data, c.length)
			whole := Tensor{Data: data, ByteOffset: c.offset, Shape: shape, Strides: c.strides, DType: Float32, Device: CPU}
			want, got := make([]byte, 24), make([]byte, 24)
			require.NoError(t, whole.Gather(want))
			require.NoError(t, in.Gather(got))
			require.Equal(t, want, got)
		})
	}
}

func TestImportRefusesBadDescriptors(t *testing.T) {
	data := make([]byte, 64)
	shape, strides := []int64{2, 3}, []int64{3, 1}
	cases := []struct {
		name     string
		change   func(d *DLTensor)
		mentions []string
	}{
		{"43 lanes 0", func(d *DLTensor) { d.DType.Lanes = 0 }, []string{"0 lanes"}},
		{"43 lanes 256", func(d *DLTensor) { d.DType.Lanes = 256 }, []string{"256 lanes"}},
		{"opaque handle", func(d *DLTensor) { d.DType = DType{Code: 3, Bits: 64, Lanes: 1} }, []string{"opaque"}},
		{"negative ndim", func(d *DLTensor) { d.NDim = -1 }, []string{"ndim -1"}},
		{"huge ndim", func(d *DLTensor) { d.NDim = math.MaxInt32 }, []string{"2147483647"}},
		{"NULL shape", func(d *DLTensor) { d.Shape = nil }, []string{"shape is NULL"}},
		{"NULL data", func(d *DLTensor) { d.Data = nil }, []string{"data NULL"}},
		{"230 no such cpu", func(d *DLTensor) { d.Device.ID = 1 }, []string{"cpu device 1"}},
		{"device type 0", func(d *DLTensor) { d.Device.Type = 0 }, []string{"device type 0"}},
		{"device id -1", func(d *DLTensor) { d.Device.ID = -1 }, []string{"id -1"}},
		{"offset beyond all memory", func(d *DLTensor) { d.ByteOffset = math.MaxUint64 }, []string{"byte_offset"}},
		{"extent below all memory", func(d *DLTensor) { d.Strides = &[]int64{-1 << 60, 1}[0] }, []string{"outside of all memory"}},
		{"extent wraps", func(d *DLTensor) { d.Strides = &[]int64{math.MinInt64, 1}[0] }, []string{"64 bits"}},
		{"size wraps", func(d *DLTensor) { d.Shape = &[]int64{math.MaxInt64, 3}[0] }, []string{"bytes"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := &DLTensor{Data: unsafe.Pointer(&data[0]), Device: DLDevice{Type: 1}, NDim: 2, DType: Float32,
				Shape: &shape[0], Strides: &strides[0]}
			_, err := Import(d)
			require.NoError(t, err)
			c.change(d)
			_, err = Import(d)
			requireRefused(t, err, InvalidArgument, c.mentions...)
		})
	}
	_, err := Import(nil)
	requireRefused(t, err, InvalidArgument, "NULL")
}

// An empty tensor often has no data pointer at all.
func TestImportEmptyWithoutData(t *testing.T) {
	shape := []int64{0, 3}
	in, err := Import(&DLTensor{Device: DLDevice{Type: 1}, NDim: 2, DType: Float32, Shape: &shape[0]})
	require.NoError(t, err)
	require.NoError(t, in.Gather(nil))
	shape[0] = 9
	require.Equal(t, []int64{0, 3}, in.Shape, "the shape is a private copy")
}

// Behaviour 281, 298, G11: the versioned form carries the read-only flag.
func TestImportVersioned(t *testing.T) {
	data, shape := make([]byte, 8), []int64{2}
	m := &DLManagedTensorVersioned{Version: DLPackVersion{Major: 1, Minor: 3}, Flags: FlagReadOnly | FlagIsCopied,
		Tensor: DLTensor{Data: unsafe.Pointer(&data[0]), Device: DLDevice{Type: 1}, NDim: 1, DType: Float32, Shape: &shape[0]}}
	in, err := ImportVersioned(m)
	require.NoError(t, err)
	require.True(t, in.ReadOnly)
	m.Flags = FlagIsCopied
	in, err = ImportVersioned(m)
	require.NoError(t, err)
	require.False(t, in.ReadOnly)
	m.Version.Major = 2
	_, err = ImportVersioned(m)
	requireRefused(t, err, NotSupported, "version 2.3", "major version 1")
	_, err = ImportVersioned(nil)
	requireRefused(t, err, InvalidArgument, "NULL")
}
