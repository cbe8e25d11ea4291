package tensor

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// requireRefused holds what every refusal owes its reader: the right kind, and
// a text with the offending input and the numbers compared (behaviour 224).
func requireRefused(t *testing.T, err error, code Code, mentions ...string) {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, code, e.Code, e.Text)
	require.NotEmpty(t, e.Text)
	for _, m := range mentions {
		require.Contains(t, e.Text, m)
	}
}

func dtype(t testing.TB, name string) DType {
	d, err := ParseDType(name)
	require.NoError(t, err)
	return d
}

// Behaviour 39 to 41, 45 and the element-type table.
func TestParseDTypeAcceptsEverySpelling(t *testing.T) {
	cases := []struct {
		in        string
		code      uint8
		bits      uint8
		lanes     uint16
		canonical string
		size      int
	}{
		{"bool", 6, 8, 1, "bool", 1}, // 45: a type of its own, not uint8
		{"|b1", 6, 8, 1, "bool", 1},
		{"?", 6, 8, 1, "bool", 1},
		{"int8", 0, 8, 1, "int8", 1},
		{"i2", 0, 16, 1, "int16", 2},
		{"<i4", 0, 32, 1, "int32", 4},
		{"=i8", 0, 64, 1, "int64", 8},
		{"uint8", 1, 8, 1, "uint8", 1},
		{"|u1", 1, 8, 1, "uint8", 1},
		{"uint16", 1, 16, 1, "uint16", 2},
		{"u4", 1, 32, 1, "uint32", 4},
		{"uint64x2", 1, 64, 2, "uint64x2", 16},
		{"<f2", 2, 16, 1, "float16", 2},
		{"f4", 2, 32, 1, "float32", 4},
		{"<f4x3", 2, 32, 3, "float32x3", 12},
		{"float32x1", 2, 32, 1, "float32", 4},
		{"float64x16", 2, 64, 16, "float64x16", 128},
		{"float64x255", 2, 64, 255, "float64x255", 2040}, // 14, 42
		{"bfloat16", 4, 16, 1, "bfloat16", 2},            // G10
		{"complex64", 5, 64, 1, "complex64", 8},          // 41
		{"c16", 5, 128, 1, "complex128", 16},
		{"float8_e3m4", 7, 8, 1, "float8_e3m4", 1},
		{"float8_e4m3", 8, 8, 1, "float8_e4m3", 1},
		{"float8_e4m3b11fnuz", 9, 8, 1, "float8_e4m3b11fnuz", 1},
		{"float8_e4m3fn", 10, 8, 1, "float8_e4m3fn", 1},
		{"float8_e4m3fnuz", 11, 8, 1, "float8_e4m3fnuz", 1},
		{"float8_e5m2", 12, 8, 1, "float8_e5m2", 1},
		{"float8_e5m2fnuz", 13, 8, 1, "float8_e5m2fnuz", 1},
		{"float8_e8m0fnux4", 14, 8, 4, "float8_e8m0fnux4", 4},
	}
	for _, c := range cases {
		t.Run(c.in, func(t *testing.T) {
			d, err := ParseDType(c.in)
			require.NoError(t, err)
			require.Equal(t, DType{Code: c.code, Bits: c.bits, Lanes: c.lanes}, d)
			require.NoError(t, d.Validate())
			require.Equal(t, c.canonical, d.String())
			require.Equal(t, c.size, d.Size())
		})
	}
}

func TestParseDTypeRefusesWithTheReason(t *testing.T) {
	cases := []struct{ in, mentions string }{
		{">f4", "big-endian"}, // G19: never read as little-endian
		{">b1", "big-endian"},
		{">f8x3", "big-endian"},
		{"|f4", "byte order"},
		{"float32x0", "0 lanes"}, // 42
		{"float32x256", "256 lanes"},
		{"float32x65537", "65537 lanes"}, // would be 1 when wrapped to 16 bits
		{"float32x", `""`},
		{"float32x-1", "-1"},
		{"float32x03", `"03"`},
		{"float32x1.5", `"1.5"`},
		{"float32x99999999999999999999", "999"},
		{"", `""`},
		{"O", `"O"`}, // 41: objects
		{"None", `"None"`},
		{"V12", `"V12"`},
		{"Float32", `"Float32"`},
		{" float32", `" float32"`},
		{"<float32", `"<float32"`},
		{"float4_e2m1fn", "float4_e2m1fn"},
		{string(make([]byte, 1000)), "1000 characters"},
	}
	for _, c := range cases {
		t.Run(c.mentions, func(t *testing.T) {
			_, err := ParseDType(c.in)
			requireRefused(t, err, InvalidArgument, c.mentions)
		})
	}
}

