package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	callboard "callboard/clients/go"
	"callboard/tensor"
)

// numpy runs a script in a Python that has NumPy and gives the JSON that it prints.
func numpy(t *testing.T, into any, script string, arguments ...string) {
	t.Helper()
	python := os.Getenv("CALLBOARD_PYTHON")
	if python == "" {
		if os.Getenv("CALLBOARD_TEST_NO_SKIP") == "1" {
			t.Fatal("CALLBOARD_PYTHON names no Python")
		}
		t.Skip("CALLBOARD_PYTHON names no Python; `make test` sets it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, append([]string{"-c", "import numpy, json, sys\n" + script}, arguments...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, json.Unmarshal(out, into), "%s", out)
}

func publish(t *testing.T, stage *callboard.Stage, name string, dtype tensor.DType, raw []byte, rowShape ...uint64) {
	t.Helper()
	ctx := context.Background()
	shape := []int64{2}
	for _, extent := range rowShape {
		shape = append(shape, int64(extent))
	}
	q, err := stage.QueryFromPathList(ctx, []string{"/a", "/ü/b"})
	require.NoError(t, err)
	defer q.Release()
	values := callboard.Tensor{Data: raw, Shape: shape, DType: dtype, Device: tensor.CPU}
	op, err := stage.WriteAttribute(ctx, q, name, values, callboard.WriteOptions{Ordinal: 5, RowShape: rowShape})
	require.NoError(t, err)
	require.NoError(t, op.Wait(ctx))
	op, err = stage.AdvanceWriteFloor(5, callboard.SealOptions{Scope: callboard.ScopeInclude, Attributes: []string{name}})
	require.NoError(t, err)
	require.NoError(t, op.Wait(ctx))
}

// What --npy writes is what NumPy reads: type, shape and every byte, of each type that NumPy has. Lanes are the last axis.
func TestReadToNumPy(t *testing.T) {
	_, stage := liveStage(t)
	type loaded struct {
		DType string
		Shape []int
		Bytes string
	}
	for name, c := range map[string]struct {
		dtype    tensor.DType
		rowShape []uint64
		descr    string
		shape    []int
	}{
		"pose":    {tensor.DType{Code: tensor.CodeFloat, Bits: 32, Lanes: 3}, nil, "<f4", []int{2, 3}},
		"frame":   {tensor.DType{Code: tensor.CodeUint, Bits: 8, Lanes: 4}, []uint64{5, 7}, "|u1", []int{2, 5, 7, 4}},
		"mass":    {tensor.Float64, nil, "<f8", []int{2}},
		"half":    {tensor.Float16, []uint64{1}, "<f2", []int{2, 1}},
		"on":      {tensor.Bool, nil, "|b1", []int{2}},
		"id":      {tensor.Int64, nil, "<i8", []int{2}},
		"short":   {tensor.Int16, []uint64{2, 2}, "<i2", []int{2, 2, 2}},
		"spectra": {tensor.Complex64, []uint64{3}, "<c8", []int{2, 3}},
		"precise": {tensor.Complex128, nil, "<c16", []int{2}},
	} {
		size := 2 * int(c.dtype.Bits) / 8 * int(c.dtype.Lanes)
		for _, extent := range c.rowShape {
			size *= int(extent)
		}
		raw := make([]byte, size)
		for i := range raw {
			raw[i] = byte(i*37 + 1)
			if c.dtype == tensor.Bool {
				raw[i] = byte(i % 2)
			}
		}
		publish(t, stage, name, c.dtype, raw, c.rowShape...)
		file := filepath.Join(t.TempDir(), "value.npy")
		code, out, notes := call("read", name, "--npy", file)
		require.Equal(t, exitOK, code, notes)
		require.Empty(t, out)
		var got loaded
		numpy(t, &got, `a = numpy.load(sys.argv[1])
print(json.dumps({"DType": a.dtype.str, "Shape": a.shape, "Bytes": a.tobytes().hex()}))`, file)
		require.Equal(t, c.descr, got.DType, name)
		require.Equal(t, c.shape, got.Shape, name)
		require.Equal(t, len(raw)*2, len(got.Bytes), name)
		for i := range raw {
			require.Equal(t, "0123456789abcdef"[raw[i]>>4], got.Bytes[2*i], name)
			require.Equal(t, "0123456789abcdef"[raw[i]&15], got.Bytes[2*i+1], name)
		}
	}

	// The archive tells which row is whose, and of which state.
	file := filepath.Join(t.TempDir(), "value.npz")
	code, _, notes := call("read", "pose", "--npz", file, "--prim", "/ü/b", "--prim", "/a")
	require.Equal(t, exitOK, code, notes)
	var archive struct {
		Names, Prims          []string
		Shape                 []int
		Ordinal, Floor, Epoch uint64
	}
	numpy(t, &archive, `a = numpy.load(sys.argv[1])
print(json.dumps({"Names": sorted(a.files), "Prims": a["prims"].tolist(), "Shape": a["values"].shape, "Ordinal": int(a["ordinal"]), "Floor": int(a["floor"]), "Epoch": int(a["epoch"])}))`, file)
	require.Equal(t, []string{"epoch", "floor", "ordinal", "prims", "values"}, archive.Names)
	require.Equal(t, []string{"/ü/b", "/a"}, archive.Prims)
	require.Equal(t, []int{2, 3}, archive.Shape)
	require.EqualValues(t, 5, archive.Ordinal)
	require.EqualValues(t, 5, archive.Floor)
	require.NotZero(t, archive.Epoch)
}

// Behaviour 21: rows of lengths of their own, an empty one too, come back as they were.
func TestReadArraysToNumPy(t *testing.T) {
	_, stage := liveStage(t)
	ctx := context.Background()
	q, err := stage.QueryFromPathList(ctx, []string{"/a", "/b", "/c"})
	require.NoError(t, err)
	defer q.Release()
	op, err := stage.WriteAttribute(ctx, q, "points", [][]float32{{1, 2, 3}, {}, {4}}, callboard.WriteOptions{Ordinal: 1, IsArray: true})
	require.NoError(t, err)
	require.NoError(t, op.Wait(ctx))
	op, err = stage.AdvanceWriteFloor(1, callboard.SealOptions{})
	require.NoError(t, err)
	require.NoError(t, op.Wait(ctx))
	file := filepath.Join(t.TempDir(), "points.npz")
	code, _, notes := call("read", "points", "--npz", file)
	require.Equal(t, exitOK, code, notes)
	var got struct {
		Rows  [][]float64
		Prims []string
	}
	numpy(t, &got, `a = numpy.load(sys.argv[1])
v, o = a["values"], a["offsets"]
print(json.dumps({"Rows": [v[o[i]:o[i+1]].tolist() for i in range(len(o) - 1)], "Prims": a["prims"].tolist()}))`, file)
	require.Equal(t, [][]float64{{1, 2, 3}, {}, {4}}, got.Rows)
	require.Equal(t, []string{"/a", "/b", "/c"}, got.Prims)
	code, _, notes = call("read", "points", "--npy", file)
	require.Equal(t, exitUsage, code)
	require.Contains(t, notes, "use --npz")
}

// What cannot be written is refused, and leaves nothing: neither a new file nor a spoilt old one.
func TestReadToNumPyRefuses(t *testing.T) {
	_, stage := liveStage(t)
	poses(t, stage, 1, []float32{1, 2, 3, 4, 5, 6})
	publish(t, stage, "brain", tensor.Bfloat16, make([]byte, 4))
	publish(t, stage, "tiny", tensor.DType{Code: tensor.CodeFloat8E4M3FN, Bits: 8, Lanes: 1}, make([]byte, 2))
	dir := t.TempDir()
	file := filepath.Join(dir, "old.npy")
	require.NoError(t, os.WriteFile(file, []byte("old"), 0o600))
	for _, c := range []struct {
		arguments, says string
		code            int
	}{
		{"read brain --npy " + file, "NumPy has no type for bfloat16", exitUsage},
		{"read tiny --npy " + file, "NumPy has no type for float8_e4m3fn", exitUsage},
		{"read tiny --npz " + file, "with --json", exitUsage},
		{"read pose --json --npy " + file, "leave out", exitUsage},
		{"read pose --rows 1 --npz " + file, "leave out", exitUsage},
		{"read pose --npy a --npz b", "leave out", exitUsage},
		{"read absent --npy " + file, `"absent"`, exitNotFound},
		{"read pose --npy " + dir + "/no/such/place.npy", "no/such", exitFailure},
	} {
		code, _, notes := call(strings.Fields(c.arguments)...)
		require.Equal(t, c.code, code, "%s: %s", c.arguments, notes)
		require.Contains(t, notes, c.says, c.arguments)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1)
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "old", string(content))
	code, _, notes := call("read", "pose", "--npy", file)
	require.Equal(t, exitOK, code, notes)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 128+24, info.Size(), "the old one is replaced")
}

