package main

import (
	"archive/zip"
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	callboard "callboard/clients/go"
	"callboard/tensor"
)

// numpyType is NumPy's name of an element type, without lanes.
func numpyType(dtype tensor.DType) (string, error) {
	kind, known := map[uint8]string{tensor.CodeInt: "i", tensor.CodeUint: "u", tensor.CodeFloat: "f", tensor.CodeComplex: "c", tensor.CodeBool: "b"}[dtype.Code]
	bytes := int(dtype.Bits) / 8
	if !known || bytes == 0 {
		return "", usagef("NumPy has no type for %s; read it with a client (in Python, DLPack hands it to libraries that have one), or with --json", dtype)
	}
	order := "<"
	if bytes == 1 {
		order = "|"
	}
	return fmt.Sprintf("%s%s%d", order, kind, bytes), nil
}

// writeNPY writes one array in NumPy's format 1.0; fill writes its elements.
func writeNPY(out io.Writer, numpyType string, shape []int64, fill func(out io.Writer) error) error {
	extents := make([]string, len(shape))
	for i, extent := range shape {
		extents[i] = fmt.Sprint(extent)
	}
	tuple := strings.Join(extents, ", ")
	if len(shape) == 1 {
		tuple += ","
	}
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", numpyType, tuple)
	const prefix = 10 // magic, version, length
	padding := 64 - (prefix+len(header)+1)%64
	header += strings.Repeat(" ", padding%64) + "\n" // the elements begin on a multiple of 64
	head := append([]byte("\x93NUMPY\x01\x00"), 0, 0)
	binary.LittleEndian.PutUint16(head[8:], uint16(len(header)))
	if _, err := out.Write(append(head, header...)); err != nil {
		return err
	}
	return fill(out)
}

// writeGroup writes a group's rows as one array: prims, the row's shape, lanes; of kind array all elements one after
// the other, then lanes.
func (v *value) writeGroup(out io.Writer, group *callboard.Group) error {
	dtype := group.DType()
	name, err := numpyType(dtype)
	if err != nil {
		return err
	}
	var shape []int64
	if group.IsArray() {
		offsets, err := v.offsets(group)
		if err != nil {
			return err
		}
		shape = append(shape, int64(offsets[len(offsets)-1]))
		if dtype.Lanes > 1 {
			shape = append(shape, int64(dtype.Lanes))
		}
	} else {
		shape = append([]int64{int64(len(group.Prims()))}, group.Shape()[1:]...)
	}
	return writeNPY(out, name, shape, func(out io.Writer) (err error) {
		_, failed := v.rowsOf(group, 0, func(_ string, raw []byte) {
			if err == nil {
				_, err = out.Write(raw)
			}
		})
		if failed != nil {
			return failed
		}
		return err
	})
}

// offsets are where the rows of a group of kind array begin, in elements, and where the last one ends.
func (v *value) offsets(group *callboard.Group) ([]uint64, error) {
	offsets := []uint64{0}
	_, err := v.rowsOf(group, 0, func(_ string, raw []byte) {
		offsets = append(offsets, offsets[len(offsets)-1]+uint64(len(raw)/group.DType().Size()))
	})
	return offsets, err
}

// writePrims writes the paths of a group's rows as text.
func (v *value) writePrims(out io.Writer, group *callboard.Group) error {
	paths, err := v.stage.Resolve(group.Prims()...)
	if err != nil {
		return err
	}
	width := 1
	for _, path := range paths {
		width = max(width, utf8.RuneCountInString(path))
	}
	return writeNPY(out, fmt.Sprintf("<U%d", width), []int64{int64(len(paths))}, func(out io.Writer) error {
		room := make([]byte, 4*width)
		for _, path := range paths {
			clear(room)
			at := 0
			for _, r := range path {
				binary.LittleEndian.PutUint32(room[at:], uint32(r))
				at += 4
			}
			if _, err := out.Write(room); err != nil {
				return err
			}
		}
		return nil
	})
}

// npy writes the value as one array.
func (v *value) npy(file string) error {
	if len(v.groups) != 1 {
		return usagef("the value has %d schemas, and --npy holds one array: use --npz, or choose prims with --prim", len(v.groups))
	}
	if v.groups[0].IsArray() {
		return usagef("attribute %q is of kind array: its rows have lengths of their own, and --npy holds one array: use --npz, which has the rows one after the other and their offsets", v.groups[0].Attribute())
	}
	return writeFile(file, func(out io.Writer) error { return v.writeGroup(out, v.groups[0]) })
}

// npz writes the value as an archive: values and prims, of kind array offsets too, and ordinal, floor and epoch; with several schemas
// values_0, prims_0 and so on.
func (v *value) npz(file string) error {
	return writeFile(file, func(out io.Writer) error {
		archive := zip.NewWriter(out)
		add := func(name string, write func(out io.Writer) error) error {
			member, err := archive.CreateHeader(&zip.FileHeader{Name: name + ".npy", Method: zip.Store}) // as numpy.savez does
			if err != nil {
				return err
			}
			return write(member)
		}
		for i, group := range v.groups {
			suffix := ""
			if len(v.groups) > 1 {
				suffix = fmt.Sprintf("_%d", i)
			}
			if err := add("values"+suffix, func(out io.Writer) error { return v.writeGroup(out, group) }); err != nil {
				return err
			}
			if group.IsArray() {
				offsets, err := v.offsets(group)
				if err != nil {
					return err
				}
				if err := add("offsets"+suffix, func(out io.Writer) error {
					return writeNPY(out, "<u8", []int64{int64(len(offsets))}, func(out io.Writer) error { return binary.Write(out, binary.LittleEndian, offsets) })
				}); err != nil {
					return err
				}
			}
			if err := add("prims"+suffix, func(out io.Writer) error { return v.writePrims(out, group) }); err != nil {
				return err
			}
			for name, number := range map[string]uint64{"ordinal": group.Ordinal(), "floor": group.Floor(), "epoch": group.Epoch()} {
				err := add(name+suffix, func(out io.Writer) error {
					return writeNPY(out, "<u8", nil, func(out io.Writer) error { return binary.Write(out, binary.LittleEndian, number) })
				})
				if err != nil {
					return err
				}
			}
		}
		return archive.Close()
	})
}

// writeFile makes a file whole or not at all: whoever opens the name sees the old content or the new one. A link is
// followed, and what is no plain file (a pipe, a terminal, /dev/null) is written to as it stands.
func writeFile(file string, write func(out io.Writer) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing %s: %w", file, err)
		}
	}()
	target, err := filepath.EvalSymlinks(file)
	if errors.Is(err, fs.ErrNotExist) {
		target = file
	} else if err != nil {
		return err
	}
	if about, err := os.Stat(target); err == nil && !about.Mode().IsRegular() {
		out, err := os.OpenFile(target, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(writeAll(out, write), out.Close())
	}
	temporary, err := os.CreateTemp(filepath.Dir(target), "."+filepath.Base(target)+".*")
	if err != nil {
		return err
	}
	if err = writeAll(temporary, write); err == nil {
		err = temporary.Chmod(0o644)
	}
	if err == nil {
		err = temporary.Sync() // else a crash may leave the name with no content
	}
	if closing := temporary.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(temporary.Name(), target)
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
	}
	return err
}

func writeAll(out io.Writer, write func(out io.Writer) error) error {
	buffered := bufio.NewWriterSize(out, 1<<20)
	if err := write(buffered); err != nil {
		return err
	}
	return buffered.Flush()
}
