package shm

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// The shared forms (no FUTEX_PRIVATE_FLAG): the key is the object and the offset in
	// it, so processes meet at a word whatever address each has mapped it at.
	futexWait = 0
	futexWake = 1
)

var (
	// ErrAgain says that the futex word did not hold the expected value: something has
	// happened already, look again.
	ErrAgain = errors.New("the word differs from the expected value")
	// ErrTimeout says that the time given to a wait, a send or a receive is over.
	ErrTimeout = errors.New("timed out")
)

// FutexWait sleeps until somebody wakes addr, as long as *addr is val.
//
// nil: woken, or interrupted by a signal; the caller re-checks its condition in either
// case. ErrAgain: *addr was not val. ErrTimeout: timeout passed (zero or less only
// compares). addr may lie in a read-only mapping. It never waits without a bound.
func FutexWait(addr *uint32, val uint32, timeout time.Duration) error {
	ts := timespec(timeout)
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(addr)), futexWait,
		uintptr(val), uintptr(unsafe.Pointer(&ts)), 0, 0)
	return futexError(errno)
}

// FutexWake wakes at most n waiters of addr, in all processes, and returns how many it
// woke.
func FutexWake(addr *uint32, n int) (int, error) {
	n = min(max(n, 0), math.MaxInt32)
	woken, _, errno := unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(addr)), futexWake,
		uintptr(n), 0, 0, 0)
	if errno != 0 {
		return 0, futexError(errno)
	}
	return int(woken), nil
}

func timespec(d time.Duration) unix.Timespec {
	return unix.NsecToTimespec(int64(max(d, 0)))
}

func futexError(errno unix.Errno) error {
	switch errno {
	case 0, unix.EINTR:
		return nil
	case unix.EAGAIN:
		return ErrAgain
	case unix.ETIMEDOUT:
		return ErrTimeout
	case unix.EFAULT:
		// The page is gone: unmapped by us, or truncated by a peer (rule S3).
		return fmt.Errorf("futex: %w", ErrFault)
	default:
		return fmt.Errorf("futex: %w", errno)
	}
}
