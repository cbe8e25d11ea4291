package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// DefaultShmBase is where shared memory lies unless `serve --shm-dir` says otherwise.
	DefaultShmBase = "/dev/shm"

	maxStageName = 32
	// makeTries bounds the retries when others remove a directory while we make it.
	makeTries = 100
)

// CheckStage refuses a stage name that is not 1 to 32 of [A-Za-z0-9_-] (rule L5).
func CheckStage(stage string) error {
	if stage == "" || len(stage) > maxStageName || strings.IndexFunc(stage, func(r rune) bool { return !nameRune(r) }) >= 0 {
		return fmt.Errorf("stage name %q: expected 1 to %d of [A-Za-z0-9_-]", stage, maxStageName)
	}
	return nil
}

// ShmDir gives the directory of a stage's memory: <base>/callboard-<uid>/<stage>.
// An empty base is DefaultShmBase.
func ShmDir(base, stage string) string {
	return filepath.Join(userDir(base), stage)
}

func userDir(base string) string {
	if base == "" {
		base = DefaultShmBase
	}
	return filepath.Join(base, fmt.Sprintf("callboard-%d", os.Geteuid()))
}

// DirError says why a directory is not used (rule I5, field reports C3, C4).
type DirError struct {
	Path    string
	Found   string // owner and mode, or why they cannot be read
	Problem string
	Err     error // the system's error, if there was one
}

func (e *DirError) Error() string {
	return fmt.Sprintf("directory %s (%s): %s", e.Path, e.Found, e.Problem)
}

func (e *DirError) Unwrap() error { return e.Err }

// VerifyDir accepts path only if it is a directory, no symbolic link, owned by this user
// or by one of allow, and nobody else may list or change it: mode 0700, or 0710, 0711 or
// 0750 of a broker that admits others (Access). The directory above is held to the same
// if it is one of ours (named callboard or callboard-<uid>).
func VerifyDir(path string, allow ...uint32) error {
	path = filepath.Clean(path)
	if parent := filepath.Dir(path); oursByName(parent) {
		if err := verifyOne(parent, allow); err != nil {
			return err
		}
	}
	return verifyOne(path, allow)
}

func verifyOne(path string, allow []uint32) error {
	bad := func(err error, format string, args ...any) error {
		return &DirError{Path: path, Found: describe(path), Problem: fmt.Sprintf(format, args...), Err: err}
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return bad(err, "cannot be looked at: %v", err)
	}
	uid := uint32(os.Geteuid())
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return bad(nil, "is a symbolic link, which could lead into somebody else's directory; remove it")
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return bad(unix.ENOTDIR, "is no directory; remove it")
	case st.Uid != uid && !slices.Contains(allow, st.Uid):
		return bad(nil, "belongs to another user; expected uid %d. Remove it, or set CALLBOARD_RUNTIME_DIR (serve: --shm-dir) to a place of your own. To use that user's broker, which must admit you, set %s=%d", uid, TrustEnv, st.Uid)
	case st.Mode&0o700 != 0o700 || st.Mode&0o026 != 0:
		return bad(nil, "others may list or change it, or its owner may not; expected mode 0700 (chmod 0700 %s)", path)
	}
	return nil
}

// describe tells owner and mode of path for an error's reader.
func describe(path string) string {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "does not exist"
	case err != nil:
		// Which of the directories above refuses is what the reader needs to know.
		if parent := filepath.Dir(path); parent != path {
			return fmt.Sprintf("not readable; %s: %s", parent, describe(parent))
		}
		return err.Error()
	}
	uid := "?"
	var st unix.Stat_t
	if unix.Lstat(path, &st) == nil {
		uid = fmt.Sprint(st.Uid)
	}
	return fmt.Sprintf("owner uid %s, mode %s", uid, info.Mode())
}

// oursByName says whether Callboard gave the directory its name.
func oursByName(path string) bool {
	name := filepath.Base(path)
	return name == "callboard" || strings.HasPrefix(name, "callboard-")
}

// MakeDir makes path, mode 0700, with all that is missing above it, and verifies it as
// VerifyDir does. It may run beside others that remove empty directories (rule S1).
func MakeDir(path string) error {
	path = filepath.Clean(path)
	var err error
	for range makeTries {
		// Nothing is put into a directory that is refused.
		if parent := filepath.Dir(path); oursByName(parent) {
			if err = verifyOne(parent, nil); err != nil && !errors.Is(err, os.ErrNotExist) {
				break
			}
		}
		if err = makeMissing(path); err == nil {
			err = VerifyDir(path)
		}
		if !errors.Is(err, os.ErrNotExist) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("making a private directory: %w", err)
	}
	return nil
}

func makeMissing(path string) error {
	err := os.Mkdir(path, 0o700)
	switch {
	case err == nil:
		// The umask may have taken rights away. Gone again is the caller's retry.
		return os.Chmod(path, 0o700)
	case errors.Is(err, os.ErrExist):
		return nil
	case errors.Is(err, os.ErrNotExist) && filepath.Dir(path) != path:
		if err := makeMissing(filepath.Dir(path)); err != nil {
			return err
		}
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		return os.Chmod(path, 0o700)
	default:
		return &DirError{Path: path, Found: describe(path), Problem: fmt.Sprintf("cannot be made: %v", err), Err: err}
	}
}

// LeaveDir removes path if it is empty, then the directory above it if that is ours and
// empty: whoever leaves last cleans up (rule S1). Others in there are no error.
func LeaveDir(path string) error {
	path = filepath.Clean(path)
	for _, dir := range []string{path, filepath.Dir(path)} {
		if dir != path && !oursByName(dir) {
			return nil
		}
		err := unix.Rmdir(dir)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
		case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST), errors.Is(err, unix.EBUSY):
			return nil
		default:
			return &DirError{Path: dir, Found: describe(dir), Problem: fmt.Sprintf("cannot be removed: %v", err), Err: err}
		}
	}
	return nil
}
