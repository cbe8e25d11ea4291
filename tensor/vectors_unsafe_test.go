package tensor

import (
	"encoding/hex"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// vector is one case of testdata/dlpack.txt, which says what stands where.
type vector struct {
	name   string
	fields map[string]string // of the tensor
	wanted [][]string        // operation, STATUS, the rest; the flags of an export stand with its operation
}

func readVectors(t *testing.T) (all []*vector) {
	text, err := os.ReadFile("testdata/dlpack.txt")
	require.NoError(t, err)
	for line := range strings.SplitSeq(string(text), "\n") {
		operation, rest, _ := strings.Cut(line, " ")
		switch operation {
		case "", "#":
		case "case":
			all = append(all, &vector{name: rest, fields: map[string]string{}})
		case "tensor":
			all[len(all)-1].fields = fieldsOf(rest)
		default:
			if operation == "legacy" || operation == "versioned" {
				flags, behind, _ := strings.Cut(rest, " ")
				operation, rest = operation+" "+flags, behind
			}
			status, rest, _ := strings.Cut(rest, " ")
			all[len(all)-1].wanted = append(all[len(all)-1].wanted, []string{operation, status, rest})
		}
	}
	require.Greater(t, len(all), 30)
	return all
}

func fieldsOf(text string) map[string]string {
	fields := map[string]string{}
	for _, field := range strings.Fields(text) {
		key, value, _ := strings.Cut(field, "=")
		fields[key] = value
	}
	return fields
}

func (v *vector) number(key string, otherwise int64) int64 {
	if text, told := v.fields[key]; told {
		n, _ := strconv.ParseUint(strings.TrimPrefix(text, "-"), 10, 64)
		if text[0] == '-' {
			n = -n
		}
		return int64(n)
	}
	return otherwise
}

// list reads "2,3", "1*65" and "-"; nil of "null".
func list(text string) []int64 {
	out := []int64{}
	switch text {
	case "", "null":
		return nil
	case "-":
		return out
	}
	for part := range strings.SplitSeq(text, ",") {
		value, times, repeated := strings.Cut(part, "*")
		n, _ := strconv.ParseInt(value, 10, 64)
		count := 1
		if repeated {
			count, _ = strconv.Atoi(times)
		}
		for range count {
			out = append(out, n)
		}
	}
	return out
}

// three reads "2:32:1".
func three(text, otherwise string) (out [3]int64) {
	if text == "" {
		text = otherwise
	}
	for i, part := range strings.Split(text, ":") {
		out[i], _ = strconv.ParseInt(part, 10, 64)
	}
	return out
}

// produced is the tensor as another library hands it over.
func (v *vector) produced(memory []byte) *DLManagedTensorVersioned {
	shape, strides := list(v.fields["shape"]), list(v.fields["strides"])
	dtype, device := three(v.fields["dtype"], "2:32:1"), three(v.fields["device"], "1:0")
	m := &DLManagedTensorVersioned{Version: DLPackVersion{Major: uint32(v.number("major", 1))}, Flags: uint64(v.number("flags", 0)),
		Tensor: DLTensor{Device: DLDevice{Type: int32(device[0]), ID: int32(device[1])}, NDim: int32(v.number("ndim", int64(len(shape)))),
			DType: DType{Code: uint8(dtype[0]), Bits: uint8(dtype[1]), Lanes: uint16(dtype[2])}, ByteOffset: uint64(v.number("offset", 0))}}
	if len(shape) > 0 {
		m.Tensor.Shape = &shape[0]
	}
	if len(strides) > 0 {
		m.Tensor.Strides = &strides[0]
	}
	if v.fields["at"] != "null" {
		m.Tensor.Data = unsafe.Pointer(&memory[v.number("at", 0)])
	}
	return m
}

// own is the tensor as a program of ours has it.
func (v *vector) own(memory []byte) *Tensor {
	dtype, device := three(v.fields["dtype"], "2:32:1"), three(v.fields["device"], "1:0")
	t := &Tensor{Data: memory, ByteOffset: uint64(v.number("at", 0)), Shape: list(v.fields["shape"]), Strides: list(v.fields["strides"]),
		DType: DType{Code: uint8(dtype[0]), Bits: uint8(dtype[1]), Lanes: uint16(dtype[2])}, Device: Device{Type: uint32(device[0]), ID: uint32(device[1])}}
	if v.fields["at"] == "null" {
		t.Data, t.ByteOffset = nil, 0
	}
	return t
}

func place(memory []byte, p unsafe.Pointer) string {
	switch first := unsafe.Pointer(&memory[0]); {
	case p == nil:
		return "null"
	case uintptr(p) >= uintptr(first) && uintptr(p) < uintptr(first)+uintptr(len(memory)):
		return strconv.Itoa(int(uintptr(p) - uintptr(first)))
	}
	return "copy"
}

func exportedFields(memory []byte, d *DLTensor) map[string]any {
	out := map[string]any{"first": place(memory, d.Data), "strides": []int64{}}
	if d.NDim > 0 {
		out["strides"] = int64s(d.Strides, int(d.NDim))
	}
	return out
}

// run does what an operation of the file says and tells what came of it.
func (v *vector) run(t *testing.T, operation string, memory []byte) (map[string]any, error) {
	name, text, _ := strings.Cut(operation, " ")
	flags, _ := strconv.ParseUint(text, 10, 64)
	switch name {
	case "import":
		m := v.produced(memory)
		got, err := ImportVersioned(m)
		if m.Version.Major == DLPackMajor {
			legacy, other := ImportManaged(&DLManagedTensor{Tensor: m.Tensor})
			require.Equal(t, err, other)
			require.Equal(t, got.Shape, legacy.Shape)
			require.False(t, legacy.ReadOnly)
		}
		if err != nil {
			require.Zero(t, got)
			return nil, err
		}
		require.Nil(t, got.Strides)
		require.Equal(t, m.Flags&FlagReadOnly != 0, got.ReadOnly)
		require.Zero(t, got.ByteOffset)
		shape := got.Shape
		if shape == nil {
			shape = []int64{}
		}
		return map[string]any{"first": place(memory, unsafe.Pointer(unsafe.SliceData(got.Data))), "shape": shape}, nil
	case "copy":
		m := v.produced(memory)
		got, err := ImportVersionedCopy(m)
		if m.Version.Major == DLPackMajor {
			legacy, other := ImportManagedCopy(&DLManagedTensor{Tensor: m.Tensor})
			require.Equal(t, err, other)
			require.Equal(t, got, legacy)
		}
		if err != nil {
			require.Zero(t, got)
			return nil, err
		}
		require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(got.Data)))%copyAlignment)
		return map[string]any{"bytes": hex.EncodeToString(got.Data)}, nil
	case "legacy":
		m, err := ExportManaged(v.own(memory), flags, nil)
		if err != nil {
			require.Nil(t, m)
			return nil, err
		}
		defer Discard(m)
		return exportedFields(memory, &m.Tensor), nil
	case "versioned":
		m, err := ExportVersioned(v.own(memory), flags, nil)
		if err != nil {
			require.Nil(t, m)
			return nil, err
		}
		defer Discard(m)
		require.Equal(t, DLPackVersion{Major: 1}, m.Version)
		require.Equal(t, DLDevice{Type: 1}, m.Tensor.Device)
		out := exportedFields(memory, &m.Tensor)
		out["flags"] = strconv.FormatUint(m.Flags, 10)
		return out, nil
	case "buffer":
		b, err := BufferOf(v.own(memory))
		if err != nil {
			require.Zero(t, b)
			return nil, err
		}
		return map[string]any{"item": strconv.FormatUint(b.ItemBytes, 10), "length": strconv.FormatUint(b.LengthBytes, 10), "format": b.Format,
			"shape": b.Shape, "strides": b.Strides, "first": place(memory, b.Data)}, nil
	}
	t.Fatalf("no operation %q", name)
	return nil, nil
}

// TestVectors: the same in C (clients/c/tests/test_dlpack_vectors.c). Field reports D5, G1, G2, G3, G4, G8, G18.
func TestVectors(t *testing.T) {
	for _, v := range readVectors(t) {
		t.Run(v.name, func(t *testing.T) {
			memory := make([]byte, 64)
			for i := range memory {
				memory[i] = byte(i)
			}
			before := slices.Clone(memory)
			for _, wanted := range v.wanted {
				got, err := v.run(t, wanted[0], memory)
				if wanted[1] != "OK" {
					var refused *Error
					require.True(t, errors.As(err, &refused), "%v", wanted)
					require.Equal(t, Code(wanted[1]), refused.Code, "%v: %v", wanted, err)
					require.ErrorContains(t, err, wanted[2])
					continue
				}
				require.NoError(t, err, "%v", wanted)
				for key, value := range fieldsOf(wanted[2]) {
					switch got := got[key].(type) {
					case []int64:
						require.Equal(t, list(value), got, "%v: %s", wanted, key)
					default:
						require.Equal(t, value, got, "%v: %s", wanted, key)
					}
				}
			}
			require.Equal(t, before, memory)
		})
	}
}
