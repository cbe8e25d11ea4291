package snapshot

import (
	"encoding/binary"
	"errors"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"callboard/protocol"
	"callboard/tensor"
)

// stringTable is the string table as it was: readers of it need no lock.
type stringTable struct {
	tag   uint64
	texts []string
}

// text is the text of an id; the id 0 is the empty token (behaviour 54).
func (t *stringTable) text(id uint64) (string, bool) {
	if id == 0 {
		return "", true
	}
	i, ok := protocol.StringIndex(t.tag, id)
	if !ok || i >= uint64(len(t.texts)) {
		return "", false
	}
	return t.texts[i], true
}

// test makes of a predicate on an attribute what it asks of a row. The texts of tokens
// are those of t, which is not looked at before the test runs.
func (p *Predicate) test(schema *tensor.Schema, t *stringTable) (func(row []byte) bool, error) {
	tokens := schema.Semantic == tensor.SemanticTokenID
	elements := uint64(1)
	for _, n := range schema.RowShape {
		elements *= n
	}
	one := schema.Kind == tensor.Fixed && schema.DType.Lanes == 1 && elements == 1
	d := schema.DType
	switch {
	case schema.Device.Type == tensor.DeviceCUDA:
		return nil, protocol.Errorf(protocol.StatusNotSupported, "%s on attribute %q is not supported: its values lie on %s, where no filter looks: ask with HAS, read the attribute on the cpu and make a query of the prims that fit, or write what is looked for to an attribute of the host as well", operatorNames[p.Operator], p.Name, schema.Device)
	case p.Operator == protocol.FilterContains && tokens:
		return func(row []byte) bool {
			for ; len(row) >= 8; row = row[8:] {
				if text, ok := t.text(binary.LittleEndian.Uint64(row)); ok && slices.Contains(p.Values, text) {
					return true
				}
			}
			return false
		}, nil
	case p.Operator == protocol.FilterContains || !one:
	case tokens:
		return func(row []byte) bool {
			text, ok := t.text(binary.LittleEndian.Uint64(row))
			return ok && compares(p.Operator, text, p.Values)
		}, nil
	case d.Code == tensor.CodeFloat && d.Bits <= 64:
		return p.floats(d.Bits)
	case d.Code == tensor.CodeInt || d.Code == tensor.CodeUint:
		return p.integers(d)
	}
	return nil, protocol.Errorf(protocol.StatusNotSupported, "%s on attribute %q is not supported: it is %s, and LT, LE, GT, GE and IN work on one number or token per prim, CONTAINS on tokens",
		operatorNames[p.Operator], p.Name, schema.String())
}

// compares compares as the operator says; values has one entry, for IN any number.
func compares[T string | float64 | int64 | uint64](operator uint32, x T, values []T) bool {
	switch operator {
	case protocol.FilterIn:
		return slices.Contains(values, x)
	case protocol.FilterLess:
		return x < values[0]
	case protocol.FilterLessEqual:
		return x <= values[0]
	case protocol.FilterGreater:
		return x > values[0]
	}
	return x >= values[0]
}

// number is what a value may look like, whatever the type of the column: a decimal
// number with no zeros before it, inf or nan.
var number = regexp.MustCompile(`(?i)^([+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf(inity)?|nan)$`)

func (p *Predicate) badNumber(value string) error {
	return protocol.Errorf(protocol.StatusInvalidArgument, "%s on attribute %q: value %q is not a number: expected a decimal one, as 10, -0.5 or 1e3, inf or nan", operatorNames[p.Operator], p.Name, value)
}

// floats compares after rounding the values to the attribute's own type, so that 0.1 is
// what a writer of 0.1 has written.
func (p *Predicate) floats(bits uint8) (func(row []byte) bool, error) {
	values := make([]float64, len(p.Values))
	for i, text := range p.Values {
		precision := 64
		if bits == 32 {
			precision = 32
		}
		if !number.MatchString(text) {
			return nil, p.badNumber(text)
		}
		v, _ := strconv.ParseFloat(text, precision) // infinite where it is out of range
		if bits == 16 {
			v = halfToFloat(floatToHalf(v))
		}
		values[i] = v
	}
	of := func(row []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(row)) }
	switch bits {
	case 16:
		of = func(row []byte) float64 { return halfToFloat(binary.LittleEndian.Uint16(row)) }
	case 32:
		of = func(row []byte) float64 { return float64(math.Float32frombits(binary.LittleEndian.Uint32(row))) }
	}
	return func(row []byte) bool { return compares(p.Operator, of(row), values) }, nil
}

