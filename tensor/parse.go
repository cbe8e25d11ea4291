package tensor

import (
	"strconv"
	"strings"
)

// maxNameLength bounds what ParseDType looks at and repeats in an error; the
// longest valid name has 22 characters.
const maxNameLength = 64

// ParseDType reads the name of an element type: a canonical name ("float32",
// "bool", "float8_e4m3fn") or a NumPy short code ("<f4", "f4", "|b1", "?"),
// followed by "xN" for N lanes. Big-endian codes are refused rather than read
// as little-endian numbers.
//
// The grammar: [order] scalar ["x" lanes], where order, before short codes
// only, is "<" or "=" for any type and "|" for one-byte types.
func ParseDType(name string) (DType, error) {
	if len(name) > maxNameLength {
		return DType{}, invalid("element type name has %d characters: expected at most %d, as in \"float32x3\"",
			len(name), maxNameLength)
	}
	// The whole name comes first: "complex64" is no type of 64 lanes.
	d, err := parseScalar(name)
	if err != nil || d != (DType{}) {
		return d, err
	}
	i := strings.LastIndexByte(name, 'x')
	if i >= 0 {
		d, err = parseScalar(name[:i])
	}
	switch {
	case err != nil:
		return DType{}, err
	case d == (DType{}):
		return DType{}, invalid("element type %q is not known: expected a name as \"float32\", \"uint8x3\", \"bool\", "+
			"\"bfloat16\", \"float8_e4m3fn\", \"complex64\" or a NumPy code as \"<f4\"", name)
	}
	lanes, err := strconv.Atoi(name[i+1:])
	if err != nil || name[i+1:] != strconv.Itoa(lanes) {
		return DType{}, invalid("element type %q has %q for its number of lanes: expected a number from 1 to %d",
			name, name[i+1:], MaxLanes)
	}
	return d.WithLanes(lanes)
}

// parseScalar finds a type of one lane, the zero DType when the name is none.
// It errs when the name is one, but in a byte order that is not ours.
func parseScalar(name string) (DType, error) {
	if name == "?" {
		return Bool, nil
	}
	order, short := byte(0), name
	if name != "" && strings.IndexByte("<>=|", name[0]) >= 0 {
		order, short = name[0], name[1:]
	}
	for _, s := range scalars {
		d := DType{Code: s.code, Bits: s.bits, Lanes: 1}
		switch {
		case s.name == name:
			return d, nil
		case s.short == "" || s.short != short:
			continue
		case order == '>':
			return DType{}, invalid("element type %q is big-endian: expected little-endian; convert the data, "+
				"in NumPy with astype(%q)", name, "<"+short)
		case order == '|' && s.bits > 8:
			return DType{}, invalid("element type %q states no byte order for %d bits: expected %q",
				name, s.bits, "<"+short)
		}
		return d, nil
	}
	return DType{}, nil
}
