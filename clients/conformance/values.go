package conformance

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"callboard/tensor"
)

// encode writes values of one scalar type as bytes, one after the other. A value is a number, "nan", "inf", raw bits
// "0x7fc00001", a "$name" that was kept, or "first..last", which counts.
func encode(t tensor.DType, texts []string, kept map[string]string) ([]byte, error) {
	var out []byte
	for _, text := range texts {
		if name, is := strings.CutPrefix(text, "$"); is {
			for _, one := range strings.Split(kept[name], ",") {
				b, err := encodeOne(t, one)
				if err != nil {
					return nil, err
				}
				out = append(out, b...)
			}
			continue
		}
		if from, to, is := strings.Cut(text, ".."); is {
			first, err1 := strconv.Atoi(from)
			last, err2 := strconv.Atoi(to)
			if err1 != nil || err2 != nil {
				return nil, fmt.Errorf("%q does not count", text)
			}
			for n := first; n <= last; n++ {
				b, err := encodeOne(t, strconv.Itoa(n))
				if err != nil {
					return nil, err
				}
				out = append(out, b...)
			}
			continue
		}
		b, err := encodeOne(t, text)
		if err != nil {
			return nil, err
		}
		out = append(out, b...)
	}
	return out, nil
}

func encodeOne(t tensor.DType, text string) ([]byte, error) {
	bytes := int(t.Bits) / 8
	if bits, is := strings.CutPrefix(text, "0x"); is {
		raw, err := hex.DecodeString(strings.Repeat("0", max(0, 2*bytes-len(bits))) + bits)
		if err != nil || len(raw) != bytes {
			return nil, fmt.Errorf("%q is no %d bits", text, t.Bits)
		}
		for i := range len(raw) / 2 {
			raw[i], raw[len(raw)-1-i] = raw[len(raw)-1-i], raw[i]
		}
		return raw, nil
	}
	var bits uint64
	switch t.Code {
	case tensor.CodeFloat:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, err
		}
		switch t.Bits {
		case 64:
			bits = math.Float64bits(f)
		case 32:
			bits = uint64(math.Float32bits(float32(f)))
		default:
			return nil, fmt.Errorf("write float%d as raw bits, 0x…", t.Bits)
		}
	case tensor.CodeInt:
		n, err := strconv.ParseInt(text, 10, int(t.Bits))
		if err != nil {
			return nil, err
		}
		bits = uint64(n)
	case tensor.CodeUint, tensor.CodeBool:
		n, err := strconv.ParseUint(text, 10, int(t.Bits))
		if err != nil {
			return nil, err
		}
		bits = n
	default:
		return nil, fmt.Errorf("write type code %d as raw bits, 0x…", t.Code)
	}
	return binary.LittleEndian.AppendUint64(nil, bits)[:bytes], nil
}

// decode shows bytes as values, for messages.
func decode(t tensor.DType, raw []byte) string {
	bytes := int(t.Bits) / 8
	if bytes == 0 {
		return "?"
	}
	var texts []string
	for ; len(raw) >= bytes; raw = raw[bytes:] {
		if len(texts) == 32 {
			texts = append(texts, "…")
			break
		}
		var wide [16]byte
		copy(wide[:], raw[:bytes])
		n := binary.LittleEndian.Uint64(wide[:])
		switch {
		case t.Code == tensor.CodeFloat && t.Bits == 32:
			texts = append(texts, strconv.FormatFloat(float64(math.Float32frombits(uint32(n))), 'g', -1, 32))
		case t.Code == tensor.CodeFloat && t.Bits == 64:
			texts = append(texts, strconv.FormatFloat(math.Float64frombits(n), 'g', -1, 64))
		case t.Code == tensor.CodeInt:
			texts = append(texts, strconv.FormatInt(int64(n)<<(64-t.Bits)>>(64-t.Bits), 10))
		case t.Bits <= 64:
			texts = append(texts, strconv.FormatUint(n, 10))
		default:
			texts = append(texts, hex.EncodeToString(raw[:bytes]))
		}
	}
	return "[" + strings.Join(texts, " ") + "]"
}

// wireType is a type as drivers read it. Lanes out of range must reach them, so "float32x0" is taken as it stands.
func wireType(name string) (tensor.DType, error) {
	scalar, width, wide := name, "", false
	if i := strings.LastIndexByte(name, 'x'); i > 0 && name[i-1] >= '0' && name[i-1] <= '9' || strings.HasPrefix(name, "boolx") {
		scalar, width, wide = name[:i], name[i+1:], true
	}
	t, err := tensor.ParseDType(scalar)
	if err != nil || !wide {
		return t, err
	}
	n, err := strconv.ParseUint(width, 10, 16)
	t.Lanes = uint16(n)
	return t, err
}

func formatType(t tensor.DType) string { return fmt.Sprintf("%d:%d:%d", t.Code, t.Bits, t.Lanes) }

func parseType(text string) (t tensor.DType) {
	_, _ = fmt.Sscanf(text, "%d:%d:%d", &t.Code, &t.Bits, &t.Lanes)
	return t
}
