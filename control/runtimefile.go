package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// RuntimeVersion is the version of the runtime file.
const RuntimeVersion = 1

// RuntimeFileName is its name in a stage's runtime directory.
const RuntimeFileName = "nats.json"

const maxRuntimeFile = 64 << 10

// RuntimeInfo is the content of the runtime file: where NATS is and how to get in.
type RuntimeInfo struct {
	Version    int        `json:"version"`
	URL        string     `json:"url"`
	Host       string     `json:"host"`
	Stage      string     `json:"stage"`
	Generation uint64     `json:"generation,string"`
	Full       Credential `json:"full"`
	Observer   Credential `json:"observer"`
}

// WriteRuntimeFile writes the file with mode 0600. Readers see the old file or the new one, never half of one. One
// process writes it at a time, which holds the directory's lock: what one left that was killed meanwhile is replaced.
func WriteRuntimeFile(path string, info RuntimeInfo) error {
	info.Version = RuntimeVersion
	data, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return fmt.Errorf("writing runtime file %s: %w", path, err)
	}
	draft := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	if err := os.Remove(draft); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("writing runtime file %s: %w", path, err)
	}
	temporary, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("writing runtime file %s: %w", path, err)
	}
	_, err = temporary.Write(append(data, '\n'))
	if closing := temporary.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		_ = os.Remove(draft)
		return fmt.Errorf("writing runtime file %s: %w", path, err)
	}
	return nil
}

// ReadRuntimeFile reads a file that WriteRuntimeFile wrote. It refuses a file that another user owns or can reach, since
// that user could have put a server of his own into it: the checks are made on the opened file, not on its name.
func ReadRuntimeFile(path string) (RuntimeInfo, error) {
	fail := func(format string, v ...any) (RuntimeInfo, error) {
		return RuntimeInfo{}, fmt.Errorf("reading runtime file %s: "+format, append([]any{path}, v...)...)
	}
	// Without O_NONBLOCK a named pipe in its place would hang the reader.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return RuntimeInfo{}, fmt.Errorf("reading runtime file: %w; is a broker running for this stage?", err)
	}
	defer file.Close()
	stat, err := file.Stat()
	if err != nil {
		return fail("%w", err)
	}
	if !stat.Mode().IsRegular() {
		return fail("it is no regular file (%v)", stat.Mode())
	}
	if owner := stat.Sys().(*syscall.Stat_t).Uid; int(owner) != os.Geteuid() {
		return fail("it belongs to user id %d: expected %d, the user of this process", owner, os.Geteuid())
	}
	if mode := stat.Mode().Perm(); mode&0o077 != 0 {
		return fail("its mode is %#o, others can reach the credentials in it: expected 0600", mode)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxRuntimeFile+1))
	if err != nil {
		return fail("%w", err)
	}
	if len(data) > maxRuntimeFile {
		return fail("it is longer than %d bytes", maxRuntimeFile)
	}
	// The version is read alone first: a file of another version need not have this one's fields.
	var only struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &only); err != nil {
		return fail("it is not the JSON that a broker writes: %w", err)
	}
	if only.Version != RuntimeVersion {
		return fail("it has version %d, this program reads version %d: update the older of the two", only.Version, RuntimeVersion)
	}
	var info RuntimeInfo
	if err := json.Unmarshal(data, &info); err != nil {
		return fail("it is not the JSON that a broker writes: %w", err)
	}
	return info, nil
}
