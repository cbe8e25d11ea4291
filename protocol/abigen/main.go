package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// command is named in the first line of every output.
const command = "go run ./protocol/abigen"

// output is one file, its path slash-separated and relative to the module root.
type output struct {
	path string
	data []byte
}

func main() {
	check := flag.Bool("check", false, "write nothing; exit 1 and name the files that would change")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(check bool) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	m, err := load(filepath.Join(root, "protocol"))
	if err != nil {
		return err
	}
	outputs, err := generate(m)
	if err != nil {
		return err
	}
	changed, err := stale(root, outputs)
	if err != nil {
		return err
	}
	if check {
		var faults []error
		for _, o := range changed {
			faults = append(faults, fmt.Errorf("%s is stale: run %s", o.path, command))
		}
		return errors.Join(faults...)
	}
	for _, o := range changed {
		name := filepath.Join(root, filepath.FromSlash(o.path))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return fmt.Errorf("making the directory of %s: %w", o.path, err)
		}
		if err := os.WriteFile(name, o.data, 0o644); err != nil {
			return fmt.Errorf("writing %s: %w", o.path, err)
		}
		fmt.Println(o.path)
	}
	return nil
}

// generate makes every output in memory, so that -check and writing cannot differ.
func generate(m *model) ([]output, error) {
	golden, listing, err := writeGolden(m)
	if err != nil {
		return nil, err
	}
	vectors, err := writeVectors(m)
	if err != nil {
		return nil, err
	}
	return append([]output{
		{"clients/c/include/callboard_abi.h", writeC(m)},
		{"clients/python/src/callboard/_abi.py", writePython(m)},
		{"docs/abi.md", writeDocs(m)},
		{"protocol/testdata/golden.txt", golden},
		{"protocol/listing_test.go", listing},
		{"clients/c/tests/vectors_table.h", writeVectorsTable(m)},
	}, vectors...), nil
}

// stale returns the outputs that differ from what lies on disk.
func stale(root string, outputs []output) ([]output, error) {
	var changed []output
	for _, o := range outputs {
		old, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(o.path)))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("reading %s: %w", o.path, err)
		}
		if err != nil || !bytes.Equal(old, o.data) {
			changed = append(changed, o)
		}
	}
	return changed, nil
}

// moduleRoot is the nearest directory above the working one that holds go.mod:
// go run starts in the root, go generate in protocol.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the working directory: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod in this directory or above it: run abigen inside the module")
		}
		dir = parent
	}
}
