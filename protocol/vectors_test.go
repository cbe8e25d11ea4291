package protocol

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// said is one line of a vector: bytes and what they say.
type said struct {
	offset int
	data   []byte
	path   string
	value  string
}

// section is one struct of a vector, or loose values when name is empty.
type section struct {
	name  string
	lines []said
}

// readVector parses testdata/vectors/*.hex; every such file explains its format.
func readVector(t *testing.T, name string) (sections []section) {
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	for i, line := range strings.Split(string(text), "\n") {
		at := fmt.Sprintf("%s:%d", name, i+1)
		structure, isStruct := strings.CutPrefix(line, "struct ")
		switch {
		case line == "" || line[0] == '#':
		case isStruct || line == "values":
			if !isStruct {
				structure = ""
			}
			sections = append(sections, section{name: structure})
		default:
			fields := strings.Fields(line)
			_, value, ok := strings.Cut(line, " = ")
			require.True(t, ok && len(fields) > 3 && len(sections) > 0, at)
			offset, err := strconv.Atoi(fields[0])
			require.NoError(t, err, at)
			digits, zeros, more := strings.Cut(fields[1], "+")
			data, err := hex.DecodeString(digits)
			require.NoError(t, err, at)
			if more {
				count, err := strconv.Atoi(zeros)
				require.NoError(t, err, at)
				data = append(data, make([]byte, count)...)
			}
			last := &sections[len(sections)-1]
			last.lines = append(last.lines, said{offset, data, fields[2], value})
		}
	}
	return sections
}

// TestVectorsDecodeToWhatTheySayAndEncodeBack: the committed bytes are the ABI; this
// build, the C header and the Python module each read them by their own layout (field report D5).
func TestVectorsDecodeToWhatTheySayAndEncodeBack(t *testing.T) {
	types, left := map[string]reflect.Type{}, map[string]bool{}
	for _, value := range listedStructs {
		s := reflect.TypeOf(value)
		types[s.Name()], left[s.Name()] = s, true
	}
	files, err := filepath.Glob("testdata/vectors/*.hex")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".hex"), func(t *testing.T) {
			base := 0
			for _, part := range readVector(t, name) {
				if part.name == "" {
					for _, l := range part.lines {
						require.Equal(t, base, l.offset, "loose values leave no gap")
						require.Equal(t, l.value, looseValue(t, l))
						base += len(l.data)
					}
					continue
				}
				s, ok := types[part.name]
				require.True(t, ok, "struct %s is not listed: %s", part.name, regenerate)
				base += checkStruct(t, s, part.lines, base)
				cover(s, left)
			}
		})
	}
	require.Empty(t, left, "structs that are in no vector")
}

func checkStruct(t *testing.T, s reflect.Type, lines []said, base int) int {
	data := make([]byte, s.Size())
	for _, l := range lines {
		require.LessOrEqual(t, l.offset-base+len(l.data), len(data), "%s.%s", s.Name(), l.path)
		copy(data[l.offset-base:], l.data)
	}
	value := reflect.New(s)
	require.NoError(t, binary.Read(bytes.NewReader(data), binary.LittleEndian, value.Interface()))
	for _, l := range lines {
		f, offset := find(t, value.Elem(), l.path)
		require.Equal(t, l.offset-base, int(offset), "%s.%s", s.Name(), l.path)
		require.Equal(t, l.value, show(f), "%s.%s", s.Name(), l.path)
	}
	var back bytes.Buffer
	require.NoError(t, binary.Write(&back, binary.LittleEndian, value.Interface()))
	require.Equal(t, data, back.Bytes(), s.Name())
	return len(data)
}

var step = regexp.MustCompile(`^(\w+?)(?:\[(\d+)\])?$`)

// find follows a path such as "records[1].entry_count".
func find(t *testing.T, v reflect.Value, path string) (reflect.Value, uintptr) {
	offset := uintptr(0)
	for _, element := range strings.Split(path, ".") {
		parts := step.FindStringSubmatch(element)
		require.NotNil(t, parts, path)
		f, ok := v.Type().FieldByNameFunc(func(name string) bool {
			return strings.EqualFold(name, strings.ReplaceAll(parts[1], "_", ""))
		})
		require.True(t, ok, "%s has no field %s", v.Type(), parts[1])
		v, offset = v.FieldByIndex(f.Index), offset+f.Offset
		if parts[2] != "" {
			i, err := strconv.Atoi(parts[2])
			require.NoError(t, err, path)
			v, offset = v.Index(i), offset+uintptr(i)*v.Type().Elem().Size()
		}
	}
	return v, offset
}

// show spells a value as the vectors do.
func show(v reflect.Value) string {
	if v.Kind() != reflect.Array {
		return spell(v.Uint())
	}
	if v.Type().Elem().Kind() == reflect.Uint8 {
		data := make([]byte, v.Len())
		reflect.Copy(reflect.ValueOf(data), v)
		return spellBytes(data)
	}
	var out []string
	for i := range v.Len() {
		out = append(out, spell(v.Index(i).Uint()))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func spell(v uint64) string {
	if v >= 1<<31 {
		return fmt.Sprintf("0x%x", v)
	}
	return strconv.FormatUint(v, 10)
}

func spellBytes(data []byte) string {
	text := strings.TrimRight(string(data), "\x00")
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
		return "hex:" + hex.EncodeToString(data)
	}
	return `"` + text + `"`
}

// looseValue reads bytes that lie outside structs; the path is their type.
func looseValue(t *testing.T, l said) string {
	if l.path == "text" {
		return spellBytes(l.data)
	}
	width := map[string]int{"u32": 4, "u64": 8}[l.path]
	require.NotZero(t, width, "type %s", l.path)
	require.Zero(t, len(l.data)%width, l.path)
	var out []string
	for at := 0; at < len(l.data); at += width {
		var padded [8]byte
		copy(padded[:], l.data[at:at+width])
		out = append(out, spell(binary.LittleEndian.Uint64(padded[:])))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func cover(s reflect.Type, left map[string]bool) {
	delete(left, s.Name())
	for _, f := range wireFields(s) {
		inner := f.Type
		if inner.Kind() == reflect.Array {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			cover(inner, left)
		}
	}
}
