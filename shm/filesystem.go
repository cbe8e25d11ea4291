package shm

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// FileSystem gives the size and the free room, in bytes, of the file system that path
// lies on.
func FileSystem(path string) (total, available uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, 0, fmt.Errorf("looking at the file system of %s: %w", path, err)
	}
	return st.Blocks * uint64(st.Bsize), st.Bavail * uint64(st.Bsize), nil
}
