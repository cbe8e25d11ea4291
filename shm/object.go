package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// ChannelPrefix begins the name of every client's channel object. `gc` tells by the
	// locks on these whether a client still lives.
	ChannelPrefix = "channel-"

	maxObjectName = 100
	// unfinished begins the names of objects in the making; nothing looks for them but
	// the removal of their generation (field report A3).
	unfinished = ".new-"
)

// ErrNotPlain is wrapped when what has an object's name is no file that a broker of this
// user made: a directory, a link, a pipe, or one that may not be opened.
var ErrNotPlain = errors.New("not a plain file of this user")

// Object is a named shared-memory object, held open. Only brokers create and remove
// them; clients get descriptors of them over a Conn and never see a name (design D1).
// It belongs to one goroutine.
type Object struct {
	path string
	size uint64
	file *os.File
	dev  uint64
	ino  uint64
}

// CreateObject makes the object name of size bytes in directory dir, mode 0600, with
// all its pages reserved and zero. It gets its name only when it is complete. A name
// that is taken is an error (os.ErrExist), a full file system a *NoSpaceError.
//
// It may take milliseconds per 10 MiB: never call it in the stage loop (rule S2).
func CreateObject(dir, name string, size uint64) (*Object, error) {
	if err := checkObjectName(name); err != nil {
		return nil, err
	}
	if size == 0 || size > 1<<62 {
		return nil, fmt.Errorf("creating object %s: a size of %d bytes is not possible", name, size)
	}
	path, draft := filepath.Join(dir, name), filepath.Join(dir, unfinished+name)
	f, err := os.OpenFile(draft, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating object %s: %w", path, err)
	}
	o, err := finish(f, draft, path, size)
	if err != nil {
		_ = f.Close()
		_ = os.Remove(draft)
		return nil, err
	}
	return o, nil
}

func finish(f *os.File, draft, path string, size uint64) (*Object, error) {
	// An unusual umask must not take the owner's rights away.
	if err := f.Chmod(0o600); err != nil {
		return nil, fmt.Errorf("creating object %s: %w", path, err)
	}
	if err := reserve(f, path, size); err != nil {
		return nil, err
	}
	// NOREPLACE: a name is never given twice; whoever has the old object mapped would
	// silently go on with something nobody else sees (field report A25).
	if err := unix.Renameat2(unix.AT_FDCWD, draft, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE); err != nil {
		return nil, fmt.Errorf("creating object %s: %w", path, err)
	}
	return newObject(f, path)
}

// OpenObject opens an existing object of this user for reading and writing. Recovery
// uses it; the size is what the file has. It waits for nothing and follows no link:
// whatever else has the name is ErrNotPlain.
func OpenObject(dir, name string) (*Object, error) {
	if err := checkObjectName(name); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO), errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("opening object %s (%s): %w: %w", path, describe(path), ErrNotPlain, err)
	case err != nil:
		return nil, fmt.Errorf("opening object %s (%s): %w", path, describe(path), err)
	}
	o, err := newObject(f, path)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return o, nil
}

func newObject(f *os.File, path string) (*Object, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("opening object %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("opening object %s (%s): %w: expected one of uid %d", path, describe(path), ErrNotPlain, os.Geteuid())
	}
	return &Object{path: path, size: uint64(st.Size), file: f, dev: st.Dev, ino: st.Ino}, nil
}

// Path names the object's file, for messages.
func (o *Object) Path() string { return o.path }

// Size gives the number of bytes that the object had when it was created or opened.
func (o *Object) Size() uint64 { return o.size }

// File gives the broker's own descriptor; Close ends it. Do not pass this one to a
// client: a lock that the client takes or keeps on it would be ours too (see Unused).
func (o *Object) File() *os.File { return o.file }

// Map maps the whole object.
func (o *Object) Map(writable bool) (*Mapping, error) { return Map(o.file, o.size, writable) }

// ReadOnlyFile opens the object anew for reading only. Readers get this one, so that
// the kernel keeps them from mapping it writable. The caller closes it.
func (o *Object) ReadOnlyFile() (*os.File, error) { return o.reopen(os.O_RDONLY) }

// WritableFile opens the object anew for reading and writing, with a file description
// of its own: a lock on it is not one on File. The caller closes it.
func (o *Object) WritableFile() (*os.File, error) { return o.reopen(os.O_RDWR) }

func (o *Object) reopen(mode int) (*os.File, error) {
	f, err := os.OpenFile(o.path, mode|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("reopening object %s (%s): %w", o.path, describe(o.path), err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Dev != o.dev || st.Ino != o.ino {
		_ = f.Close()
		return nil, fmt.Errorf("reopening object %s: somebody has put another file in its place", o.path)
	}
	return f, nil
}

// Unused says whether nobody holds a lock on the object: for a channel, whether its
// client is proven dead (rule I3). It asks through File, so that one must never have
// been passed on or locked.
func (o *Object) Unused() (bool, error) { return tryExclusive(o.file) }

// Remove takes the name away; mappings and descriptors live on. One that is gone
// already is no error: users do delete files in /dev/shm (field report A1).
func (o *Object) Remove() error {
	if err := os.Remove(o.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing object: %w", err)
	}
	return nil
}

// Close closes the broker's descriptor; the object and its mappings stay. Later calls
// do nothing.
func (o *Object) Close() error {
	if err := o.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("closing object %s: %w", o.path, err)
	}
	return nil
}

func checkObjectName(name string) error {
	ok := name != "" && len(name) <= maxObjectName && name[0] != '.'
	ok = ok && strings.IndexFunc(name, func(r rune) bool { return !nameRune(r) && r != '.' }) < 0
	if !ok {
		return fmt.Errorf("object name %q: expected 1 to %d of [A-Za-z0-9._-], not beginning with a dot", name, maxObjectName)
	}
	return nil
}
