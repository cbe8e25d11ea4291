package tensor

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// counting is data whose byte i is i, so that a wrong place shows.
func counting(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i*7 + i>>8)
	}
	return data
}

// naiveGather is Gather as its definition reads: every index of every element.
func naiveGather(t *Tensor) []byte {
	size := t.DType.Size()
	var out []byte
	var visit func(dim int, at int64)
	visit = func(dim int, at int64) {
		if dim == len(t.Shape) {
			from := int64(t.ByteOffset) + at*int64(size)
			out = append(out, t.Data[from:from+int64(size)]...)
			return
		}
		for i := range t.Shape[dim] {
			visit(dim+1, at+i*t.Strides[dim])
		}
	}
	visit(0, 0)
	return out
}

// Behaviour 10, 11, 13: any strides are gathered correctly.
func TestGather(t *testing.T) {
	data := counting(4096)
	cases := []struct {
		name           string
		dtype          string
		offset         uint64
		shape, strides []int64
	}{
		{"10 explicit compact", "float32", 0, []int64{3, 4}, []int64{4, 1}},
		{"11 every second element", "float32", 0, []int64{5}, []int64{2}},
		{"11 backwards", "float32", 64, []int64{5}, []int64{-1}},
		{"11 backwards by three", "uint8", 64, []int64{5}, []int64{-3}},
		{"11 broadcast row", "float64x3", 24, []int64{4}, []int64{0}},
		{"11 broadcast of all", "uint16", 2, []int64{3, 4}, []int64{0, 0}},
		{"11 transposed", "float64", 0, []int64{4, 3}, []int64{1, 4}},
		{"11 cropped image", "uint8", 100, []int64{5, 6, 3}, []int64{60, 3, 1}},
		{"11 flipped image", "uint8x3", 3 * 19, []int64{4, 20}, []int64{20, -1}},
		{"11 overlapping windows", "float32", 0, []int64{6, 3}, []int64{1, 1}},
		{"11 mixed signs", "uint16x2", 400, []int64{2, 3, 4}, []int64{-20, 6, -1}},
		{"G8 element not aligned", "float64", 3, []int64{4}, []int64{2}},
		{"G4 size-1 dimensions with odd strides", "float32", 0, []int64{1, 4, 1}, []int64{math.MaxInt64, 1, -99}},
		{"13 rank zero is one element", "float64", 8, []int64{}, []int64{}},
		{"19 no elements, odd strides", "float32", 9999, []int64{0, 3}, []int64{math.MaxInt64, math.MinInt64}},
		{"complex elements", "complex128", 16, []int64{3, 2}, []int64{2, 5}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := Tensor{Data: data, ByteOffset: c.offset, Shape: c.shape, Strides: c.strides, DType: dtype(t, c.dtype), Device: CPU}
			n, err := in.Bytes()
			require.NoError(t, err)
			dst := make([]byte, n)
			require.NoError(t, in.Gather(dst))
			require.Equal(t, naiveGather(&in), append([]byte(nil), dst...))
		})
	}
}

// Behaviour 10: absent strides are compact ones.
func TestGatherNilStrides(t *testing.T) {
	in := Tensor{Data: counting(100), ByteOffset: 4, Shape: []int64{2, 3}, DType: Float32, Device: CPU}
	require.True(t, in.Compact())
	dst := make([]byte, 24)
	require.NoError(t, in.Gather(dst))
	require.Equal(t, in.Data[4:28], dst)
}

// Behaviour 11: reading bytes that are not the tensor's is forbidden.
func TestGatherRefusesWhatLiesOutside(t *testing.T) {
	cases := []struct {
		name           string
		offset         uint64
		shape, strides []int64
		mentions       []string
	}{
		{"one element too many", 0, []int64{26}, nil, []string{"0 to 104", "100 bytes"}},
		{"offset too large", 4, []int64{25}, nil, []string{"4 to 104", "100 bytes"}},
		{"before the data", 4, []int64{3}, []int64{-1}, []string{"-4 to 8"}},
		{"stride past the end", 0, []int64{2}, []int64{25}, []string{"(25,)", "0 to 104"}},
		{"extent wraps", 0, []int64{3}, []int64{math.MaxInt64 / 4}, []string{"stride", "64 bits"}},
		{"extent wraps below", 0, []int64{3}, []int64{math.MinInt64}, []string{"stride", "64 bits"}},
		{"two extents wrap", 0, []int64{2, 2, 2}, []int64{1 << 60, 1 << 60, 1 << 60}, []string{"dimension 1", "64 bits"}},
		{"two extents wrap below", 0, []int64{2, 2, 2, 2}, []int64{-1 << 60, -1 << 60, -1 << 60, -1 << 60}, []string{"dimension 2", "64 bits"}},
		{"offset wraps", math.MaxUint64 - 3, []int64{2}, nil, []string{"byte_offset", "64 bits"}},
		{"offset and extent wrap", math.MaxInt64, []int64{2}, nil, []string{"64 bits"}},
		{"strides of another rank", 0, []int64{2, 2}, []int64{1}, []string{"1 strides", "2 dimensions"}},
		{"negative dimension", 0, []int64{-2}, nil, []string{"-2"}},
		{"65 dimensions", 0, make([]int64, 65), nil, []string{"65 dimensions"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := Tensor{Data: make([]byte, 100), ByteOffset: c.offset, Shape: c.shape, Strides: c.strides, DType: Float32, Device: CPU}
			n, err := in.Bytes()
			if err == nil {
				err = in.Gather(make([]byte, n))
			}
			requireRefused(t, err, InvalidArgument, c.mentions...)
		})
	}
}