// halfToFloat is the value of an IEEE 754 binary16.
func halfToFloat(h uint16) float64 {
	exponent, fraction := int(h>>10&31), float64(h&1023)
	var v float64
	switch exponent {
	case 0:
		v = math.Ldexp(fraction, -24)
	case 31:
		if v = math.Inf(1); fraction != 0 {
			v = math.NaN()
		}
	default:
		v = math.Ldexp(1024+fraction, exponent-25)
	}
	if h>>15 != 0 {
		v = -v
	}
	return v
}

// floatToHalf rounds to the nearest binary16, ties to even.
func floatToHalf(v float64) uint16 {
	sign := uint16(math.Float64bits(v) >> 48 & 0x8000)
	v = math.Abs(v)
	switch {
	case math.IsNaN(v):
		return sign | 0x7e00
	case v >= 65520:
		return sign | 0x7c00
	}
	exponent := max(-14, math.Ilogb(v))
	if v == 0 {
		exponent = -14
	}
	// In units of the last place; a carry goes on into the exponent by itself.
	units := uint16(math.RoundToEven(math.Ldexp(v, 10-exponent)))
	return sign | uint16(exponent+14)<<10 + units
}

// integers compares exactly, also with values that are no integers.
func (p *Predicate) integers(d tensor.DType) (func(row []byte) bool, error) {
	var ranges [][2]uint64
	for _, text := range p.Values {
		if !number.MatchString(text) {
			return nil, p.badNumber(text)
		}
		low, high := span64(p.Operator, text, d.Code == tensor.CodeInt)
		if low <= high {
			ranges = append(ranges, [2]uint64{low, high})
		}
	}
	slices.SortFunc(ranges, func(a, b [2]uint64) int { return compare(a[0], b[0]) })
	bytes := int(d.Bits / 8)
	return func(row []byte) bool {
		var word [8]byte
		copy(word[:], row[:bytes])
		x := binary.LittleEndian.Uint64(word[:])
		if d.Code == tensor.CodeInt { // sign-extended, then ordered as unsigned numbers are
			x = uint64(int64(x<<(64-d.Bits))>>(64-d.Bits)) ^ 1<<63
		}
		i, found := slices.BinarySearchFunc(ranges, x, func(r [2]uint64, x uint64) int { return compare(r[0], x) })
		return found || i > 0 && x <= ranges[i-1][1]
	}, nil
}

func compare(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// span64 gives the integers that satisfy an operator, in the order that rank gives them:
// none where low > high. The text is a number.
func span64(operator uint32, text string, signed bool) (low, high uint64) {
	const none = 1 // low of nothing; high is 0
	// at is the highest rank that is not above the value, exact when they are equal;
	// below: every rank is above the value.
	var at uint64
	exact, below := true, false
	shift := uint64(0)
	if signed {
		shift = 1 << 63
	}
	n, e := strconv.ParseInt(text, 10, 64)
	if e == nil {
		switch {
		case signed:
			at = uint64(n) ^ shift
		case n < 0:
			below = true
		default:
			at = uint64(n)
		}
	} else if u, e := strconv.ParseUint(strings.TrimPrefix(text, "+"), 10, 64); e == nil { // above every signed number
		if at = u; signed {
			at, exact = math.MaxUint64, false
		}
	} else if errors.Is(e, strconv.ErrRange) { // an integer above them all
		at, exact = math.MaxUint64, false
	} else if n == math.MinInt64 { // an integer below them all
		below = true
	} else {
		v, _ := strconv.ParseFloat(text, 64) // infinite where it is out of range
		floor := math.Floor(v)
		lowest, end := 0.0, math.Ldexp(1, 64)
		if signed {
			lowest, end = -math.Ldexp(1, 63), math.Ldexp(1, 63)
		}
		switch {
		case v != v: // compares with nothing
			return none, 0
		case floor < lowest:
			below = true
		case floor >= end:
			at, exact = math.MaxUint64, false
		case signed:
			at, exact = uint64(int64(floor))^shift, floor == v
		default:
			at, exact = uint64(floor), floor == v
		}
	}
	switch operator {
	case protocol.FilterIn:
		if below || !exact {
			return none, 0
		}
		return at, at
	case protocol.FilterLess, protocol.FilterLessEqual:
		if below || operator == protocol.FilterLess && exact && at == 0 {
			return none, 0
		}
		if operator == protocol.FilterLess && exact {
			at--
		}
		return 0, at
	}
	switch {
	case below:
		return 0, math.MaxUint64
	case operator == protocol.FilterGreaterEqual && exact:
		return at, math.MaxUint64
	case at == math.MaxUint64:
		return none, 0
	}
	return at + 1, math.MaxUint64
}
