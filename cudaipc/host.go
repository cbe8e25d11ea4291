package cudaipc

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"callboard/shm"
)

// HostAddress is the address of host memory that the device may use after a call has
// returned. Only a Host makes one: a copy goes on while the caller does other things, and
// memory of Go's heap may be moved, freed or used again by then.
type HostAddress struct{ address uintptr }

// Host is host memory outside Go's heap.
// Whoever has copies on their way keeps it open.
//
// Register pins it, which makes copies faster and truly beside the caller (field report
// F12). Without that they are as right, only staged by the driver. Methods may be called
// from any goroutine.
type Host struct {
	bytes []byte

	mu     sync.Mutex
	pinned *Thread
	closed bool
}

// NewHost maps memory of this process alone. size is rounded up to whole pages.
func NewHost(size uint64) (*Host, error) {
	size = max((size+shm.PageAlign-1)&^(shm.PageAlign-1), shm.PageAlign)
	if size > 1<<46 {
		return nil, fmt.Errorf("host memory for the device: %d bytes are not possible", size)
	}
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("host memory for the device: mapping %d bytes: %w", size, err)
	}
	return &Host{bytes: b}, nil
}

// Bytes is the memory itself. A copy that is on its way may change it at any time.
func (h *Host) Bytes() []byte { return h.bytes }

// At gives the address of length bytes from an offset. A range that is not inside is the
// caller's broken invariant and panics.
func (h *Host) At(offset, length uint64) HostAddress {
	if size := uint64(len(h.bytes)); offset > size || length > size-offset {
		panic(fmt.Sprintf("cudaipc: %d bytes at offset %d of host memory of %d bytes", length, offset, size))
	}
	return HostAddress{addressOf(h.bytes) + uintptr(offset)}
}

// Register pins all of it for the devices of this process.
func (h *Host) Register(t *Thread) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fmt.Errorf("pinning host memory: %w", ErrClosed)
	}
	if h.pinned != nil {
		return nil
	}
	err := t.Do(func(d Driver) error { return d.HostRegister(h.At(0, 0), uint64(len(h.bytes))) })
	if err != nil {
		return fmt.Errorf("pinning %d bytes of host memory: %w", len(h.bytes), err)
	}
	h.pinned = t
	return nil
}

// Close takes the pinning back and unmaps the memory. Later calls do nothing.
//
// Preconditions: no copy that uses it is on its way.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	h.closed = true
	var err error
	if h.pinned != nil {
		err = h.pinned.Do(func(d Driver) error { return d.HostUnregister(h.At(0, 0)) })
		if errors.Is(err, ErrClosed) {
			err = nil // the context is gone, and the pinning with it
		}
	}
	err = errors.Join(err, unix.Munmap(h.bytes))
	h.bytes = nil
	return err
}
