package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// NoSpaceError says that a file system cannot hold an object (field reports B1, B6). It
// is ENOSPC to errors.Is. All numbers are bytes.
type NoSpaceError struct {
	Path       string // the object that could not be made
	FileSystem string // "tmpfs" and the like
	Need       uint64
	Available  uint64
	Total      uint64
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("no space for %s: need %d bytes, %d of %d bytes are available on that %s; "+
		"free some (`callboard gc` lists what dead brokers left), choose another place (`serve --shm-dir`), "+
		"or make it larger: in a container --shm-size=%dm, else mount -o remount,size=…",
		e.Path, e.Need, e.Available, e.Total, e.FileSystem, (e.Total-e.Available+2*e.Need)>>20+1)
}

// Is makes errors.Is(err, unix.ENOSPC) true, so callers above need not know the type.
func (e *NoSpaceError) Is(target error) bool { return target == unix.ENOSPC }

// reserveStep bounds one fallocate call. A signal makes tmpfs undo the whole call, so
// a single large one might never finish in a process that gets many signals.
const reserveStep = 16 << 20

// reserveAfterLook lets tests act between reserve's look and its doing.
var reserveAfterLook = func() {}

// reserve gives f size bytes of real pages.
func reserve(f *os.File, path string, size uint64) error {
	// Asked first, so that a hopeless request does not fill the file system for a moment
	// and hurt neighbours. fallocate decides: others allocate too.
	if space, err := statSpace(f, path, size); err == nil && space.Total > 0 && space.Available < size {
		return space
	}
	reserveAfterLook()
	for done := uint64(0); done < size; {
		step := min(size-done, reserveStep)
		err := unix.Fallocate(int(f.Fd()), 0, int64(done), int64(step))
		switch {
		case err == nil:
			done += step
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.ENOMEM):
			// Give back first, so that Available is what the next try would find.
			_ = unix.Ftruncate(int(f.Fd()), 0)
			space, statErr := statSpace(f, path, size)
			if statErr != nil {
				return fmt.Errorf("reserving %d bytes for %s: %w", size, path, err)
			}
			return space
		default:
			return fmt.Errorf("reserving %d bytes for %s (the file system must know fallocate, as tmpfs does): %w", size, path, err)
		}
	}
	return nil
}

func statSpace(f *os.File, path string, need uint64) (*NoSpaceError, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	return &NoSpaceError{
		Path:       path,
		FileSystem: fileSystemName(int64(st.Type)),
		Need:       need,
		Available:  st.Bavail * uint64(st.Bsize),
		Total:      st.Blocks * uint64(st.Bsize),
	}, nil
}

func fileSystemName(magic int64) string {
	switch magic {
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	default:
		return fmt.Sprintf("file system of type %#x", magic)
	}
}
