package main

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"callboard/tensor"
)

// Behaviour 39: what is shown is what lies there, at the extremes too.
func TestScalarsOfEveryTypeAtTheirExtremes(t *testing.T) {
	for _, c := range []struct {
		dtype tensor.DType
		raw   []byte
		want  any
	}{
		{tensor.Int8, []byte{0x80}, int64(-128)},
		{tensor.Int16, []byte{0xff, 0x7f}, int64(32767)},
		{tensor.Int32, []byte{0xff, 0xff, 0xff, 0xff}, int64(-1)},
		{tensor.Int64, []byte{0, 0, 0, 0, 0, 0, 0, 0x80}, int64(math.MinInt64)},
		{tensor.Uint8, []byte{0xff}, uint64(255)},
		{tensor.Uint64, []byte{255, 255, 255, 255, 255, 255, 255, 255}, uint64(math.MaxUint64)},
		{tensor.Bool, []byte{1}, true},
		{tensor.Float16, []byte{0x00, 0x3c}, 1.0},
		{tensor.Float16, []byte{0xff, 0xfb}, -65504.0},
		{tensor.Float16, []byte{0x01, 0x00}, math.Ldexp(1, -24)},
		{tensor.Float16, []byte{0x00, 0x7c}, math.Inf(1)},
		{tensor.Bfloat16, []byte{0x80, 0xbf}, -1.0},
		{tensor.Float32, []byte{0, 0, 0x80, 0x3f}, 1.0},
		{tensor.Float64, []byte{0, 0, 0, 0, 0, 0, 0xf0, 0xbf}, -1.0},
		{tensor.Complex64, []byte{0, 0, 0x80, 0x3f, 0, 0, 0x80, 0xbf}, complex(1, -1)},
		{tensor.Complex128, []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0, 0, 0, 0xf0, 0xbf}, complex(1, -1)},
		{tensor.DType{Code: tensor.CodeFloat8E4M3FN, Bits: 8, Lanes: 1}, []byte{0xa5}, "0xa5"},
	} {
		require.Equal(t, []any{c.want}, scalars(c.dtype, c.raw, -1), "%v", c.dtype)
	}
	require.True(t, math.IsNaN(scalars(tensor.Float16, []byte{0x01, 0x7c}, -1)[0].(float64)))
}

func TestRowsSayHowMuchTheyLeaveOut(t *testing.T) {
	require.Equal(t, "1  2  … and 2 more", formatRow(tensor.Uint8, []byte{1, 2, 3, 4}, 2))
	require.Equal(t, "1  2", formatRow(tensor.Uint8, []byte{1, 2}, 2))
}

// JSON has no NaN and no infinity; a document with one would be no JSON.
func TestNumbersThatJSONCannotHoldBecomeText(t *testing.T) {
	data, err := json.Marshal([]any{jsonScalar(math.NaN()), jsonScalar(math.Inf(-1)), jsonScalar(0.1), jsonScalar(1e300), jsonScalar(complex(1, 2)), jsonScalar(true)})
	require.NoError(t, err)
	require.Equal(t, `["NaN","-Inf",0.1,1e+300,"(1+2i)",true]`, string(data))
}
