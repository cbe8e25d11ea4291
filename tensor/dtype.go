package tensor

import (
	"strconv"
	"structs"
)

// Type codes of DLPack 1.1 and later.
const (
	CodeInt               uint8 = 0
	CodeUint              uint8 = 1
	CodeFloat             uint8 = 2
	CodeOpaqueHandle      uint8 = 3 // refused: a handle means nothing in another process
	CodeBfloat            uint8 = 4
	CodeComplex           uint8 = 5
	CodeBool              uint8 = 6
	CodeFloat8E3M4        uint8 = 7
	CodeFloat8E4M3        uint8 = 8
	CodeFloat8E4M3B11FNUZ uint8 = 9
	CodeFloat8E4M3FN      uint8 = 10
	CodeFloat8E4M3FNUZ    uint8 = 11
	CodeFloat8E5M2        uint8 = 12
	CodeFloat8E5M2FNUZ    uint8 = 13
	CodeFloat8E8M0FNU     uint8 = 14
	CodeFloat6E2M3FN      uint8 = 15 // refused: elements would not start on bytes
	CodeFloat6E3M2FN      uint8 = 16 // refused
	CodeFloat4E2M1FN      uint8 = 17 // refused
)

// MaxLanes is the widest element; a wider row needs a declared row shape.
const MaxLanes = 255

// DType is the type of one element, laid out as DLDataType: 4 bytes. Bits is
// the width of one lane. The zero value is not valid (it has no lanes).
type DType struct {
	_     structs.HostLayout
	Code  uint8
	Bits  uint8
	Lanes uint16
}

// One-lane types by name.
var (
	Bool       = DType{Code: CodeBool, Bits: 8, Lanes: 1}
	Int8       = DType{Code: CodeInt, Bits: 8, Lanes: 1}
	Int16      = DType{Code: CodeInt, Bits: 16, Lanes: 1}
	Int32      = DType{Code: CodeInt, Bits: 32, Lanes: 1}
	Int64      = DType{Code: CodeInt, Bits: 64, Lanes: 1}
	Uint8      = DType{Code: CodeUint, Bits: 8, Lanes: 1}
	Uint16     = DType{Code: CodeUint, Bits: 16, Lanes: 1}
	Uint32     = DType{Code: CodeUint, Bits: 32, Lanes: 1}
	Uint64     = DType{Code: CodeUint, Bits: 64, Lanes: 1}
	Float16    = DType{Code: CodeFloat, Bits: 16, Lanes: 1}
	Float32    = DType{Code: CodeFloat, Bits: 32, Lanes: 1}
	Float64    = DType{Code: CodeFloat, Bits: 64, Lanes: 1}
	Bfloat16   = DType{Code: CodeBfloat, Bits: 16, Lanes: 1}
	Complex64  = DType{Code: CodeComplex, Bits: 64, Lanes: 1}
	Complex128 = DType{Code: CodeComplex, Bits: 128, Lanes: 1}
)

// scalars is every accepted lane type: its canonical name and, where NumPy has
// one, its short code. All other (code, bits) pairs are refused.
var scalars = []struct {
	code, bits  uint8
	name, short string
}{
	{CodeBool, 8, "bool", "b1"},
	{CodeInt, 8, "int8", "i1"},
	{CodeInt, 16, "int16", "i2"},
	{CodeInt, 32, "int32", "i4"},
	{CodeInt, 64, "int64", "i8"},
	{CodeUint, 8, "uint8", "u1"},
	{CodeUint, 16, "uint16", "u2"},
	{CodeUint, 32, "uint32", "u4"},
	{CodeUint, 64, "uint64", "u8"},
	{CodeFloat, 16, "float16", "f2"},
	{CodeFloat, 32, "float32", "f4"},
	{CodeFloat, 64, "float64", "f8"},
	{CodeBfloat, 16, "bfloat16", ""},
	{CodeComplex, 64, "complex64", "c8"},
	{CodeComplex, 128, "complex128", "c16"},
	{CodeFloat8E3M4, 8, "float8_e3m4", ""},
	{CodeFloat8E4M3, 8, "float8_e4m3", ""},
	{CodeFloat8E4M3B11FNUZ, 8, "float8_e4m3b11fnuz", ""},
	{CodeFloat8E4M3FN, 8, "float8_e4m3fn", ""},
	{CodeFloat8E4M3FNUZ, 8, "float8_e4m3fnuz", ""},
	{CodeFloat8E5M2, 8, "float8_e5m2", ""},
	{CodeFloat8E5M2FNUZ, 8, "float8_e5m2fnuz", ""},
	{CodeFloat8E8M0FNU, 8, "float8_e8m0fnu", ""},
}

// scalarName gives the canonical name of the lane type, "" when it is refused.
func (d DType) scalarName() string {
	for i := range scalars {
		if scalars[i].code == d.Code && scalars[i].bits == d.Bits {
			return scalars[i].name
		}
	}
	return ""
}

// Validate reports why the type cannot be an element of a column, or nil.
// It touches no data, so it comes first wherever a type enters.
func (d DType) Validate() error {
	if err := checkLanes(int(d.Lanes)); err != nil {
		return err
	}
	if d.scalarName() != "" {
		return nil
	}
	switch d.Code {
	case CodeOpaqueHandle:
		return invalid("element type is an opaque handle (DLPack code 3): handles mean nothing in another process; " +
			"pass numbers or bytes")
	case CodeFloat6E2M3FN, CodeFloat6E3M2FN, CodeFloat4E2M1FN:
		return notSupported("element type with DLPack code %d has %d bits per lane: elements below 8 bits are not supported; "+
			"pack them as uint8", d.Code, d.Bits)
	}
	bits := ""
	for i := range scalars {
		if scalars[i].code == d.Code {
			if bits != "" {
				bits += ", "
			}
			bits += strconv.Itoa(int(scalars[i].bits))
		}
	}
	if bits == "" {
		return invalid("element type has DLPack code %d: expected a code from 0 to 14", d.Code)
	}
	return invalid("element type with DLPack code %d has %d bits per lane: expected %s", d.Code, d.Bits, bits)
}

func checkLanes(n int) error {
	if n < 1 || n > MaxLanes {
		return invalid("element type has %d lanes: expected 1 to %d", n, MaxLanes)
	}
	return nil
}

// WithLanes gives the same lane type with n lanes; n must be 1 to 255.
func (d DType) WithLanes(n int) (DType, error) {
	if err := checkLanes(n); err != nil {
		return DType{}, err
	}
	d.Lanes = uint16(n)
	return d, nil
}

// Size is the number of bytes of one element, all its lanes included.
// The type must be valid.
func (d DType) Size() int { return int(d.Bits) / 8 * int(d.Lanes) }

// Numeric reports whether values of the type are numbers; bool is not.
func (d DType) Numeric() bool {
	return d.Code != CodeBool && d.scalarName() != ""
}

// String is the canonical name: "float32", "float32x3". A type that is not
// valid is shown by its fields.
func (d DType) String() string {
	name := d.scalarName()
	if name == "" {
		name = "dtype(code=" + strconv.Itoa(int(d.Code)) + ",bits=" + strconv.Itoa(int(d.Bits)) + ")"
	}
	if d.Lanes != 1 {
		name += "x" + strconv.Itoa(int(d.Lanes))
	}
	return name
}
