package cudaemu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Counts says what a process has made and not given back. Its layout is that of the file, which csrc/report.c describes.
type Counts struct {
	Contexts       uint64
	Allocations    uint64
	Bytes          uint64 // of allocations, in whole blocks of 2 MiB
	Imports        uint64 // memory handles that are open, each once
	Events         uint64
	ImportedEvents uint64
	Streams        uint64 // made by cuStreamCreate
	Registered     uint64 // ranges of host memory
}

// Process is one that called cuInit.
type Process struct {
	PID    int
	Alive  bool
	Counts Counts // at present, or when it ended: what it did not give back itself
}

// Held is what the process keeps from others: nothing once it is dead, for then the kernel has taken it all.
func (p Process) Held() Counts {
	if !p.Alive {
		return Counts{}
	}
	return p.Counts
}

const reportMagic = 0x31554d4541445543 // "CUDAEMU1"

// Report lists the processes that ran with CUDAEMU_DIR=dir, by process id. It may be called at any time; a process
// that is just starting or ending is reported as either. It fails if a file in dir is not the emulation's.
func Report(dir string) ([]Process, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "process-*"))
	if err != nil {
		return nil, err
	}
	var out []Process
	for _, path := range paths {
		process, err := readProcess(path)
		switch {
		case errors.Is(err, os.ErrNotExist) || errors.Is(err, errStarting):
			continue
		case err != nil:
			return nil, fmt.Errorf("reading what a process holds of the emulated GPU: %w", err)
		}
		out = append(out, process)
	}
	slices.SortFunc(out, func(a, b Process) int { return a.PID - b.PID })
	return out, nil
}

// Held adds up what living processes hold. The zero value says that nothing is left.
func Held(processes []Process) Counts {
	var sum Counts
	for _, process := range processes {
		held := process.Held()
		sum.Contexts += held.Contexts
		sum.Allocations += held.Allocations
		sum.Bytes += held.Bytes
		sum.Imports += held.Imports
		sum.Events += held.Events
		sum.ImportedEvents += held.ImportedEvents
		sum.Streams += held.Streams
		sum.Registered += held.Registered
	}
	return sum
}

var errStarting = errors.New("the process has not written its file yet")

func readProcess(path string) (Process, error) {
	pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), "process-"))
	if err != nil {
		return Process{}, fmt.Errorf("%s: no process id in the name", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return Process{}, err
	}
	defer file.Close()
	// The process keeps it locked while it lives.
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	alive := errors.Is(err, syscall.EWOULDBLOCK)
	if err != nil && !alive {
		return Process{}, fmt.Errorf("%s: %w", path, err)
	}
	content, err := io.ReadAll(io.LimitReader(file, 4096))
	if err != nil {
		return Process{}, err
	}
	if len(content) == 0 || len(content) >= 8 && binary.NativeEndian.Uint64(content) == 0 {
		return Process{}, errStarting
	}
	var parsed struct {
		Magic, PID uint64
		Counts     Counts
	}
	if err := binary.Read(bytes.NewReader(content), binary.NativeEndian, &parsed); err != nil {
		return Process{}, fmt.Errorf("%s: %d bytes: %w", path, len(content), err)
	}
	if parsed.Magic != reportMagic || parsed.PID != uint64(pid) {
		return Process{}, fmt.Errorf("%s is no report: magic %#x, process %d", path, parsed.Magic, parsed.PID)
	}
	return Process{PID: pid, Alive: alive, Counts: parsed.Counts}, nil
}
