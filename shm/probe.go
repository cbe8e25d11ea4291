package shm

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Feature is something of the kernel or of a file system that Callboard uses.
type Feature struct {
	Name    string
	Err     error  // why it is not there; nil: it is
	Needed  bool   // nothing works without it
	Without string // what is different without it
}

// Features tries what Callboard needs of this kernel, and of the file system of dir. It
// leaves nothing there.
func Features(dir string) []Feature {
	onFile := func(try func(f *os.File) error) error {
		f, err := os.CreateTemp(dir, ".callboard-probe-")
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if err := os.Remove(f.Name()); err != nil {
			return err
		}
		return try(f)
	}
	return []Feature{
		{Name: "reserving pages (fallocate)", Needed: true, Without: "shared memory could run out while it is used",
			Err: onFile(func(f *os.File) error { return unix.Fallocate(int(f.Fd()), 0, 0, 4096) })},
		{Name: "locks on files (flock)", Needed: true, Without: "nothing proves that a process has ended",
			Err: onFile(func(f *os.File) error { return flock(f, unix.LOCK_EX|unix.LOCK_NB) })},
		{Name: "shared mappings", Needed: true, Without: "there is no shared memory",
			Err: onFile(func(f *os.File) error {
				if err := f.Truncate(4096); err != nil {
					return err
				}
				m, err := Map(f, 4096, true)
				if err != nil {
					return err
				}
				return m.Close()
			})},
		{Name: "process descriptors (pidfd)", Without: "the lock on a client's channel alone proves its death", Err: tryPidFD()},
		{Name: "process of a socket (SO_PEERPIDFD)", Without: "a client's process is found by its number, which is checked afterwards", Err: tryPeerPidFD()},
	}
}

func tryPidFD() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func tryPeerPidFD() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() {
		_ = unix.Close(pair[0])
		_ = unix.Close(pair[1])
	}()
	fd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// FileSystemType names the kind of file system that path lies on: "tmpfs" and the like.
func FileSystemType(path string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return "", fmt.Errorf("looking at the file system of %s: %w", path, err)
	}
	return fileSystemName(int64(st.Type)), nil
}

// KernelRelease is what `uname -r` prints.
func KernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