func TestGatherRefusesWrongDestinationAndDevice(t *testing.T) {
	in := Tensor{Data: make([]byte, 12), Shape: []int64{3}, DType: Float32, Device: CPU}
	requireRefused(t, in.Gather(make([]byte, 8)), InvalidArgument, "12 bytes", "has 8")
	in.Device = Device{Type: DeviceCUDA}
	requireRefused(t, in.Gather(make([]byte, 12)), NotSupported, "cuda:0")
}

func TestCompact(t *testing.T) {
	cases := []struct {
		name           string
		shape, strides []int64
		want           bool
	}{
		{"nil", []int64{2, 3}, nil, true},
		{"row-major", []int64{2, 3}, []int64{3, 1}, true},
		{"column-major", []int64{2, 3}, []int64{1, 2}, false},
		{"G4 size 1 with any stride", []int64{1, 3, 1}, []int64{77, 1, 0}, true},
		{"empty", []int64{0, 3}, []int64{5, 5}, true},
		{"rank zero", []int64{}, []int64{}, true},
		{"gap", []int64{2, 3}, []int64{4, 1}, false},
		{"reversed", []int64{3}, []int64{-1}, false},
		{"broadcast", []int64{3}, []int64{0}, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := Tensor{Shape: c.shape, Strides: c.strides, DType: Float32, Device: CPU}
			require.Equal(t, c.want, in.Compact())
		})
	}
}

func TestGatherAllocatesNothing(t *testing.T) {
	in := Tensor{Data: make([]byte, 4000), Shape: []int64{10, 10}, Strides: []int64{20, 2}, DType: Float32, Device: CPU}
	dst := make([]byte, 400)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := in.Gather(dst); err != nil {
			t.Fatal(err)
		}
	}))
}

// Behaviour 11 against the naive model, over shapes and strides of all signs.
func FuzzGather(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed)
	}
	names := []string{"uint8", "uint16", "float32", "float64", "float32x3", "complex128", "uint8x5"}
	f.Fuzz(func(t *testing.T, seed uint64) {
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		in := Tensor{Data: counting(2000), ByteOffset: r.Uint64N(2000), DType: dtype(t, names[r.IntN(len(names))]), Device: CPU}
		for range r.IntN(5) {
			in.Shape = append(in.Shape, r.Int64N(5))
			in.Strides = append(in.Strides, r.Int64N(25)-12)
		}
		if r.IntN(2) == 0 { // row-major here and there, so that dimensions join
			canonical := make([]int64, len(in.Shape))
			canonicalStrides(canonical, in.Shape)
			for i := range canonical {
				if r.IntN(3) > 0 {
					in.Strides[i] = canonical[i]
				}
			}
		}
		n, err := in.Bytes()
		require.NoError(t, err)
		dst := make([]byte, n)
		if err := in.Gather(dst); err != nil {
			requireRefused(t, err, InvalidArgument)
			low, high := naiveExtent(&in)
			require.True(t, low < 0 || high > int64(len(in.Data)), "refused although it covers bytes %d to %d", low, high)
			require.Equal(t, make([]byte, n), dst, "written although refused")
			return
		}
		want := naiveGather(&in)
		require.True(t, slices.Equal(want, dst), "shape %v strides %v", in.Shape, in.Strides)
		if in.Compact() && n > 0 {
			require.Equal(t, in.Data[in.ByteOffset:in.ByteOffset+uint64(n)], dst)
		}
	})
}

// naiveExtent is where the outermost corners of a tensor lie in its data.
func naiveExtent(t *Tensor) (low, high int64) {
	size := int64(t.DType.Size())
	low, high = int64(t.ByteOffset), int64(t.ByteOffset)+size
	for i, dim := range t.Shape {
		low += min(0, (dim-1)*t.Strides[i]*size)
		high += max(0, (dim-1)*t.Strides[i]*size)
	}
	return low, high
}
