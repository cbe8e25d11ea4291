package shm

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PeerGroups gives the supplementary groups that the peer had when it connected.
func (c *Conn) PeerGroups() (groups []uint32, err error) {
	groups = make([]uint32, 64)
	for {
		size := uint32(4 * len(groups))
		var errno unix.Errno
		controlErr := c.raw.Control(func(fd uintptr) {
			_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
				uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		})
		switch {
		case controlErr == nil && errno == 0:
			return groups[:size/4], nil
		case errno == unix.ERANGE && int(size)/4 > len(groups): // the kernel says how many there are
			groups = make([]uint32, size/4)
		default:
			return nil, fmt.Errorf("asking for the peer's groups: %w", errors.Join(controlErr, errno))
		}
	}
}
