package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// MaxFiles is the number of descriptors that one message may carry.
	MaxFiles = 16

	// SendTimeout bounds Send: a peer that has not read for so long is taken for stopped.
	SendTimeout = 2 * time.Second
)

// TruncatedError says that a message did not fit. Its descriptors are closed.
type TruncatedError struct {
	Buffer int  // bytes that the receive buffer had
	Bytes  bool // the message was longer
	Files  bool // it carried more than MaxFiles descriptors, or this process may open no more
}

func (e *TruncatedError) Error() string {
	if e.Files {
		return fmt.Sprintf("message with descriptors was cut: it carries more than %d, or this process is at its limit of open files (ulimit -n)", MaxFiles)
	}
	return fmt.Sprintf("message was cut: it is longer than %d bytes", e.Buffer)
}

// Conn is one end of a connection that keeps message borders and carries descriptors.
// Closing it, or the death of its process, is what ends a session (rule I2).
//
// One goroutine may receive while others send; Close is safe at any time and ends both.
type Conn struct {
	inner *net.UnixConn
	raw   syscall.RawConn

	sending sync.Mutex // one waiting sender at a time: they share the write deadline
}

func newConn(inner *net.UnixConn) (*Conn, error) {
	raw, err := inner.SyscallConn()
	if err != nil {
		_ = inner.Close()
		return nil, fmt.Errorf("opening a connection: %w", err)
	}
	return &Conn{inner: inner, raw: raw}, nil
}

// Send sends one message with copies of the descriptors fds, which stay the caller's.
// It waits at most SendTimeout for a peer that does not read; then ErrTimeout, and
// nothing is sent.
func (c *Conn) Send(msg []byte, fds ...int) error {
	return c.SendWithin(SendTimeout, msg, fds...)
}

// SendWithin is Send with a bound of the caller's. Zero or less does not wait at all.
func (c *Conn) SendWithin(limit time.Duration, msg []byte, fds ...int) error {
	if len(msg) == 0 {
		return errors.New("sending: a message must have at least one byte, an empty one reads as the end")
	}
	if len(fds) > MaxFiles {
		return fmt.Errorf("sending: %d descriptors in a message, at most %d are possible", len(fds), MaxFiles)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	var sendErr error
	attempt := func(fd uintptr) {
		for {
			_, sendErr = unix.SendmsgN(int(fd), msg, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			if !errors.Is(sendErr, unix.EINTR) {
				return
			}
		}
	}
	if limit <= 0 {
		// Control takes no turn behind another sender that waits.
		err := c.raw.Control(attempt)
		return sendError(errors.Join(err, sendErr), len(msg))
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	if err := c.inner.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return sendError(err, len(msg))
	}
	err := c.raw.Write(func(fd uintptr) bool {
		attempt(fd)
		return !errors.Is(sendErr, unix.EAGAIN)
	})
	if err == nil {
		err = sendErr
	}
	return sendError(err, len(msg))
}

func sendError(err error, size int) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("sending %d bytes: the peer does not read: %w", size, ErrTimeout)
	default:
		return fmt.Errorf("sending %d bytes: %w", size, err)
	}
}

// Recv waits for the next message, puts it into buf and returns its length and the
// descriptors that came with it, which are the caller's to close.
//
// io.EOF: the peer has closed or died. *TruncatedError: the message was longer than buf
// or carried too many descriptors. On any error no descriptor stays open.
func (c *Conn) Recv(buf []byte) (n int, files []*os.File, err error) {
	return c.recv(buf, time.Time{})
}

// RecvWithin is Recv that gives up after limit with ErrTimeout.
func (c *Conn) RecvWithin(limit time.Duration, buf []byte) (n int, files []*os.File, err error) {
	return c.recv(buf, time.Now().Add(limit))
}

func (c *Conn) recv(buf []byte, deadline time.Time) (int, []*os.File, error) {
	if len(buf) == 0 {
		return 0, nil, errors.New("receiving: the buffer is empty")
	}
	if err := c.inner.SetReadDeadline(deadline); err != nil {
		return 0, nil, recvError(err)
	}
	control := make([]byte, unix.CmsgSpace(MaxFiles*4))
	// ReadMsgUnix sets MSG_CMSG_CLOEXEC: no child can inherit what arrives.
	n, controlLen, flags, _, err := c.inner.ReadMsgUnix(buf, control)
	// Look for descriptors even after an error: an empty message may carry some, too.
	files, parseErr := takeFiles(control[:controlLen])
	if err == nil {
		err = parseErr
	}
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = &TruncatedError{Buffer: len(buf), Bytes: flags&unix.MSG_TRUNC != 0, Files: flags&unix.MSG_CTRUNC != 0}
	}
	if err != nil {
		closeAll(files)
		return 0, nil, recvError(err)
	}
	return n, files, nil
}

func recvError(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("receiving: %w", ErrTimeout)
	default:
		return fmt.Errorf("receiving: %w", err)
	}
}

// takeFiles gives every descriptor in the control data an owner.
func takeFiles(control []byte) (files []*os.File, err error) {
	if len(control) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(control)
	for i := range messages {
		if messages[i].Header.Level != unix.SOL_SOCKET || messages[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, rightsErr := unix.ParseUnixRights(&messages[i])
		if rightsErr != nil {
			err = rightsErr
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// StopReceiving lets no further message of the peer in: its sends fail from now on. What
// it sent before is still there for Recv, which ends with io.EOF then.
func (c *Conn) StopReceiving() error {
	if err := c.inner.CloseRead(); err != nil {
		return fmt.Errorf("ending what can be received: %w", err)
	}
	return nil
}

// HungUp says whether the peer has closed its end or died, without reading or waiting.
// Messages that it sent before may still be there for Recv.
func (c *Conn) HungUp() bool {
	gone := true
	err := c.raw.Control(func(fd uintptr) {
		events, pollErr := pollNow(int(fd), unix.POLLRDHUP)
		gone = pollErr == nil && events&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return err != nil || gone
}

// Close ends the connection; the peer sees a hang-up. Later calls do nothing.
func (c *Conn) Close() error {
	if err := c.inner.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func pollNow(fd int, events int16) (int16, error) {
	set := []unix.PollFd{{Fd: int32(fd), Events: events}}
	for {
		_, err := unix.Poll(set, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return set[0].Revents, err
	}
}
