package callboard

import (
	"reflect"
	"unsafe"

	"callboard/protocol"
	"callboard/tensor"
)

// Tensor describes an array of the caller: bytes, shape, strides in elements (nil:
// compact, row-major) and element type. Dimension 0 counts rows where a query's
// prims are written.
type Tensor = tensor.Tensor

// DType is an element type as DLPack has it; ParseDType reads "float32x3" and NumPy's
// short codes.
type DType = tensor.DType

// Semantic says what the numbers of an attribute stand for.
type Semantic = tensor.Semantic

// Selection says which of a query's prims a payload is for, and from which rows.
// Count is tensor.All (AllPrims) for the whole query; 0 is refused.
type Selection = tensor.Selection

// AllPrims as a Selection's Count means the whole query.
const AllPrims = tensor.All

// ParseDType reads the name of an element type: "float32", "uint8x4", "<f4".
func ParseDType(name string) (DType, error) {
	d, err := tensor.ParseDType(name)
	return d, asError(err)
}

// FromSlice describes values, in place, as a compact tensor of the given shape; no
// shape means one dimension. T is a numeric type or bool, or an array of such
// ([3]float32): the array's elements become trailing dimensions.
//
// Errors: INVALID_ARGUMENT for other types and for a shape with another number of
// elements.
func FromSlice[T any](values []T, shape ...int) (Tensor, error) {
	t, err := fromSlice(reflect.ValueOf(values), bytesOfSlice(values))
	if err != nil || len(shape) == 0 {
		return t, err
	}
	n := 1
	for _, dim := range shape {
		if dim < 0 {
			return Tensor{}, fail(protocol.StatusInvalidArgument, "shape %v has %d in it: dimensions are at least 0", shape, dim)
		}
		n *= dim
	}
	if n != len(values) {
		return Tensor{}, fail(protocol.StatusInvalidArgument, "shape %v has %d elements: the slice has %d", shape, n, len(values))
	}
	full := make([]int64, 0, len(shape)+len(t.Shape)-1)
	for _, dim := range shape {
		full = append(full, int64(dim))
	}
	t.Shape = append(full, t.Shape[1:]...)
	return t, nil
}

// fromSlice describes a slice whose element type is a number or an array of such.
func fromSlice(v reflect.Value, data []byte) (Tensor, error) {
	shape := []int64{int64(v.Len())}
	element := v.Type().Elem()
	for element.Kind() == reflect.Array {
		shape = append(shape, int64(element.Len()))
		element = element.Elem()
	}
	dtype, ok := dtypeOf(element.Kind())
	if !ok {
		return Tensor{}, fail(protocol.StatusInvalidArgument, "%s holds no numbers: expected a slice of a numeric type, of bool, or of arrays of such", v.Type())
	}
	return Tensor{Data: data, Shape: shape, DType: dtype, Device: tensor.CPU}, nil
}

// dtypeOf is the element type of a Go kind. int and uint are refused: their size
// differs from machine to machine.
func dtypeOf(k reflect.Kind) (DType, bool) {
	switch k {
	case reflect.Bool:
		return tensor.Bool, true
	case reflect.Int8:
		return tensor.Int8, true
	case reflect.Int16:
		return tensor.Int16, true
	case reflect.Int32:
		return tensor.Int32, true
	case reflect.Int64:
		return tensor.Int64, true
	case reflect.Uint8:
		return tensor.Uint8, true
	case reflect.Uint16:
		return tensor.Uint16, true
	case reflect.Uint32:
		return tensor.Uint32, true
	case reflect.Uint64:
		return tensor.Uint64, true
	case reflect.Float32:
		return tensor.Float32, true
	case reflect.Float64:
		return tensor.Float64, true
	case reflect.Complex64:
		return tensor.Complex64, true
	case reflect.Complex128:
		return tensor.Complex128, true
	}
	return DType{}, false
}

// toTensor takes what a caller hands in as values: a Tensor, a slice as FromSlice
// takes it, an array or a single number (rank 0), or a view of sealed data.
func toTensor(values any) (Tensor, error) {
	switch v := values.(type) {
	case nil:
		return Tensor{}, fail(protocol.StatusInvalidArgument, "values are nil: expected a tensor, a slice or a number")
	case Tensor:
		return checked(v)
	case *Tensor:
		return checked(*v)
	case *Group:
		t, err := v.Array()
		if err != nil {
			return t, err
		}
		return checked(t)
	}
	v := reflect.ValueOf(values)
	switch v.Kind() {
	case reflect.Slice:
		if v.Len() == 0 {
			return fromSlice(v, nil)
		}
		return fromSlice(v, unsafe.Slice((*byte)(v.UnsafePointer()), uintptr(v.Len())*v.Type().Elem().Size()))
	case reflect.Array: // a copy that does not move
		p := reflect.New(v.Type())
		p.Elem().Set(v)
		return fromSlice(p.Elem().Slice(0, v.Len()), unsafe.Slice((*byte)(p.UnsafePointer()), v.Type().Size()))
	}
	if dtype, ok := dtypeOf(v.Kind()); ok {
		p := reflect.New(v.Type())
		p.Elem().Set(v)
		return Tensor{Data: unsafe.Slice((*byte)(p.UnsafePointer()), v.Type().Size()), Shape: []int64{}, DType: dtype, Device: tensor.CPU}, nil
	}
	return Tensor{}, fail(protocol.StatusInvalidArgument, "values are of type %T: expected a Tensor, a slice or array of numbers of a fixed size, or such a number (not int or uint)", values)
}

// toHostTensor is toTensor of what only the host has.
func toHostTensor(values any) (Tensor, error) {
	t, err := toTensor(values)
	if err == nil && !t.Device.Host() {
		err = fail(protocol.StatusNotSupported, "the tensor lies on %s: attributes of kind array lie on the host; copy it there first", t.Device)
	}
	return t, err
}

func checked(t Tensor) (Tensor, error) {
	if t.Device == (tensor.Device{}) {
		t.Device = tensor.CPU
	}
	if !t.Device.Host() {
		return t, checkCUDA(&t)
	}
	if t.Device.Type == tensor.DeviceCPU && t.Device.ID != 0 { // behaviour 230; pinned memory may name its GPU
		return t, fail(protocol.StatusInvalidArgument, "the tensor lies on CPU device %d: expected 0, there is no other", t.Device.ID)
	}
	err := t.CheckBounds()
	if err == nil {
		err = t.CheckBools()
	}
	return t, asError(err)
}
