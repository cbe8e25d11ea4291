package main

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"callboard/tensor"
)

// scalars gives the numbers in raw, one per lane: int64, uint64, float64, bool, complex128, or the hexadecimal digits of
// a type that Go has no number for. At most limit of them; a negative limit means all.
func scalars(dtype tensor.DType, raw []byte, limit int) []any {
	width := int(dtype.Bits) / 8
	if width == 0 {
		return nil
	}
	count := len(raw) / width
	if limit >= 0 {
		count = min(count, limit)
	}
	values := make([]any, count)
	for i := range values {
		values[i] = scalar(dtype, raw[i*width:(i+1)*width])
	}
	return values
}

func scalar(dtype tensor.DType, raw []byte) any {
	var padded [8]byte
	copy(padded[:], raw)
	bits := binary.LittleEndian.Uint64(padded[:])
	switch {
	case dtype.Code == tensor.CodeUint:
		return bits
	case dtype.Code == tensor.CodeInt:
		unused := 64 - uint(dtype.Bits)
		return int64(bits<<unused) >> unused // the sign bit moves up and is drawn down again
	case dtype.Code == tensor.CodeBool:
		return bits != 0
	case dtype.Code == tensor.CodeFloat && dtype.Bits == 64:
		return math.Float64frombits(bits)
	case dtype.Code == tensor.CodeFloat && dtype.Bits == 32:
		return float64(math.Float32frombits(uint32(bits)))
	case dtype.Code == tensor.CodeFloat && dtype.Bits == 16:
		return half(uint16(bits))
	case dtype.Code == tensor.CodeBfloat:
		return float64(math.Float32frombits(uint32(bits) << 16))
	case dtype.Code == tensor.CodeComplex && dtype.Bits == 64:
		return complex(float64(math.Float32frombits(uint32(bits))), float64(math.Float32frombits(uint32(bits>>32))))
	case dtype.Code == tensor.CodeComplex && dtype.Bits == 128:
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

// formatScalar writes a number for people: six digits.
func formatScalar(value any) string {
	switch v := value.(type) {
	case float64:
		return strconv.FormatFloat(v, 'g', 6, 64)
	case complex128:
		return strconv.FormatComplex(v, 'g', 6, 128)
	}
	return fmt.Sprint(value)
}

// jsonScalar makes a number that JSON can hold: what is not finite, and complex numbers, become text.
func jsonScalar(value any) any {
	switch v := value.(type) {
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return strconv.FormatFloat(v, 'g', -1, 64)
		}
		return json.Number(strconv.FormatFloat(v, 'g', -1, 64))
	case complex128:
		return strconv.FormatComplex(v, 'g', -1, 128)
	}
	return value
}

// formatRow writes one row's numbers for people, with what is left out counted.
func formatRow(dtype tensor.DType, raw []byte, limit int) string {
	values := scalars(dtype, raw, limit)
	parts := make([]string, len(values))
	for i, value := range values {
		parts[i] = formatScalar(value)
	}
	if width := int(dtype.Bits) / 8; width > 0 && len(raw)/width > len(values) {
		parts = append(parts, fmt.Sprintf("… and %d more", len(raw)/width-len(values)))
	}
	return strings.Join(parts, "  ")
}
