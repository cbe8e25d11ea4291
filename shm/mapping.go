package shm

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrTooSmall is wrapped when a file is shorter than the mapping that was asked for.
// Mapping it anyway would fault at the first access behind its end.
var ErrTooSmall = errors.New("the object is smaller than the mapping")

// Mapping is a file mapped shared into this process. The zero value is not usable.
//
// Close ends it; every slice and pointer into it is dead from then on, and the owner
// sees to it that nobody uses one. Methods may be called from any goroutine.
type Mapping struct {
	mu       sync.Mutex
	mem      []byte
	writable bool
}

// Map maps the first size bytes of f, readable and, if asked, writable.
//
// f may be closed afterwards; the mapping does not need it. A file of fewer than size
// bytes is refused with both numbers (ErrTooSmall).
func Map(f *os.File, size uint64, writable bool) (*Mapping, error) {
	if size == 0 || size > math.MaxInt64 {
		return nil, fmt.Errorf("mapping %s: a size of %d bytes is not possible", f.Name(), size)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("mapping %s: %w", f.Name(), err)
	}
	if uint64(info.Size()) < size {
		return nil, fmt.Errorf("mapping %s: it has %d bytes, %d are expected: %w", f.Name(), info.Size(), size, ErrTooSmall)
	}
	protection := unix.PROT_READ
	if writable {
		protection |= unix.PROT_WRITE
	}
	mem, err := mapFile(f, size, protection)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of %s: %w", size, f.Name(), err)
	}
	return &Mapping{mem: mem, writable: writable}, nil
}

// Reserve gives size bytes of address space without memory: every access faults. It stands
// for device memory, of which one may count and cut here what lies elsewhere.
func Reserve(size uint64) (*Mapping, error) {
	if size == 0 || size > math.MaxInt64 {
		return nil, fmt.Errorf("reserving %d bytes of address space: expected 1 to %d", size, int64(math.MaxInt64))
	}
	mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserving %d bytes of address space: %w", size, err)
	}
	return &Mapping{mem: mem}, nil
}

// Bytes gives the mapped bytes; nil after Close. The slice is the mapping, not a copy.
func (m *Mapping) Bytes() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mem
}

// Size gives the number of mapped bytes; 0 after Close.
func (m *Mapping) Size() uint64 { return uint64(len(m.Bytes())) }

// Close unmaps. Later calls do nothing.
func (m *Mapping) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mem == nil {
		return nil
	}
	if err := unmap(m.mem); err != nil {
		return fmt.Errorf("unmapping: %w", err)
	}
	m.mem = nil
	return nil
}

// ProtectReadOnly makes length bytes from off read-only in this process: a store there
// faults. Both must be multiples of the page size. This is what GUARD does at unmap.
func (m *Mapping) ProtectReadOnly(off, length uint64) error {
	return m.protect(off, length, unix.PROT_READ)
}

// ProtectWritable takes ProtectReadOnly back, for a block that is leased again.
func (m *Mapping) ProtectWritable(off, length uint64) error {
	if !m.writable {
		return errors.New("protecting: the mapping was made read-only as a whole")
	}
	return m.protect(off, length, unix.PROT_READ|unix.PROT_WRITE)
}

func (m *Mapping) protect(off, length uint64, protection int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	page, size := uint64(os.Getpagesize()), uint64(len(m.mem))
	if off > size || length > size-off || off%page != 0 || length%page != 0 {
		return fmt.Errorf("protecting %d bytes at offset %d of %d: %w: both must be multiples of %d and inside", length, off, size, ErrBounds, page)
	}
	if length == 0 {
		return nil
	}
	if err := unix.Mprotect(m.mem[off:off+length], protection); err != nil {
		return fmt.Errorf("protecting %d bytes at offset %d: %w", length, off, err)
	}
	return nil
}

// DontFork keeps the mapping out of forked children (rule I4).
func (m *Mapping) DontFork() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mem == nil {
		return nil
	}
	if err := unix.Madvise(m.mem, unix.MADV_DONTFORK); err != nil {
		return fmt.Errorf("keeping a mapping from forked children: %w", err)
	}
	return nil
}

// Populate enters all pages into this process's page table now, so that none faults
// later. write prepares for stores. It is an optimisation: a kernel without the call
// (before 5.14) is no error.
func (m *Mapping) Populate(write bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mem == nil {
		return nil
	}
	advice := unix.MADV_POPULATE_READ
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	for {
		err := unix.Madvise(m.mem, advice)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EINVAL) && (!write || m.writable):
			return nil
		default:
			return fmt.Errorf("populating %d bytes: %w", len(m.mem), err)
		}
	}
}

// hugePage is the size of a huge page where ordinary ones have 4 KiB.
const hugePage = 2 << 20

// Collapse moves the mapped object into huge pages, for all that map it: who touches rows
// all over it then waits for memory and no longer for page tables. It is an optimisation that
// asks for no setting of the machine, and may run while the bytes are in use. It takes about
// a millisecond for each huge page. An error says that the kernel will not (before 6.1), or
// has no such pages left; what was moved stays so.
func (m *Mapping) Collapse() error {
	for off := 0; ; off += hugePage {
		done, err := m.collapse(off)
		if done || err != nil {
			return err
		}
	}
}

// collapse moves one huge page; whoever closes the mapping waits for no more than that.
func (m *Mapping) collapse(off int) (done bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.mem)-off < hugePage {
		return true, nil
	}
	for {
		err := unix.Madvise(m.mem[off:off+hugePage], unix.MADV_COLLAPSE)
		switch {
		case err == nil:
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return true, fmt.Errorf("making a huge page of 2 MiB at offset %d: %w", off, err)
		}
	}
}
