package tensor

import (
	"encoding/binary"
	"encoding/hex"
	"math"
)

// Scalar gives one element in raw, without lanes, as a number of Go: int64, uint64, float64, bool, complex128, or the
// hexadecimal digits of a type that Go has no number for. raw must hold d.Bits/8 bytes.
func Scalar(d DType, raw []byte) any {
	var padded [8]byte
	copy(padded[:], raw)
	bits := binary.LittleEndian.Uint64(padded[:])
	switch {
	case d.Code == CodeUint:
		return bits
	case d.Code == CodeInt:
		unused := 64 - uint(d.Bits)
		return int64(bits<<unused) >> unused // the sign bit moves up and is drawn down again
	case d.Code == CodeBool:
		return bits != 0
	case d.Code == CodeFloat && d.Bits == 64:
		return math.Float64frombits(bits)
	case d.Code == CodeFloat && d.Bits == 32:
		return float64(math.Float32frombits(uint32(bits)))
	case d.Code == CodeFloat && d.Bits == 16:
		return half(uint16(bits))
	case d.Code == CodeBfloat:
		return float64(math.Float32frombits(uint32(bits) << 16))
	case d.Code == CodeComplex && d.Bits == 64:
		return complex(float64(math.Float32frombits(uint32(bits))), float64(math.Float32frombits(uint32(bits>>32))))
	case d.Code == CodeComplex && d.Bits == 128:
		return complex(math.Float64frombits(bits), math.Float64frombits(binary.LittleEndian.Uint64(raw[8:])))
	}
	return "0x" + hex.EncodeToString(raw)
}

// half is the value of an IEEE binary16: 1 sign bit, 5 of exponent, 10 of fraction.
func half(bits uint16) float64 {
	fraction, exponent := float64(bits&0x3ff), int(bits>>10&0x1f)
	var value float64
	switch exponent {
	case 0:
		value = math.Ldexp(fraction, -24)
	case 0x1f:
		value = math.Inf(1)
		if fraction != 0 {
			value = math.NaN()
		}
	default:
		value = math.Ldexp(1024+fraction, exponent-25)
	}
	if bits&0x8000 != 0 {
		value = -value
	}
	return value
}
