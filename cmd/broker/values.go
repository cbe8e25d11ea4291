package main

import (
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
		values[i] = tensor.Scalar(dtype, raw[i*width:(i+1)*width])
	}
	return values
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