// A link keeps being one, what is no plain file is written to, and a write that fails leaves what was there.
func TestFilesAreWrittenToAndNotReplaced(t *testing.T) {
	dir := t.TempDir()
	say := func(text string) func(io.Writer) error {
		return func(out io.Writer) error { _, err := io.WriteString(out, text); return err }
	}
	target, link, pipe := filepath.Join(dir, "target"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	require.NoError(t, os.WriteFile(target, []byte("old"), 0o600))
	require.NoError(t, os.Symlink(target, link))
	require.NoError(t, writeFile(link, say("new")))
	content, err := os.ReadFile(target)
	require.NoError(t, err)
	require.Equal(t, "new", string(content))
	about, err := os.Lstat(link)
	require.NoError(t, err)
	require.NotZero(t, about.Mode()&os.ModeSymlink)

	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	heard := make(chan string)
	go func() {
		content, _ := os.ReadFile(pipe)
		heard <- string(content)
	}()
	require.NoError(t, writeFile(pipe, say("through")))
	require.Equal(t, "through", <-heard)
	require.ErrorIs(t, writeFile("/dev/full", say("x")), syscall.ENOSPC)

	require.ErrorContains(t, writeFile(target, func(io.Writer) error { return errors.New("half-way") }), "half-way")
	content, err = os.ReadFile(target)
	require.NoError(t, err)
	require.Equal(t, "new", string(content))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 3)
}
