package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNoPidFD says that the peer's process cannot be watched: it is in another pid
// namespace, or gone. The channel lock decides then alone (rule I3).
var ErrNoPidFD = errors.New("no process descriptor for the peer")

// PeerCred says who connected, as the kernel recorded it then. pid is for display only
// (rule I1): it may be reused, and it is 0 where the peer's pid namespace hides it.
func (c *Conn) PeerCred() (pid int, uid, gid uint32, err error) {
	var cred *unix.Ucred
	controlErr := c.raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(controlErr, err); err != nil {
		return 0, 0, 0, fmt.Errorf("asking who the peer is: %w", err)
	}
	return int(cred.Pid), cred.Uid, cred.Gid, nil
}

// PidFD gives a descriptor of the peer's process, for Exited. The caller closes it.
// The socket itself names the process where the kernel can (6.5 and later). Else the
// pid is opened and the socket looked at afterwards: if the peer still holds it then,
// the pid was its own when it was opened. ErrNoPidFD where neither works.
func (c *Conn) PidFD() (*os.File, error) {
	fd, sockErr := -1, error(nil)
	controlErr := c.raw.Control(func(sock uintptr) {
		fd, sockErr = unix.GetsockoptInt(int(sock), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	})
	if controlErr != nil {
		return nil, fmt.Errorf("opening the peer's process: %w", controlErr)
	}
	if sockErr == nil && fd >= 0 {
		return os.NewFile(uintptr(fd), "pidfd"), nil
	}
	return c.pidFDByNumber()
}

func (c *Conn) pidFDByNumber() (*os.File, error) {
	pid, _, _, err := c.PeerCred()
	if err != nil {
		return nil, err
	}
	if pid <= 0 {
		return nil, fmt.Errorf("%w: it is in another pid namespace", ErrNoPidFD)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: pid %d: %w", ErrNoPidFD, pid, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	if c.HungUp() {
		_ = f.Close()
		return nil, fmt.Errorf("%w: it has hung up", ErrNoPidFD)
	}
	return f, nil
}

// Exited says whether the process behind a descriptor of PidFD has ended.
func Exited(pidfd *os.File) (bool, error) {
	events, err := pollNow(int(pidfd.Fd()), unix.POLLIN)
	if err != nil {
		return false, fmt.Errorf("looking at a process: %w", err)
	}
	return events&(unix.POLLIN|unix.POLLHUP) != 0, nil
}
