package tensor

import (
	"math"
	"math/bits"
)

// MaxDims is the most dimensions of a tensor that is taken in.
const MaxDims = 64

// Tensor describes an array that somebody else owns. The element at index 0 of
// all dimensions starts ByteOffset bytes into Data; with negative strides
// others lie before it.
//
// Shape and Strides must be private to the process: they are checked and then
// believed. The bytes in Data may be shared.
type Tensor struct {
	Data       []byte  // host memory; nil when the CPU cannot touch it
	Address    uintptr // device memory: where Data would start; 0 on the host
	ByteOffset uint64  // bytes
	Shape      []int64 // each at least 0
	Strides    []int64 // in elements; nil means compact row-major
	DType      DType
	Device     Device
	ReadOnly   bool // the holder must not write through this view
}

// Elements is the product of the shape: 1 for rank zero, 0 when any dimension
// is 0. It also checks element type, rank, dimensions and the number of strides.
func (t *Tensor) Elements() (int64, error) {
	if err := t.DType.Validate(); err != nil {
		return 0, err
	}
	if len(t.Shape) > MaxDims {
		return 0, invalid("tensor has %d dimensions: expected at most %d", len(t.Shape), MaxDims)
	}
	if t.Strides != nil && len(t.Strides) != len(t.Shape) {
		return 0, invalid("tensor has %d strides for %d dimensions: expected one each, or none for compact row-major",
			len(t.Strides), len(t.Shape))
	}
	n, overflow, empty := uint64(1), false, false
	for i, dim := range t.Shape {
		if dim < 0 {
			return 0, invalid("tensor of shape %s has %d in dimension %d: expected 0 or more", formatShape(t.Shape), dim, i)
		}
		empty = empty || dim == 0
		hi, lo := bits.Mul64(n, uint64(dim))
		overflow = overflow || hi != 0
		n = lo
	}
	if empty {
		return 0, nil
	}
	hi, size := bits.Mul64(n, uint64(t.DType.Size()))
	if overflow || hi != 0 || size > math.MaxInt64 {
		return 0, invalid("tensor of shape %s and element type %s has more than %d bytes",
			formatShape(t.Shape), t.DType, int64(math.MaxInt64))
	}
	return int64(n), nil
}

// Bytes is the size of the tensor's elements when they lie compact.
func (t *Tensor) Bytes() (int64, error) {
	n, err := t.Elements()
	return n * int64(t.DType.Size()), err
}

// Compact reports whether the elements lie row-major without gaps, so that they
// may be taken over as they are. Strides of dimensions of size 1 do not matter,
// nor do any in an empty tensor. The tensor must have passed Elements.
func (t *Tensor) Compact() bool {
	if t.Strides == nil {
		return true
	}
	for _, dim := range t.Shape {
		if dim == 0 {
			return true
		}
	}
	want := int64(1)
	for i := len(t.Shape) - 1; i >= 0; i-- {
		if t.Shape[i] == 1 {
			continue
		}
		if t.Strides[i] != want {
			return false
		}
		want *= t.Shape[i]
	}
	return true
}

// extent gives the bytes that the elements span, relative to the first one:
// low is at most 0, high is one past the last byte. Both are 0 when empty.
func (t *Tensor) extent() (low, high int64, err error) {
	n, err := t.Elements()
	if err != nil || n == 0 {
		return 0, 0, err
	}
	size := int64(t.DType.Size())
	if t.Strides == nil {
		return 0, n * size, nil
	}
	high = size
	for i, dim := range t.Shape {
		span, ok1 := mulInt64(dim-1, t.Strides[i])
		span, ok2 := mulInt64(span, size)
		end := &high
		if span < 0 {
			end = &low
		}
		sum := *end + span
		if !ok1 || !ok2 || (span < 0) != (sum < *end) && span != 0 {
			return 0, 0, invalid("tensor of shape %s has stride %d in dimension %d: its extent exceeds 64 bits",
				formatShape(t.Shape), t.Strides[i], i)
		}
		*end = sum
	}
	return low, high, nil
}

// CheckBounds reports which limit the tensor's elements exceed, or nil. Host
// tensors must lie in Data; for device tensors only the arithmetic is checked.
func (t *Tensor) CheckBounds() error {
	low, high, err := t.extent()
	if err != nil || high == 0 {
		return err
	}
	if t.ByteOffset > math.MaxInt64 || int64(t.ByteOffset) > math.MaxInt64-high {
		return invalid("tensor has byte_offset %d and spans %d bytes: their sum exceeds 64 bits", t.ByteOffset, high)
	}
	first := int64(t.ByteOffset)
	if t.Device.Host() && (first+low < 0 || first+high > int64(len(t.Data))) {
		return invalid("tensor of shape %s, strides %s and element type %s covers bytes %d to %d: its data has %d bytes",
			formatShape(t.Shape), t.formatStrides(), t.DType, first+low, first+high, len(t.Data))
	}
	return nil
}

func (t *Tensor) formatStrides() string {
	if t.Strides == nil {
		return "(compact)"
	}
	return formatShape(t.Strides)
}

// mulInt64 multiplies and reports whether the product fits.
func mulInt64(a, b int64) (int64, bool) {
	if a == 0 || b == 0 {
		return 0, true
	}
	c := a * b
	if a == -1 && b == math.MinInt64 || b == -1 && a == math.MinInt64 {
		return c, false
	}
	return c, c/b == a
}
