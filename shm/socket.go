package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	network = "unixpacket" // SOCK_SEQPACKET: keeps message borders and reports hang-up

	// maxSocketPath is what the kernel's address structure holds, less the closing zero.
	maxSocketPath = 107

	// socketDraft is a socket's name until it accepts; it makes no path longer.
	socketDraft = unfinished + "sock"

	// dialTimeout bounds Dial: a stopped broker with a full backlog refuses us by EAGAIN.
	dialTimeout = 2 * time.Second
)

// ErrInUse is wrapped by Listen when another process listens at the path.
var ErrInUse = errors.New("another process listens here")

// Listener accepts clients at a Unix socket of type SOCK_SEQPACKET.
type Listener struct {
	inner *net.UnixListener
	path  string
}

// Listen is Access.Listen for this user alone.
func Listen(path string) (*Listener, error) { return Access{}.Listen(path) }

// Listen opens the socket at path for this user and those whom a admits; who connects is
// to be asked each time (Admits). Its directory must be this user's (MakeDir). A socket file that a dead broker left is replaced; one that somebody
// listens at is ErrInUse. The caller holds the directory's DirLock.
//
// The socket is bound under a draft name and renamed, so at path there is never one
// that does not accept yet or has wider rights.
func (a Access) Listen(path string) (*Listener, error) {
	if err := VerifyDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("listening at %s: %w", path, err)
	}
	draft := filepath.Join(filepath.Dir(path), socketDraft)
	if length := max(len(path), len(draft)); length > maxSocketPath {
		return nil, fmt.Errorf("listening at %s: the path has %d bytes, the kernel takes %d; set CALLBOARD_RUNTIME_DIR to a shorter one",
			path, length, maxSocketPath)
	}
	if err := refuseLiving(path); err != nil {
		return nil, err
	}
	if err := os.Remove(draft); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listening at %s: %w", path, err)
	}
	inner, err := net.ListenUnix(network, &net.UnixAddr{Name: draft, Net: network})
	if err != nil {
		return nil, fmt.Errorf("listening at %s: %w", path, err)
	}
	// Who removes the socket is the broker's decision: at a takeover nobody does.
	inner.SetUnlinkOnClose(false)
	if err = a.grantSocket(draft); err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		_ = inner.Close()
		_ = os.Remove(draft)
		return nil, fmt.Errorf("listening at %s: %w", path, err)
	}
	return &Listener{inner: inner, path: path}, nil
}

// refuseLiving fails unless path is free or a socket that nobody listens at.
func refuseLiving(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listening at %s: %w", path, err)
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("listening at %s: there is something else already (%s); remove it", path, describe(path))
	}
	probe, err := net.DialUnix(network, nil, &net.UnixAddr{Name: path, Net: network})
	if err == nil {
		_ = probe.Close()
		return fmt.Errorf("listening at %s: %w", path, ErrInUse)
	}
	if errors.Is(err, unix.EAGAIN) { // a full backlog: stopped, but alive
		return fmt.Errorf("listening at %s: %w", path, ErrInUse)
	}
	return nil
}

// Accept waits for the next client. After Close it returns net.ErrClosed. Other errors
// pass (no descriptors left, peer gone already): wait a little and call it again.
func (l *Listener) Accept() (*Conn, error) {
	inner, err := l.inner.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("accepting a client at %s: %w", l.path, err)
	}
	return newConn(inner)
}

// Path gives the socket's path.
func (l *Listener) Path() string { return l.path }

// Close stops accepting; accepted connections live on, and the socket file stays.
// Later calls do nothing.
func (l *Listener) Close() error {
	if err := l.inner.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Dial connects to the socket at path. It gives up after two seconds.
func Dial(path string) (*Conn, error) {
	deadline := time.Now().Add(dialTimeout)
	for {
		inner, err := net.DialUnix(network, nil, &net.UnixAddr{Name: path, Net: network})
		switch {
		case err == nil:
			return newConn(inner)
		case errors.Is(err, unix.EAGAIN) && time.Now().Before(deadline):
			time.Sleep(time.Millisecond)
		case errors.Is(err, unix.EAGAIN):
			return nil, fmt.Errorf("connecting to %s: the broker has not accepted for %v, it is stopped or overloaded: %w", path, dialTimeout, ErrTimeout)
		case errors.Is(err, unix.ECONNREFUSED):
			return nil, fmt.Errorf("connecting to %s: nobody listens, the broker that made it is gone; start one with `callboard serve`: %w", path, err)
		default:
			return nil, fmt.Errorf("connecting to %s (%s): %w", path, describe(path), err)
		}
	}
}
