package shm

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked is what a LockedError is to errors.Is.
var ErrLocked = errors.New("locked by another process")

// LockedError says who has a lock, as far as that is known.
type LockedError struct {
	Path string
	PID  int // of a holder, for display only (rule I1); 0 where unknown
}

func (e *LockedError) Error() string {
	holder := "another process"
	if e.PID > 0 {
		holder = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("%s is in use by %s", e.Path, holder)
}

// Is makes errors.Is(err, ErrLocked) true.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// DirLock is an exclusive lock on a directory. It ends with Unlock or with the process,
// however that ends. Keep it referenced: one that the collector finds is closed.
type DirLock struct {
	path string
	file *os.File
}

// LockDir makes path as MakeDir does and locks it, or says at once that another process
// has it (*LockedError). The lock is on the directory itself: there is no lock file that
// anybody could delete (field report A24).
func LockDir(path string) (*DirLock, error) {
	for range makeTries {
		if err := MakeDir(path); err != nil {
			return nil, err
		}
		lock, err := lockExisting(path)
		// Whoever left last removed it between the two: make it anew.
		if !errors.Is(err, os.ErrNotExist) {
			return lock, err
		}
	}
	return nil, fmt.Errorf("locking %s: somebody removes it again and again", path)
}

// lockExisting is LockDir without making anything.
func lockExisting(path string) (*DirLock, error) {
	for range makeTries {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("locking %s (%s): %w", path, describe(path), err)
		}
		err = flock(f, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && sameFile(f, path) {
			return &DirLock{path: path, file: f}, nil
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = &LockedError{Path: path, PID: lockHolder(f)}
		}
		_ = f.Close()
		if err != nil {
			return nil, err
		}
		// Locked, but no longer what the path names: it was removed, perhaps made anew.
		// A lock on a removed directory keeps nobody out (rule S1).
	}
	return nil, fmt.Errorf("locking %s: somebody replaces it again and again", path)
}

// Path gives the locked directory.
func (l *DirLock) Path() string { return l.path }

// Valid says whether the path still names the locked directory. It does not when
// somebody has deleted it by hand: then another broker may start beside this one.
func (l *DirLock) Valid() bool { return sameFile(l.file, l.path) }

// Unlock gives the lock back. Later calls do nothing.
func (l *DirLock) Unlock() error {
	if err := l.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("unlocking %s: %w", l.path, err)
	}
	return nil
}

// LockShared takes a shared lock on f for as long as any copy of that descriptor is
// open, in whatever process: the broker locks, passes f to a client and closes its own
// copy (rule I3). f must be an open of its own (Object.WritableFile). Others that ask
// TryLockExclusive hold it for an instant; LockShared waits that long.
func LockShared(f *os.File) error {
	var err error
	for range makeTries {
		if err = flock(f, unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		return &LockedError{Path: f.Name(), PID: lockHolder(f)}
	}
	return err
}

// TryLockExclusive says whether nobody holds a lock on the file at path; a client that
// held one is proven dead then (rule I3). It keeps no lock.
func TryLockExclusive(path string) (free bool, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, fmt.Errorf("asking for locks on %s (%s): %w", path, describe(path), err)
	}
	defer func() { _ = f.Close() }()
	return tryExclusive(f)
}

func tryExclusive(f *os.File) (bool, error) {
	err := flock(f, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, flock(f, unix.LOCK_UN)
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("locking %s: %w", f.Name(), err)
		}
		return nil
	}
}

func sameFile(f *os.File, path string) bool {
	var opened, named unix.Stat_t
	return unix.Fstat(int(f.Fd()), &opened) == nil && unix.Lstat(path, &named) == nil &&
		opened.Dev == named.Dev && opened.Ino == named.Ino
}

// lockHolder looks into the kernel's list of locks for a process that has one on f.
// The list hides processes of other pid namespaces: 0 then.
func lockHolder(f *os.File) int {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return 0
	}
	list, err := os.Open("/proc/locks")
	if err != nil {
		return 0
	}
	defer func() { _ = list.Close() }()
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for lines := bufio.NewScanner(list); lines.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 4242 00:1a:77 0 EOF
		fields := strings.Fields(lines.Text())
		if len(fields) >= 6 && fields[1] == "FLOCK" && fields[5] == want {
			pid, _ := strconv.Atoi(fields[4])
			return max(pid, 0)
		}
	}
	return 0
}
