package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendmsgAsIs is sendmsg(2) without the byte that Go's wrapper adds to an empty message
// with descriptors: a hostile peer would not add it.
func sendmsgAsIs(fd int, msg, control []byte) error {
	header := unix.Msghdr{Control: &control[0], Controllen: uint64(len(control))}
	if len(msg) > 0 {
		part := unix.Iovec{Base: &msg[0], Len: uint64(len(msg))}
		header.Iov, header.Iovlen = &part, 1
	}
	_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&header)), unix.MSG_NOSIGNAL)
	if errno != 0 {
		return errno
	}
	return nil
}