// Behaviour 43 and the element-type table: descriptors built by hand.
func TestDTypeValidateRefusesHandMadeDescriptors(t *testing.T) {
	cases := []struct {
		name     string
		d        DType
		code     Code
		mentions []string
	}{
		{"lanes 0", DType{Code: 2, Bits: 32}, InvalidArgument, []string{"0 lanes", "255"}},
		{"lanes 256", DType{Code: 2, Bits: 32, Lanes: 256}, InvalidArgument, []string{"256 lanes"}},
		{"lanes 65535", DType{Code: 2, Bits: 32, Lanes: 65535}, InvalidArgument, []string{"65535 lanes"}},
		{"zero value", DType{}, InvalidArgument, []string{"0 lanes"}},
		{"opaque handle", DType{Code: 3, Bits: 64, Lanes: 1}, InvalidArgument, []string{"opaque handle"}},
		{"24 bit float", DType{Code: 2, Bits: 24, Lanes: 1}, InvalidArgument, []string{"24 bits", "16, 32, 64"}},
		{"bool of 1 bit", DType{Code: 6, Bits: 1, Lanes: 1}, InvalidArgument, []string{"1 bits", "expected 8"}},
		{"int of 0 bits", DType{Code: 0, Bits: 0, Lanes: 1}, InvalidArgument, []string{"0 bits"}},
		{"complex of 32 bits", DType{Code: 5, Bits: 32, Lanes: 1}, InvalidArgument, []string{"64, 128"}},
		{"float6", DType{Code: 15, Bits: 6, Lanes: 1}, NotSupported, []string{"code 15", "6 bits"}},
		{"float6 other", DType{Code: 16, Bits: 6, Lanes: 4}, NotSupported, []string{"code 16"}},
		{"float4", DType{Code: 17, Bits: 4, Lanes: 2}, NotSupported, []string{"4 bits"}},
		{"unknown code", DType{Code: 200, Bits: 8, Lanes: 1}, InvalidArgument, []string{"code 200"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			requireRefused(t, c.d.Validate(), c.code, c.mentions...)
			require.NotEmpty(t, c.d.String())
		})
	}
}

// Behaviour 42: the bounds of the helper that takes lanes as a number.
func TestWithLanesBounds(t *testing.T) {
	for _, n := range []int{-1, 0, 256, 65536, 65537} {
		_, err := Float32.WithLanes(n)
		requireRefused(t, err, InvalidArgument, "lanes")
	}
	d, err := Float32.WithLanes(255)
	require.NoError(t, err)
	require.Equal(t, "float32x255", d.String())
}

// Field report G9: a bool is one byte, 0 or 1, wherever its strides lead.
func TestCheckBoolsNamesTheFirstBadByte(t *testing.T) {
	pairs, err := Bool.WithLanes(2)
	require.NoError(t, err)
	for _, c := range []struct {
		data           []byte
		offset         uint64
		shape, strides []int64
		dtype          DType
		bad            string // "": none
	}{
		{[]byte{0, 1, 1}, 0, []int64{3}, nil, Bool, ""},
		{nil, 0, []int64{0, 3}, []int64{7, 7}, Bool, ""},
		{[]byte{1, 0, 2, 255}, 0, []int64{4}, nil, Bool, "bool value 2 is byte 0x02"},
		{[]byte{1, 0, 2, 255}, 0, []int64{4}, nil, Uint8, ""},
		{[]byte{1, 9, 0, 9, 1}, 0, []int64{3}, []int64{2}, Bool, ""},
		{[]byte{1, 9, 0, 9, 3}, 0, []int64{3}, []int64{2}, Bool, "bool value 2 is byte 0x03"},
		{[]byte{9, 0, 0, 1}, 3, []int64{3}, []int64{-1}, Bool, ""},
		{[]byte{9, 0, 0, 1}, 3, []int64{4}, []int64{-1}, Bool, "bool value 3 is byte 0x09"},
		{[]byte{0, 1, 9, 0, 1, 9}, 0, []int64{2, 2}, []int64{3, 1}, Bool, ""},
		{[]byte{0, 1, 9, 0, 8, 9}, 0, []int64{2, 2}, []int64{3, 1}, Bool, "bool value 3 is byte 0x08"},
		{[]byte{1}, 0, []int64{2, 3}, []int64{0, 0}, Bool, ""},
		{[]byte{0, 1, 9, 9, 1, 7}, 0, []int64{2}, []int64{2}, pairs, "bool value 3 is byte 0x07"},
		{[]byte{4}, 0, []int64{}, nil, Bool, "bool value 0 is byte 0x04"},
	} {
		in := Tensor{Data: c.data, ByteOffset: c.offset, Shape: c.shape, Strides: c.strides, DType: c.dtype, Device: CPU}
		require.NoError(t, in.CheckBounds(), "%v", c)
		if c.bad == "" {
			require.NoError(t, in.CheckBools(), "%v", c)
			continue
		}
		requireRefused(t, in.CheckBools(), InvalidArgument, c.bad)
	}
}

func TestErrorsMatchTheirSentinelOnly(t *testing.T) {
	err := invalid("count is %d", 0)
	require.ErrorIs(t, err, ErrInvalidArgument)
	require.False(t, errors.Is(err, ErrNotSupported))
	require.Equal(t, "count is 0", err.Error())
	require.Equal(t, "NOT_SUPPORTED", ErrNotSupported.Error())
}

// Whatever is accepted is valid and survives its own canonical name.
func FuzzParseDType(f *testing.F) {
	for _, s := range []string{"float32x3", "<f4", "|b1", ">f8", "float8_e4m3b11fnuzx255", "x", "?x2", "f4x256"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		d, err := ParseDType(name)
		if err != nil {
			requireRefused(t, err, InvalidArgument)
			return
		}
		require.NoError(t, d.Validate())
		require.Positive(t, d.Size())
		again, err := ParseDType(d.String())
		require.NoError(t, err)
		require.Equal(t, d, again)
	})
}
